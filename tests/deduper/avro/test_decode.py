"""Data of Avro schemas as columns: what a written datum means, and what is none."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.avro.decode import Decoded, decode
from deduper.avro.program import program_of
from deduper.config.kafka.avro_schema import AvroError, columns_of

Schema = Any
UTC_US = pa.timestamp("us", "UTC")


# --- a writer, by the specification alone


def varint(number: int) -> bytes:
    """A number of any size, zigzag."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def written(schema: Schema, value: Any, names: dict[str, Schema]) -> bytes:
    """A value; of a union (its number, a value). Lists are one block, and maps too."""
    if isinstance(schema, list):
        number, inside = value
        return varint(number) + written(schema[number], inside, names)
    if isinstance(schema, str) and schema in names:
        schema = names[schema]
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in ("record", "enum", "fixed"):
        names[schema["name"]] = schema
    if kind == "record":
        return b"".join(written(field["type"], value[field["name"]], names) for field in schema["fields"])
    if kind == "array":
        items = b"".join(written(schema["items"], item, names) for item in value)
        return (varint(len(value)) + items if value else b"") + b"\0"
    if kind == "map":
        entries = b"".join(text(key) + written(schema["values"], item, names) for key, item in value)
        return (varint(len(value)) + entries if value else b"") + b"\0"
    writers = {
        "null": lambda _: b"",
        "boolean": lambda given: bytes([given]),
        "int": varint,
        "long": varint,
        "enum": varint,
        "float": lambda given: struct.pack("<f", given),
        "double": lambda given: struct.pack("<d", given),
        "string": text,
        "bytes": lambda given: varint(len(given)) + given,
        "fixed": lambda given: given,
    }
    return writers[kind](value) if kind in writers else written(kind, value, names)


def text(value: str) -> bytes:
    """A string."""
    return varint(len(value.encode())) + value.encode()


def record(*kinds: Schema) -> Schema:
    """A record of fields f0, f1, ..."""
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "namespace": "n", "fields": fields}


def read(schema: Schema, types: Sequence[pa.DataType], data: Sequence[bytes]) -> Decoded:
    """The data as columns, all of them sound for Arrow."""
    ends = np.cumsum([len(one) for one in data]).astype(np.int64)
    starts = ends - np.array([len(one) for one in data], np.int64)
    program = program_of(json.dumps(schema), types)
    found = decode(np.frombuffer(b"".join(data), np.uint8), starts, ends, program, range(len(types)))
    for number, column in found.columns.items():
        column.validate(full=True)
        assert column.type == types[number]
        assert len(column) == len(data)
    return found


def one(kind: Schema, arrow: pa.DataType, *data: bytes) -> list[Any]:
    """The values of a record with one field; `malformed` and `invalid_utf8` for what is none."""
    found = read(record(kind), [arrow], data)
    return [
        "malformed" if bad else "invalid_utf8" if invalid else value
        for value, bad, invalid in zip(found.columns[0].to_pylist(), found.malformed, found.invalid_utf8, strict=True)
    ]


# --- values

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 3}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize(
    ("kind", "arrow", "data", "value"),
    [
        ("boolean", pa.bool_(), b"\1", True),
        ("int", pa.int32(), varint(-(2**31)), -(2**31)),
        ("int", pa.int32(), b"\x80\x00", 0),  # longer than need be
        ("long", pa.int64(), varint(-(2**63)), -(2**63)),
        ("long", pa.int64(), varint(2**63 - 1), 2**63 - 1),
        ("float", pa.float32(), struct.pack("<f", -1.5), -1.5),
        ("double", pa.float64(), struct.pack("<d", 0.1), 0.1),
        ("string", pa.string(), text("é😀"), "é😀"),
        ("bytes", pa.binary(), b"\4\xff\0", b"\xff\0"),
        (FIXED, pa.binary(), b"abc", b"abc"),
        (ENUM, pa.string(), varint(1), "B"),
        ({"type": "int", "logicalType": "date"}, pa.date32(), varint(-719162), "0001-01-01"),
        (MILLIS, UTC_US, varint(1), "1970-01-01 00:00:00.001000+00:00"),
        ({**MILLIS, "logicalType": "timestamp-micros"}, UTC_US, varint(1), "1970-01-01 00:00:00.000001+00:00"),
        (
            {**MILLIS, "logicalType": "local-timestamp-millis"},
            pa.timestamp("us"),
            varint(-1),
            "1969-12-31 23:59:59.999000",
        ),
        (DECIMAL, pa.decimal128(4, 2), b"\2\xff", Decimal("-0.01")),
        (DECIMAL, pa.decimal128(4, 2), b"\4\x27\x0f", Decimal("99.99")),
        (DECIMAL, pa.decimal128(4, 2), b"\x28" + b"\xff" * 18 + b"\xd8\xf1", Decimal("-99.99")),
        (
            {**FIXED, "size": 16, "logicalType": "decimal", "precision": 38},
            pa.decimal128(38, 0),
            (-(10**38) + 1).to_bytes(16, "big", signed=True),
            Decimal(-(10**38) + 1),
        ),
        (["null", "string"], pa.string(), b"\0", None),
        (["string", "null"], pa.string(), b"\2", None),
        (["int", "long"], pa.int64(), b"\2" + varint(2**40), 2**40),
        (["float", "double"], pa.float64(), b"\0" + struct.pack("<f", 0.1), 0.10000000149011612),
        (
            {"type": "array", "items": "int"},
            pa.list_(pa.int32()),
            b"\2\2\3\2\2\4\0",
            [1, 1, 2],
        ),  # one block has its size
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), b"\4\2a\2\2a\4\0", [("a", 2)]),
    ],
)
def test_what_a_datum_means(kind: Schema, arrow: pa.DataType, data: bytes, value: Any) -> None:
    """By its schema; two nulls, a list and a longer datum beside it change nothing."""
    (found,) = one(kind, arrow, data)
    assert (str(found) if isinstance(value, str) and arrow != pa.string() else found) == value
    assert one(kind, arrow, data + b"\0", data) == ["malformed", found]


