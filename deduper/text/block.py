"""A block of bytes to Arrow columns: lines, their cells by the kernel, exact values of all other lines. PURE.

Of a nested column the kernel only finds the text; the exact parser makes its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.arrow_columns import DeclaredColumn
from deduper.columns import ColumnType
from deduper.log_formats import FIELDS, LOGFMT, WEB_LOGS, fields_of
from deduper.text import csv_exact, json_exact, log_exact
from deduper.text import kernels as kernel
from deduper.text.format import Malformed, TextFormat
from deduper.text.values import WHOLE_BITS

Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]
Bools = NDArray[np.bool_]

MOST_TEXT: Final = 2**31 - 1
"""Bytes of text in one column of a block: Arrow's offsets have 32 bits."""

_NESTED: Final = ("struct", "array", "map")
_KINDS: Final = {
    "string": kernel.TEXT,
    "double": kernel.DOUBLE,
    "float": kernel.FLOAT,
    "decimal": kernel.DECIMAL,
    "boolean": kernel.BOOLEAN,
    "date": kernel.DATE,
    "timestamp": kernel.TIME_IN_ZONE,
    "timestamp_ntz": kernel.TIME_WITHOUT,
    "binary": kernel.BINARY,
    **dict.fromkeys(_NESTED, kernel.NESTED),
    **dict.fromkeys(WHOLE_BITS, kernel.WHOLE),
}
_BYTES: Final = ("string", "binary")
_WEB_LOG: Final = b'a - - [10/Oct/2000:13:55:36 -0700] "" 200 -\n'
_UTC: Final = ("UTC", "Etc/UTC")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Records of a block's lines, one row a line; every value of a row that is no record is null."""

    columns: dict[int, pa.Array]
    """Those asked for, by their number in the format."""
    malformed: Bools
    invalid_utf8: Bools
    slow_lines: int
    """Lines that the exact parser took."""
    rounded: frozenset[int]
    """The numbers of decimals and times of which a plain line has more digits than their column."""


