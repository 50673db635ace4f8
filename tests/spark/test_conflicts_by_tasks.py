"""Conflicts of a job whose windows are read, judged and written by Spark's tasks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pyarrow import parquet

from deduper import Never
from deduper.core.verdict import CONFLICT_REASONS
from deduper.tasks import write as write_task
from deduper.testing import verdicts
from tests.spark.harness import Job

pytestmark = [pytest.mark.spark, pytest.mark.night]


@pytest.mark.parametrize("on_conflict", ["duplicate", "error", "unique"])
def test_tasks_say_what_the_oracle_says(
    on_conflict: Literal["duplicate", "error", "unique"], new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port and reason of every record, with three conflicts in ten copies; a second run goes on with the store."""
    monkeypatch.setattr(write_task, "_WRITER_BYTES", 1)
    draw = random.Random(3)
    windows = [
        [{"k": f"k{draw.randrange(900)}", "t": int(draw.random() < 0.3), "sent": draw.random()} for _ in range(1500)]
        for _ in range(4)
    ]
    payload: dict[str, Any] = {"fingerprint": {"except": ["sent"]}, "on_conflict": on_conflict}
    job = new_job(source={"schema": "k string, t long, sent double", "max_files_per_batch": 1}, **payload)
    for rows in windows[:2]:
        job.add_records(rows)
    job.run()
    for rows in windows[2:]:
        job.add_records(rows)
    job.run()
    found: list[list[tuple[str, str]]] = [[("", "")] * len(rows) for rows in windows]
    for port in ("unique", "duplicate", "expired", "error"):
        for file in (job.directory / "out" / port).glob("[0-9a-f]*.parquet"):
            for said in parquet.ParquetFile(file).read().column("_dedup").to_pylist():
                found[said["window"]][said["position"]] = said["verdict"], said["reason"] or ""
    expected = verdicts(windows, key="k", expiry=Never(), **payload)
    assert found == [[(judged.port, judged.reason) for judged in window] for window in expected]
    assert any(reason in CONFLICT_REASONS for window in found for _, reason in window)
