"""How keys and verdicts travel between the three steps of a window, and the exchange files of one machine.

`JudgeExchange` and `WriteExchange` are what the tasks that judge and write see of it; readers are numbered in source
order. `FileExchange` is one folder of files that all tasks see, of one attempt, mapped and never synced:

    <directory>/<reading task>.rows    the columns of every record for the ports, in the order of the source
    <directory>/<reading task>.keys    the columns for judging: one record batch a shard
    <directory>/<shard>.verdicts       verdict and reason of every row: one record batch a reading task
    <directory>/<shard>.firsts         the first copies of duplicates, and both fingerprints of conflicts: the same

All are Arrow IPC files; a row is named by its number in its reading task. Nothing here is truth and nothing outlives
its window: a record never names it, and a process that dies leaves a folder for the next start to remove.

A task may run twice, the second time while others already read. A reading task gets a new name for each run. A shard's
files have one name, which they get when they are complete, and equal contents from every run.

If no task can have a reading task's files open any more, those of the next window overwrite them (`hand_over`):
memory in use costs less than memory that the system has to find and clear, above all in a virtual machine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from deduper.errors import telling_where

ROW, HI, LO, ORDER, ADMISSION, EXPIRY, CATEGORY = "row", "hi", "lo", "order", "admission", "expiry", "category"
LATEST = "latest"
PLACE = "place"
"""Where a record was read, if ORDER is another one; see `ReadTask.sequence`."""
VERDICT, REASON = "verdict", "reason"
WINDOW, ORIGIN = "window", "origin"
FINGERPRINT, FIRST_FINGERPRINT = "fingerprint", "first_fingerprint"

_ROWS, _KEYS = ".rows", ".keys"

OfReaders = list[tuple[int, pa.RecordBatch]]
"""Batches of one shard by the number of their reading task, in source order."""


class JudgeExchange(Protocol):
    """The side of a shard's task."""

    def keys(self, shard: int) -> OfReaders:
        """The columns for judging, by reading task. Called once, after all reading tasks have finished.

        A reading task without rows of the shard may be missing.
        """

    def leave_verdicts(self, shard: int, verdicts: OfReaders, firsts: OfReaders) -> None:
        """Leave the verdicts of all these rows for the writers, and the first copies, if these are kept or compared.

        Called once, before the piece is written. A task that runs twice leaves the same.
        """


class WriteExchange(Protocol):
    """The side of a writer."""

    def verdicts(self, reader: int) -> list[pa.RecordBatch]:
        """The verdicts of a reading task's rows, by shard. Called after all shards were judged.

        A shard without rows of it may be missing.
        """

    def firsts(self, reader: int) -> list[pa.RecordBatch]:
        """The first copies of its copies, by shard; called only if some are left. Not empty if it has rows."""

    def records(self, reader: int) -> pa.RecordBatchFileReader:
        """The records of a reading task, as it has left them, in its order."""


class FileExchange:
    """Both sides, in a folder of files. `readers` are the names of the reading tasks, in source order."""

    def __init__(self, directory: str, readers: Sequence[str], shards: int = 0) -> None:
        """`shards`: their number, for the writers' side."""
        self._directory = directory
        self._readers = readers
        self._shards = range(shards)
        self._verdicts: list[pa.RecordBatchFileReader] | None = None
        self._firsts: list[pa.RecordBatchFileReader] | None = None

    def keys(self, shard: int) -> OfReaders:
        names = enumerate(self._readers)
        return [(number, mapped(keys_file(self._directory, name)).get_batch(shard)) for number, name in names]

    def leave_verdicts(self, shard: int, verdicts: OfReaders, firsts: OfReaders) -> None:
        if verdicts:
            write_batches(verdicts_file(self._directory, shard), [batch for _, batch in verdicts])
        if firsts:
            write_batches(firsts_file(self._directory, shard), [batch for _, batch in firsts])

    def verdicts(self, reader: int) -> list[pa.RecordBatch]:
        if self._verdicts is None:
            self._verdicts = [mapped(verdicts_file(self._directory, shard)) for shard in self._shards]
        return [file.get_batch(reader) for file in self._verdicts]

    def firsts(self, reader: int) -> list[pa.RecordBatch]:
        if self._firsts is None:
            self._firsts = [mapped(firsts_file(self._directory, shard)) for shard in self._shards]
        return [file.get_batch(reader) for file in self._firsts]

    def records(self, reader: int) -> pa.RecordBatchFileReader:
        return mapped(rows_file(self._directory, self._readers[reader]))