def lines(data: pa.Buffer | bytes | UInt8s) -> tuple[Int64s, Int64s, int]:
    """(starts, ends, rest): the lines, without their line ends; data[rest:] has no line end yet."""
    block = _bytes_of(data)
    ends = np.empty(block.size // 64 + 16, np.int64)
    count = kernel.line_ends(block, ends)
    if count > ends.size:
        ends = np.empty(count, np.int64)
        kernel.line_ends(block, ends)
    ends = ends[:count]
    starts = np.empty(count + 1, np.int64)
    starts[0] = 0
    starts[1:] = ends + 1
    return starts[:count], ends, int(starts[count])


def parse(
    data: pa.Buffer | bytes | UInt8s, starts: Int64s, ends: Int64s, text: TextFormat, wanted: Sequence[int]
) -> Parsed:
    """The records of the lines data[starts[i]:ends[i]], of which the columns `wanted` are built.

    All columns of a line are parsed: whether it is malformed does not depend on `wanted`.

    Raises:
        ValueError: a line lies outside the data, or a column of the block has more than 2 GiB of text.
    """
    block = _bytes_of(data)
    rows = len(starts)
    if rows and (starts.min() < 0 or ends.max() > block.size or (ends < starts).any()):
        raise ValueError(f"lines outside a block of {block.size} bytes")
    cells, status = _cells_of(block, starts, ends, text)
    slow = np.flatnonzero(status == kernel.NOT_PLAIN)
    malformed = np.zeros(rows, np.bool_)
    nested = {number: _nested_values(block, cells, number, text, malformed) for number in _nested_columns(text)}
    if nested:
        cells.valid[:, malformed] = 0
        for values in nested.values():
            values[malformed] = None
    if slow.size:
        exact = _Exact(text, cells, nested)
        for row in slow.tolist():
            malformed[row] = not exact.put(row, block[starts[row] : ends[row]].tobytes())
        other, high = np.frombuffer(bytes(exact.texts), np.uint8), exact.high
    else:
        other, high = np.zeros(0, np.uint8), {}
    built = {
        number: pa.array(nested[number], text.columns[number].arrow)
        if number in nested
        else _built(cells, number, text.columns[number].kind, text.columns[number].arrow, block, other, high)
        for number in wanted
    }
    rounded = frozenset(number for number in _rounding(text) if cells.length[number].any())
    return Parsed(built, malformed, status == kernel.NOT_UTF8, slow.size, rounded)


@dataclass(frozen=True, slots=True)
class _Cells:
    """See `kernels`."""

    value: Int64s
    length: NDArray[np.int32]
    valid: UInt8s


def _bytes_of(data: pa.Buffer | bytes | UInt8s) -> UInt8s:
    if isinstance(data, np.ndarray):
        return kernel.read_only(data)
    return kernel.read_only(np.frombuffer(data, np.uint8))


def _cells_of(block: UInt8s, starts: Int64s, ends: Int64s, text: TextFormat) -> tuple[_Cells, UInt8s]:
    """The kernel's cells of all lines, and which of these are plain."""
    rows = len(starts)
    columns, names = _described(text)
    parse_lines: Any = kernel.parse_json_lines
    if text.delimiter is not None:
        parse_lines, names = kernel.parse_csv_lines, kernel.read_only(np.frombuffer(text.delimiter.encode(), np.uint8))
    elif text.log == LOGFMT:
        parse_lines = kernel.parse_logfmt_lines
    elif text.log is not None:
        is_combined = np.array([text.log == "combined_log"], np.uint8)
        parse_lines, names = kernel.parse_web_log_lines, kernel.read_only(is_combined)
    cells = _Cells(
        value=np.zeros((len(columns), rows), np.int64),
        length=np.zeros((len(columns), rows), np.int32),
        valid=np.zeros((len(columns), rows), np.uint8),
    )
    status = np.zeros(rows, np.uint8)
    parse_lines(
        block,
        kernel.read_only(starts.astype(np.int64, copy=False)),
        kernel.read_only(ends.astype(np.int64, copy=False)),
        columns,
        names,
        cells.value,
        cells.value.view(np.float64),
        cells.length,
        cells.valid,
        status,
    )
    cells.valid[:, status != kernel.PLAIN] = 0
    return cells, status


@lru_cache(maxsize=16)
def _described(text: TextFormat) -> tuple[Int64s, UInt8s]:
    """The columns and their names, as the kernel takes them."""
    columns = np.zeros((len(text.columns), kernel.FIELDS), np.int64)
    names = bytearray()
    for row, column in zip(columns, text.columns, strict=True):
        name, kind = column.name.encode(), column.kind
        can_stand = text.log is not None or not any(byte < 0x20 or byte in b'"\\' for byte in name)
        row[kernel.NAME_BEGIN] = len(names)
        row[kernel.NAME_LENGTH] = len(name) if can_stand else -1
        names += name
        if text.log in WEB_LOGS:
            fields = fields_of(text.log)
            row[kernel.NAME_BEGIN] = FIELDS.index(column.name) if column.name in fields else -1
        row[kernel.KIND] = _KINDS[kind.name]
        if kind.name == "timestamp" and text.zone in _UTC:
            row[kernel.KIND] = kernel.TIME_OR_ZONE
        elif kind.name in WHOLE_BITS:
            row[kernel.LOWEST] = -(2 ** (WHOLE_BITS[kind.name] - 1))
            row[kernel.HIGHEST] = 2 ** (WHOLE_BITS[kind.name] - 1) - 1
        elif kind.name == "decimal":
            row[kernel.SCALE] = kind.scale or 0
            row[kernel.DIGITS] = min(kind.precision or 0, 18)
    return kernel.read_only(columns), kernel.read_only(np.frombuffer(bytes(names), np.uint8))


def _rounding(text: TextFormat) -> list[int]:
    kinds = ("decimal", "timestamp", "timestamp_ntz")
    return [number for number, column in enumerate(text.columns) if column.kind.name in kinds]


def _nested_columns(text: TextFormat) -> list[int]:
    return [number for number, column in enumerate(text.columns) if column.kind.name in _NESTED]


def _nested_values(block: UInt8s, cells: _Cells, number: int, text: TextFormat, malformed: Bools) -> NDArray[Any]:
    """The values of a nested column, as `json_exact.record` gives them; `malformed` gets the rows where one is none."""
    values: NDArray[Any] = np.full(cells.valid.shape[1], None, np.object_)
    read = json_exact.layout_of(text)[text.columns[number].name][2]
    begins, lengths = cells.value[number], cells.length[number]
    for row in np.flatnonzero(cells.valid[number]).tolist():
        begin = int(begins[row])
        source = block[begin : begin + int(lengths[row])].tobytes().decode()
        try:
            values[row], _ = read(source, 0, 1)
        except Malformed:
            malformed[row] = True
    return values


class _Exact:
    """Puts the exact values of lines into the cells.

    `texts` has their texts, `high` upper halves of decimals, `nested` the values of nested columns.
    """

    def __init__(self, text: TextFormat, cells: _Cells, nested: Mapping[int, NDArray[Any]]) -> None:
        self._nested = nested
        self._text = text
        self._record = json_exact.record if text.delimiter is None else csv_exact.record
        if text.log is not None:
            self._record = log_exact.record
        self._cells = cells
        self.texts = bytearray()
        self.high: dict[tuple[int, int], int] = {}

    def put(self, row: int, line: bytes) -> bool:
        """Whether the line is a record."""
        try:
            values = self._record(line, self._text)
        except Malformed:
            return False
        for number, (column, value) in enumerate(zip(self._text.columns, values, strict=True)):
            if value is not None:
                self._cells.valid[number, row] = 1
                self._put_value(number, row, column.kind, value)
        return True

    def _put_value(self, number: int, row: int, kind: ColumnType, value: Any) -> None:
        cells = self._cells
        if number in self._nested:
            self._nested[number][row] = value
        elif kind.name in _BYTES:
            found = value.encode() if kind.name == "string" else value
            if len(found) > MOST_TEXT:
                raise _too_much_text(len(found))
            cells.value[number, row] = -1 - len(self.texts)
            cells.length[number, row] = len(found)
            self.texts += found
        elif kind.name in ("float", "double"):
            cells.value.view(np.float64)[number, row] = value
        elif kind.name == "decimal":
            unscaled = _unscaled(value, kind.scale or 0)
            cells.value[number, row] = np.uint64(unscaled & 2**64 - 1).astype(np.int64)
            self.high[number, row] = unscaled >> 64
        else:
            cells.value[number, row] = value


def _unscaled(value: Decimal, scale: int) -> int:
    """The value, a multiple of 10^-scale, as a number of these."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    number = number * int(10 ** max(0, scale + exponent)) // int(10 ** max(0, -scale - exponent))
    return -number if sign else number


def _too_much_text(size: int) -> ValueError:
    return ValueError(f"{size} bytes of text in one column of a block; Arrow holds {MOST_TEXT}: read smaller blocks")


def _built(
    cells: _Cells,
    number: int,
    kind: ColumnType,
    arrow: pa.DataType,
    block: UInt8s,
    other: UInt8s,
    high: dict[tuple[int, int], int],
) -> pa.Array:
    value, valid = cells.value[number], cells.valid[number]
    rows = len(value)
    nulls = rows - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    if kind.name in _BYTES:
        room = int(np.abs(cells.length[number].astype(np.int64)).sum())
        if room > MOST_TEXT:
            raise _too_much_text(room)
        offsets = np.empty(rows + 1, np.int32)
        texts = np.empty(room, np.uint8)
        size = kernel.gather_texts(
            block,
            kernel.read_only(other),
            kernel.read_only(value),
            kernel.read_only(cells.length[number]),
            kernel.read_only(valid),
            texts,
            offsets,
        )
        return pa.Array.from_buffers(
            arrow, rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(texts[:size])], null_count=nulls
        )
    return pa.Array.from_buffers(
        arrow, rows, [bitmap, pa.py_buffer(_fixed(value, number, kind, high))], null_count=nulls
    )


def _fixed(value: Int64s, number: int, kind: ColumnType, high: dict[tuple[int, int], int]) -> NDArray[Any]:
    """The values as Arrow has them."""
    if kind.name == "boolean":
        return np.packbits(value.astype(np.uint8), bitorder="little")
    if kind.name == "double":
        return value
    if kind.name == "float":
        with np.errstate(over="ignore"):  # beyond the greatest float stands infinity
            return value.view(np.float64).astype(np.float32)
    if kind.name == "decimal":
        words = np.empty((len(value), 2), np.int64)
        words[:, 0] = value
        words[:, 1] = value >> 63
        for (column, row), upper in high.items():
            if column == number:
                words[row, 1] = upper
        return words
    bits = WHOLE_BITS.get(kind.name, 32 if kind.name == "date" else 64)
    return value.astype(f"int{bits}", copy=False)


def warm(form: str) -> None:
    """Compiles, or loads from the cache, the kernels of a form of lines, by its name in a config."""
    columns = (DeclaredColumn("a", ColumnType("string", "string"), pa.string()),)
    data = {"json": b'{"a":"b"}\n', "csv": b"b\n", LOGFMT: b"a=b\n"}.get(form, _WEB_LOG)
    starts, ends, _ = lines(data)
    parse(data, starts, ends, TextFormat.of(form, columns, "UTC"), [0])
