"""The rows of a write: Arrow data in memory, Parquet files, or files of text (CSV, JSON lines).

Rows are passed twice, in the same order each time. The first pass takes the columns of the key, the second all of
them. So a batch of files is never in memory as a whole. `deduper.text` says what a line means, as for a job.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.errors import UsageError
from deduper.spark_promises import FIXED_BY_STORE, TIME_ZONE
from deduper.table.columns import require_column
from deduper.table.errors import SchemaDriftError, SettingError, SourceChangedError, TableUsageError
from deduper.table.formats.files import data_paths
from deduper.table.schema import in_form, is_scalar, one_form, require_utf8, type_name
from deduper.table.stored_times import StoredTimes, stored_schema
from deduper.tasks.readers.file_parts import FileGone, UnreadableFile
from deduper.tasks.readers.parquet import opened_parquet
from deduper.tasks.readers.path_columns import is_hidden
from deduper.tasks.readers.reading_tasks import RoundedKeys
from deduper.tasks.readers.text import NamedLines, SomeLines, require_lines, some_lines
from deduper.text.format import TextFormat

KeepRule = Literal["first", "last", "greatest"]


@dataclass(frozen=True, slots=True)
class Keep:
    """Of rows with one key in a batch, the one that is kept. `column`: for `greatest`."""

    rule: KeepRule = "first"
    column: str | None = None


def require_rule(keep: Keep, batch: Batch) -> None:
    """A rule that the columns of a batch allow.

    Raises:
        SettingError: naming what does not fit.
    """
    if keep.rule not in get_args(KeepRule) or (keep.rule == "greatest") == (keep.column is None):
        raise SettingError("keep", f"{keep.rule} is not a valid choice", "write first, last, or greatest of a column")
    if keep.column is not None:
        require_column("keep", keep.column, batch.schema)
        if not is_scalar(batch.schema.field(keep.column).type):
            raise SettingError("keep", f"`{keep.column}` is nested, so it has no greatest value", "name another column")


_BATCH_ROWS = 1 << 16
BAD_LINE = "_load"
"""A column that a batch of lines has beside its own: the line, if it is no record; else null. No other has the name."""


class Batch(Protocol):
    """The rows of a write."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, in the one form; the same for the life of the batch."""

    @property
    def is_lines(self) -> bool:
        """Whether its rows are lines of text, of which some may be no record: `batches` gives BAD_LINE, too."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Called for each pass over the rows, first for the columns of the key, with columns of `schema` or BAD_LINE.

        Gives all rows, the same in the same order each time.

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
                with opened_parquet(str(file)) as opened:
                    times = StoredTimes(opened, file)
                    for batch in opened.batches(list(columns), rows=_BATCH_ROWS, use_threads=True):
                        yield from _in_one_form(times.records(batch).select(list(columns)), wanted, str(file))
                is_same = identity_of(file) == identity
            except (FileNotFoundError, FileGone):
                is_same = False
            except (pa.ArrowException, OSError, UnreadableFile) as error:
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
    except (FileGone, UnreadableFile) as error:
        raise TableUsageError(f"{file}: cannot be read as Parquet: {error}") from error


def _in_one_form(batch: pa.RecordBatch, wanted: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:
    for made in in_form(batch, wanted, where):
        require_utf8(made, where, "mend it, or write the column as bytes (`binary`)")
        yield made


class TextBatch:
    """Files of text in the order given; `columns` is their DDL. With `header`, the first line of a CSV file is none.

    A line that is no record is a row of nulls, with the line in BAD_LINE.
    """

    is_lines = True

    def __init__(
        self,
        files: Sequence[Path],
        columns: str,
        form: str,
        *,
        header: bool,
        keys: Collection[str] = (),
        name_pattern: str | None = None,
    ) -> None:
        """`form`: the name of the format in the settings. `keys`: the columns of which a rounded text is a warning.
        `name_pattern`: of columns in the files' names.

        Raises SettingError: a column has a type that lines do not have.
        """
        declared = parse_columns(columns)
        for column in declared:
            if not column.type.is_scalar:
                what = f"`{column.name}` is {column.type.text}, which is not read from lines of text"
                raise SettingError("source.schema", what, "declare it as STRING")
        zone = FIXED_BY_STORE[TIME_ZONE]
        self._text = TextFormat.of(form, tuple(map(DeclaredColumn.of, declared)), zone)
        self._header = form == "csv" and header
        self._name_pattern = name_pattern
        self._keys = {
            number
            for number, column in enumerate(self._text.columns)
            if column.name.lower() in {key.lower() for key in keys}
        }
        self._rounded = RoundedKeys()
        self._files = [(file, identity_of(file)) for file in files]
        for file in files:
            with _as_table_errors(file):
                require_lines(str(file), file.stat().st_size)
        self.schema = one_form(pa.schema([(column.name, column.arrow) for column in self._text.columns]))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Batch`."""
        with_line = self.schema.append(pa.field(BAD_LINE, pa.binary()))
        wanted = pa.schema([with_line.field(name) for name in columns])
        for file, identity in self._files:
            with _as_table_errors(file):
                _require_same(file, identity)
                named = NamedLines.of(str(file), self._text, self._name_pattern)
                for some in some_lines(str(file), named.of_lines, header=self._header):
                    yield self._records(some, named, wanted)
                _require_same(file, identity)

    def _records(self, some: SomeLines, named: NamedLines, wanted: pa.Schema) -> pa.RecordBatch:
        numbers = {self.schema.names.index(name): name for name in wanted.names if name != BAD_LINE}
        columns, wrong, parsed = named.parse(some, list(numbers))
        rounded = {named.numbers[place] for place in parsed.rounded}
        self._rounded.warn(self._text.columns[number] for number in rounded & self._keys)
        arrays = {name: columns[number] for number, name in numbers.items()}
        if BAD_LINE in wanted.names:
            bad: list[bytes | None] = [None] * some.count
            for row in np.flatnonzero(wrong).tolist():
                bad[row] = some.data[some.starts[row] : some.ends[row]].tobytes()
            arrays[BAD_LINE] = pa.array(bad, pa.binary())
        return pa.RecordBatch.from_arrays([arrays[name] for name in wanted.names], schema=wanted)


def _require_same(file: Path, identity: tuple[int, ...]) -> None:
    if identity_of(file) != identity:
        raise SourceChangedError(f"{file}: changed while it was loaded; nothing was committed")


@contextmanager
def _as_table_errors(file: Path) -> Iterator[None]:
    """Errors of reading a file of the batch, as ours."""
    try:
        yield
    except (FileGone, FileNotFoundError) as error:
        raise SourceChangedError(f"{file}: went while it was loaded; nothing was committed") from error
    except UsageError as error:
        raise SchemaDriftError(f"{error}; nothing was written") from error
    except (UnreadableFile, pa.ArrowException, OSError) as error:
        raise TableUsageError(f"{file}: cannot be read as lines of text: {error}") from error
