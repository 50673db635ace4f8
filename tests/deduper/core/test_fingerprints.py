"""Fingerprints of payloads: which records are the same, and the hash against a plain one."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from deduper.arrow_columns import arrow_type
from deduper.columns import ColumnType, parse_columns
from deduper.config.model import Config
from deduper.core.digests import plain_value
from deduper.core.fingerprints import array_fingerprint
from deduper.payload import identity, leaves
from deduper.sources.declared_columns import file_reading
from deduper.tasks import layout
from deduper.tasks.readers.file_parts import FilePart
from tests.deduper.digest_oracle import hashed_bytes

SALT = b"a salt of 16 byt"
COMPOSED, DECOMPOSED = "\u00e9", "e\u0301"
NOON, NOON_IN_PARIS = '{"t": "2026-05-01T12:00:00Z"}', '{"t": "2026-05-01T14:00:00+02:00"}'

PAIRS = [  # of SEMANTICS.md, in its order: schema, one record, the other, whether they are the same
    ("x double", '{"x": 1}', '{"x": 1.0}', True),
    ("x double", '{"x": 0.0}', '{"x": -0.0}', True),
    ("x double", '{"x": NaN}', '{"x": NaN}', True),
    ("x double", '{"x": 0.1}', '{"x": 0.10000000000000001}', True),
    ("x string", '{"x": 0.1}', '{"x": 0.10000000000000001}', True),
    ("x decimal(10,2)", '{"x": 1.50}', '{"x": 1.5}', True),
    ("x long, y long", '{"x": 1, "y": 2}', '{"y": 2, "x": 1}', True),
    ("x long", '{"x": 1}', '{ "x" : 1 }', True),
    ("x long", '{"x": null}', "{}", True),
    ("s string", '{"s": ""}', "{}", False),
    ("o struct<a: long>", '{"o": {"a": null}}', '{"o": null}', True),
    ("o struct<a: long>", '{"o": {"a": null}}', "{}", True),
    ("l array<long>", '{"l": []}', '{"l": null}', False),
    ("l array<long>", '{"l": [1, 2]}', '{"l": [2, 1]}', False),
    ("m map<string, long>", '{"m": {"a": 1, "b": 2}}', '{"m": {"b": 2, "a": 1}}', True),
    ("m map<string, long>", '{"m": {"a": null}}', '{"m": {}}', False),
    ("t timestamp", NOON, NOON_IN_PARIS, True),
    ("t string", NOON, NOON_IN_PARIS, False),
    ("s string", f'{{"s": "{COMPOSED}"}}', f'{{"s": "{DECOMPOSED}"}}', False),
    ("s string", '{"s": "a"}', '{"s": "A"}', False),
    ("s string", '{"s": "a"}', '{"s": "a "}', False),
    ("x long", '{"x": 1}', '{"x": 1, "new": 2}', True),
]


def fingerprints(folder: Path, schema: str, lines: Sequence[str], fingerprint: Any = "all") -> list[int]:
    """Those that the job's reader gives to lines of JSON."""
    sections = {
        "name": "x",
        "source": {"format": "files", "path": "in", "file_format": "json", "schema": f"key string, {schema}"},
        "key": "key",
        "fingerprint": fingerprint,
        "expiry": {"by": "never"},
        "store": {"url": "file:state"},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    config = Config.model_validate(sections, context={"base_dir": folder})
    path = folder / "lines"
    path.write_text("".join(f"{line}\n" for line in lines))
    source: Any = config.source
    reading = file_reading(config, source, SALT)
    part = reading.part(0, FilePart(str(path), 0, 0, 0, 0, {}, None).as_now())
    assert part is not None
    found: list[int] = []
    for batch in reading.records(part):
        found += batch.column(layout.FINGERPRINT).to_pylist()
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{one[0]} {number}" for number, one in enumerate(PAIRS, 1)])
def test_the_same_or_another_one(pair: tuple[str, str, str, bool], tmp_path: Path) -> None:
    """The pairs of SEMANTICS.md."""
    schema, one, other, is_same = pair
    first, second = fingerprints(tmp_path, schema, [one, other])
    assert (first == second) == is_same


def test_the_page_has_these_pairs() -> None:
    """SEMANTICS.md lists 20, and two of them have two forms of the other record."""
    page = Path(__file__).parents[3] / "deduper" / "SEMANTICS.md"
    table = page.read_text().split("### The same, or another one?")[1].split("## Reasons")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and line[2].isdigit()]
    answers = [("the same" in row.split("|")[4]) for row in rows]
    assert len(rows) == 20
    forms = [1] * 20
    forms[10] = forms[18] = 2
    expected = iter(PAIRS)
    for answer, count in zip(answers, forms, strict=True):
        assert {next(expected)[3] for _ in range(count)} == {answer}


