"""A real job that goes back to a window: what was judged since is judged once more, and says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deduper.admin.move.rewind import ASIDE, plan_rewind, rewind
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from tests.spark.harness import PORTS, Job
from tests.spark.test_job_move import EXPIRY, outputs, records

pytestmark = pytest.mark.spark


def opened(job: Job) -> OpenStore:
    """The store with its config."""
    store = open_store(job.config.store.url)
    return OpenStore(store.url, job.config, store.log, store.pieces)


@pytest.mark.parametrize("backend", ["file", pytest.param("rocksdb", marks=pytest.mark.night)])
def test_windows_after_it_are_judged_once_more(backend: str, new_job: Callable[..., Job]) -> None:
    """Their outputs are set aside and written again, the same ones; the store is sound."""
    settings: dict[str, Any] = {"expiry": EXPIRY, "source": {"max_files_per_batch": 1}}
    job = new_job(store={"url": f"{backend}:state", "shards": 2}, **settings)
    for number in range(5):
        job.add_records(records(number))
    job.run()
    before = outputs(job)
    plan = plan_rewind(opened(job), 1)
    assert (plan.windows_undone, plan.is_executed) == (3, False)
    assert outputs(job) == before
    report = rewind(opened(job), 1)
    assert report.before == report.after
    left = outputs(job)
    assert {row[2] for rows in left.values() for row in rows} == {0, 1}
    assert len(report.outputs) == sum(
        len(list((job.directory / "out" / port / ASIDE).rglob("*.parquet"))) for port in PORTS
    )
    job.run()
    assert outputs(job) == before
    assert not verify_store(opened(job)).findings
