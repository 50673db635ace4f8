"""The command's work without Spark: files in, Parquet files out, read, answered and written by a thread a core.

The answers are those of Spark. A type that Spark converts, a bad row, or an index beyond a share of memory leaves the
whole run to Spark, so that rules and messages of such cases have one home.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.core.digests import SALT_BYTES
from deduper.errors import IntegrityError, UsageError, telling_where
from deduper.ranges.aggregate.aggregates import answer_type, parse_aggregate, require_types
from deduper.ranges.batch.arrow_sides import FileSide, GoodRows, OnlySpark, Piece, schema_of, side_of
from deduper.ranges.batch.outputs import written_whole
from deduper.ranges.batch.report import RangeReport, plan_text
from deduper.ranges.batch.settings import OutputFiles, RangeJob
from deduper.ranges.batch.work import Work
from deduper.tasks.readers.file_parts import FileFault

_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 64 << 20
_SHARE_OF_MEMORY = 4
_NO_ROWS = "there are no events, or no ranges"
_ERRORS = pa.schema([(name, pa.string()) for name in ("side", "reason", "record")])


class _ArrowJob:
    """The job, its sides and how they are asked."""

    def __init__(self, job: RangeJob, cores: int) -> None:
        """Raises OnlySpark."""
        if job.output.format != "parquet":
            raise OnlySpark(f"output is {job.output.format}")
        for name in job.spark:
            if name.startswith(("spark.sql.", "spark.hadoop.")):
                raise OnlySpark(f"{name} may change what is read or written")
        self.job = job
        events, ranges = side_of(job.events, cores), side_of(job.ranges, cores)
        aggregates = {name: parse_aggregate(text) for name, text in job.aggregates.items()}
        points = (job.time,), (job.start, job.end)
        self.is_per_event = job.per == "event"
        self.asked, self.indexed = (events, ranges) if self.is_per_event else (ranges, events)
        self.work = Work(
            per=job.per,
            ends=job.ends,
            asked_points=points[0] if self.is_per_event else points[1],
            indexed_points=points[1] if self.is_per_event else points[0],
            aggregates=aggregates,
            own_types={},
        )
        self._salt = os.urandom(SALT_BYTES)
        if events.rows == 0 or ranges.rows == 0:
            raise OnlySpark(_NO_ROWS)
        _require_columns(job, events, ranges)
        self._good_asked, self._good_indexed = self._good_rows(self.asked), self._good_rows(self.indexed)
        taken = {column.name.lower() for column in self.asked.columns}
        types = {column.name: column.arrow for column in self.indexed.columns}
        try:
            require_types(aggregates, types, "ranges" if self.is_per_event else "events")
        except UsageError as exc:
            raise OnlySpark(str(exc)) from exc
        if any(name.lower() in taken for name in aggregates):
            raise OnlySpark("an aggregate has the name of a column")
        answers = [(name, answer_type(one, one.column and types[one.column])) for name, one in aggregates.items()]
        self.schema = pa.schema([*schema_of(self.asked), *(pa.field(*answer) for answer in answers)])
        self._budget = _Budget(self.work)
        self._budget.take(self.indexed.rows or 0, self.indexed.text_bytes)

    def indexed_rows(self, piece: Piece) -> pa.Table | None:
        """The columns that the index takes, and the id's words; None for no rows."""
        of_aggregates = (one.column for one in self.work.aggregates.values() if one.column is not None)
        names = {*self.job.on, *self.work.indexed_points, *of_aggregates}
        batches = []
        for batch in self.indexed.batches(piece, sorted(names)):
            batches.append(self._good_indexed.of(batch))
            if self.indexed.rows is None:
                self._budget.take(batch.num_rows, batch.nbytes)
        return pa.Table.from_batches(batches) if batches else None

    def answer(self, index: object, folder: Path, numbered: tuple[int, Piece]) -> tuple[int, int]:
        """Write a piece's rows with their answers; how many were read, and how many written."""
        number, piece = numbered
        names = [column.name for column in self.asked.columns]
        read = rows = 0
        with pq.ParquetWriter(
            folder / f"part-{number:05d}.parquet", self.schema, store_schema=False, store_decimal_as_integer=True
        ) as writer:
            held: list[pa.RecordBatch] = []
            for batch in self.asked.batches(piece, names):
                read += batch.num_rows
                for answered in self.work.answers(index, self._good_asked.of(batch), names):
                    held.append(answered.cast(self.schema))
                    rows += answered.num_rows
                if sum(one.num_rows for one in held) >= _GROUP_ROWS or sum(one.nbytes for one in held) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held))
                    held.clear()
            if held:
                writer.write_table(pa.Table.from_batches(held))
        return read, rows

    def _good_rows(self, side: FileSide) -> GoodRows:
        kinds = {column.name: column.kind for column in side.columns}
        is_event = (side is self.asked) == self.is_per_event
        points = (self.job.time,) if is_event else (self.job.start, self.job.end)
        on = tuple(self.job.on)
        return GoodRows(on, tuple(kinds[name] for name in on), points, self.job.longest, self._salt)