def first_copies(
    rows: Sequence[int] | np.ndarray[Any, Any],
    *,
    window: np.ndarray[Any, Any],
    origin: np.ndarray[Any, Any],
    expiry: pa.Array,
    fingerprints: tuple[pa.Array, pa.Array] | None = None,
) -> pa.RecordBatch:
    """The first copies that these rows name: window, source order and expiry key, null where tuples have none.

    `fingerprints` are the rows' own and the first copies', null but for conflicts.
    """
    columns = {ROW: pa.array(rows, pa.int32()), WINDOW: pa.array(window), ORIGIN: pa.array(origin), EXPIRY: expiry}
    if fingerprints is not None:
        columns |= zip((FINGERPRINT, FIRST_FINGERPRINT), fingerprints, strict=True)
    return pa.RecordBatch.from_pydict(columns)


def numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """A column of numbers; nulls become 0, which nothing reads, by the admission of their rows."""
    if column.null_count:
        column = column.fill_null(0)
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return values


def rows_file(directory: str, name: str) -> str:
    """The records of a reading task."""
    return str(Path(directory, f"{name}{_ROWS}"))


def keys_file(directory: str, name: str) -> str:
    """The columns for judging of a reading task's records."""
    return str(Path(directory, f"{name}{_KEYS}"))


def verdicts_file(directory: str, shard: int) -> str:
    """The verdicts of a shard."""
    return str(Path(directory, f"{shard:05d}.verdicts"))


def firsts_file(directory: str, shard: int) -> str:
    """The first copies of a shard's duplicates."""
    return str(Path(directory, f"{shard:05d}.firsts"))


def write_batches(path: str, batches: Sequence[pa.RecordBatch]) -> None:
    """A file of these batches, of which there is at least one; all have one schema.

    A file that is there already is replaced, never written into: it may be mapped.
    """
    temporary = f"{path}.{secrets.token_hex(8)}"
    with writing(temporary, batches[0].schema) as file:
        for batch in batches:
            file.write_batch(batch)
    Path(temporary).replace(path)


@contextmanager
def writing(path: str, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    """A new file for batches of this schema, written one after another."""
    with telling_where(path), _new_file(path) as sink, pa.ipc.new_file(sink, schema) as file:
        yield file


def hand_over(directory: Path, to: Path, names: Sequence[str]) -> None:
    """Move the files of these reading tasks to another folder, to be overwritten; no task may have them open."""
    for kind in (_ROWS, _KEYS):
        left = to / _left(kind)
        left.mkdir()
        for name in names:
            Path(directory, f"{name}{kind}").rename(left / f"{name}{kind}")


@contextmanager
def _new_file(path: str) -> Iterator[pa.NativeFile]:
    if not _takes_one_over(path):
        with pa.OSFile(path, "wb") as sink:
            yield sink
        return
    # Arrow would truncate it on opening, and its memory would be freed.
    with (
        open(path, "wb", opener=lambda name, flags: os.open(name, flags & ~os.O_TRUNC)) as file,
        pa.PythonFile(file, "w") as sink,
    ):
        yield sink
        file.truncate()


def _takes_one_over(path: str) -> bool:
    """Gives a left file of this kind the name `path`, to be written over; false if there is none.

    Left files have folders by kind: a window has four files for every source partition, and searching all of them for
    each would take quadratic time.
    """
    to = Path(path)
    with suppress(FileNotFoundError), os.scandir(to.parent / _left(to.suffixes[0])) as left:
        for file in left:
            with suppress(FileNotFoundError):  # another task was faster
                Path(file).rename(path)
                return True
    return False


def _left(kind: str) -> str:
    """The folder of left files with this suffix."""
    return f"left-{kind.removeprefix('.')}"


def mapped(path: str) -> pa.ipc.RecordBatchFileReader:
    """The batches of a file, by number, as views of its bytes.

    The file is closed at once and stays mapped while a view of it lives: a task may need more files than a process may
    have open.
    """
    with pa.memory_map(path) as source:
        # As one buffer, which is not copied: a reader of files asks another thread for every part of it.
        return pa.ipc.open_file(source.read_buffer())
