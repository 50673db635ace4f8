"""The third step of a window: writes the records with their verdicts into the ports' files.

A writer takes some source partitions, in order, and writes one file for each port that any of their records leaves by,
in the port's format (`tasks.row_files`). The records are mapped, not read; each is copied once, into the columns of its
file.

Only the files that a receipt names are the window's; each is durable, counted and checksummed by then. A task that is
retried, or resumes long after the window was published, writes into files of its own. On this machine it makes no
folder, so it cannot recreate a removed one; elsewhere the next start removes what it leaves.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from bucket_store import failpoints
from bucket_store.places.new_file import FileWriter
from bucket_store.places.place import Place
from deduper.core.clock import POSITION_BITS
from deduper.core.kernels import Int64s
from deduper.core.verdict import REASONS, TupleVerdict
from deduper.dedup_column import DEDUP
from deduper.errors import telling_where
from deduper.tasks import layout
from deduper.tasks.errors.causes import ErrorCounts, ErrorSummary
from deduper.tasks.errors.detail import ErrorDetails, Examination
from deduper.tasks.exchange import (
    EXPIRY,
    FINGERPRINT,
    FIRST_FINGERPRINT,
    ORIGIN,
    REASON,
    ROW,
    VERDICT,
    WINDOW,
    FileExchange,
    WriteExchange,
)
from deduper.tasks.found_partitions import in_window
from deduper.tasks.kafka_rows import SLOT, rows_to_send
from deduper.tasks.origins import WindowSources
from deduper.tasks.read import cpu_seconds
from deduper.tasks.row_files import RowFormats, RowsFile

_WRITER_BYTES = 4 << 20
"""Up to so many bytes of records one writer is enough and no job is needed: more writers make more files."""

_ROW_GROUP_BYTES = 64 << 20
_HELD_BYTES = 64 << 20
"""A file that is kept in memory ends at this size; its port gets another one."""
_PORTS = tuple(verdict.port for verdict in TupleVerdict)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The parameters of a writer; pickled into the job.

    `readers` are the reading tasks in source order, with the number of their rows; writer w takes those of groups[w].
    `spilled_bytes` is the size of the spilled records.
    `targets` are the ports that are written, each with the folder of its files, which is there; `topics` are those of
    them whose rows are sent (`tasks.kafka_rows`), each with the headers to add; the others are written with the
    source's `columns` and `_dedup`, in their `formats`. `sources` are those of this window and of the duplicates' first
    copies. `source_slots` are the writers of topics for each source partition, None where order needs no keeping.
    `dedup` is the type of `_dedup` in the rows of each of the ports. `details` are for the rows of the error port.
    `ordinals`: see `FoundPartitions`.
    """

    directory: str
    shards: int
    readers: tuple[tuple[str, int], ...]
    spilled_bytes: int
    groups: tuple[tuple[int, ...], ...]
    targets: Mapping[str, Place]
    topics: Mapping[str, tuple[str, ...]]
    columns: tuple[str, ...]
    formats: RowFormats
    sources: WindowSources
    source_slots: tuple[int, ...] | None
    dedup: Mapping[str, pa.StructType]
    details: ErrorDetails | None = None
    ordinals: tuple[Int64s, ...] = ()

    @property
    def is_small(self) -> bool:
        """True if starting a job takes longer than the work."""
        return is_small(self.spilled_bytes)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged file, durable but for its name: its port and place, and its rows, size and XXH3-64 checksum.

    `rows` are those that its format counts, not those that a writer meant to write. `slots` are the writers of rows to
    send.
    """

    port: str
    place: Place
    rows: int
    size_bytes: int
    checksum: int
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WriterReceipt:
    """A writer's files, how long it took, and the errors among its rows if it wrote any."""

    files: tuple[StagedFile, ...]
    seconds: dict[str, float]
    errors: ErrorSummary | None = None


