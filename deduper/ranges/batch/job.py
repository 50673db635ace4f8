"""The command's work: files in, files out that appear whole, read, answered and written by a thread a core."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np
import psutil
import pyarrow as pa

from bucket_store.filesystem import LOCAL, make_directories
from bucket_store.places.local import local_place
from bucket_store.places.new_file import FileWriter
from deduper.arrow_columns import kind_of
from deduper.as_json import AsJson
from deduper.config.problems import suggestion
from deduper.core.digest_kernels import array_digest
from deduper.core.digests import SALT_BYTES
from deduper.errors import DeduperError, IntegrityError, UsageError, telling_where
from deduper.ranges.aggregate.aggregates import require_free_names, require_types
from deduper.ranges.aggregate.rows import event_reasons, first_reasons, range_reasons, whole
from deduper.ranges.batch.settings import OutputFiles, RangeJob
from deduper.ranges.batch.sides import FileSide, Piece, not_plain, schema_of, side_of
from deduper.ranges.batch.work import ID_HI, ID_LO, Work
from deduper.tasks.row_files import RowFormats, RowsFile
from deduper.text.written import json_lines

_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 64 << 20
_SHARE_OF_MEMORY = 4
_ERRORS = pa.schema([(name, pa.string()) for name in ("side", "reason", "record")])


@dataclass(frozen=True, slots=True)
class RangeReport(AsJson):
    """What was indexed and written; `errors` are bad rows by side and reason."""

    per: str
    indexed_rows: int
    rows: int
    errors: dict[str, int]
    seconds: float


def run(job: RangeJob, *, on_progress: Callable[[str], None]) -> RangeReport:
    """Read, answer and write.

    Raises:
        UsageError: a file that is absent, an output that exists, columns that do not fit, or files for Spark alone.
        DeduperError: a bad row without a place for bad rows, a sum beyond its type, a full disk, a damaged file.
        IntegrityError: rows and bad rows are together not the rows that were read.
    """
    _require_places(job)
    begun = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    sides = _Sides(job, cores)
    outputs = [job.output] if job.errors is None else [job.errors, job.output]
    with telling_where(job.output.path), _written_whole(outputs) as folders:
        for folder in folders:
            folder.mkdir()
        errors = None if job.errors is None else _PartFile(folders[0], 0, job.errors, _ERRORS)
        with closing(_BadRows(errors)) as bad:
            with _threads(cores) as pool:  # each ends before the folders are removed
                tables = list(pool.map(partial(sides.indexed_rows, bad), sides.indexed.pieces))
            indexed_rows = sum(table.num_rows for table in tables)
            on_progress(f"{indexed_rows:,} {'range' if job.per == 'event' else 'event'}s are indexed")
            index = sides.work.index([*tables, sides.no_rows()])
            del tables
            pieces: list[tuple[int, Piece | None]] = [*enumerate(sides.asked.pieces)] or [(0, None)]
            with _threads(cores) as pool:
                counts = list(pool.map(partial(sides.answer, index, bad, folders[-1]), pieces))
            bad.finish()
        read, rows = (sum(column) for column in zip(*counts, strict=True))
        left = sum(count for name, count in bad.counts.items() if name.startswith(f"{job.per}."))
        if rows + left != read or sides.asked.rows not in (None, read):
            of = f"{read} {job.per}s read of {sides.asked.rows or read}"
            raise IntegrityError(f"{of}, {rows} rows and {left} bad ones written")
    return RangeReport(job.per, indexed_rows, rows, bad.counts, round(time.monotonic() - begun, 3))


@contextmanager
def _written_whole(outputs: Sequence[OutputFiles]) -> Iterator[list[Path]]:
    """Paths of absent folders to make and fill; without an error they then take the places of the outputs, in order.

    The order is a promise to readers: once the last output is there, everything is.
    """
    # Not the id of the process: in a container each run has the same, and would remove what another one writes.
    run = secrets.token_hex(8)
    folders = [one.path.with_name(f".{one.path.name}.{run}.writing") for one in outputs]
    try:
        for output in outputs:
            with telling_where(output.path):
                make_directories(LOCAL, output.path.parent)
        yield folders
        for output, folder in zip(outputs, folders, strict=True):
            with telling_where(output.path):
                for file in folder.iterdir():
                    with LOCAL.open(file) as opened:
                        opened.sync()
                LOCAL.fsync_dir(folder)
        for output, folder in zip(outputs, folders, strict=True):
            with telling_where(output.path):
                folder.rename(output.path)
                LOCAL.fsync_dir(output.path.parent)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


class _Sides:
    """The sides of a job, and how one is asked of the other."""

    def __init__(self, job: RangeJob, cores: int) -> None:
        """Opens both. Raises UsageError, DeduperError: as `run`."""
        self._job = job
        events, ranges = side_of(job.events, cores), side_of(job.ranges, cores)
        _require_columns(job, events, ranges)
        aggregates = job.parsed
        points = (job.time,), (job.start, job.end)
        self._is_per_event = job.per == "event"
        self.asked, self.indexed = (events, ranges) if self._is_per_event else (ranges, events)
        self.work = Work(
            per=job.per,
            ends=job.ends,
            asked_points=points[0] if self._is_per_event else points[1],
            indexed_points=points[1] if self._is_per_event else points[0],
            aggregates=aggregates,
            own_types=job.own_types,
        )
        types = {column.name: column.arrow for column in self.indexed.columns}
        require_types(aggregates, types, "ranges" if self._is_per_event else "events")
        require_free_names(aggregates, (column.name for column in self.asked.columns))
        self._schema = pa.schema([*schema_of(self.asked), *job.answer_types(types).items()])
        needed = {*job.on, *self.work.indexed_points, *(one.column for one in aggregates.values())}
        # A row that is kept as bad has all its columns.
        self._needed = [name for name in types if job.errors is not None or name in needed]
        self._salt = os.urandom(SALT_BYTES)
        self._budget = _Budget(self.work)
        self._budget.take(self.indexed.rows or 0, self.indexed.text_bytes)

    def no_rows(self) -> pa.Table:
        """The columns of the indexed side, without rows."""
        return self._with_ids(schema_of(self.indexed).empty_table().select(self._needed))

    def indexed_rows(self, bad: _BadRows, piece: Piece) -> pa.Table:
        """The good rows of a piece, with the words of their ids."""
        found = [self.no_rows()]
        for rows, lines in self.indexed.batches(piece, self._needed):
            found.append(self._good(bad, rows, lines, is_event=not self._is_per_event))
            if self.indexed.rows is None:
                self._budget.take(rows.num_rows, rows.nbytes)
        return pa.concat_tables(found)

    def answer(self, index: object, bad: _BadRows, folder: Path, numbered: tuple[int, Piece | None]) -> tuple[int, int]:
        """Write a piece's rows with their answers: how many rows and lines were read, and how many rows are written."""
        number, piece = numbered
        names, read = schema_of(self.asked).names, 0
        with closing(_PartFile(folder, number, self._job.output, self._schema)) as part:
            for rows, lines in () if piece is None else self.asked.batches(piece, names):
                read += rows.num_rows + len(lines)
                for good in self._good(bad, rows, lines, is_event=self._is_per_event).to_batches():
                    for answered in self.work.answers(index, good, names):
                        part.add(answered.cast(self._schema))
            return read, part.finish()

    def _good(self, bad: _BadRows, batch: pa.RecordBatch, lines: Sequence[str], *, is_event: bool) -> pa.Table:
        """The good rows of a batch, with the words of their ids; the others leave with their reasons."""
        job, rows = self._job, pa.Table.from_batches([batch])
        side = "event" if is_event else "range"
        bad.add(side, "unparsable", lines)
        left = np.ones(rows.num_rows, np.bool_)
        reasons = (
            event_reasons(rows, job.on, job.time)
            if is_event
            else range_reasons(rows, job.on, job.start, job.end, job.longest)
        )
        for reason, holds in first_reasons(rows.num_rows, reasons):
            if holds.any():
                bad.add(side, reason, json_lines(rows.filter(pa.array(holds))).to_pylist())
                left &= ~holds
        return self._with_ids(rows if left.all() else rows.filter(pa.array(left)))

    def _with_ids(self, rows: pa.Table) -> pa.Table:
        keys = [whole(rows[name]) for name in self._job.on]
        if len(keys) == 1 and pa.types.is_integer(keys[0].type):
            return rows.append_column(ID_HI, keys[0].cast(pa.int64()))
        kinds = [kind for key in keys if (kind := kind_of(key.type)) is not None]
        hi, lo = (pa.array(words.view(np.int64)) for words in array_digest(keys, kinds, self._salt))
        return rows.append_column(ID_HI, hi).append_column(ID_LO, lo)


