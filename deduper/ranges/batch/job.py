"""The command's work: files in, files out that appear whole, without Spark where the result is the same."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from deduper.columns import parse_columns
from deduper.config.problems import suggestion
from deduper.errors import UsageError
from deduper.ranges.batch.arrow_files import run_on_arrow
from deduper.ranges.batch.arrow_sides import OnlySpark, files_below, listed
from deduper.ranges.batch.report import RangeReport
from deduper.ranges.batch.settings import InputFiles, RangeJob
from deduper.tasks.readers.file_parts import FileFault
from deduper.tasks.readers.text import fault_of_header

logger = logging.getLogger(__name__)


def run(job: RangeJob, *, plan_only: bool, on_progress: Callable[[str], None]) -> RangeReport:
    """Read, answer and write, or only plan.

    Raises:
        UsageError: a file that is absent, an output that exists, or columns that do not fit.
        DeduperError: a bad row without a place for bad rows, a sum beyond its type, a full disk.
        IntegrityError: rows and bad rows are together not the rows that were read.
    """
    _require_places(job)
    begun = time.monotonic()
    try:
        report = run_on_arrow(job, plan_only=plan_only, on_progress=on_progress)
    except OnlySpark as exc:
        logger.info("Spark reads and writes the files: %s", exc)
        from deduper.ranges.batch.spark_files import run_on_spark  # importing Spark takes longer than small files do

        report = run_on_spark(job, plan_only=plan_only, on_progress=on_progress)
    return replace(report, seconds=round(time.monotonic() - begun, 3))


def _require_places(job: RangeJob) -> None:
    """What can be known of files and folders before anything starts."""
    for side, files in job.sides:
        if not files.path.exists():
            raise UsageError(f"{files.path}: there is no such file or folder")
        if files.format == "parquet" and files.columns is None:
            _require_columns(job, side, files.path)
        if files.format == "csv" and files.header:
            _require_headers(side, files)
    for output in (job.output, job.errors):
        if output is None:
            continue
        if output.path.exists():
            raise UsageError(f"{output.path} exists; name another folder, or remove it")
        parent = next(folder for folder in output.path.absolute().parents if folder.exists())
        if not parent.is_dir():
            raise UsageError(f"{output.path} cannot be made: {parent} is no folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"{output.path} cannot be made: this user may not write to {parent}")


def _require_headers(side: Literal["events", "ranges"], files: InputFiles) -> None:
    """Fields are columns by their order: under another header each column would have the values of another."""
    declared = [column.name for column in parse_columns(files.columns or "")]
    for file in files_below(files.path):
        try:
            fault = fault_of_header(file, declared, ",")
        except FileFault:
            continue  # whoever reads its records says why it cannot be read
        if fault is not None:
            raise UsageError(
                f"{side}.schema: {file}: {fault}; declare the columns in the order of the files, by their names, or "
                f"write `{side}.header: false`"
            )


def _require_columns(job: RangeJob, side: Literal["events", "ranges"], path: Path) -> None:
    """The columns that settings name are in the first Parquet file, unless folders or Spark's settings add some."""
    try:
        first = next((file for file in listed(path) if Path(file).stat().st_size), None)
    except OnlySpark:
        return
    if first is None or any(name.startswith("spark.sql.") for name in job.spark):
        return
    try:
        names = pq.read_schema(first).names
    except pa.ArrowInvalid as exc:
        raise UsageError(
            f"{side}.format: {first} is no whole Parquet file; replace it, or write `format: csv` or `format: json` "
            "for lines of text"
        ) from exc
    known = {name.lower() for name in names}  # to Spark, names are equal in any case
    for setting, column in job.columns_of(side):
        if column.lower() not in known:
            advice = suggestion(column, names, "columns are")
            raise UsageError(f"{'.'.join(setting)}: {side} have no column `{column}`; {advice}")