def write(task: WriteTask, writer: int, exchange: WriteExchange | None = None) -> WriterReceipt:
    """Write the ports' rows of a writer's source partitions. `exchange`: the task's folder without another one."""
    began, cpu = time.perf_counter(), cpu_seconds()
    files = {port: _PortFiles(task, writer, port) for port in task.targets}
    if exchange is None:
        exchange = FileExchange(task.directory, [name for name, _ in task.readers], task.shards)
    try:
        _write_records(task, writer, exchange, list(files.values()))
        _end_all([file for file in files.values() if file.is_open])
    finally:
        for file in files.values():
            file.close()
    failpoints.hit("write.done")
    return WriterReceipt(
        files=tuple(staged for file in files.values() for staged in file.staged),
        seconds={"ports": time.perf_counter() - began, "cpu.write": cpu_seconds() - cpu},
        errors=next((file.errors.summary() for file in files.values() if file.errors is not None), None),
    )


def _write_records(task: WriteTask, writer: int, exchange: WriteExchange, files: Sequence[_PortFiles]) -> None:
    """Add every row to the file of its port."""
    for reader in task.groups[writer]:
        _, rows = task.readers[reader]
        if not rows:
            continue
        judged = _Judged.of(exchange.verdicts(reader), rows)
        copies = _copies(task, exchange, reader)
        records = exchange.records(reader)
        begin = 0
        for number in range(records.num_record_batches):
            batch = records.get_batch(number)
            if task.ordinals:
                batch = _in_window(batch, task.ordinals[reader])
            for file in files:
                file.add(batch, begin, judged, copies)
            begin += batch.num_rows
        for file in files:
            file.drain()


def _in_window(records: pa.RecordBatch, ordinals: Int64s) -> pa.RecordBatch:
    order = in_window(records.column(layout.ORDER).to_numpy(), ordinals)
    at = records.schema.get_field_index(layout.ORDER)
    return records.set_column(at, records.schema.field(at), pa.array(order))


def _end_all(files: Sequence[_PortFiles]) -> None:
    """End every port's file, side by side: most of the time goes into waiting for the disk."""
    if len(files) < 2:
        for file in files:
            file.end()
        return
    with ThreadPoolExecutor(len(files), thread_name_prefix="sync") as pool:
        for ended in pool.map(_PortFiles.end, files):
            assert ended is None


@dataclass(frozen=True, slots=True)
class _Judged:
    """Verdict and reason of every row of a reading task."""

    verdict: np.ndarray[Any, Any]
    reason: np.ndarray[Any, Any]

    @classmethod
    def of(cls, parts: Sequence[pa.RecordBatch], rows: int) -> _Judged:
        verdict = np.full(rows, 255, np.uint8)
        reason = np.empty(rows, np.int8)
        for part in parts:
            numbers = part.column(ROW).to_numpy()
            verdict[numbers] = part.column(VERDICT).to_numpy()
            reason[numbers] = part.column(REASON).to_numpy()
        if rows and verdict.max() >= len(_PORTS):
            raise RuntimeError("a spilled row was never judged")
        return cls(verdict, reason)


@dataclass(frozen=True, slots=True)
class _Copies:
    """The fields of `_dedup` that copies alone have, by ascending row of a reading task; those that some port has."""

    rows: np.ndarray[Any, Any]
    fields: Mapping[str, pa.Array]

    def of(self, rows: np.ndarray[Any, Any], *, may_be_copies: bool) -> dict[str, pa.Array]:
        """Those of some rows, ascending; null where there is none."""
        if not self.rows.size or not may_be_copies:
            return {name: pa.nulls(rows.size, column.type) for name, column in self.fields.items()}
        first = int(np.searchsorted(self.rows, rows[0])) if rows.size else 0
        if np.array_equal(self.rows[first : first + rows.size], rows):
            return {name: column.slice(first, rows.size) for name, column in self.fields.items()}
        at = np.minimum(np.searchsorted(self.rows, rows), self.rows.size - 1)
        places = pa.array(at, mask=self.rows[at] != rows)
        return {name: column.take(places) for name, column in self.fields.items()}