class _PartFile:
    """A file of an output, of rows in groups; durable once `finish` gives their number."""

    def __init__(self, folder: Path, number: int, output: OutputFiles, schema: pa.Schema) -> None:
        self._file = FileWriter(local_place(folder) / f"part-{number:05d}.{output.format}")
        self._formats = RowFormats({"": output.format})
        self._schema = schema
        self._rows: RowsFile | None = None
        self._held: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._held.append(rows)
        count, size = (sum(getattr(one, of) for one in self._held) for of in ("num_rows", "nbytes"))
        if count >= _GROUP_ROWS or size >= _GROUP_BYTES:
            self._write()

    def _write(self) -> RowsFile:
        group = pa.Table.from_batches(self._held, self._schema)
        self._held.clear()
        file = self._rows = self._rows or self._formats.begin("", self._file, group)
        if group.num_rows:
            file.write(group)
        return file

    def finish(self) -> int:
        """The rows of the file, also of one without any."""
        return self._write().finish()

    def close(self) -> None:
        """Ends the writing."""
        self._file.close()


class _BadRows:
    """Rows that are left out, in a file, by side and reason; without a file the first one ends the work.

    For several threads.
    """

    def __init__(self, file: _PartFile | None) -> None:
        self._file = file
        self._lock = Lock()
        self.counts: Counter[str] = Counter()

    def add(self, side: str, reason: str, records: Sequence[str]) -> None:
        """Add some, as texts.

        Raises:
            DeduperError: there is no place for bad rows.
        """
        if not records:
            return
        if self._file is None:
            write = "correct it, or keep bad rows: write `errors: {path: DIR, format: json}`"
            raise DeduperError(f"bad {side}: {reason}: {records[0]}; {write}")
        columns = [[side] * len(records), [reason] * len(records), list(records)]
        with self._lock:
            self._file.add(pa.RecordBatch.from_arrays([pa.array(one, pa.string()) for one in columns], schema=_ERRORS))
            self.counts[f"{side}.{reason}"] += len(records)

    def finish(self) -> None:
        """All are written."""
        if self._file is not None:
            self._file.finish()

    def close(self) -> None:
        """Ends the writing."""
        if self._file is not None:
            self._file.close()


