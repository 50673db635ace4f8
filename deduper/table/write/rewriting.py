"""Removed files, written again: for each a new file with its rows that stay, then the rows of the batch that go there.

Files are written side by side, one a core. The rows of the batch wait in an Arrow file, mapped into memory, so they
need not fit into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa

from bucket_store.filesystem import LOCAL, make_directories
from deduper.table.index.keys import Int64s
from deduper.table.write.encoding import dictionary_columns
from deduper.table.write.operation import Rewrite
from deduper.table.write.parquet_file import TableFile, Written
from deduper.table.write.side_by_side import each_written

ROW_GROUP = 1 << 20
"""The most rows of a row group."""
LEAST_ROW_GROUP = ROW_GROUP // 8
"""The fewest, but for the last one of a file."""


class WaitingRows:
    """Rows that go to removed files, by the files' numbers; a context manager around `add`, before any `of`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._rows: dict[int, list[tuple[int, Int64s]]] = {}
        self._added = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, records: pa.RecordBatch, number: Int64s) -> None:
        """Adds rows, each with the number of its file."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._path), self._schema)
        self._writer.write_batch(records)
        order = np.argsort(number, kind="stable")
        number = number[order]
        edges = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(number)]
        for begin, end in pairwise(edges):
            self._rows.setdefault(int(number[begin]), []).append((self._added, order[begin:end]))
        self._added += 1

    def of(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a file, in the order in which they were added. Thread-safe."""
        for place, rows in self._rows.get(number, ()):
            yield self._batches[place].take(pa.array(rows))

    def __enter__(self) -> WaitingRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is None:
            return
        self._writer.close()
        if kind is None:
            reader = pa.ipc.open_file(pa.memory_map(str(self._path)))
            self._batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]


def rewrite_files(
    rewrite: Rewrite,
    waiting: WaitingRows,
    in_folders: Sequence[str],
    folder: Path,
    begin_sync: Callable[[Path], object],
) -> list[tuple[int, Written]]:
    """(number of a removed file, the new one in its place); without rows there is none.

    `in_folders`: columns that the files do not have. `begin_sync` is called with each new file, from any thread.

    Raises: as `Rewrite.kept`.
    """
    make_directories(LOCAL, folder)
    dictionaries = _Dictionaries()
    schema = pa.schema([field for field in rewrite.schema if field.name not in in_folders])

    def written(number: int) -> tuple[int, Written] | None:
        path = folder / str(number)
        rows = (records for of in (rewrite.kept(number), waiting.of(number)) for records in of)
        made = _write(path, schema, rows, dictionaries, lambda: (rewrite.codec(number), rewrite.notes(number)))
        if made is None:
            return None
        begin_sync(path)
        return number, made

    found = each_written(written, rewrite.removed, lambda number: rewrite.removed[number].size)
    return sorted((one for one in found if one is not None), key=itemgetter(0))


class _Dictionaries:
    """The columns that get a dictionary, by the rows that are written first: a sample of each file tells no more."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._columns: list[str] | bool | None = None

    def of(self, rows: pa.Table) -> list[str] | bool:
        """Thread-safe."""
        with self._lock:
            if self._columns is None:
                self._columns = dictionary_columns(max(rows.to_batches(), key=len))
            return self._columns


def _write(
    path: Path,
    schema: pa.Schema,
    rows: Iterable[pa.RecordBatch],
    dictionaries: _Dictionaries,
    encoding: Callable[[], tuple[str, dict[bytes, bytes]]],
) -> Written | None:
    """A Parquet file of these columns of the rows; without rows none.

    `encoding` gives the compression and the metadata; it is called once there are rows.
    """
    file: TableFile | None = None
    made: Written | None = None
    try:
        for group in _groups(schema, rows):
            if file is None:
                codec, notes = encoding()
                file = TableFile(path, schema, dictionaries.of(group), compression=codec, notes=notes)
            file.write(group, ROW_GROUP)
    finally:
        if file is not None:
            made = file.close()
    return made


def _groups(schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of at least `LEAST_ROW_GROUP` rows, but for the last one."""
    held: list[pa.RecordBatch] = []
    for records in rows:
        held.append(records.select(schema.names))
        if sum(one.num_rows for one in held) >= LEAST_ROW_GROUP:
            yield pa.Table.from_batches(held, schema)
            held = []
    if held:
        yield pa.Table.from_batches(held, schema)
