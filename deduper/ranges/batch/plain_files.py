"""The command's work without Spark: files in, Parquet files out, read, answered and written by a thread a core.

Only what Spark would answer just so is plain. A type that Spark converts, a bad row, or an index beyond a share of
memory leaves the whole run to Spark, so that rules and messages of such cases have one home.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deduper.arrow_columns import DeclaredColumn, kind_of
from deduper.columns import parse_columns
from deduper.core.digest_kernels import array_digest, has_array_digest
from deduper.core.digests import SALT_BYTES
from deduper.errors import IntegrityError, UsageError, telling_where
from deduper.ranges.aggregate.aggregates import Aggregate, answer_type, parse_aggregate, require_types
from deduper.ranges.aggregate.points import as_points
from deduper.ranges.batch.outputs import written_whole
from deduper.ranges.batch.report import Report, plan_text
from deduper.ranges.batch.settings import InputFiles, OutputFiles, RangeJob
from deduper.ranges.batch.work import ID_HI, ID_LO, Work
from deduper.spark_promises import FIXED_BY_STORE, TIME_ZONE
from deduper.tasks.readers.parquet import opened_parquet, require_plain
from deduper.tasks.readers.plain_file import NotPlain, UnreadableFile, reading
from deduper.tasks.readers.text import parsed_lines, require_lines
from deduper.text.format import TextFormat

_BATCH_ROWS = 1 << 16
_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 64 << 20
_LEAST_ROWS = 1 << 17
_PIECES_A_CORE = 4
_SHARE_OF_MEMORY = 4
_NO_ROWS = "there are no events, or no ranges"
_ERRORS = pa.schema([(name, pa.string()) for name in ("side", "reason", "record")])


class OnlySpark(Exception):
    """What only Spark can do; the text says why, for the log."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The work of one thread: neighbouring row groups of a Parquet file, or all lines of a file of text."""

    path: str
    groups: tuple[int, ...] = ()
    rows: int = 0