class _Budget:
    """Keeps the index below a share of memory: texts, two marks a row with their times, and what aggregates take."""

    def __init__(self, work: Work) -> None:
        self._bytes_a_row = 2 * (32 + work.aggregate_bytes)
        self._most = psutil.virtual_memory().available // _SHARE_OF_MEMORY
        self._taken = 0
        self._lock = Lock()

    def take(self, rows: int, text_bytes: int) -> None:
        """Raises UsageError if the index is too large with these rows."""
        with self._lock:
            self._taken += rows * self._bytes_a_row + text_bytes
            if self._taken > self._most:
                raise not_plain(f"an index of {self._taken >> 20} MiB or more is more than a quarter of free memory")


def _threads(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="ranges")


def _require_places(job: RangeJob) -> None:
    """What can be known of files and folders before anything is read."""
    for _, files in job.sides:
        if not files.path.exists():
            raise UsageError(f"{files.path}: there is no such file or folder")
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


def _require_columns(job: RangeJob, events: FileSide, ranges: FileSide) -> None:
    """The columns that settings name are there, ids and times of equal types on both sides."""
    of_events, of_ranges = ({column.name: column.arrow for column in side.columns} for side in (events, ranges))
    for (side, _), types in zip(job.sides, (of_events, of_ranges), strict=True):
        for path, column in job.columns_of(side):
            if column not in types:
                advice = suggestion(column, list(types), "columns are")
                raise UsageError(f"{'.'.join(path)}: {side} have no column `{column}`; {advice}")
    pairs = [*(("on", name, name) for name in job.on), *(("time", job.time, name) for name in (job.start, job.end))]
    for setting, name, of_range in pairs:
        if of_events[name] != of_ranges[of_range]:
            kinds = f"`{name}` of events is {of_events[name]}, `{of_range}` of ranges is {of_ranges[of_range]}"
            raise UsageError(f"{setting}: {kinds}; give both one type")
    kind = of_events[job.time]
    if not (pa.types.is_temporal(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UsageError(
            f"time: `{job.time}` is {kind}, which is no time; declare it as a timestamp, or write it as one"
        )