def _copies(task: WriteTask, exchange: WriteExchange, reader: int) -> _Copies:
    types = {field.name: field.type for column in task.dedup.values() for field in column}
    if not types.keys() & {"first_seen", FINGERPRINT}:
        return _Copies(np.empty(0, np.int32), {})
    whole = pa.Table.from_batches(exchange.firsts(reader)).combine_chunks()
    rows = whole.column(ROW).to_numpy()
    ordered = np.argsort(rows, kind="stable")
    fields = {}
    if "first_seen" in types:
        first = types["first_seen"]
        windows = _column(whole, WINDOW)
        source, position = task.sources.places(windows.to_numpy(), _column(whole, ORIGIN).to_numpy())
        expiry = _expiry(_column(whole, EXPIRY), first.field("expiry").type)
        fields["first_seen"] = pa.StructArray.from_arrays(
            [windows, source.cast(pa.string()), position, expiry], fields=list(first)
        )
    if FINGERPRINT in types:
        fields |= {name: _hex_texts(_column(whole, name)) for name in (FINGERPRINT, FIRST_FINGERPRINT)}
    places = pa.array(ordered)
    return _Copies(rows[ordered], {name: column.take(places) for name, column in fields.items()})


def _hex_texts(words: pa.Array) -> pa.Array:
    """Fingerprints in 16 hex digits each; null for null."""
    digits = words.fill_null(0).to_numpy().astype(">u8").tobytes().hex().encode()
    ends = np.arange(len(words) + 1, dtype=np.int32) * 16
    texts = pa.Array.from_buffers(pa.string(), len(words), [None, pa.py_buffer(ends), pa.py_buffer(digits)])
    return pc.if_else(words.is_valid(), texts, pa.scalar(None, pa.string()))


def _column(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name)
    return chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)