def test_paths(tmp_path: Path) -> None:
    """Columns, fields of objects, and all but these; a name with a point of its own comes first."""
    schema = "o struct<a: long, p: struct<b: long, c: long>>, `o.a` long, z long"
    lines = [
        '{"o": {"a": 1, "p": {"b": 1, "c": 1}}, "o.a": 1, "z": 1}',
        '{"o": {"a": 2, "p": {"b": 1, "c": 1}}, "o.a": 1, "z": 1}',
        '{"o": {"a": 1, "p": {"b": 2, "c": 1}}, "o.a": 1, "z": 1}',
        '{"o": {"a": 1, "p": {"b": 1, "c": 2}}, "o.a": 1, "z": 1}',
        '{"o": {"a": 1, "p": {"b": 1, "c": 1}}, "o.a": 2, "z": 1}',
        '{"o": {"a": 1, "p": {"b": 1, "c": 1}}, "o.a": 1, "z": 2}',
    ]

    def differing(fingerprint: Any) -> list[int]:
        first, *others = fingerprints(tmp_path, schema, lines, fingerprint)
        return [number for number, other in enumerate(others, 1) if other != first]

    assert differing("all") == [1, 2, 3, 4, 5]
    assert differing({"columns": ["o"]}) == [1, 2, 3]
    assert differing({"columns": "o.p"}) == [2, 3]
    assert differing({"columns": ["o.p.c", "z"]}) == [3, 5]
    assert differing({"columns": ["o.a"]}) == [4]
    assert differing({"except": ["o.p.b", "z"]}) == [1, 3, 4]
    assert differing({"except": ["o", "o.a"]}) == [5]


def plain(values: dict[str, Any], columns: Any) -> int:
    """The fingerprint as the module's docstring says it, value by value."""
    begin = xxhash.xxh64_intdigest(SALT, seed=42)
    return _of_leaves([(values.get(column.name), column.type, (column.name,)) for column in columns], begin) or 1


def _of_leaves(parts: list[tuple[Any, ColumnType, tuple[str, ...]]], begin: int) -> int:
    running = begin
    for value, kind, _ in sorted(_flat(parts), key=lambda part: part[2]):
        running = xxhash.xxh64_intdigest(struct.pack("<i", value is None), seed=running)
        if value is None:
            continue
        if kind.name == "array":
            elements = [_of_leaves([(one, kind.parts[0].type, ("",))], begin) for one in value]
            running = _word(len(value), running)
            for one in elements:
                running = _word(one, running)
        elif kind.name == "map":
            of_key, of_value = (part.type for part in kind.parts)
            entries = [_of_leaves([(key, of_key, ("0",)), (one, of_value, ("1",))], begin) for key, one in value]
            running = _word(sum(entries) % 2**64, _word(len(value), running))
        else:
            running = xxhash.xxh64_intdigest(hashed_bytes(plain_value(value, kind), kind), seed=running)
    return running


