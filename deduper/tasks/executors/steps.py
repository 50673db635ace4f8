"""The three tasks of a window on executors that share no folder: what runs in the partitions of Spark's jobs.

The work is that of `read`, `judge` and `write`; here is how it gets its input and leaves its results:

    Left      of a reading partition: the names of its files, which stay on its host (`HostFolder`)
    Judged    of a shard: its receipt, and the verdicts as blobs (an Arrow IPC stream of one batch)

Of a small window the driver is the only reading partition: it calls `left_in`, `deal_keys` and `write_arrived` itself,
and `judge_shards` is the only task.

If an executor is lost, Spark runs its partitions again. A reading partition must then leave the same keys: later tasks
get the checksums of those that the driver counted, and a difference ends the attempt (`RowsGoneError`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import xxhash

from bucket_store import failpoints
from bucket_store.errors import StoreError
from bucket_store.maintenance.compactions import Answer
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from bucket_store.pieces.open import open_backend
from bucket_store.tables.view import ShardView
from deduper.errors import CannotWriteError, RowsGoneError
from deduper.tasks import exchange
from deduper.tasks.exchange import OfReaders, mapped
from deduper.tasks.judge import JudgeTask, Receipt, judge
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows, read_function
from deduper.tasks.readers.reading_tasks import PartRead, SourcePart, read_group
from deduper.tasks.table_room import TableRoom
from deduper.tasks.write import WriterReceipt, WriteTask, write

_NAME = "records"
_FOLDER = re.compile(r"(?P<store>[0-9a-f]+(-[0-9a-f]{8})?)-(?P<epoch>\d+)-(?P<attempt>\d+)")
_LEAST_ROOM = 512 << 20
_LEASE_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class HostFolder:
    """The folder of one attempt at a window for records and keys, on any host; pickled into the job.

        <dir of the tables>/records/<store folder>-<epoch>-<attempt>/<reading task>.rows, <reading task>.keys

    `store` is the folder of the store's tables, as `ShardView.folder`, for its id and path: a copy of the store may run
    on the same hosts. Nothing here is truth. A reading task makes the folder of its attempt. It removes the folders of
    earlier attempts of its store, and those of other stores that had no new file for hours. If a folder is removed too
    early, its window is judged again.
    """

    store: str
    epoch: int
    attempt: int
    tables: TableRoom

    def make(self, *, on_disk: bool = False) -> str:
        """Make the folder on this host, in shared memory while that has room, and remove unneeded ones."""
        settings = self.tables.here()
        memory, disk = (Path(above, _NAME) for above in (settings.memory_dir, settings.disk_dir))
        for home in {memory, disk}:
            self._sweep(home)
        if memory != disk and not on_disk:
            with contextlib.suppress(OSError):
                folder = self._made(memory)
                if shutil.disk_usage(folder).free > _LEAST_ROOM:
                    return str(folder)
        return str(self._made(disk))

    def remove_all(self) -> None:
        """Remove the folders of the store's attempts up to this one from this host."""
        settings = self.tables.here()
        for above in {settings.memory_dir, settings.disk_dir}:
            self._sweep(Path(above, _NAME), upto=self.attempt + 1)

    def _made(self, home: Path) -> Path:
        home.mkdir(parents=True, exist_ok=True)
        folder = home / f"{self.store}-{self.epoch}-{self.attempt}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _sweep(self, home: Path, upto: int | None = None) -> None:
        before = (self.epoch, self.attempt if upto is None else upto)
        for folder in home.glob("*"):
            named = _FOLDER.fullmatch(folder.name)
            if named is None:
                continue
            if named["store"] == self.store:
                is_over = (int(named["epoch"]), int(named["attempt"])) < before
            else:
                is_over = _age_s(folder) > _LEASE_S
            if is_over:
                shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0  # another task is removing it


class VerdictBlob(NamedTuple):
    """The verdicts of a shard for one reading task, and the first copies, if they are kept."""

    reader: int
    shard: int
    verdicts: bytes
    firsts: bytes | None


class ArrivedKeys:
    """The exchange of a shard's task: the blobs that arrived, by reading task; `left` are those for the writers."""

    def __init__(self, keys: Iterable[tuple[int, bytes]]) -> None:
        self._keys = sorted(keys)
        self.left: list[VerdictBlob] = []

    def keys(self, shard: int) -> OfReaders:
        del shard  # nothing arrives of another
        return [(reader, unpacked(blob)) for reader, blob in self._keys]

    def leave_verdicts(self, shard: int, verdicts: OfReaders, firsts: OfReaders) -> None:
        copies = {reader: packed(batch) for reader, batch in firsts}
        self.left = [VerdictBlob(reader, shard, packed(batch), copies.get(reader)) for reader, batch in verdicts]


