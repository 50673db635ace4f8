"""Data of one schema to Arrow columns; the program travels to the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.avro import kernels
from deduper.text.kernels import read_only

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the schema that has a list of values: see `kernels`. `symbols` are those of an enum."""

    number: int
    arrow: pa.DataType
    inside: tuple[Node, ...] = ()
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A record schema, made ready; `columns` are the fields of the record. See `kernels` for the rest."""

    columns: tuple[Node, ...]
    steps: Int64s = field(repr=False)
    targets: Int64s = field(repr=False)
    powers: NDArray[np.uint64] = field(repr=False)
    nodes: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """Columns by number; all values of what is no datum are null."""

    columns: dict[int, pa.Array]
    malformed: Bools
    """What is not one whole datum of the schema."""
    invalid_utf8: Bools
    """Whole data with text that is no UTF-8."""


def decode(data: NDArray[np.uint8], starts: Int64s, ends: Int64s, program: Program, wanted: Sequence[int]) -> Decoded:
    """The data data[starts[i]:ends[i]], of which the columns `wanted` are built."""
    data, starts, ends = read_only(data), read_only(starts), read_only(ends)
    schema = read_only(program.steps), read_only(program.targets), read_only(program.powers)
    status = np.zeros(len(starts), np.uint8)
    used, nothing = np.zeros(program.nodes, np.int64), np.zeros(0, np.int64)
    kernels.decode(data, starts, ends, *schema, status, used, read_only(nothing), nothing, nothing, nothing, True)
    first = np.concatenate([[0], np.cumsum(used)]).astype(np.int64)
    rows, values, extras = np.zeros((3, int(first[-1])), np.int64)
    kernels.decode(data, starts, ends, *schema, status, used, read_only(first), rows, values, extras, False)
    lists = _Lists(data, first, used, rows, values, extras)
    return Decoded(
        {number: lists.column(program.columns[number], len(starts)) for number in wanted},
        status == kernels.MALFORMED,
        status == kernels.NOT_UTF8,
    )


@dataclass(frozen=True, slots=True)
class _Lists:
    """The values of all nodes; see `kernels`."""

    data: NDArray[np.uint8]
    first: Int64s
    used: Int64s
    rows: Int64s
    values: Int64s
    extras: Int64s

    def column(self, node: Node, count: int) -> pa.Array:
        """The values of a node as a column of so many rows."""
        own = slice(self.first[node.number], self.first[node.number] + self.used[node.number])
        rows, values, extras = self.rows[own], self.values[own], self.extras[own]
        nulls, bitmap = count - len(rows), None
        if nulls:
            is_there = np.zeros(count, np.uint8)
            is_there[rows] = 1
            bitmap = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        kind = node.arrow

        def made(buffers: list[Any], children: Sequence[pa.Array] | None = None) -> pa.Array:
            return pa.Array.from_buffers(kind, count, [bitmap, *buffers], null_count=nulls, children=children)

        def dense(of_rows: Int64s) -> Int64s:
            if not nulls:
                return of_rows
            found = np.zeros(count, np.int64)
            found[rows] = of_rows
            return found

        if pa.types.is_struct(kind):
            return made([], [self.column(one, count) for one in node.inside])
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            offsets = _offsets(dense(values))
            found = made([pa.py_buffer(offsets)], [self.column(node.inside[0], int(offsets[-1]))])
            return _of_one_key_each(found) if pa.types.is_map(kind) else found
        if node.symbols:
            symbols = pa.array(node.symbols, pa.string())
            numbers = pa.Array.from_buffers(pa.int64(), count, [bitmap, pa.py_buffer(dense(values))], null_count=nulls)
            return symbols.take(numbers)
        if kind in (pa.string(), pa.binary()):
            offsets = _offsets(dense(extras))
            texts = np.empty(int(offsets[-1]), np.uint8)
            to = offsets[rows].astype(np.int64)
            kernels.gather(self.data, read_only(values), read_only(extras), read_only(to), texts)
            return made([pa.py_buffer(offsets), pa.py_buffer(texts)])
        if pa.types.is_boolean(kind):
            return made([pa.py_buffer(np.packbits(dense(values).astype(np.uint8), bitorder="little"))])
        if pa.types.is_decimal128(kind):
            return made([pa.py_buffer(np.column_stack([dense(values), dense(extras)]))])
        fixed = dense(values)
        if kind.bit_width == 32:
            fixed = fixed.astype(np.uint32).view(np.int32) if pa.types.is_float32(kind) else fixed.astype(np.int32)
        return made([pa.py_buffer(fixed)])


def _of_one_key_each(maps: pa.MapArray) -> pa.MapArray:
    """Maps without the entries that a later one of the same key replaces."""
    keys = maps.keys.dictionary_encode()
    of_maps = np.repeat(np.arange(len(maps)), np.diff(maps.offsets.to_numpy()))
    places = of_maps * len(keys.dictionary) + keys.indices.to_numpy()
    if np.unique(places).size == places.size:
        return maps
    return pa.array([None if one is None else list(dict(one).items()) for one in maps.to_pylist()], maps.type)


def _offsets(lengths: Int64s) -> NDArray[np.int32]:
    """Where the values of each row begin, and where the last one ends.

    Raises:
        ValueError: a column has more than Arrow's offsets of 32 bits hold.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > 2**31 - 1:
        raise ValueError(f"{offsets[-1]} bytes or items in one column of a block; Arrow holds {2**31 - 1}")
    return offsets.astype(np.int32)
