"""Published files of the ports, read back without Spark: which are there, and their rows. All that reads them is here.

parquet  typed, read as Arrow columns
json     one object a line, nulls left out; binary as Base64, NaN and the infinities as text; ten times slower
csv      a head line, quotes doubled; an empty field is null, an empty text is quoted; `_dedup` is a JSON text

`judged_rows` gives whole files, `said_of_rows` fields of `_dedup` in batches, `find_rows` the rows of one key without
reading more than needed: of Parquet it skips a row group whose statistics exclude the key, and reads the key's columns
of the others, and all columns of the rows that have the key; of JSON it does not parse a line without the key's texts.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from bucket_store.places.place import Place
from deduper.columns import Column, ColumnType
from deduper.core.digests import KeyValue, Plain, plain_value
from deduper.dedup_column import DEDUP
from deduper.errors import IntegrityError
from deduper.file_formats import PortFormat, format_of_name
from deduper.sinks import plain_values
from deduper.sinks.names import FinalName
from deduper.tasks.row_files import errors_of, open_lines, parquet_file
from deduper.text.written import json_lines

_SAFE_TEXT = re.compile(r"[A-Za-z0-9 _.:,;@#=+-]+")
"""Signs that every writer of JSON writes as they are."""
_BATCH_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file in a port's folder, and the window that its name says."""

    window: int
    path: Place
    size_bytes: int
    modified_us: int


def published_files(folder: Place, store_id: str) -> list[PublishedFile]:
    """The files of this store in a port's folder, in the order of their names; those of others are left out."""
    try:
        entries = [(FinalName.of(entry.name), entry) for entry in folder.entries()]
    except NotADirectoryError:
        return []
    return [
        PublishedFile(name.window, folder / entry.name, entry.size, entry.modified_us)
        for name, entry in sorted(entries, key=lambda one: one[1].name)
        if name is not None and name.store == store_id[:8]
    ]


def format_of(file: Place) -> PortFormat:
    """The format that a file's ending names.

    Raises:
        IntegrityError: it names none.
    """
    found = format_of_name(file.path.name)
    if found is None:
        raise IntegrityError(f"{file}: cannot be read as an output: its name has no ending of a port's format")
    return found


# --- whole files


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A row as `_dedup` describes it, and the plain values of the columns that were asked for.

    `first` is (window, source, position, plain expiry key) of the first copy that a duplicate names.
    """

    verdict: str
    reason: str
    window: int
    source: str
    position: int
    first: tuple[int, str, int, Plain | None] | None
    values: tuple[Plain | None, ...]


def judged_rows(file: Place, columns: Sequence[Column], first_expiry: ColumnType) -> list[JudgedRow]:
    """The rows of a file in its order; `first_expiry` is the type of `_dedup.first_seen.expiry`.

    Raises:
        IntegrityError: it is no such file, or a value is none of its column's type.
        FileNotFoundError: a reader has taken it away.
    """
    with errors_of(file):
        said, values = _rows_of(file).judged(file, columns, first_expiry)
        return [_judged(one, tuple(column[row] for column in values)) for row, one in enumerate(said)]


def _judged(said: dict[str, Any], values: tuple[Plain | None, ...]) -> JudgedRow:
    first = said.get("first_seen")
    named = None if first is None else (first["window"], first["source"], first["position"], first["expiry"])
    reason = said.get("reason") or ""
    return JudgedRow(said["verdict"], reason, said["window"], said["source"], said["position"], named, values)


# --- fields of `_dedup`, in batches


def said_of_rows(file: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """These fields of `_dedup` of the rows in their order, null where there is none; a batch of rows is in memory.

    Raises:
        IntegrityError: it is no such file.
        FileNotFoundError: a reader has taken it away.
    """
    with errors_of(file):
        yield from _rows_of(file).said(file, schema)


def said_and_records(file: Place, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """As `said_of_rows`, of a Parquet file, each batch with the record's own columns."""
    with errors_of(file), parquet_file(file) as opened:
        for batch in opened.iter_batches(_BATCH_ROWS, use_threads=False):
            yield _said(batch, schema), batch.select([name for name in batch.schema.names if name != DEDUP])


