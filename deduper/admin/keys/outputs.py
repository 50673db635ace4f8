"""The rows of one key in a published file of a port, without reading more of it than needed.

Parquet: a row group whose statistics exclude the key is skipped; of the others the key's columns are read, and all
columns of the rows that have the key. JSON: a line without the key's texts is not parsed. CSV: all is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from bucket_store.places.place import Place
from bucket_store.places.reading import open_file
from deduper.admin.readback import plain_of_field, plain_of_json
from deduper.columns import Column
from deduper.core.digests import KeyValue, Plain, plain_value
from deduper.sinks.names import Format
from deduper.sinks.published import csv_texts, errors_of, format_of, json_of, parquet_file
from deduper.tasks.dedup_column import DEDUP

_SAFE_TEXT = re.compile(r"[A-Za-z0-9 _.:,;@#=+-]+")
"""Signs that every writer of JSON writes as they are."""


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
        match format_of(file):
            case Format.PARQUET:
                return _in_parquet(file, key)
            case Format.JSON:
                return _in_json(file, key)
            case Format.CSV:
                return _in_csv(file, key, columns)


def _in_parquet(file: Place, key: SoughtKey) -> tuple[int, list[FoundRow]]:
    found, before = [], 0
    with parquet_file(file) as reader:
        for number in range(reader.num_row_groups):
            group = reader.metadata.row_group(number)
            if _may_hold(group, key):
                of_key = reader.read_row_group(number, [column.name for column in key.columns])
                rows = np.flatnonzero(has_key(of_key, key))
                if rows.size:
                    whole = reader.read_row_group(number).take(pa.array(rows))
                    found += [
                        _row(before + int(row), values) for row, values in zip(rows, whole.to_pylist(), strict=True)
                    ]
            before += group.num_rows
    return before, found


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
    except TypeError:  # bounds in another form
        return True


def has_key(table: pa.Table, key: SoughtKey) -> Any:
    """bool[n]: the rows whose values are the key's, as its digest has them."""
    result = np.ones(len(table), np.bool_)
    for column, value in zip(key.columns, key.plain, strict=True):
        result &= _equals(table.column(column.name), column, value)
    return result


def _equals(values: pa.ChunkedArray, column: Column, value: Plain | None) -> Any:
    if value is None:
        equal = pc.is_null(values)
    elif column.type.name == "decimal":
        equal = pa.array([one is not None and plain_value(one, column.type) == value for one in values.to_pylist()])
    elif isinstance(value, float) and math.isnan(value):
        equal = pc.is_nan(values)
    else:
        match column.type.name:
            case "string" | "binary":
                values = values.cast(pa.binary())
            case "timestamp" | "timestamp_ntz":
                values = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
            case "date":
                values = values.cast(pa.date32()).cast(pa.int32())
            case "boolean":
                values = values.cast(pa.int8())
        equal = pc.equal(values, pa.scalar(value, values.type))
    return np.asarray(pc.fill_null(equal, fill_value=False)).astype(np.bool_)


def _in_json(file: Place, key: SoughtKey) -> tuple[int, list[FoundRow]]:
    found, number, plain, texts = [], -1, key.plain, key.texts
    with open_file(file) as lines:
        for number, line in enumerate(lines):
            if all(text in line for text in texts):
                values = json_of(line)
                written = [plain_of_json(values.get(column.name), column.type) for column in key.columns]
                if _are_equal(written, plain):
                    found.append(_row(number, values))
    return number + 1, found


def _in_csv(file: Place, key: SoughtKey, columns: Sequence[Column]) -> tuple[int, list[FoundRow]]:
    names = [column.name for column in columns]
    texts, plain = csv_texts(file, [*names, DEDUP]), key.plain
    found = []
    for number, row in enumerate(_rows(texts)):
        written = [plain_of_field(row[column.name], column.type) for column in key.columns]
        if _are_equal(written, plain):
            found.append(_row(number, {**row, DEDUP: json_of(row[DEDUP] or "")}))
    return len(texts[DEDUP]), found


def _rows(texts: dict[str, list[str | None]]) -> Iterator[dict[str, Any]]:
    for row in zip(*texts.values(), strict=True):
        yield dict(zip(texts, row, strict=True))


def _are_equal(written: Sequence[Plain | None], plain: Sequence[Plain | None]) -> bool:
    """Whether two keys have one digest: NaN equals NaN."""
    return all(one == other or (one != one and other != other) for one, other in zip(written, plain, strict=True))
