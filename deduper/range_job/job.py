"""The command's work: files in, one call of `range_aggregate`, files out that appear whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from bucket_store.filesystem import LOCAL, make_directories
from deduper.as_json import AsJson
from deduper.errors import DeduperError, IntegrityError, UsageError, telling_where
from deduper.range_job.bad_rows import is_bad_row
from deduper.range_job.frames import RangeAggregates, range_aggregate
from deduper.range_job.settings import InputFiles, OutputFiles, RangeJob
from deduper.spark.failures import cannot_write, plain_cause, raised_in_worker
from deduper.spark.session import end_session, start_session

_MALFORMED = "__range_job_malformed"
_ERROR_COLUMNS = "side string, reason string, record string"
_PARTITIONS = "spark.sql.shuffle.partitions"
_TASKS_A_CORE = 2


@dataclass(frozen=True, slots=True)
class Report(AsJson):
    """What was planned, and what was written; `rows` is None if only the plan was asked for."""

    per: str
    indexed_rows: int
    parts: int | None
    sliced_ids: int
    rows: int | None
    errors: dict[str, int]
    seconds: float


def run(job: RangeJob, *, plan_only: bool, on_progress: Callable[[str], None]) -> Report:
    """Read, answer and write, or only plan.

    Raises:
        UsageError: a file that is absent, an output that exists, or columns that do not fit.
        DeduperError: a bad row without a place for bad rows, a sum beyond its type, a full disk.
        IntegrityError: rows and bad rows are together not the rows that were read.
    """
    _require_places(job)
    on_progress("Spark starts")
    begun = time.monotonic()
    session = start_session("range-aggregate", job.spark)
    try:
        if _PARTITIONS not in job.spark:
            session.conf.set(_PARTITIONS, session.sparkContext.defaultParallelism * _TASKS_A_CORE)
        counted = Observation()
        sides = {"event": _read(session, job.events), "range": _read(session, job.ranges)}
        sides[job.per] = sides[job.per].observe(counted, F.count(F.lit(1)).alias("rows"))
        found = range_aggregate(
            sides["event"],
            sides["range"],
            on=job.on,
            time=job.time,
            start=job.start,
            end=job.end,
            ends=job.ends,
            per=job.per,
            aggs=job.aggregates,
            bad_rows="stop" if job.errors is None else "keep",
            longest_us=job.longest,
            malformed=_MALFORMED,
        )
        parts = None if found.plan is None else found.plan.count
        sliced = 0 if found.plan is None else sum(1 for one in found.plan.large if one.cuts)
        on_progress(f"plan: {plan_text(job.per, found.indexed_rows, parts, sliced)}")
        rows, errors = (None, {}) if plan_only else _write(job, found, counted, on_progress)
        return Report(job.per, found.indexed_rows, parts, sliced, rows, errors, round(time.monotonic() - begun, 1))
    except PySparkException as exc:
        raise _plainer(exc, job) from exc
    finally:
        end_session(session)


def plan_text(per: str, indexed_rows: int, parts: int | None, sliced_ids: int) -> str:
    """The plan as one line."""
    how = "one index, no shuffle" if parts is None else f"{parts:,} parts, {sliced_ids:,} ids cut into slices"
    return f"{indexed_rows:,} {'range' if per == 'event' else 'event'}s indexed; {how}"


def _plainer(exc: PySparkException, job: RangeJob) -> Exception:
    """The error of ours that Spark has wrapped, or Spark's."""
    full = cannot_write(exc, "rows", job.output.path)
    if full is not None:
        return full
    cause = plain_cause(exc)
    if is_bad_row(cause):
        return DeduperError(f"{cause}; correct it, or keep bad rows: write `errors: {{path: DIR, format: json}}`")
    return raised_in_worker(exc)


def _require_places(job: RangeJob) -> None:
    for files in (job.events, job.ranges):
        if not files.path.exists():
            raise UsageError(f"{files.path}: there is no such file or folder")
    for output in (job.output, job.errors):
        if output is not None and output.path.exists():
            raise UsageError(f"{output.path} exists; name another folder, or remove it")


def _read(session: SparkSession, files: InputFiles) -> DataFrame:
    reader = session.read.format(files.format).option("header", files.header)
    if files.columns is not None:
        reader = reader.schema(files.columns)
    if files.format == "parquet":
        return reader.load(str(files.path))
    reader = reader.schema(f"{files.columns}, `{_MALFORMED}` STRING").option("columnNameOfCorruptRecord", _MALFORMED)
    # Parsed once, with all columns: a reader of fewer columns would find fewer mistakes.
    return reader.load(str(files.path)).persist(StorageLevel.DISK_ONLY)


def _write(
    job: RangeJob, found: RangeAggregates, read: Observation, on_progress: Callable[[str], None]
) -> tuple[int, dict[str, int]]:
    """Both outputs beside their places, then in them; the counts of rows, and of bad rows by side and reason.

    The output is renamed last: once it is there, everything is.
    """
    session, written = found.rows.sparkSession, Observation()
    on_progress("rows are answered and written")
    folders: dict[OutputFiles, Path] = {}
    errors: dict[str, int] = {}
    try:
        answered = found.rows.observe(written, F.count(F.lit(1)).alias("rows"))
        _write_files(answered, job.output, folders)
        rows, of_side = int(written.get["rows"]), 0
        if job.errors is not None:
            kept = _write_files(found.errors, job.errors, folders)
            by_reason = session.read.schema(_ERROR_COLUMNS).format(job.errors.format).load(str(kept))
            for row in by_reason.groupBy("side", "reason").count().orderBy("side", "reason").collect():
                errors[f"{row['side']}.{row['reason']}"] = row[2]
                of_side += row[2] if row["side"] == job.per else 0
        if int(read.get["rows"]) != rows + of_side:
            raise IntegrityError(f"{read.get['rows']} {job.per}s read, {rows} rows and {of_side} bad ones written")
        for output, folder in reversed(folders.items()):
            with telling_where(output.path):
                folder.rename(output.path)
                LOCAL.fsync_dir(output.path.parent)
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    return rows, errors


def _write_files(rows: DataFrame, output: OutputFiles, folders: dict[OutputFiles, Path]) -> Path:
    """A durable folder beside the output's place with the rows."""
    folder = folders[output] = output.path.with_name(f".{output.path.name}.{os.getpid()}.writing")
    with telling_where(output.path):
        make_directories(LOCAL, folder.parent)
        rows.write.format(output.format).save(str(folder))
        for file in folder.iterdir():
            with LOCAL.open(file) as opened:
                opened.sync()
        LOCAL.fsync_dir(folder)
    return folder