def _require_columns(job: RangeJob, events: FileSide, ranges: FileSide) -> None:
    """Raises OnlySpark unless all columns are there, of the types that they need; Spark's way says why."""
    of_events, of_ranges = ({column.name: column for column in side.columns} for side in (events, ranges))
    if any(name not in of_events or name not in of_ranges for name in job.on):
        raise OnlySpark("an id column is missing")
    if any(of_events[name] != of_ranges[name] for name in job.on):
        raise OnlySpark("id columns are of types that Spark compares")
    if job.time not in of_events or job.start not in of_ranges or job.end not in of_ranges:
        raise OnlySpark("a column of times is missing")
    kinds = {of_events[job.time].arrow, of_ranges[job.start].arrow, of_ranges[job.end].arrow}
    is_time = pa.types.is_temporal, pa.types.is_integer, pa.types.is_floating
    if len(kinds) > 1 or not any(is_one(kind) for kind in kinds for is_one in is_time):
        raise OnlySpark("times are of different types, or no times")
    if job.longest is not None and not all(map(pa.types.is_timestamp, kinds)):
        raise OnlySpark("a greatest length of other times than timestamps")


class _Budget:
    """Keeps the index below a share of memory: texts, two marks a row with their times, and what aggregates take."""

    def __init__(self, work: Work) -> None:
        self._bytes_a_row = 2 * (32 + work.aggregate_bytes)
        self._most = psutil.virtual_memory().available // _SHARE_OF_MEMORY
        self._taken = 0
        self._lock = Lock()

    def take(self, rows: int, text_bytes: int) -> None:
        """Raises OnlySpark if the index is too large with these rows."""
        with self._lock:
            self._taken += rows * self._bytes_a_row + text_bytes
            if self._taken > self._most:
                raise OnlySpark(f"an index of {self._taken >> 20} MiB or more is more than a quarter of free memory")


def run_on_arrow(job: RangeJob, *, plan_only: bool, on_progress: Callable[[str], None]) -> RangeReport:
    """See `job.run`.

    Raises:
        OnlySpark: Spark has to do it; nothing is left of this try.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        arrow = _ArrowJob(job, cores)
        with _threads(cores) as pool:
            tables = [table for table in pool.map(arrow.indexed_rows, arrow.indexed.pieces) if table is not None]
        indexed_rows = sum(table.num_rows for table in tables)
        if not indexed_rows:
            raise OnlySpark(_NO_ROWS)
        on_progress(f"plan: {plan_text(job.per, indexed_rows, None, 0)}")
        if plan_only:
            return RangeReport(job.per, indexed_rows, None, 0, None, {})
        index = arrow.work.index(tables)
        del tables
        on_progress("rows are answered and written")
        outputs = [job.output] if job.errors is None else [job.errors, job.output]
        with telling_where(job.output.path), written_whole(outputs) as folders:
            for folder in folders:
                folder.mkdir()
            if job.errors is not None:
                _write_no_errors(job.errors, folders[0])
            with _threads(cores) as pool:  # ends before the folders are removed
                counts = list(pool.map(partial(arrow.answer, index, folders[-1]), enumerate(arrow.asked.pieces)))
            read, rows = (sum(column) for column in zip(*counts, strict=True))
            if not read:
                raise OnlySpark(_NO_ROWS)
            if rows != read or arrow.asked.rows not in (None, read):
                raise IntegrityError(f"{read} {job.per}s read of {arrow.asked.rows or read}, {rows} rows written")
    except FileFault as exc:
        raise OnlySpark(str(exc)) from exc
    return RangeReport(job.per, indexed_rows, None, 0, rows, {})


def _threads(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="ranges")


def _write_no_errors(errors: OutputFiles, folder: Path) -> None:
    file = folder / f"part-00000.{errors.format}"
    if errors.format == "parquet":
        pq.write_table(_ERRORS.empty_table(), file, store_schema=False)
    else:
        file.touch()
