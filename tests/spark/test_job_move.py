"""A real job whose state is moved between its runs: four outputs as the oracle has them, and as a job left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deduper.admin.move.reshard import reshard
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from deduper.errors import exit_code_of
from deduper.testing import Oracle, Row, Settings
from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark

EXPIRY = {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"}


def records(number: int) -> list[dict[str, Any]]:
    """A file whose keys come again in later ones, within the period and beyond it."""
    fresh = [{"k": f"{(number * 7 + key) % 90}", "t": number * 30 + key % 7} for key in range(60)]
    return [*fresh, {"k": "late", "t": number * 30 - 200}, {"k": "no time", "t": None}]


def outputs(job: Job) -> dict[str, list[tuple[Any, ...]]]:
    """Which record left where, and its first copy."""
    return {
        port: sorted(
            (Path(dedup["source"]).name, dedup["position"], dedup["window"], dedup["reason"], str(_first(dedup)))
            for dedup in (row["_dedup"] for row in job.rows(port))
        )
        for port in PORTS
    }


def _first(dedup: dict[str, Any]) -> Any:
    first = dedup["first_seen"]
    return first and {**first, "source": Path(first["source"]).name}


@pytest.mark.parametrize("backend", [pytest.param("file", marks=pytest.mark.night), "rocksdb"])
def test_a_job_goes_on_with_seven_shards_as_with_four(backend: str, new_job: Callable[..., Job]) -> None:
    """Four windows, re-sharded, four more; a config that still says 4 is refused."""
    settings: dict[str, Any] = {"expiry": EXPIRY, "source": {"max_files_per_batch": 1}}
    left_alone = new_job("left alone", store={"url": f"{backend}:state", "shards": 4}, **settings)
    job = new_job("moved", store={"url": f"{backend}:state", "shards": 4}, **settings)
    for number in range(8):
        left_alone.add_records(records(number))
    files = [job.add_records(records(number)) for number in range(4)]
    left_alone.run()
    job.run()
    report = reshard(open_store(job.config.store.url), 7)
    assert report.is_sound
    assert report.keys > 0
    files += [job.add_records(records(number)) for number in range(4, 8)]
    with pytest.raises(Exception, match="shards") as refused:
        job.run()
    assert exit_code_of(refused.value) == 2
    job.settings = {**job.settings, "store": {"url": f"{backend}:state", "shards": 7}}
    job.run()
    oracle = Oracle(Settings("ordered", period=100, span=10, lookup="all_live"))
    said = [oracle.judge([[Row((row["k"],), row["t"]) for row in records(number)]], 0) for number in range(8)]
    assert job.verdicts(files) == [[answer[0] for answer in part] for window in said for part in window]
    assert outputs(job) == outputs(left_alone)
    assert all(outputs(job).values())
    assert not verify_store(open_store(job.config.store.url)).findings
