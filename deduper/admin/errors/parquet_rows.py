"""Error rows of Parquet files, found again in the files of the source by window, file and number, and copied.

The error port has their columns as they were read; the file itself has all of them as they were written. A row is
taken from the very file that was judged, which its window's sources name with modification time and size.

A copy has the file's columns, their types, and the notes by which Spark reads times, so it is read as the file is. One
type changes: INT96, Spark's own for times, becomes a timestamp in µs. A file with a type that a copy would not keep is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bucket_store.log.sources_file import SourcePartition
from deduper.admin.errors.new_files import PART_BYTES, NewFiles, Part
from deduper.admin.keys.entries import sources_of_window
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.sources.files.source_file import ListedFile, stat
from deduper.tasks.readers.parquet import is_int96_exact
from deduper.units import format_time

_SPARKS_NOTES = b"org.apache.spark."
"""Key-value metadata by which Spark reads times of old calendars."""
_BATCH_ROWS = 65_536
_GONE, _CHANGED, _OTHER = "source file gone", "source file changed", "source file cannot be copied"


@dataclass(frozen=True, slots=True)
class RowsNotFound(AsJson):
    """Error rows of a file of the source that are not sent, by their numbers in the file from 0, and why."""

    source: str
    window: int
    rows: tuple[int, ...]
    why: str


class RowsNotFoundError(Exception):
    """The rows of a file cannot be found again; the text says why and what to do, `kind` names the case."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class ParquetFiles:
    """The judged Parquet files of a source; `mended` takes a changed file with as many rows for the judged one."""

    def __init__(self, store: OpenStore, source: FilesSource, *, mended: bool) -> None:
        self._store = store
        self._source = source
        self._mended = mended
        self._window: tuple[int, dict[str, SourcePartition]] | None = None

    def rows(self, window: int, name: str, numbers: Sequence[int]) -> pa.Table:
        """The rows of these ascending numbers, of a file that a window has judged.

        Raises:
            RowsNotFoundError: they cannot be found again.
        """
        judged = self._judged(window, name)
        found = self._found(judged)
        table = _rows(found.path, numbers, judged.rows)
        now = _stat(found.path)
        if now != found:
            raise RowsNotFoundError(_CHANGED, "it is being written: call again when it is whole")
        return table

    def _judged(self, window: int, name: str) -> SourcePartition:
        if self._window is None or self._window[0] != window:
            partitions = sources_of_window(self._store, window)
            self._window = window, {one.name: one for one in partitions or ()}
        judged = self._window[1].get(name)
        if judged is None:
            raise RowsNotFoundError(
                _OTHER,
                f"the store does not have the files of window {window} any more, so this one cannot be held against "
                "what was judged: put a copy of it into the source under another name",
            )
        return judged

    def _found(self, judged: SourcePartition) -> ListedFile:
        """The file that was judged, where it was or in the source's present folder."""
        now = _stat(judged.name)
        parts = Path(judged.name).parts
        if now is None:
            for first in range(1, len(parts)):
                elsewhere = _stat(str(self._source.folder.joinpath(*parts[first:])))
                if elsewhere is not None and (elsewhere.modified_ms, elsewhere.size_bytes) == (
                    judged.version,
                    judged.end,
                ):
                    return elsewhere
            raise RowsNotFoundError(
                _GONE, "it is not there: put it back as it was, with its modification time (`cp -p`), and call again"
            )
        if (now.modified_ms, now.size_bytes) == (judged.version, judged.end) or self._mended:
            return now
        assert isinstance(judged.version, int)
        raise RowsNotFoundError(
            _CHANGED,
            f"judged as {judged.end:,} bytes of {_time(judged.version)}, it has {now.size_bytes:,} bytes of "
            f"{_time(now.modified_ms)} now. If it was mended and each row has its place, call with `--mended-files`; "
            "else put the judged file back",
        )


