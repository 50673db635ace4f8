"""An owner that was taken over may still write Spark's checkpoint: the new one goes on all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from deduper.progress import BatchProgress
from tests.spark.harness import Job

pytestmark = pytest.mark.spark


class Colliding(list[BatchProgress]):
    """Windows' progress, at the first of which another driver notes the batch as done."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def append(self, progress: BatchProgress) -> None:
        super().append(progress)
        if progress.window == 0:
            commits = self._job.config.checkpoint_path / "commits"
            commits.mkdir(exist_ok=True)
            (commits / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_number_that_another_took_is_read_again(
    new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    """Spark gives up its query when a number of its log is taken; the job starts another one."""
    job = new_job(source={"max_files_per_batch": 1})
    files = [job.add_records([{"k": f"{number}", "t": 0}, {"k": "same", "t": 0}]) for number in range(3)]
    job.progress = Colliding(job)
    with caplog.at_level(logging.WARNING):
        assert job.run().windows == 3
    assert "the old owner still writes" in caplog.text
    assert job.verdicts(files) == [["unique", "unique"], ["unique", "duplicate"], ["unique", "duplicate"]]