@pytest.mark.parametrize(
    ("kind", "arrow", "data"),
    [
        ("boolean", pa.bool_(), b"\2"),
        ("int", pa.int32(), varint(2**31)),
        ("long", pa.int64(), b"\xff" * 9 + b"\2"),
        ("long", pa.int64(), b"\xff" * 11 + b"\1"),
        ("string", pa.string(), b"\1abc"),  # of -1 bytes
        ("string", pa.string(), varint(2**62) + b"abc"),
        (ENUM, pa.string(), varint(-1)),
        (ENUM, pa.string(), varint(2)),
        (["null", "int"], pa.int32(), varint(-1) + b"\2"),
        (["null", "int"], pa.int32(), varint(2) + b"\2"),
        (MILLIS, UTC_US, varint(2**63 // 1000 + 1)),
        (DECIMAL, pa.decimal128(4, 2), b"\0"),
        (DECIMAL, pa.decimal128(4, 2), b"\4\x27\x10"),
        (DECIMAL, pa.decimal128(4, 2), b"\4\xd8\xf0"),
        (DECIMAL, pa.decimal128(4, 2), b"\x28\1" + b"\0" * 19),
        (DECIMAL, pa.decimal128(4, 2), b"\x24\0" + b"\xff" * 17),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), b"\4\2"),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), varint(2**61) + b"\2\0"),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), varint(-(2**63)) + b"\2\2\0"),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), b"\2\2"),
    ],
)
def test_what_does_not_match_the_schema_is_malformed(kind: Schema, arrow: pa.DataType, data: bytes) -> None:
    """Never another value; the data beside it stay."""
    sound = {"type": "record", "name": "S", "fields": [{"name": "s", "type": "string"}]}
    schema = record(kind, sound)
    types = [arrow, pa.struct([("s", pa.string())])]
    found = read(schema, types, [data + text("x")])
    assert found.malformed.tolist() == [True]
    assert found.columns[1].to_pylist() == [None]


def test_text_that_is_none() -> None:
    """Of a whole datum it is an error of its own, wherever it stands."""
    assert one("string", pa.string(), b"\4\xc3\x28", b"\4\xff", text("a")) == ["invalid_utf8", "malformed", "a"]
    maps = {"type": "map", "values": "string"}
    assert one(maps, pa.map_(pa.string(), pa.string()), b"\2\2\xff\2b\0") == ["invalid_utf8"]
    assert one("bytes", pa.binary(), b"\2\xff") == [b"\xff"]


def test_a_union_of_several_types_is_a_struct() -> None:
    """With a field for each type but null."""
    inner = {"type": "record", "name": "P", "fields": [{"name": "x", "type": ["null", "int"]}]}
    arrow = pa.struct([("member0", pa.int32()), ("member1", pa.string()), ("member2", pa.struct([("x", pa.int32())]))])
    found = one(["int", "null", "string", inner], arrow, b"\0\2", b"\2", b"\4" + text("a"), b"\6\0")
    empty = dict.fromkeys(("member0", "member1", "member2"))
    assert found == [{**empty, "member0": 1}, None, {**empty, "member1": "a"}, {**empty, "member2": {"x": None}}]