class _Side(Protocol):
    """The files of events or of ranges, all of the same columns."""

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]: ...
    @property
    def pieces(self) -> tuple[_Piece, ...]: ...
    @property
    def rows(self) -> int | None:
        """As the files count them themselves; None where they do not."""
        ...

    @property
    def text_bytes(self) -> int:
        """Of columns of texts, before anything is read; 0 where it is not known."""
        ...

    def batches(self, piece: _Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a piece with these columns."""
        ...


@dataclass(frozen=True, slots=True)
class _ParquetSide:
    """Parquet files with types of their own."""

    columns: tuple[DeclaredColumn, ...]
    pieces: tuple[_Piece, ...]
    text_bytes: int

    @property
    def rows(self) -> int:
        """By the footers."""
        return sum(piece.rows for piece in self.pieces)

    @classmethod
    def of(cls, files: InputFiles, cores: int) -> _ParquetSide:
        """Of all footers.

        Raises:
            OnlySpark: a file is not plain.
        """
        if files.columns is not None:
            raise OnlySpark(f"{files.path}: only Parquet files with types of their own are plain")
        columns: tuple[DeclaredColumn, ...] | None = None
        groups: list[tuple[str, int, int]] = []
        text_bytes = 0
        for path in _listed(files.path):
            with opened_parquet(path) as opened, reading(path):
                found = tuple(_column(path, field) for field in opened.schema_arrow)
                require_plain(opened, path, found)
                if found != (columns or found):
                    raise OnlySpark(f"{path}: its columns are not those of the other files")
                columns, footer = found, opened.metadata
                for number in range(footer.num_row_groups):
                    group = footer.row_group(number)
                    groups.append((path, number, group.num_rows))
                    text_bytes += group.total_byte_size
        has_texts = any(column.kind.name in ("string", "binary") for column in columns or ())
        return cls(columns or (), _pieces(groups, cores), text_bytes if has_texts else 0)

    def batches(self, piece: _Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a piece with these columns."""
        wanted = [column for column in self.columns if column.name in names]
        with opened_parquet(piece.path) as opened:
            read = opened.iter_batches(
                _BATCH_ROWS,
                row_groups=list(piece.groups),
                columns=[column.name for column in wanted],
                use_threads=False,
            )
            while True:
                with reading(piece.path):
                    if (batch := next(read, None)) is None:
                        return
                    arrays = [batch[column.name].cast(column.arrow) for column in wanted]
                yield pa.RecordBatch.from_arrays(arrays, [column.name for column in wanted])


@dataclass(frozen=True, slots=True)
class _TextSide:
    """Files of CSV or JSON; `deduper.text` says what a line means, here as in Spark's way."""

    text: TextFormat
    pieces: tuple[_Piece, ...]
    header: bool
    rows: None = None
    text_bytes: int = 0

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """As they are declared."""
        return self.text.columns

    @classmethod
    def of(cls, files: InputFiles) -> _TextSide:
        """Raises OnlySpark: a column is of a type that only Spark reads; NotPlain: so is a file."""
        columns = parse_columns(files.columns or "")
        for column in columns:
            if not column.type.is_scalar or "." in column.name:
                raise OnlySpark(f"{files.path}: column {column.name} is of type {column.type.text}")
        pieces = tuple(map(_Piece, _listed(files.path)))
        for piece in pieces:
            require_lines(piece.path, Path(piece.path).stat().st_size)
        is_csv = files.format == "csv"
        text = TextFormat(tuple(map(DeclaredColumn.of, columns)), FIXED_BY_STORE[TIME_ZONE], "," if is_csv else None)
        return cls(text, pieces, is_csv and files.header)

    def batches(self, piece: _Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a piece with these columns.

        Raises:
            OnlySpark: a line is no record.
        """
        wanted = {number: column.name for number, column in enumerate(self.columns) if column.name in names}
        for _, parsed in parsed_lines(piece.path, self.text, list(wanted), header=self.header):
            if parsed.malformed.any() or parsed.invalid_utf8.any():
                raise OnlySpark(f"{piece.path}: a line that is no record")
            yield pa.RecordBatch.from_arrays([parsed.columns[number] for number in wanted], list(wanted.values()))


def _side(files: InputFiles, cores: int) -> _Side:
    return _ParquetSide.of(files, cores) if files.format == "parquet" else _TextSide.of(files)


def _schema_of(side: _Side) -> pa.Schema:
    """As it is read and written."""
    return pa.schema([(column.name, column.arrow) for column in side.columns])


def _listed(path: Path) -> list[str]:
    """The files that Spark would read, if there are no folders below."""
    entries = [path] if path.is_file() else sorted(path.iterdir())
    found = [entry for entry in entries if not entry.name.startswith(("_", "."))]
    if not found or any(entry.is_dir() or entry.name.endswith("._COPYING_") for entry in found):
        raise OnlySpark(f"{path}: no files, or folders below")
    return [str(entry) for entry in found]


def _column(path: str, field: pa.Field) -> DeclaredColumn:
    """As Spark would have a column of these types, of which `require_plain` decides if that is so."""
    found = field.type
    if pa.types.is_timestamp(found):
        found = pa.timestamp("us", found.tz and "UTC")
    elif pa.types.is_large_string(found) or pa.types.is_large_binary(found):
        found = pa.string() if pa.types.is_large_string(found) else pa.binary()
    kind = kind_of(found)
    if kind is None or "." in field.name:
        raise OnlySpark(f"{path}: column {field.name} is of type {found}")
    return DeclaredColumn(field.name, kind, found)


def _pieces(groups: Sequence[tuple[str, int, int]], cores: int) -> tuple[_Piece, ...]:
    least = max(_LEAST_ROWS, sum(rows for _, _, rows in groups) // (cores * _PIECES_A_CORE))
    pieces: list[_Piece] = []
    for path, number, rows in groups:
        if pieces and pieces[-1].path == path and pieces[-1].rows < least:
            last = pieces.pop()
            pieces.append(_Piece(path, (*last.groups, number), last.rows + rows))
        else:
            pieces.append(_Piece(path, (number,), rows))
    return tuple(pieces)


class _PlainJob:
    """The job, its sides and how they are asked."""

    def __init__(self, job: RangeJob, cores: int) -> None:
        """Raises OnlySpark."""
        if job.output.format != "parquet":
            raise OnlySpark(f"output is {job.output.format}")
        for name in job.spark:
            if name.startswith(("spark.sql.", "spark.hadoop.")):
                raise OnlySpark(f"{name} may change what is read or written")
        self.job = job
        events, ranges = _side(job.events, cores), _side(job.ranges, cores)
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
        taken = {column.name.lower() for column in self.asked.columns}
        types = {column.name: column.arrow for column in self.indexed.columns}
        try:
            require_types(aggregates, types, "ranges" if self.is_per_event else "events")
        except UsageError as exc:
            raise OnlySpark(str(exc)) from exc
        if any(name.lower() in taken for name in aggregates):
            raise OnlySpark("an aggregate has the name of a column")
        answers = [(name, answer_type(one, one.column and types[one.column])) for name, one in aggregates.items()]
        self.schema = pa.schema([*_schema_of(self.asked), *(pa.field(*answer) for answer in answers)])
        self._budget = _Budget(self.work)
        self._budget.take(self.indexed.rows or 0, self.indexed.text_bytes)

    def indexed_rows(self, piece: _Piece) -> pa.Table | None:
        """The columns that the index takes, and the id's words; None for no rows."""
        of_aggregates = (one.column for one in self.work.aggregates.values() if one.column is not None)
        names = {*self.job.on, *self.work.indexed_points, *of_aggregates}
        batches = []
        for batch in self.indexed.batches(piece, sorted(names)):
            batches.append(self._ready(batch, self.indexed))
            if self.indexed.rows is None:
                self._budget.take(batch.num_rows, batch.nbytes)
        return pa.Table.from_batches(batches) if batches else None

    def answer(self, index: object, folder: Path, numbered: tuple[int, _Piece]) -> tuple[int, int]:
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
                for answered in self.work.answers(index, self._ready(batch, self.asked), names):
                    held.append(answered.cast(self.schema))
                    rows += answered.num_rows
                if sum(one.num_rows for one in held) >= _GROUP_ROWS or sum(one.nbytes for one in held) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held))
                    held.clear()
            if held:
                writer.write_table(pa.Table.from_batches(held))
        return read, rows

    def _ready(self, batch: pa.RecordBatch, side: _Side) -> pa.RecordBatch:
        """Good rows with the id's words.

        Raises:
            OnlySpark: a row is bad.
        """
        is_event = (side is self.asked) == self.is_per_event
        _require_good(batch, self.job, is_event=is_event)
        kinds = [column.kind for name in self.job.on for column in side.columns if column.name == name]
        keys = [batch[name] for name in self.job.on]
        if len(keys) == 1 and pa.types.is_integer(keys[0].type):
            return batch.append_column(ID_HI, keys[0].cast(pa.int64()))
        hi, lo = (pa.array(words.view(np.int64)) for words in array_digest(keys, kinds, self._salt))
        return batch.append_column(ID_HI, hi).append_column(ID_LO, lo)


