"""The three tasks of a window on executors that share no folder: what runs in the partitions of Spark's jobs.

The work is that of `read`, `judge` and `write`; here is how it gets its input and leaves its results:

    Left      of a reading partition: the names of its files, which stay on its host (`host_folder`)
    Judged    of a shard: its receipt, and the verdicts as blobs (`exchange_blobs`)

Of a small window the driver is the only reading partition: it calls `left_in`, `deal_keys` and `write_arrived` itself,
and `judge_shards` is the only task.

If an executor is lost, Spark runs its partitions again. A reading partition must then leave the same keys: later tasks
get the checksums of those that the driver counted, and a difference ends the attempt (`RowsGoneError`).
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import xxhash

from bucket_store import failpoints
from bucket_store.tables.view import ShardView
from deduper.errors import CannotWriteError, RowsGoneError
from deduper.tasks import exchange
from deduper.tasks.executors.exchange_blobs import ArrivedKeys, ArrivedVerdicts, VerdictBlob, mapped_here, packed
from deduper.tasks.executors.host_folder import HostFolder
from deduper.tasks.judge import JudgeTask, judge
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows, read_function
from deduper.tasks.readers.reading_tasks import PartRead, SourcePart, read_group
from deduper.tasks.receipts import Receipt
from deduper.tasks.table_room import TableRoom
from deduper.tasks.write import WriterReceipt, WriteTask, write

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
