"""Rows for new files, by partition: of each, files up to a size, with its rows in their order.

Rows are copied once, into arrays of their partitions. A row group is written while the next rows are read; at
the end, the rest of the partitions is written side by side, one a core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deduper.table.folder_names import folder_name
from deduper.table.index.keys import Int64s
from deduper.table.write.encoding import dictionary_columns
from deduper.table.write.parquet_file import TableFile, Written
from deduper.table.write.rewriting import LEAST_ROW_GROUP, ROW_GROUP
from deduper.table.write.side_by_side import each_written

TARGET_FILE_BYTES = 128 << 20
"""About Hudi's 120 MiB, and the 100 MiB of deltalake."""
_OPEN_FILES = 512
_MOST_HELD = 2 << 20
"""Rows in memory. With more, half of them are written, those of large partitions first, in smaller row groups."""
_MOST_HELD_BYTES = 1 << 30
_MOST_GROUP_BYTES = 64 << 20
"""Of wide rows, fewer are held, and fewer make a row group."""
_LONG_RUN = 1 << 10


def write_new_files(
    rows: Iterable[tuple[pa.RecordBatch, Int64s]],
    schema: pa.Schema,
    in_folders: Sequence[str],
    root: Path,
    target_bytes: int,
) -> list[Written]:
    """The files in the order of their rows, below `root`. `rows`: record batches of `schema`, and their rows to write.

    `in_folders`: the columns whose values folders have, and files do not. A file ends with the row group that brings
    it to `target_bytes`, unless only a smaller one is left; or sooner, if many partitions have more than a row group.
    """
    with _Files(schema, in_folders, root, target_bytes) as files:
        for records, places in rows:
            files.add(records, places)
        files.finish()
    return sorted(files.written, key=lambda one: (one.path.parent, int(one.path.stem)))


class _Files:
    """The files; a context manager. Rows that are not written yet are held by their folder."""

    def __init__(self, schema: pa.Schema, in_folders: Sequence[str], root: Path, target_bytes: int) -> None:
        self.written: list[Written] = []
        self._schema = pa.schema([field for field in schema if field.name not in in_folders])
        self._root = root
        self._in_folders = in_folders
        self._target_bytes = target_bytes
        self._folders: dict[tuple[Any, ...], str] = {}
        self._dictionaries: list[str] | bool | None = None
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._open: dict[str, TableFile] = {}
        self._numbers = count(1)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="new-files")
        self._writing: Future[None] | None = None

    def add(self, records: pa.RecordBatch, rows: Int64s) -> None:
        """Adds these rows."""
        if not len(rows):
            return
        width = records.nbytes / records.num_rows
        least = min(LEAST_ROW_GROUP, min(_MOST_GROUP_BYTES, self._target_bytes) / width)
        most = min(_MOST_HELD, _MOST_HELD_BYTES / width)
        for folder, part in self._by_folder(records, rows):
            held = self._held.setdefault(folder, [])
            held.append(part)
            if _rows(held) >= least:
                self._write(folder)
        total = sum(map(_rows, self._held.values()))
        if total > most:
            for folder in sorted(self._held, key=lambda folder: -_rows(self._held[folder])):
                total -= _rows(self._held[folder])
                self._write(folder)
                if total <= most / 2:
                    break

    def finish(self) -> None:
        """Writes what is held."""
        self._wait()
        each_written(self._finish, {*self._held, *self._open}, lambda folder: _rows(self._held.get(folder, ())))

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        for file in self._open.values():  # of a write that fails
            file.close()

    def _by_folder(self, records: pa.RecordBatch, rows: Int64s) -> Iterator[tuple[str, pa.RecordBatch]]:
        stored = records.select(self._schema.names)
        if self._dictionaries is None:
            self._dictionaries = dictionary_columns(stored)
        if not self._in_folders and len(rows) == len(stored):
            yield "", stored
            return
        code = np.zeros(len(rows), np.int64)
        for place, name in enumerate(self._in_folders):
            values = records.column(name).dictionary_encode(null_encoding="encode")
            code = code * len(values.dictionary) + values.indices.to_numpy()[rows]
            if place:
                code = np.unique(code, return_inverse=True)[1]
        # Numbers of 16 bits are sorted in one pass.
        order = np.argsort(code.astype(np.min_scalar_type(int(code.max()))), kind="stable")
        code, rows = code[order], rows[order]
        runs = list(pairwise([0, *(np.flatnonzero(code[1:] != code[:-1]) + 1).tolist(), len(code)]))
        # A slice keeps the memory of its whole array, so long runs have arrays of their own: they are written sooner.
        long = [(begin, end) for begin, end in runs if end - begin >= _LONG_RUN]
        for begin, end in long:
            yield self._folder(records, int(rows[begin])), stored.take(pa.array(rows[begin:end]))
        short = [(begin, end) for begin, end in runs if end - begin < _LONG_RUN]
        if short:
            together = stored.take(pa.array(np.concatenate([rows[begin:end] for begin, end in short])))
            place = 0
            for begin, end in short:
                yield self._folder(records, int(rows[begin])), together.slice(place, end - begin)
                place += end - begin

    def _folder(self, records: pa.RecordBatch, row: int) -> str:
        values = tuple(records.column(name)[row] for name in self._in_folders)
        if values not in self._folders:
            named = zip(self._in_folders, (value.as_py() for value in values), strict=True)
            texts = ((name, None if value is None else str(value)) for name, value in named)  # a date's is ISO 8601
            self._folders[values] = "/".join(folder_name(*one) for one in texts)
        return self._folders[values]

    def _write(self, folder: str) -> None:
        """Begins to write what is held for a folder, once all before is written."""
        rows = self._held.pop(folder)
        self._wait()
        self._writing = self._writer.submit(self._write_group, folder, rows)

    def _write_group(self, folder: str, rows: Sequence[pa.RecordBatch]) -> None:
        if folder in self._open and self._open[folder].size_bytes >= self._target_bytes:
            self.written.append(self._open.pop(folder).close())
        self._file(folder).write(pa.Table.from_batches(rows), ROW_GROUP)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _finish(self, folder: str) -> None:
        """Thread-safe for different folders."""
        rows = self._held.pop(folder, None)
        file = self._open.get(folder) or self._new_file(folder)
        if rows is not None:
            file.write(pa.Table.from_batches(rows), ROW_GROUP)
        self._open.pop(folder, None)
        self.written.append(file.close())

    def _file(self, folder: str) -> TableFile:
        if folder not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self.written.append(self._open.pop(next(iter(self._open))).close())
            self._open[folder] = self._new_file(folder)
        return self._open[folder]

    def _new_file(self, folder: str) -> TableFile:
        assert self._dictionaries is not None
        path = self._root / folder / str(next(self._numbers))
        path.parent.mkdir(parents=True, exist_ok=True)
        return TableFile(path, self._schema, self._dictionaries)


def _rows(rows: Iterable[pa.RecordBatch]) -> int:
    return sum(part.num_rows for part in rows)
