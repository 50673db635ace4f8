"""New Parquet files of a table: rows by partition, files up to a size, with their rows in their order.

Rows are copied once, into arrays of their partitions. A row group is written while the next rows are read; at the end,
the rest of the partitions is written side by side, one a core.

Of a column whose values hardly repeat, a writer builds a dictionary until that outgrows its page, and gives it up: two
fifths of the time of writing, for a larger file. So a sample decides which columns get one.

A footer's bounds leave NaN out, as Parquet has it, and to Spark NaN is greater than any number: it would skip a row
group with one for `x > 100`. So footers have no bounds of such columns, at any depth, as Spark's own do not beside NaN;
the writer sees the bounds itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deduper.table.columns import folder_name
from deduper.table.formats.delta_stats import FloatBounds
from deduper.table.index.keys import Int64s
from deduper.tasks.readers.parquet_columns import leaves

ROW_GROUP = 1 << 20
"""The most rows of a row group."""
LEAST_ROW_GROUP = ROW_GROUP // 8
"""The fewest, but for the last one of a file."""
_OPEN_FILES = 512
_MOST_HELD = 2 << 20
"""Rows in memory. With more, half of them are written, those of large partitions first, in smaller row groups."""
_MOST_HELD_BYTES = 1 << 30
_MOST_GROUP_BYTES = 64 << 20
"""Of wide rows, fewer are held, and fewer make a row group."""
_LONG_RUN = 1 << 10
_SAMPLE = 1 << 11
_FEWEST = 1 << 8
"""Fewer rows say nothing, and their dictionaries cost nothing."""
_LEAST_REPEATS = 1 / 256
"""With fewer repeats than this in the sample, a column has some 128 times as many values as the sample has rows. Of
eight bytes each they are 2 MiB, and a dictionary's page has 1 MiB."""


def dictionary_columns(records: pa.RecordBatch) -> list[str] | bool:
    """The columns that get a dictionary, by a sample of these rows; True for all of them, as with nested ones."""
    if records.num_rows < _FEWEST or any(pa.types.is_nested(field.type) for field in records.schema):
        return True  # of nested ones the writer wants the paths of their leaves
    step = records.num_rows // _SAMPLE
    if step > 1:
        # One row in each stretch, at random: values may come round by round.
        places = np.arange(_SAMPLE) * step + np.random.default_rng(step).integers(0, step, _SAMPLE)
        records = records.take(pa.array(places))
    return [name for name in records.schema.names if _repeats(records.column(name))] or False


def _repeats(values: pa.Array) -> bool:
    """Whether values come again, or there are none."""
    values = values.drop_null()
    return len(values) - len(pc.unique(values)) >= len(values) * _LEAST_REPEATS


def codec_of(footer: pq.FileMetaData) -> str:
    """The compression of a file, by its first column, as writers name it."""
    found = footer.row_group(0).column(0).compression if footer.num_row_groups and footer.num_columns else "SNAPPY"
    return {"UNCOMPRESSED": "none", "LZO": "snappy"}.get(found, found)


_T = TypeVar("_T")
_R = TypeVar("_R")

_MOST_THREADS = 8


def each_written(write: Callable[[_T], _R], files: Iterable[_T], size: Callable[[_T], int]) -> list[_R]:
    """What `write` gives for each, in the order in which they are begun.

    Large ones first: one that is begun last keeps one core busy and leaves the others idle.
    """
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, thread_name_prefix="writer") as pool:
        return list(pool.map(write, sorted(files, key=size, reverse=True)))


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is written. `floats`: by column."""

    path: Path
    footer: pq.FileMetaData
    floats: Mapping[str, FloatBounds]


class TableFile:
    """A file that is being written; `close` is called once. Not for several threads."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        dictionaries: list[str] | bool,
        *,
        compression: str = "snappy",
        notes: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._path = path
        self._footers: list[pq.FileMetaData] = []
        self._floats = {field.name: FloatBounds() for field in schema if pa.types.is_floating(field.type)}
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=compression,
            use_dictionary=dictionaries,
            write_statistics=bounded_columns(schema),
            metadata_collector=self._footers,
        )
        if notes:
            self._writer.add_key_value_metadata(dict(notes))

    @property
    def size_bytes(self) -> int:
        """What is written so far, without the footer."""
        return self._path.stat().st_size

    def write(self, rows: pa.Table, row_group: int) -> None:
        """Adds rows, in groups of at most so many."""
        self._writer.write_table(rows, row_group)
        for name, bounds in self._floats.items():
            self._floats[name] = _with(bounds, rows.column(name))

    def close(self) -> Written:
        """Ends the file."""
        self._writer.close()
        return Written(self._path, self._footers[0], self._floats)


def bounded_columns(schema: pa.Schema) -> list[str] | bool:
    """The leaves whose bounds a footer has, as writers want them."""
    found = [leaf for field in schema for leaf in leaves(field.type, field.name)]
    bounded = [path for path, kind in found if not pa.types.is_floating(kind)]
    return True if len(bounded) == len(found) else bounded or False


def _with(bounds: FloatBounds, values: pa.ChunkedArray) -> FloatBounds:
    is_finite = bounds.is_finite and pc.all(pc.is_finite(values)).as_py() is not False
    found = pc.min_max(values)
    known = [one for one in (bounds.least, found["min"].as_py()) if one is not None]
    most = [one for one in (bounds.greatest, found["max"].as_py()) if one is not None]
    return FloatBounds(min(known, default=None), max(most, default=None), bounds.nulls + values.null_count, is_finite)


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