def test_a_named_type_is_the_same_wherever_it_is_named() -> None:
    """In its own namespace and by its full name."""
    schema = record(ENUM, ["null", "E"], {"type": "array", "items": "n.E"})
    data = varint(1) + b"\2\0" + b"\4\2\0\0"
    found = read(schema, [pa.string(), pa.string(), pa.list_(pa.string())], [data])
    assert [found.columns[number].to_pylist() for number in range(3)] == [["B"], ["A"], [["B", "A"]]]


# --- whatever is written is read


def schemas(depth: int = 3) -> st.SearchStrategy[tuple[Schema, pa.DataType, Any]]:
    """(schema, type, strategy of (value to write, value to read))."""

    def same(values: Any) -> Any:
        return values.map(lambda value: (value, value))

    floats = st.floats(width=32, allow_nan=False)
    leaves = st.sampled_from(
        [
            ("boolean", pa.bool_(), same(st.booleans())),
            ("int", pa.int32(), same(st.integers(-(2**31), 2**31 - 1))),
            ("long", pa.int64(), same(st.integers(-(2**63), 2**63 - 1))),
            ("float", pa.float32(), same(floats)),
            ("double", pa.float64(), same(st.floats(allow_nan=False))),
            ("string", pa.string(), same(st.text())),
            ("bytes", pa.binary(), same(st.binary())),
            (["float", "double"], pa.float64(), floats.map(lambda value: ((0, value), value))),
        ]
    )
    if not depth:
        return leaves

    def nullable(inner: Any) -> Any:
        schema, arrow, values = inner
        if isinstance(schema, list):
            return inner
        absent = st.just(((0, None), None))
        return ["null", schema], arrow, absent | values.map(lambda pair: ((1, pair[0]), pair[1]))

    def array(inner: Any) -> Any:
        schema, arrow, values = inner
        lists = st.lists(values, max_size=4)
        return (
            {"type": "array", "items": schema},
            pa.list_(arrow),
            lists.map(lambda pairs: ([pair[0] for pair in pairs], [pair[1] for pair in pairs])),
        )

    def mapping(inner: Any) -> Any:
        schema, arrow, values = inner
        maps = st.dictionaries(st.text(max_size=3), values, max_size=3)
        return (
            {"type": "map", "values": schema},
            pa.map_(pa.string(), arrow),
            maps.map(lambda m: ([(k, v[0]) for k, v in m.items()], [(k, v[1]) for k, v in m.items()])),
        )

    def struct_of(inner: Any) -> Any:
        names = [f"x{number}" for number in range(len(inner))]
        fields = [{"name": name, "type": one[0]} for name, one in zip(names, inner, strict=True)]
        arrow = pa.struct([(name, one[1]) for name, one in zip(names, inner, strict=True)])
        values = st.tuples(*(one[2] for one in inner)).map(
            lambda pairs: tuple(dict(zip(names, side, strict=True)) for side in zip(*pairs, strict=True))
        )
        return {"type": "record", "name": "X", "fields": fields}, arrow, values

    below = schemas(depth - 1)
    structs = st.lists(below, min_size=1, max_size=3).map(struct_of)
    return st.one_of(leaves, below.map(nullable), below.map(array), below.map(mapping), structs)


@pytest.mark.slow
@given(st.data(), st.lists(schemas(), min_size=1, max_size=4))
def test_whatever_is_written_is_read(data: st.DataObject, fields: list[Any]) -> None:
    """Every value of every column; a datum that is cut off anywhere is malformed, and changes no other."""
    schema = record(*(field[0] for field in fields))
    rows = data.draw(st.lists(st.tuples(*(field[2] for field in fields)), max_size=4))
    whole = [written(schema, {f"f{number}": pair[0] for number, pair in enumerate(row)}, {}) for row in rows]
    cut = [one[: data.draw(st.integers(0, len(one) - 1))] for one in whole]
    mixed = [datum for pair in zip(whole, cut, strict=True) for datum in pair]
    found = read(schema, [field[1] for field in fields], mixed)
    assert found.malformed.tolist() == [False, True] * len(rows)
    for number in range(len(fields)):
        assert found.columns[number].to_pylist()[::2] == [row[number][1] for row in rows]


# --- what a schema must have


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"type": "enum", "name": "E"}, "`n.R.f0` is an enum without symbols"),
        ({"type": "enum", "name": "E", "symbols": []}, "`n.R.f0` is an enum without symbols"),
        ({"type": "fixed", "name": "F"}, "`n.R.f0` is a fixed without a size"),
        ({"type": "fixed", "name": "F", "size": 0}, "`n.R.f0` is a fixed without a size"),
    ],
)
def test_a_schema_that_no_data_can_have(kind: Schema, message: str) -> None:
    """It is refused with the configuration."""
    with pytest.raises(AvroError, match=message):
        columns_of(json.dumps(record(kind)))