def _require_columns(job: RangeJob, events: _Side, ranges: _Side) -> None:
    """Raises OnlySpark unless all columns are there, of the types that they need; Spark's way says why."""
    of_events, of_ranges = ({column.name: column for column in side.columns} for side in (events, ranges))
    if any(name not in of_events or name not in of_ranges for name in job.on):
        raise OnlySpark("an id column is missing")
    if any(of_events[name] != of_ranges[name] or not has_array_digest(of_events[name].kind) for name in job.on):
        raise OnlySpark("id columns are of types that Spark compares")
    if job.time not in of_events or job.start not in of_ranges or job.end not in of_ranges:
        raise OnlySpark("a column of times is missing")
    kinds = {of_events[job.time].arrow, of_ranges[job.start].arrow, of_ranges[job.end].arrow}
    is_time = pa.types.is_temporal, pa.types.is_integer, pa.types.is_floating
    if len(kinds) > 1 or not any(is_one(kind) for kind in kinds for is_one in is_time):
        raise OnlySpark("times are of different types, or no times")
    if job.longest is not None and not all(map(pa.types.is_timestamp, kinds)):
        raise OnlySpark("a greatest length of other times than timestamps")


def _require_good(batch: pa.RecordBatch, job: RangeJob, *, is_event: bool) -> None:
    """Raises OnlySpark if a row is bad, by the rules of `bad_rows`."""
    points = [batch[name] for name in ((job.time,) if is_event else (job.start, job.end))]
    is_bad = any(batch[name].null_count for name in job.on)
    is_bad |= any(pa.types.is_floating(one.type) and pc.any(pc.is_nan(one)).as_py() for one in points)
    if is_event:
        is_bad |= points[0].null_count > 0
    else:
        is_bad |= bool(pc.any(pc.greater(*points)).as_py())
        if job.longest is not None and not is_bad:
            lengths = as_points(points[1]).view(np.uint64) - as_points(points[0]).view(np.uint64)
            is_bad = any(one.null_count for one in points) or bool((lengths > np.uint64(job.longest)).any())
    if is_bad:
        raise OnlySpark(f"a bad {'event' if is_event else 'range'}")