class ArrivedVerdicts:
    """The exchange of a writer: the blobs that arrived, and the files with the records of its reading tasks."""

    def __init__(self, verdicts: Iterable[VerdictBlob], files: Mapping[int, str]) -> None:
        self._of: dict[int, list[VerdictBlob]] = {}
        for blob in sorted(verdicts, key=lambda blob: blob.shard):
            self._of.setdefault(blob.reader, []).append(blob)
        self._files = files

    def verdicts(self, reader: int) -> list[pa.RecordBatch]:
        return [unpacked(blob.verdicts) for blob in self._of.get(reader, ())]

    def firsts(self, reader: int) -> list[pa.RecordBatch]:
        return [unpacked(blob.firsts) for blob in self._of.get(reader, ()) if blob.firsts is not None]

    def records(self, reader: int) -> pa.RecordBatchFileReader:
        return mapped_here(self._files[reader])


def mapped_here(path: str) -> pa.RecordBatchFileReader:
    """The batches of a file that a reading task has left on this host.

    Raises:
        RowsGoneError: it is not there.
    """
    try:
        return mapped(path)
    except FileNotFoundError as exc:
        raise RowsGoneError(f"{Path(path).name}: rows are gone from this host") from exc


def packed(batch: pa.RecordBatch) -> bytes:
    """A batch as a blob."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def unpacked(blob: bytes) -> pa.RecordBatch:
    """The batch of a blob, as views of its bytes."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as stream:
        return stream.read_next_batch()


MOST_AT_ONCE = 8
"""One process judges so many shards of a small window at a time, on threads."""
_P = TypeVar("_P", bound=SourcePart)
_T = TypeVar("_T")


class Expected(NamedTuple):
    """A reading task as the driver counts it: its number in source order, and the checksum of its keys."""

    reader: int
    keys: int


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """The result of a reading partition: its parts, and the names and checksums of what they have left on its host.

    `partition` is its number in its job, -1 if the caller knows it.
    """

    directory: str = ""
    parts: tuple[PartRead, ...] = ()
    checksums: tuple[int, ...] = ()
    partition: int = -1

    @property
    def receipts(self) -> list[ReadReceipt]:
        """The receipts of the parts with records; each has a checksum."""
        return [part.receipt for part in self.parts if part.receipt is not None]

    def require(self, expected: Sequence[Expected]) -> list[tuple[int, ReadReceipt]]:
        """The receipts with their numbers.

        Raises:
            RowsGoneError: the partition was read again, and gave other keys.
        """
        if self.checksums != tuple(each.keys for each in expected):
            raise RowsGoneError("rows are gone: a lost partition of the source was read again, and gave others")
        return [(each.reader, receipt) for each, receipt in zip(expected, self.receipts, strict=True)]


@dataclass(frozen=True, slots=True)
class JudgedShard:
    """The result of a shard's task; `ran_on` names the executor's process."""

    receipt: Receipt
    verdicts: list[VerdictBlob] = field(repr=False)
    ran_on: str = ""


def read_parts(
    folder: HostFolder, read: Callable[[ReadTask, _P], PartRead], task: ReadTask, parts: Sequence[_P]
) -> ReadPartition:
    """Read these parts; on the host's disk if its shared memory is full."""
    try:
        return _left(replace(task, directory=folder.make()), read, parts)
    except CannotWriteError:
        return _left(replace(task, directory=folder.make(on_disk=True)), read, parts)


def _left(task: ReadTask, read: Callable[[ReadTask, _P], PartRead], parts: Sequence[_P]) -> ReadPartition:
    return left_in(task.directory, read_group(read, task, parts))


def left_in(directory: str, parts: Sequence[PartRead], partition: int = -1) -> ReadPartition:
    """What these parts have left in a folder."""
    files = [exchange.keys_file(directory, part.receipt.name) for part in parts if part.receipt is not None]
    return ReadPartition(directory, tuple(parts), tuple(map(_checksum, files)), partition)


def read_rows(folder: HostFolder, task: ReadTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Reads the rows of a partition of Spark's; gives one row, a pickled `ReadPartition`, or none of an empty one."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        here = replace(task, directory=folder.make())
        for row in read_function(here)(batches):
            receipt: ReadReceipt = pickle.loads(row.column(0)[0].as_py())
            left = left_in(here.directory, [PartRead(receipt)], context.partitionId())
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(left)], pa.binary())], ["receipt"])

    return read


