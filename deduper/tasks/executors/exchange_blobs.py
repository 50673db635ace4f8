"""Keys and verdicts of a window as blobs, which Spark's shuffle carries between the tasks.

A blob is an Arrow IPC stream of one batch. Records stay in the files of their reading task, and their writer runs where
the files are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from deduper.errors import RowsGoneError
from deduper.tasks.exchange import OfReaders, mapped


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