def _said(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    struct = batch.column(DEDUP)
    names = [field.name for field in struct.type]
    columns = [
        struct.field(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- the rows of a key


@dataclass(frozen=True, slots=True)
class SoughtKey:
    """A key in all forms in which files are asked for it."""

    columns: tuple[Column, ...]
    values: tuple[KeyValue, ...]

    @property
    def plain(self) -> tuple[Plain | None, ...]:
        """The values as digests are made of them."""
        return tuple(
            None if value is None else plain_value(value, column.type)
            for column, value in zip(self.columns, self.values, strict=True)
        )

    @property
    def texts(self) -> tuple[bytes, ...]:
        """What a line of JSON with the key certainly holds."""
        return tuple(
            value.encode()
            for value in self.values
            if isinstance(value, str) and _SAFE_TEXT.fullmatch(value) is not None
        )


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row with the key: its number in the file, `_dedup`, and the record's other columns."""

    row: int
    dedup: dict[str, Any]
    record: dict[str, Any]


def find_rows(file: Place, key: SoughtKey, columns: Sequence[Column]) -> tuple[int, list[FoundRow]]:
    """(rows of the file, those with the key); `columns` are those of the source. The file's ending says the format.

    Raises:
        IntegrityError: it is no such file, or a value is none of its column's type.
        FileNotFoundError: a reader has taken it away.
    """
    with errors_of(file):
        return _rows_of(file).with_key(file, key, columns)


def rows_where(
    file: Place, columns: Sequence[Column], field: str, wanted: Collection[str] | Collection[int]
) -> list[FoundRow]:
    """The rows whose field of `_dedup` has one of these values, in their order; `columns` are those of the source.

    Raises:
        IntegrityError: it is no such file.
        FileNotFoundError: a reader has taken it away.
    """
    with errors_of(file):
        return _rows_of(file).where(file, columns, field, wanted)


def has_key(table: pa.Table, key: SoughtKey) -> Any:
    """bool[n]: the rows whose values are the key's, as its digest has them."""
    result = np.ones(len(table), np.bool_)
    for column, value in zip(key.columns, key.plain, strict=True):
        result &= _equals(table.column(column.name), column, value)
    return result


def _python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python has them; a value with a time beyond Python's `datetime` is as a row of a JSON port has it."""
    columns = {name: _python_values(rows.column(name)) for name in rows.schema.names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        lines = json_lines(pa.table({"value": column}))
        values = [_python_value(value, line.as_py()) for value, line in zip(column, lines, strict=True)]
    return values


def _python_value(value: pa.Scalar, line: str) -> Any:
    try:
        return value.as_py()
    except OverflowError:
        return json_of(line)["value"]


def _row(number: int, values: dict[str, Any]) -> FoundRow:
    return FoundRow(number, values.pop(DEDUP), values)


def _may_hold(group: parquet.RowGroupMetaData, key: SoughtKey) -> bool:
    """Whether the statistics of a row group allow the key."""
    by_name = {group.column(at).path_in_schema: group.column(at).statistics for at in range(group.num_columns)}
    return all(_may_be(by_name.get(column.name), value) for column, value in zip(key.columns, key.values, strict=True))


def _may_be(statistics: parquet.Statistics | None, value: KeyValue) -> bool:
    if statistics is None:
        return True
    if value is None:
        return not statistics.has_null_count or statistics.null_count > 0
    if statistics.has_null_count and not statistics.num_values:  # all are null
        return False
    if not statistics.has_min_max or isinstance(value, float):  # NaN is in no bounds
        return True
    try:
        return bool(statistics.min <= value <= statistics.max)
    except (TypeError, OverflowError):  # bounds in another form, or beyond Python's `datetime`
        return True


def _equals(values: pa.ChunkedArray, column: Column, value: Plain | None) -> Any:
    if value is None:
        equal = pc.is_null(values)
    elif column.type.name == "decimal":
        equal = pa.array([one is not None and plain_value(one, column.type) == value for one in values.to_pylist()])
    elif isinstance(value, float) and math.isnan(value):
        equal = pc.is_nan(values)
    else:
        values = plain_values.arrow_of(values, column.type)
        equal = pc.equal(values, pa.scalar(value, values.type))
    return np.asarray(pc.fill_null(equal, fill_value=False)).astype(np.bool_)


# --- text


class JsonNumber(str):
    """A JSON number as it is written: a decimal must not pass through a float."""

    __slots__ = ()


def json_of(text: str | bytes) -> dict[str, Any]:
    """An object of a JSON port, or `_dedup` of CSV."""
    found: dict[str, Any] = json.loads(text, parse_float=JsonNumber)
    return found


def csv_texts(file: Place, names: Sequence[str]) -> dict[str, list[str | None]]:
    """These columns of a CSV file, as texts; None for null."""
    with open_lines(file) as stream, pa.PythonFile(stream, "r") as opened:
        if not opened.size():
            return {name: [] for name in names}
        table = arrow_csv.read_csv(
            opened,
            parse_options=arrow_csv.ParseOptions(double_quote=True, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(names),
                column_types={name: pa.string() for name in names},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    return {name: table.column(name).to_pylist() for name in names}


# --- how each format is read


def _dedups_of_arrow(dedup: pa.ChunkedArray, first_expiry: ColumnType) -> list[dict[str, Any]]:
    """`_dedup` of each row, with the first copy's expiry key as a plain value."""
    kinds = {field.name for field in dedup.type}
    names = ("verdict", "reason", "window", "source", "position")
    columns = {name: pc.struct_field(dedup, name).to_pylist() for name in names}
    if "first_seen" in kinds:
        firsts = pc.struct_field(dedup, "first_seen")
        expiry = plain_values.of_arrow(pc.struct_field(firsts, "expiry"), first_expiry)
        places = [pc.struct_field(firsts, name).to_pylist() for name in ("window", "source", "position")]
        columns["first_seen"] = [
            dict(zip(("window", "source", "position", "expiry"), named, strict=True)) if is_named else None
            for is_named, *named in zip(firsts.is_valid().to_pylist(), *places, expiry, strict=True)
        ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class _Rows(ABC):
    """Reads the files of a format. Each method raises as the function of this module that calls it."""

    @abstractmethod
    def judged(
        self, file: Place, columns: Sequence[Column], first_expiry: ColumnType
    ) -> tuple[list[dict[str, Any]], list[list[Plain | None]]]:
        """`_dedup` of the rows, with the first copy's expiry key as a plain value; the plain values of each column."""

    @abstractmethod
    def said(self, file: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See `said_of_rows`."""

    @abstractmethod
    def with_key(self, file: Place, key: SoughtKey, columns: Sequence[Column]) -> tuple[int, list[FoundRow]]:
        """See `find_rows`."""

    @abstractmethod
    def where(
        self, file: Place, columns: Sequence[Column], field: str, wanted: Collection[str] | Collection[int]
    ) -> list[FoundRow]:
        """See `rows_where`."""


class _Parquet(_Rows):
    def judged(
        self, file: Place, columns: Sequence[Column], first_expiry: ColumnType
    ) -> tuple[list[dict[str, Any]], list[list[Plain | None]]]:
        with parquet_file(file) as opened:
            table = opened.read(columns=[*(column.name for column in columns), DEDUP])
        values = [plain_values.of_arrow(table.column(column.name), column.type) for column in columns]
        return _dedups_of_arrow(table.column(DEDUP), first_expiry), values

    def said(self, file: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with parquet_file(file) as opened:
            there = {leaf.path for leaf in map(opened.schema.column, range(len(opened.schema)))}
            leaves = [path for name in schema.names if (path := f"{DEDUP}.{name}") in there]
            for batch in opened.iter_batches(_BATCH_ROWS, columns=leaves, use_threads=False):
                yield _said(batch, schema)

    def with_key(self, file: Place, key: SoughtKey, columns: Sequence[Column]) -> tuple[int, list[FoundRow]]:
        del columns  # the file has them
        found, before = [], 0
        with parquet_file(file) as reader:
            for number in range(reader.num_row_groups):
                group = reader.metadata.row_group(number)
                if _may_hold(group, key):
                    of_key = reader.read_row_group(number, [column.name for column in key.columns])
                    rows = np.flatnonzero(has_key(of_key, key))
                    if rows.size:
                        whole = _python_rows(reader.read_row_group(number).take(pa.array(rows)))
                        found += [_row(before + int(row), values) for row, values in zip(rows, whole, strict=True)]
                before += group.num_rows
        return before, found

    def where(
        self, file: Place, columns: Sequence[Column], field: str, wanted: Collection[str] | Collection[int]
    ) -> list[FoundRow]:
        del columns  # the file has them
        found, before = [], 0
        with parquet_file(file) as opened:
            for batch in opened.iter_batches(_BATCH_ROWS, use_threads=False):
                values = batch.column(DEDUP).field(field)
                sought = pa.array(list(wanted)).cast(values.type)
                rows = np.flatnonzero(pc.is_in(values, sought).to_numpy(zero_copy_only=False))
                taken = _python_rows(batch.take(pa.array(rows)))
                found += [_row(before + int(at), row) for at, row in zip(rows, taken, strict=True)]
                before += batch.num_rows
        return found


class _Text(_Rows):
    """Files of text, row by row."""

    @abstractmethod
    def rows(self, file: Place, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
        """The values of these columns, as they are written, and `_dedup`."""

    @abstractmethod
    def dedups(self, file: Place) -> Iterator[dict[str, Any]]:
        """`_dedup` of each row; one row is in memory at a time."""

    @abstractmethod
    def plain(self, written: Any, kind: ColumnType) -> Plain | None:
        """A value of `rows` as digests are made of it."""

    def judged(
        self, file: Place, columns: Sequence[Column], first_expiry: ColumnType
    ) -> tuple[list[dict[str, Any]], list[list[Plain | None]]]:
        rows = list(self.rows(file, columns))
        for row in rows:
            first = row[DEDUP].get("first_seen")
            if first is not None:
                first["expiry"] = plain_values.of_json(first.get("expiry"), first_expiry)
        values = [[self.plain(row.get(one.name), one.type) for row in rows] for one in columns]
        return [row[DEDUP] for row in rows], values

    def said(self, file: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows = self.dedups(file)
        while some := list(islice(rows, _BATCH_ROWS)):
            columns = [[row.get(name) for row in some] for name in schema.names]
            yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)

    def where(
        self, file: Place, columns: Sequence[Column], field: str, wanted: Collection[str] | Collection[int]
    ) -> list[FoundRow]:
        rows = enumerate(self.rows(file, columns))
        return [_row(at, row) for at, row in rows if row[DEDUP].get(field) in wanted]

    def has_key(self, row: dict[str, Any], key: SoughtKey, plain: Sequence[Plain | None]) -> bool:
        """Whether a row has the key, whose plain values these are: NaN equals NaN."""
        written = [self.plain(row.get(column.name), column.type) for column in key.columns]
        return all(one == other or (one != one and other != other) for one, other in zip(written, plain, strict=True))


class _Json(_Text):
    def rows(self, file: Place, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
        del columns  # each line has its own
        with open_lines(file) as lines:
            yield from map(json_of, lines)

    def dedups(self, file: Place) -> Iterator[dict[str, Any]]:
        with open_lines(file) as lines:
            yield from (json.loads(line)[DEDUP] for line in lines)

    def plain(self, written: Any, kind: ColumnType) -> Plain | None:
        return plain_values.of_json(written, kind)

    def with_key(self, file: Place, key: SoughtKey, columns: Sequence[Column]) -> tuple[int, list[FoundRow]]:
        del columns
        found, number, plain, texts = [], -1, key.plain, key.texts
        with open_lines(file) as lines:
            for number, line in enumerate(lines):
                if all(text in line for text in texts) and self.has_key(values := json_of(line), key, plain):
                    found.append(_row(number, values))
        return number + 1, found


class _Csv(_Text):
    def rows(self, file: Place, columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
        return ({**row, DEDUP: json_of(row[DEDUP] or "")} for row in self._texts(file, columns))

    def dedups(self, file: Place) -> Iterator[dict[str, Any]]:
        csv.field_size_limit(sys.maxsize)
        with io.TextIOWrapper(open_lines(file), encoding="utf-8", newline="") as texts:
            rows: csv.DictReader[str] = csv.DictReader(texts)
            yield from (json.loads(row[DEDUP]) for row in rows)

    def plain(self, written: Any, kind: ColumnType) -> Plain | None:
        return plain_values.of_field(written, kind)

    def with_key(self, file: Place, key: SoughtKey, columns: Sequence[Column]) -> tuple[int, list[FoundRow]]:
        found, number, plain = [], -1, key.plain
        for number, row in enumerate(self._texts(file, columns)):
            if self.has_key(row, key, plain):
                found.append(_row(number, {**row, DEDUP: json_of(row[DEDUP] or "")}))
        return number + 1, found

    def _texts(self, file: Place, columns: Sequence[Column]) -> Iterator[dict[str, str | None]]:
        texts = csv_texts(file, [*(column.name for column in columns), DEDUP])
        for row in zip(*texts.values(), strict=True):
            yield dict(zip(texts, row, strict=True))


_READERS: Final[Mapping[PortFormat, _Rows]] = {"parquet": _Parquet(), "json": _Json(), "csv": _Csv()}


def _rows_of(file: Place) -> _Rows:
    return _READERS[format_of(file)]