class _Budget:
    """Keeps the index below a share of memory: texts, two marks a row with their times, and what aggregates take."""

    def __init__(self, work: Work) -> None:
        widest = sum(32 + 4 * (one.k if isinstance(one, Aggregate) else 1) for one in work.aggregates.values())
        self._bytes_a_row = 2 * (32 + widest)
        self._most = psutil.virtual_memory().available // _SHARE_OF_MEMORY
        self._taken = 0
        self._lock = Lock()

    def take(self, rows: int, text_bytes: int) -> None:
        """Raises OnlySpark if the index is too large with these rows."""
        with self._lock:
            self._taken += rows * self._bytes_a_row + text_bytes
            if self._taken > self._most:
                raise OnlySpark(f"an index of {self._taken >> 20} MiB or more is more than a quarter of free memory")


def run_plain(job: RangeJob, *, plan_only: bool, on_progress: Callable[[str], None]) -> Report:
    """See `job.run`.

    Raises:
        OnlySpark: Spark has to do it; nothing is left of this try.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        plain = _PlainJob(job, cores)
        with _threads(cores) as pool:
            tables = [table for table in pool.map(plain.indexed_rows, plain.indexed.pieces) if table is not None]
        indexed_rows = sum(table.num_rows for table in tables)
        if not indexed_rows:
            raise OnlySpark(_NO_ROWS)
        on_progress(f"plan: {plan_text(job.per, indexed_rows, None, 0)}")
        if plan_only:
            return Report(job.per, indexed_rows, None, 0, None, {})
        index = plain.work.index(tables)
        del tables
        on_progress("rows are answered and written")
        outputs = [job.output] if job.errors is None else [job.errors, job.output]
        with telling_where(job.output.path), written_whole(outputs) as folders:
            for folder in folders:
                folder.mkdir()
            if job.errors is not None:
                _write_no_errors(job.errors, folders[0])
            with _threads(cores) as pool:  # ends before the folders are removed
                counts = list(pool.map(partial(plain.answer, index, folders[-1]), enumerate(plain.asked.pieces)))
            read, rows = (sum(column) for column in zip(*counts, strict=True))
            if not read:
                raise OnlySpark(_NO_ROWS)
            if rows != read or plain.asked.rows not in (None, read):
                raise IntegrityError(f"{read} {job.per}s read of {plain.asked.rows or read}, {rows} rows written")
    except (NotPlain, UnreadableFile) as exc:
        raise OnlySpark(str(exc)) from exc
    return Report(job.per, indexed_rows, None, 0, rows, {})


def _threads(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="ranges")


def _write_no_errors(errors: OutputFiles, folder: Path) -> None:
    file = folder / f"part-00000.{errors.format}"
    if errors.format == "parquet":
        pq.write_table(_ERRORS.empty_table(), file, store_schema=False)
    else:
        file.touch()
