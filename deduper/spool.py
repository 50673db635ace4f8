"""What the three jobs of a window hand to each other on one machine: files of one attempt, mapped and never synced.

    <directory>/<reading task>.rows        what the ports get of every record, in the order of the source
    <directory>/<reading task>.keys        what judging needs of them: one record batch a shard
    <directory>/<judging task>.verdicts    verdict and reason of a shard's rows: one record batch a reading task
    <directory>/<judging task>.firsts      the first copies of its duplicates: the same

All are Arrow IPC files; a row is named by its number in its reading task. Every attempt at a task takes a name of its
own (`new_name`), which its receipt tells: a twin never writes into what another reads. Nothing here is truth and
nothing outlives its window: a record never names it, and a process that dies leaves a folder for the next start to
remove.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from deduper.full_disk import telling_where

ROW, HI, LO, ORDER, FATE, EXPIRY, CATEGORY = "row", "hi", "lo", "order", "fate", "expiry", "category"
LATEST = "latest"
VERDICT, REASON = "verdict", "reason"
WINDOW, SOURCE, POSITION = "window", "source", "position"


def new_name() -> str:
    """What an attempt at a task calls its files."""
    return uuid.uuid4().hex


def rows_file(directory: str, name: str) -> str:
    """The records of a reading task."""
    return str(Path(directory, f"{name}.rows"))


def keys_file(directory: str, name: str) -> str:
    """What judging needs of the records of a reading task."""
    return str(Path(directory, f"{name}.keys"))


def verdicts_file(directory: str, name: str) -> str:
    """The verdicts of a judging task."""
    return str(Path(directory, f"{name}.verdicts"))


def firsts_file(directory: str, name: str) -> str:
    """The first copies of a judging task's duplicates."""
    return str(Path(directory, f"{name}.firsts"))


def write_batches(path: str, batches: Sequence[pa.RecordBatch]) -> None:
    """A file of these batches, of which there is at least one; all have one schema."""
    with writer(path, batches[0].schema) as file:
        for batch in batches:
            file.write_batch(batch)


@contextmanager
def writer(path: str, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    """What makes a file of batches of this schema, one after another."""
    with telling_where(path), pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        yield file


@contextmanager
def mapped(path: str) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """The batches of a file, by number, as views of its bytes; they must not be used after the end."""
    with pa.memory_map(path) as source:
        yield pa.ipc.open_file(source)