class ParquetCopies:
    """Rows of Parquet files, one file a folder, schema and 256 MB."""

    def __init__(self, files: NewFiles) -> None:
        self._files = files
        self._open: dict[tuple[Path, bytes], tuple[Part, parquet.ParquetWriter, pa.NativeFile]] = {}

    def add(self, source: str, table: pa.Table) -> None:
        """Rows of this file of the source."""
        key = self._files.folder_of(source), table.schema.serialize().to_pybytes()
        if key not in self._open:
            part = self._files.begin(key[0], source)
            sink = pa.OSFile(os.fsencode(self._files.path_of(part)), "w")
            self._open[key] = part, parquet.ParquetWriter(sink, table.schema, store_schema=False), sink
        part, writer, sink = self._open[key]
        writer.write_table(table)
        part.rows += table.num_rows
        if sink.tell() >= PART_BYTES:
            self._close(key)

    def finish(self) -> list[dict[str, Any]]:
        """As `NewFiles.finish`."""
        for key in list(self._open):
            self._close(key)
        return self._files.finish()

    def _close(self, key: tuple[Path, bytes]) -> None:
        _, writer, sink = self._open.pop(key)
        writer.add_key_value_metadata(writer.schema.metadata or {})  # it writes none of a schema that is not stored
        writer.close()
        sink.close()


def _stat(path: str) -> ListedFile | None:
    try:
        return stat(path)
    except OSError as exc:
        raise RowsNotFoundError(_OTHER, f"the system gives no answer about it: {exc.strerror or exc}") from exc


def _rows(path: str, numbers: Sequence[int], judged_rows: int) -> pa.Table:
    wanted = np.array(numbers, np.int64)
    try:
        file = parquet.ParquetFile(pa.OSFile(os.fsencode(path)), coerce_int96_timestamp_unit="us")
        if file.metadata.num_rows != judged_rows:
            raise RowsNotFoundError(
                _CHANGED,
                f"{judged_rows:,} rows were judged, it has {file.metadata.num_rows:,} now, so a row's number says "
                "nothing: put a mended file of the failed rows alone into the source under another name",
            )
        schema = _copied_schema(file)
        batches, begin = [], 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if np.searchsorted(wanted, begin) < np.searchsorted(wanted, end):
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False):
                    first, last = np.searchsorted(wanted, (begin, begin + batch.num_rows))
                    batches.append(batch.take(pa.array(wanted[first:last] - begin)))
                    begin += batch.num_rows
            begin = end
        columns = [
            pa.chunked_array([batch.column(at) for batch in batches], file.schema_arrow.field(at).type)
            for at in range(len(schema))
        ]
        return pa.Table.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise RowsNotFoundError(_OTHER, f"it cannot be read: {exc}") from exc


def _copied_schema(file: parquet.ParquetFile) -> pa.Schema:
    """The schema of a copy.

    Raises:
        RowsNotFoundError: a copy would have a column of another type.
    """
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    times = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    if times and not is_int96_exact(file.metadata):
        raise _not_copied(min(times), "INT96 that Spark has not written by today's calendar")
    nested = sorted(times - set(file.schema_arrow.names))
    if nested:
        raise _not_copied(nested[0], "INT96 inside another column")
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if field.name in times else field for field in file.schema_arrow
    ]
    noted = {name: text for name, text in (file.schema_arrow.metadata or {}).items() if name.startswith(_SPARKS_NOTES)}
    schema = pa.schema(fields, noted)
    try:
        buffer = pa.BufferOutputStream()
        parquet.ParquetWriter(buffer, schema, store_schema=False).close()
    except pa.ArrowException as exc:
        raise RowsNotFoundError(_OTHER, f"its columns cannot be written again: {exc}") from exc
    copied = parquet.ParquetFile(pa.BufferReader(buffer.getvalue())).schema
    for at, leaf in enumerate(leaves):
        if leaf.path not in times and _type_of(copied.column(at)) != _type_of(leaf):
            raise _not_copied(leaf.path, f"{leaf.physical_type} ({leaf.logical_type})")
    return schema


def _not_copied(column: str, kind: str) -> RowsNotFoundError:
    return RowsNotFoundError(
        _OTHER,
        f"its column {column} is of {kind}, which a copy would not keep: put a copy of the file into the source under "
        "another name; what was judged before leaves as duplicates, or expired",
    )


def _type_of(leaf: parquet.ColumnSchema) -> tuple[object, ...]:
    """What a reader takes a column for; a decimal is one however it is stored."""
    logical = str(leaf.logical_type)
    physical = "" if leaf.converted_type == "DECIMAL" else leaf.physical_type
    return physical, logical, leaf.path, leaf.max_definition_level, leaf.max_repetition_level


def _time(modified_ms: int) -> str:
    return format_time(modified_ms * 1000)
