"""The command's work: files in, files out that appear whole, without Spark where the result is the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from deduper.errors import UsageError
from deduper.ranges.batch.plain_files import run_plain
from deduper.ranges.batch.plain_sides import OnlySpark
from deduper.ranges.batch.report import Report
from deduper.ranges.batch.settings import RangeJob

logger = logging.getLogger(__name__)


def run(job: RangeJob, *, plan_only: bool, on_progress: Callable[[str], None]) -> Report:
    """Read, answer and write, or only plan.

    Raises:
        UsageError: a file that is absent, an output that exists, or columns that do not fit.
        DeduperError: a bad row without a place for bad rows, a sum beyond its type, a full disk.
        IntegrityError: rows and bad rows are together not the rows that were read.
    """
    _require_places(job)
    begun = time.monotonic()
    try:
        report = run_plain(job, plan_only=plan_only, on_progress=on_progress)
    except OnlySpark as exc:
        logger.info("Spark reads and writes the files: %s", exc)
        from deduper.ranges.batch.spark_files import run_on_spark  # importing Spark takes longer than small files do

        report = run_on_spark(job, plan_only=plan_only, on_progress=on_progress)
    return replace(report, seconds=round(time.monotonic() - begun, 3))


def _require_places(job: RangeJob) -> None:
    for files in (job.events, job.ranges):
        if not files.path.exists():
            raise UsageError(f"{files.path}: there is no such file or folder")
    for output in (job.output, job.errors):
        if output is not None and output.path.exists():
            raise UsageError(f"{output.path} exists; name another folder, or remove it")
