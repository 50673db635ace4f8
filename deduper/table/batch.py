"""The rows of a load: Arrow data in memory, or Parquet files; `text_batch` has files of text.

Rows are passed twice, in the same order each time. The first pass takes the columns of the key, the second all of
them. So a batch of files is never in memory as a whole.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.errors import SchemaDriftError, SettingError, SourceChangedError, TableUsageError
from deduper.table.formats.paths import data_paths, is_hidden
from deduper.table.schema import in_form, one_form, type_name
from deduper.table.stored_times import StoredTimes, stored_schema
from deduper.table.texts import require_utf8

_BATCH_ROWS = 1 << 16
BAD_LINE = "_load"
"""A column that a batch of lines has beside its own: the line, if it is no record; else null. No other has the name."""


class Batch(Protocol):
    """The rows of a load."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, in the one form."""

    @property
    def is_lines(self) -> bool:
        """Whether its rows are lines of text, of which some may be no record: `batches` gives BAD_LINE, too."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows with these columns of `schema`, or BAD_LINE, the same rows in the same order each time.

        Raises:
            TableUsageError: a value does not fit the one form of its type.
            SourceChangedError: the rows are no longer those of the first pass.
        """


class ArrowBatch:
    """Rows in memory: an Arrow table, or anything that gives one (`__arrow_c_stream__`)."""

    is_lines = False

    def __init__(self, rows: Any) -> None:
        if not isinstance(rows, pa.Table) and not hasattr(rows, "__arrow_c_stream__"):
            raise TableUsageError(
                f"rows: a {type(rows).__name__} is no Arrow data; give an Arrow table, or a data frame that exports one"
            )
        self._rows = rows if isinstance(rows, pa.Table) else pa.table(rows)
        self.schema = one_form(self._rows.schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Batch`."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for batch in self._rows.select(list(columns)).to_batches(_BATCH_ROWS):
            yield from _in_one_form(batch, wanted, "the batch")


class FileBatch:
    """Parquet files in the order given, all of the columns of the first."""

    is_lines = False

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [(file, identity_of(file)) for file in files]
        self.schema = one_form(_schema_of(files[0]))
        for file in files[1:]:
            self._require_same(file)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Batch`."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for file, identity in self._files:
            try:
                with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
                    times = StoredTimes(opened, file)
                    for batch in opened.iter_batches(_BATCH_ROWS, columns=list(columns)):
                        yield from _in_one_form(times.records(batch).select(list(columns)), wanted, str(file))
                is_same = identity_of(file) == identity
            except FileNotFoundError:
                is_same = False
            except (pa.ArrowException, OSError) as error:
                raise TableUsageError(f"{file}: cannot be read as Parquet: {error}") from error
            if not is_same:
                raise SourceChangedError(f"{file}: changed while it was loaded; nothing was committed")

    def _require_same(self, file: Path) -> None:
        found = one_form(_schema_of(file))
        first = self._files[0][0]
        for name in dict.fromkeys((*self.schema.names, *found.names)):
            kinds = [type_name(one.field(name).type) if name in one.names else "absent" for one in (found, self.schema)]
            if kinds[0] != kinds[1]:
                raise SchemaDriftError(f"{file}: `{name}` is {kinds[0]}, and {kinds[1]} in {first}; load them apart")


def source_files(path: Path) -> list[Path]:
    """The files of a folder, of a pattern, or the one file; by name. Hidden ones are skipped, in hidden folders too.

    Raises:
        SettingError: there are none, a folder among them has files that the pattern does not name, or it is a Delta
            table, whose folder has files of other versions too.
    """
    if (Path(*path.parts[: _written_out(path)]) / "_delta_log").is_dir():
        what, write = f"{path} is a Delta table", "load an Arrow table of it in a program, or files of its own version"
        raise SettingError("source.path", what, write)
    found = list(path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207  a pattern may be absolute
    # What is written out may be hidden.
    found = [one for one in found if not any(map(is_hidden, one.parts[_written_out(path) :]))]
    files = sorted(file for file in found if file.is_file())
    for folder in sorted(one for one in found if one.is_dir()):
        left = {folder / inner for inner in data_paths(folder)}.difference(files)
        if left:
            what = f"{folder} is a folder, and {min(left)} in it would not be read"
            raise SettingError("source.path", what, "write a pattern with `**`, or load them apart")
    if not files:
        raise SettingError("source.path", f"{path} has no files", "name a file, a folder or a pattern")
    return files


def require_folder_columns(path: Path, files: Sequence[Path], schema: pa.Schema) -> None:
    """A column that folders name, as `day=1`, is in the files too: what is read has no values of folders.

    Raises:
        SettingError: naming it.
    """
    names = {name.lower() for name in schema.names}
    for file in files:
        for part in file.parts[_written_out(path) : -1]:
            column, is_named, _ = part.partition("=")
            if is_named and column.lower() not in names:
                what = f"{file}: the folder `{part}` has the value of a column that the file does not have"
                raise SettingError("source.path", what, "write the column into the files")


def _written_out(path: Path) -> int:
    """The parts of a path that its pattern has as they are."""
    return len(path.parts if path.is_dir() else tuple(takewhile(lambda part: not glob.has_magic(part), path.parts)))


def identity_of(file: Path) -> tuple[int, ...]:
    """What is other once a file is another one, or has changed."""
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _schema_of(file: Path) -> pa.Schema:
    try:
        return stored_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise TableUsageError(f"{file}: cannot be read as Parquet: {error}") from error


def _in_one_form(batch: pa.RecordBatch, wanted: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    for made in in_form(batch, wanted, where):
        require_utf8(made, where, "mend it, or write the column as bytes (`binary`)")
        yield made
