"""What the three steps of a window hand to each other on one machine: files of one attempt, mapped and never synced.

    <directory>/<reading task>.rows    what the ports get of every record, in the order of the source
    <directory>/<reading task>.keys    what judging needs of them: one record batch a shard
    <directory>/<shard>.verdicts       verdict and reason of every row: one record batch a reading task
    <directory>/<shard>.firsts         the first copies of duplicates: the same

All are Arrow IPC files; a row is named by its number in its reading task. Nothing here is truth and nothing outlives
its window: a record never names it, and a process that dies leaves a folder for the next start to remove.

A task may run twice, and its twin may come when others already read. A reading task has a name of its own each time; a
shard's files have one name, hold the same whoever writes them, and come into their place whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deduper.full_disk import telling_where

ROW, HI, LO, ORDER, FATE, EXPIRY, CATEGORY = "row", "hi", "lo", "order", "fate", "expiry", "category"
LATEST = "latest"
VERDICT, REASON = "verdict", "reason"
WINDOW, ORIGIN = "window", "origin"


def numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """A column of numbers; nulls become 0 (their rows carry a fate that keeps anyone from looking)."""
    if column.null_count:
        column = column.fill_null(0)
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return values


def rows_file(directory: str, name: str) -> str:
    """The records of a reading task."""
    return str(Path(directory, f"{name}.rows"))


def keys_file(directory: str, name: str) -> str:
    """What judging needs of the records of a reading task."""
    return str(Path(directory, f"{name}.keys"))


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
    """A new file of batches of this schema, which are given one after another."""
    with telling_where(path), pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        yield file


def mapped(path: str) -> pa.ipc.RecordBatchFileReader:
    """The batches of a file, by number, as views of its bytes.

    The file is closed at once and stays mapped as long as anything of it is in use: a task may need more of them than
    a process may have open.
    """
    with pa.memory_map(path) as source:
        # As one buffer, which is not copied: a reader of files asks another thread for every part of it.
        return pa.ipc.open_file(source.read_buffer())