def _expiry(stored: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Stored expiry keys as values of the source's column."""
    if pa.types.is_timestamp(wanted):
        return stored.view(wanted)
    if pa.types.is_decimal(wanted):
        whole = stored.cast(pa.decimal128(19, 0))
        # The same digits with the point elsewhere.
        return pa.Array.from_buffers(wanted, len(whole), whole.buffers())
    return stored


class _PortFiles:
    """One port's files of one writer, one after another; the first comes into being with the first row.

    There is a second one only where files wait in memory.
    """

    def __init__(self, task: WriteTask, writer: int, port: str) -> None:
        self._task = task
        self._number = writer
        self._port = port
        self._verdict = next(verdict for verdict in TupleVerdict if verdict.port == port)
        self._fields = [field.name for field in task.dedup[port]]
        # All duplicates have a first copy, and of other rows conflicts.
        self._may_be_copies = self._verdict == TupleVerdict.DUPLICATE or FINGERPRINT in self._fields
        self._file: FileWriter | None = None
        self._rows: RowsFile | None = None
        self._slots_met: set[int] = set()
        self.staged: list[StagedFile] = []
        details = task.details if self._verdict == TupleVerdict.ERROR else None
        self._examination = Examination(details) if details is not None else None
        self.errors = ErrorCounts(details) if details is not None else None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether rows were written that no staged file has yet."""
        return self._rows is not None

    def add(self, batch: pa.RecordBatch, begin: int, judged: _Judged, copies: _Copies) -> None:
        """Add the port's rows of a batch, whose first row has number `begin` in its reading task."""
        part = slice(begin, begin + batch.num_rows)
        mine = judged.verdict[part] == self._verdict
        count = int(np.count_nonzero(mine))
        if not count:
            return
        taken = batch if count == batch.num_rows else batch.filter(pa.array(mine))
        rows = np.flatnonzero(mine) + begin
        order = taken.column(layout.ORDER).to_numpy()
        dedup = self._dedup(taken, order, judged.reason[rows], copies.of(rows, may_be_copies=self._may_be_copies))
        names = self._task.columns
        if self._port in self._task.topics:
            texts = {name: _without_dictionary(column) for name, column in dedup.items()}
            whole = rows_to_send(taken, texts, self._slots(order), self._task.topics[self._port])
            self._slots_met.update(whole.column(SLOT).unique().to_pylist())
        else:
            columns = [taken.column(layout.parsed(number)) for number in range(len(names))]
            struct = pa.StructArray.from_arrays(list(dedup.values()), list(dedup))
            fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
            schema = pa.schema([*fields, pa.field(DEDUP, struct.type, nullable=False)])
            whole = pa.RecordBatch.from_arrays([*columns, struct], schema=schema)
        self._waiting.append(whole)
        self._waiting_bytes += whole.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self.drain()

    def _slots(self, order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The sender of each row."""
        if self._task.source_slots is None:
            return np.full(order.size, self._number, np.int32)
        slots: np.ndarray[Any, Any] = np.array(self._task.source_slots, np.int32)[order >> POSITION_BITS]
        return slots

    def _dedup(
        self,
        taken: pa.RecordBatch,
        order: np.ndarray[Any, Any],
        reason: np.ndarray[Any, Any],
        of_copies: Mapping[str, pa.Array],
    ) -> dict[str, pa.Array]:
        """The fields of `_dedup`, of rows of this port."""
        count = order.size
        ordinal = order >> POSITION_BITS
        position = order & ((1 << POSITION_BITS) - 1)
        sources = self._task.sources
        if any(sources.starts):
            position = position + np.array(sources.starts, np.int64)[ordinal]
        # It was kept in case a guard refused the tuple.
        raw = taken.column(layout.RAW) if self._verdict == TupleVerdict.ERROR else pa.nulls(count, pa.string())
        columns = {
            "verdict": _texts(np.zeros(count, np.int8), [self._port]),
            "reason": _texts(reason, REASONS),
            "window": pa.array(np.full(count, sources.window, np.int64)),
            "source": _texts(ordinal.astype(np.int32), sources.names),
            "position": pa.array(position),
            "raw": raw,
            "detail": pa.nulls(count, pa.string()),
            **of_copies,
        }
        if self._examination is not None and self.errors is not None:
            of_rows = [sources.names[number] for number in ordinal.tolist()]
            columns["detail"] = self._examination.details(taken, reason, of_rows)
            self.errors.add(reason.tolist(), columns["detail"].to_pylist(), raw, of_rows)
        return {name: columns[name] for name in self._fields}

    def drain(self) -> None:
        """Write the waiting rows."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if self._file is None:
            self._begin(table)
        assert self._file is not None
        assert self._rows is not None
        with telling_where(str(self._file.place)):
            self._rows.write(table)
        if self._file.is_held and self._rows.size_bytes >= _HELD_BYTES:
            self.end()

    def _begin(self, first: pa.Table) -> None:
        formats = self._task.formats
        # In the order in which they were written, by name.
        stem = f"{self._port}-{self._number:05d}-{len(self.staged):03d}-{secrets.token_hex(8)}"
        place = self._task.targets[self._port] / f"{stem}.{formats.of(self._port)}"
        with telling_where(str(place)):
            self._file = FileWriter(place)
            self._rows = formats.begin(self._port, self._file, first)

    def end(self) -> None:
        """End the file that was begun: whole, durable and counted."""
        file = self._file
        assert file is not None
        assert self._rows is not None
        with telling_where(str(file.place)):
            rows = self._rows.finish()
        slots = tuple(sorted(self._slots_met))
        self.staged.append(StagedFile(self._port, file.place, rows, file.size_bytes, file.checksum, slots))
        self.close()

    def close(self) -> None:
        """Close the file that was begun, which counts only if it was ended. Safe to repeat."""
        if self._file is not None:
            self._file.close()
        self._file = self._rows = None
        self._slots_met = set()


def _texts(codes: np.ndarray[Any, Any], texts: Sequence[str]) -> pa.DictionaryArray:
    """Texts by their codes; null for a negative one. To a reader of a file they are text."""
    known = pa.array(codes, mask=codes < 0)
    return pa.DictionaryArray.from_arrays(known, pa.array(texts, pa.string()))


def _without_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_small(record_bytes: int) -> bool:
    """True if starting a job for so many bytes of records takes longer than the work."""
    return record_bytes < _WRITER_BYTES


def writers_for(spilled_bytes: int, most: int) -> int:
    """The number of writers for so many bytes of records, at most `most`."""
    return min(most, 1 + spilled_bytes // _WRITER_BYTES)


def grouped(sizes: Sequence[int], tasks: int) -> tuple[tuple[int, ...], ...]:
    """The source partitions of each task: neighbours, of about equal size together. No task is empty."""
    groups: list[list[int]] = [[] for _ in range(tasks)]
    total, taken = max(1, sum(sizes)), 0
    for number, count in enumerate(sizes):
        groups[min(tasks - 1, (taken + count // 2) * tasks // total)].append(number)
        taken += count
    return tuple(tuple(group) for group in groups if group)
