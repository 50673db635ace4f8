"""The command's work on Spark: files in, one call of `range_aggregate`, files out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import parse_columns
from deduper.errors import DeduperError, IntegrityError
from deduper.ranges.batch.arrow_sides import files_below, text_format
from deduper.ranges.batch.bad_rows import is_bad_row
from deduper.ranges.batch.frames import RangeAggregates, range_aggregate
from deduper.ranges.batch.outputs import written_whole
from deduper.ranges.batch.report import RangeReport, plan_text
from deduper.ranges.batch.settings import InputFiles, RangeJob
from deduper.spark.arrow_map import map_in_arrow
from deduper.spark.failures import cannot_write, raised_in_worker, readable_cause
from deduper.spark.schemas import spark_schema
from deduper.spark.session import end_session, start_session
from deduper.tasks.readers.raw_text import texts_of
from deduper.tasks.readers.text import parsed_lines

_MALFORMED = "__range_job_malformed"
_ERROR_COLUMNS = "side string, reason string, record string"
_PARTITIONS = "spark.sql.shuffle.partitions"
_TASKS_A_CORE = 2


def run_on_spark(job: RangeJob, *, plan_only: bool, on_progress: Callable[[str], None]) -> RangeReport:
    """See `job.run`."""
    on_progress("Spark starts")
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
        return RangeReport(job.per, found.indexed_rows, parts, sliced, rows, errors)
    except PySparkException as exc:
        raise _unwrapped(exc, job) from exc
    finally:
        end_session(session)


def _unwrapped(exc: PySparkException, job: RangeJob) -> Exception:
    """The error of ours that Spark has wrapped, or Spark's."""
    full = cannot_write(exc, "rows", job.output.path)
    if full is not None:
        return full
    cause = readable_cause(exc)
    if is_bad_row(cause):
        return DeduperError(f"{cause}; correct it, or keep bad rows: write `errors: {{path: DIR, format: json}}`")
    return raised_in_worker(exc)


def _read(session: SparkSession, files: InputFiles) -> DataFrame:
    if files.format == "parquet":
        reader = (
            session.read if files.columns is None else session.read.schema(spark_schema(parse_columns(files.columns)))
        )
        return reader.parquet(str(files.path))
    # Parsed once, with all columns: a reader of fewer columns would find fewer mistakes.
    return _records(session, files).persist(StorageLevel.DISK_ONLY)


def _records(session: SparkSession, files: InputFiles) -> DataFrame:
    """Lines of text as a source of the deduper reads them, and the text of those that are no records."""
    columns = parse_columns(files.columns or "")
    text = text_format(files)
    schema = spark_schema(columns, T.StructField(_MALFORMED, T.StringType()))
    has_header = files.format == "csv" and files.header

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                for some, parsed in parsed_lines(path, text, range(len(columns)), header=has_header):
                    bad = parsed.malformed | parsed.invalid_utf8
                    texts = texts_of(some.data, some.starts, some.ends, ~parsed.invalid_utf8, bad)
                    fields = [pc.if_else(pa.array(bad), None, parsed.columns[number]) for number in range(len(columns))]
                    yield pa.RecordBatch.from_arrays([*fields, texts], schema.names)

    paths = files_below(files.path)
    rows = session.createDataFrame([(path,) for path in paths], "path string").repartition(max(1, len(paths)))
    return map_in_arrow(rows, read, schema)


def _write(
    job: RangeJob, found: RangeAggregates, read: Observation, on_progress: Callable[[str], None]
) -> tuple[int, dict[str, int]]:
    """Both outputs; the counts of rows, and of bad rows by side and reason."""
    session, written = found.rows.sparkSession, Observation()
    on_progress("rows are answered and written")
    errors: dict[str, int] = {}
    outputs = [job.output] if job.errors is None else [job.errors, job.output]
    with written_whole(outputs) as folders:
        answered = found.rows.observe(written, F.count(F.lit(1)).alias("rows"))
        answered.write.format(job.output.format).save(str(folders[-1]))
        rows, of_side = int(written.get["rows"]), 0
        if job.errors is not None:
            found.errors.write.format(job.errors.format).save(str(folders[0]))
            by_reason = session.read.schema(_ERROR_COLUMNS).format(job.errors.format).load(str(folders[0]))
            for row in by_reason.groupBy("side", "reason").count().orderBy("side", "reason").collect():
                errors[f"{row['side']}.{row['reason']}"] = row[2]
                of_side += row[2] if row["side"] == job.per else 0
        if int(read.get["rows"]) != rows + of_side:
            raise IntegrityError(f"{read.get['rows']} {job.per}s read, {rows} rows and {of_side} bad ones written")
    return rows, errors