def _word(value: int, seed: int) -> int:
    return xxhash.xxh64_intdigest(struct.pack("<Q", value), seed=seed)


def _flat(parts: Any) -> Any:
    for value, kind, path in parts:
        if kind.name == "struct":
            yield from _flat([((value or {}).get(field.name), field.type, (*path, field.name)) for field in kind.parts])
        else:
            yield value, kind, path


SCHEMA = (
    "s string, b binary, i int, l long, f float, d double, n decimal(9,2), w decimal(30,4), t timestamp, y boolean, "
    "o struct<z: long, a: struct<q: string>>, v array<struct<p: int, r: array<string>>>, m map<string, double>, "
    "g map<long, struct<k: string>>"
)


def _value(kind: ColumnType, draw: random.Random) -> Any:
    if draw.random() < 0.2:
        return None
    return {
        "string": lambda: draw.choice(["", "a", "\u00e9" * 40]),
        "binary": lambda: draw.choice([b"", b"\x00\xff" * 9]),
        "int": lambda: draw.randint(-5, 5),
        "bigint": lambda: draw.choice([0, -(2**63), 2**63 - 1]),
        "float": lambda: draw.choice([0.0, -0.0, 1.5, math.inf]),
        "double": lambda: draw.choice([0.0, -0.0, math.nan, 1e300]),
        "decimal": lambda: Decimal(draw.randint(-(10**6), 10**6)).scaleb(-2),
        "timestamp": lambda: datetime(2026, 5, draw.randint(1, 9), tzinfo=UTC),
        "boolean": lambda: draw.random() < 0.5,
        "struct": lambda: {field.name: _value(field.type, draw) for field in kind.parts},
        "array": lambda: [_value(kind.parts[0].type, draw) for _ in range(draw.randint(0, 3))],
        "map": lambda: [
            (key, _value(kind.parts[1].type, draw))
            for key in draw.sample([1, 2, 3] if kind.parts[0].type.name == "bigint" else ["a", "b", "c"], 2)
        ],
    }[kind.name]()


def test_columns_give_what_values_give() -> None:
    """The kernels against the plain hash, for every type, nested ones and slices of columns too."""
    columns, draw = parse_columns(SCHEMA), random.Random(7)
    rows = [{column.name: _value(column.type, draw) for column in columns} for _ in range(300)]
    arrays = {column.name: pa.array([row[column.name] for row in rows], arrow_type(column.type)) for column in columns}
    chosen = list(leaves(columns))
    expected = [plain(row, columns) for row in rows]
    assert array_fingerprint(chosen, arrays, SALT, len(rows)).tolist() == expected
    sliced = {name: array.slice(17, 100) for name, array in arrays.items()}
    assert array_fingerprint(chosen, sliced, SALT, 100).tolist() == expected[17:117]
    assert array_fingerprint(chosen[::-1], arrays, SALT, len(rows)).tolist() == expected, "in any order"
    assert not np.array_equal(array_fingerprint(chosen, arrays, b"another salt 16b", len(rows)), expected)


def test_a_hash_of_0_is_a_fingerprint_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store 0 means that an entry has none, so no copy of such a record would ever be compared."""
    monkeypatch.setattr("deduper.core.fingerprints._hashed", lambda *_: np.array([0, 1, 2], np.uint64))
    assert array_fingerprint([], {}, SALT, 3).tolist() == [1, 1, 2]


def test_an_identity_is_of_paths_and_types() -> None:
    """Another order is the same one; another type, name or column is not."""

    def of(schema: str) -> str:
        return identity(list(leaves(parse_columns(schema))))

    assert of("a int, b string") == of("b string, a int")
    others = [of("a int, b string"), of("a long, b string"), of("a int, c string"), of("a int"), of("o struct<a: int>")]
    assert len(set(others)) == len(others)
    assert json.dumps(of("a int")) == f'"{of("a int")}"'
    assert len(of("a int")) == 16