def left_of_rows(rows: Iterable[tuple[bytes]]) -> Iterator[ReadPartition]:
    """The one `ReadPartition` of a partition that Spark has read."""
    yield next((pickle.loads(row[0]) for row in rows), ReadPartition())


def deal_keys(
    expected: Sequence[Sequence[Expected]], shards: int, partition: int, lefts: Iterator[ReadPartition]
) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """(shard, (reader, keys)) of a reading partition.

    Raises:
        RowsGoneError: see `ReadPartition.require` and `mapped_here`.
    """
    for left in lefts:
        for reader, receipt in left.require(expected[partition]):
            file = mapped_here(exchange.keys_file(left.directory, receipt.name))
            for shard in range(shards):
                batch = file.get_batch(shard)
                if batch.num_rows:
                    yield shard, (reader, packed(batch))


def deal_admitted(
    task: ReadTask, expected: Sequence[Sequence[Expected]], partition: int, lefts: Iterator[ReadPartition]
) -> Iterator[tuple[int, Admitted]]:
    """(reader, its admitted rows) of a reading partition."""
    for left in lefts:
        for reader, receipt in left.require(expected[partition]):
            mapped_here(exchange.keys_file(left.directory, receipt.name))
            yield reader, admitted_rows(replace(task, directory=left.directory), receipt.name)


def as_list(numbered: Iterable[tuple[int, _T]]) -> Iterator[list[_T]]:
    """The elements of a partition as one list."""
    yield [each for _, each in numbered]


def judge_arrived(
    task: JudgeTask, tables: TableRoom, arrived: tuple[list[tuple[int, bytes]], ShardView]
) -> JudgedShard:
    """Judge a shard by the keys that have arrived; its view came with its place."""
    keys, view = arrived
    travels = ArrivedKeys(keys)
    here = replace(tables.here(), layout=task.tables.layout)
    receipt = judge(replace(task, tables=here), view, exchange=travels)
    # All workers of an executor have one parent.
    return JudgedShard(receipt, travels.left, f"{socket.gethostname()}:{os.getppid()}")


def judge_shards(
    task: JudgeTask, folder: HostFolder, arrived: Sequence[tuple[list[tuple[int, bytes]], ShardView]]
) -> list[JudgedShard]:
    """Judge the shards of an executor side by side, since each waits for the sync of its piece.

    No task reads, so this one removes the folders of earlier attempts.
    """
    folder.remove_all()
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(arrived)), "judge") as threads:
        return list(threads.map(partial(judge_arrived, task, folder.tables), arrived))


def receipt_of(judged: JudgedShard) -> tuple[Receipt, str]:
    """The part of a shard's result that the driver gets."""
    return judged.receipt, judged.ran_on


def deal_verdicts(partitions: Sequence[int], judged: JudgedShard) -> Iterator[tuple[int, VerdictBlob]]:
    """(reading partition, verdicts) of a shard; `partitions` are those of the readers."""
    for blob in judged.verdicts:
        yield partitions[blob.reader], blob


def write_arrived(
    task: WriteTask,
    expected: Sequence[Sequence[Expected]],
    partition: int,
    arrived: Iterator[tuple[list[VerdictBlob], ReadPartition]],
) -> Iterator[WriterReceipt]:
    """Write the ports' rows of a reading partition: its verdicts have arrived, and its records are on this host.

    Raises:
        RowsGoneError: the records are gone, or are others.
    """
    for verdicts, left in arrived:
        receipts = left.require(expected[partition])
        failpoints.hit("write.arrived")
        files = {reader: exchange.rows_file(left.directory, receipt.name) for reader, receipt in receipts}
        if files:
            yield write(task, partition, ArrivedVerdicts(verdicts, files))


def remove_folders(folder: HostFolder, _: int) -> None:
    """Remove what the attempts of a store have left on this host."""
    folder.remove_all()


def _checksum(file: str) -> int:
    return xxhash.xxh3_64_intdigest(Path(file).read_bytes())


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merges small pieces of a shard into one, see `pieces.compaction`; pickled into the job.

    It has where the pieces of a store lie, and the store's copies of them on any host. It may run any number of
    times, also twice at once and after its driver is gone: each run appends a piece of its own, of the same bytes, and
    only the one that the driver's record names counts.
    """

    store_url: str
    store_folder: str
    tables: TableRoom

    def merged(self, task: CompactionTask) -> Answer:
        """Merge, and give the answer. An error of the store is an answer too: a second run would end the same way.

        Raises:
            Exception: any other error; Spark runs the task again.
        """
        store = open_backend(self.store_url)
        try:
            return compact_pieces(store, task, self.tables.here().piece_cache(store, self.store_folder))
        except StoreError as error:
            return error
        finally:
            store.close()
