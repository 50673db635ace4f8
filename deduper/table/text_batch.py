"""Files of lines as the rows of a load: CSV, or JSON lines. `deduper.text` says what a line means, as for a job."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import parse_columns
from deduper.spark_promises import FIXED_BY_STORE, TIME_ZONE
from deduper.table.batch import BAD_LINE, identity_of
from deduper.table.errors import SchemaDriftError, SettingError, SourceChangedError, TableUsageError
from deduper.table.schema import one_form
from deduper.tasks.readers.plain_file import FileGone, UnreadableFile
from deduper.tasks.readers.text import Lines, SomeLines, require_lines
from deduper.text.block import parse
from deduper.text.format import TextFormat


class TextBatch:
    """Files of text in the order given; `columns` is their DDL. With `header`, the first line of a CSV file is none.

    A line that is no record is a row of nulls, with the line in BAD_LINE.
    """

    is_lines = True

    def __init__(self, files: Sequence[Path], columns: str, *, is_csv: bool, header: bool) -> None:
        """Raises SettingError: a column has a type that lines do not have."""
        declared = parse_columns(columns)
        for column in declared:
            if not column.type.is_scalar:
                what = f"`{column.name}` is {column.type.text}, which is not read from lines of text"
                raise SettingError("source.schema", what, "declare it as STRING")
        zone = FIXED_BY_STORE[TIME_ZONE]
        self._text = TextFormat(tuple(map(DeclaredColumn.of, declared)), zone, "," if is_csv else None)
        self._header = is_csv and header
        self._files = [(file, identity_of(file)) for file in files]
        for file in files:
            with _telling(file):
                require_lines(str(file), file.stat().st_size)
        self.schema = one_form(pa.schema([(column.name, column.arrow) for column in self._text.columns]))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Batch`."""
        with_line = self.schema.append(pa.field(BAD_LINE, pa.binary()))
        wanted = pa.schema([with_line.field(name) for name in columns])
        for file, identity in self._files:
            with _telling(file):
                _require_same(file, identity)
                is_header = self._header
                for some in Lines(str(file)):
                    if is_header:
                        self._require_names(file, some)
                        is_header, some = False, some.behind_first()
                    yield self._records(some, wanted)
                _require_same(file, identity)

    def _require_names(self, file: Path, some: SomeLines) -> None:
        """Fields are columns by their order: under another header each column would have the values of another."""
        line = some.data[some.starts[0] : some.ends[0]].tobytes().decode(errors="replace").rstrip("\r")
        found = [field.strip() for field in next(csv.reader([line]), [])]
        if [name.lower() for name in found] != [name.lower() for name in self.schema.names]:
            raise SchemaDriftError(
                f"{file}: its first line is {', '.join(found)}, and the schema has {', '.join(self.schema.names)}; "
                "declare the columns in the order of the files, or write `header: false`; nothing was written"
            )

    def _records(self, some: SomeLines, wanted: pa.Schema) -> pa.RecordBatch:
        numbers = {self.schema.names.index(name): name for name in wanted.names if name != BAD_LINE}
        parsed = parse(some.data, some.starts, some.ends, self._text, list(numbers))
        arrays = {name: parsed.columns[number] for number, name in numbers.items()}
        if BAD_LINE in wanted.names:
            bad: list[bytes | None] = [None] * some.count
            for row in np.flatnonzero(parsed.malformed | parsed.invalid_utf8).tolist():
                bad[row] = some.data[some.starts[row] : some.ends[row]].tobytes()
            arrays[BAD_LINE] = pa.array(bad, pa.binary())
        return pa.RecordBatch.from_arrays([arrays[name] for name in wanted.names], schema=wanted)


def _require_same(file: Path, identity: tuple[int, ...]) -> None:
    if identity_of(file) != identity:
        raise SourceChangedError(f"{file}: changed while it was loaded; nothing was committed")


@contextmanager
def _telling(file: Path) -> Iterator[None]:
    """Errors of reading a file of the batch, as ours."""
    try:
        yield
    except (FileGone, FileNotFoundError) as error:
        raise SourceChangedError(f"{file}: went while it was loaded; nothing was committed") from error
    except (UnreadableFile, pa.ArrowException, OSError, csv.Error) as error:
        raise TableUsageError(f"{file}: cannot be read as lines of text: {error}") from error
