"""Random lines of JSON and CSV against the rules that SEMANTICS.md states, said once more in Python.

A run takes a sample of lines, the tier `night` a large one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable, Sequence
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa
import pytest

from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import Admission
from deduper.sources.kafka import partition_queue as queue
from deduper.sources.kafka.fetching import RangePart
from deduper.sources.kafka.reading import topic_reading
from deduper.tasks.layout import ADMISSION, RAW, parsed
from tests import tiers
from tests.deduper.digest_cases import SALT
from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_SEED = tiers.seed()
_LINES = 200_000 if tiers.is_night() else 2_000
_SCHEMA = "k string, n int, b boolean, d date, p decimal(10,2), s string"
_TEXTS = [
    "a",
    "",
    " ",
    "ü",
    "😀",
    '"',
    '""',
    "\\",
    "}",
    "{",
    "]}",
    ",",
    ";",
    "\t",
    "'",
    "//",
    "null",
    "1",
    "ſ",
    "\u2028",
    "12e3456789",
]
_PRICES = ["0", "1.005", "-1e-2", "1E+3", "12345678.99", "5e-3", "1e-00000003", "1e7", "0.1e1", "1e-99999", "0e99999"]
_NO_PRICES = ["1e8", "1e99999", "1e999999", "-1e-9999999", "1E+0009999999", "1e9999999999", "0e9999999"]
_DAYS = ["2024-02-29", "0001-01-01", "9999-12-31", "1582-10-10"]

Expected = dict[str, Any] | str
"""The record of a line, or the reason why it has none."""


def a_text(rnd: random.Random) -> str:
    """Of signs that mean something to one of the formats."""
    return "".join(rnd.choice(_TEXTS) for _ in range(rnd.randrange(5)))


def a_record(rnd: random.Random) -> dict[str, Any]:
    """A record of the schema, some columns null."""
    record = {
        "k": a_text(rnd) or "k",
        "n": rnd.choice([0, -1, 2**31 - 1, -(2**31), rnd.randrange(100)]),
        "b": rnd.random() < 0.5,
        "d": rnd.choice(_DAYS),
        "p": rnd.choice(_PRICES),
        "s": a_text(rnd),
    }
    return {name: None if rnd.random() < 0.1 else value for name, value in record.items()}


def expected_of(record: dict[str, Any]) -> Expected:
    """What must leave for a record that is read."""
    if record["k"] is None:
        return "null_key"
    price = record["p"] and Decimal(record["p"]).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return record | {"d": record["d"] and date.fromisoformat(record["d"]), "p": price}


def json_line(rnd: random.Random) -> tuple[str, Expected]:
    """A line, and what the rules say of it."""
    record = a_record(rnd)
    given: dict[str, Any] = {name: value for name, value in record.items() if value is not None or rnd.random() < 0.5}
    if rnd.random() < 0.2:
        given["more"] = rnd.choice([1, "}", [{"k": "other"}], {"k": {"n": "}{"}}])
    is_wrong = rnd.random() < 0.15
    if is_wrong:
        wrong = [{"n": "1"}, {"n": 1.5}, {"n": 2**31}, {"b": "true"}, {"d": "2024-02-30"}, {"n": [1]}, {"p": "1e"}]
        given |= rnd.choice([*wrong, *({"p": price} for price in _NO_PRICES)])
    items = list(given.items())
    rnd.shuffle(items)
    separators = rnd.choice([(",", ":"), (", ", ": "), (" ,\t", " :  ")])
    text = json.dumps(dict(items), ensure_ascii=rnd.random() < 0.5, separators=separators)
    text = text.replace("\u2028", "\\u2028")
    if given.get("p") is not None:
        as_number = given["p"] if given["p"] != "1e" else '"1e"'
        as_escaped = f'"{given["p"]}"'.replace("e", "\\u0065").replace("9", "\\u0039")
        text = text.replace(f'"{given["p"]}"', rnd.choice([f'"{given["p"]}"', as_number, as_escaped]))
    choice = rnd.random()
    if choice < 0.06:
        return text[: rnd.randrange(len(text))], "malformed"
    if choice < 0.12:
        return text + rnd.choice(["x", " {}", ",", "}", "]", '"', ' {"k":"b"}', "\x0b", "\u00a0"]), "malformed"
    if choice < 0.14:
        return rnd.choice([f"[{text}]", "null", '"text"', "7", ""]), "malformed"
    blanks = rnd.choice(["", "", " ", "\t", "\r", " \r"])
    return rnd.choice(["", "", " "]) + text + blanks, "malformed" if is_wrong else expected_of(record)


def csv_line(rnd: random.Random) -> tuple[str, Expected]:
    """A line as RFC 4180 has it, with an empty field for null, and what the rules say of it."""
    record = a_record(rnd)
    record["s"] = record["s"] or None  # empty is null
    fields = [
        "" if value is None else str(value).lower() if value in (True, False) and name == "b" else str(value)
        for name, value in record.items()
    ]
    if not record["k"]:
        fields[0] = ""
    is_wrong = rnd.random() < 0.1
    if is_wrong:
        at, wrong = rnd.choice(
            [(1, "one"), (1, "1.0"), (1, str(2**31)), (2, "yes"), (3, "2024-02-30"), (4, rnd.choice(_NO_PRICES))]
        )
        fields[at] = wrong
    quoting = rnd.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    choice = rnd.random()
    if choice < 0.06:
        return written([*fields, rnd.choice(["", "more", ","])], quoting), "malformed"
    if choice < 0.1:
        return written(fields[:-1], quoting) + ',"never closed', "malformed"
    if choice < 0.2:
        left = rnd.randrange(1, 6)
        fields = fields[:left]
        record |= dict.fromkeys(list(record)[left:])
        is_wrong = is_wrong and at < left
        if not any(field.strip() for field in fields):
            return "", "malformed"
    return written(fields, quoting) + rnd.choice(["", "\r"]), "malformed" if is_wrong else expected_of(record)


def written(fields: list[str], quoting: Any) -> str:
    """A line of CSV."""
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator="").writerow(fields)
    return text.getvalue()


def random_lines(kind: str) -> list[tuple[str, Expected]]:
    """The lines of a run."""
    rnd = random.Random(f"{kind}{_SEED}")
    return [(json_line if kind == "json" else csv_line)(rnd) for _ in range(_LINES)]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_random_lines(new_job: Callable[..., Job], kind: str) -> None:
    """Each is one record with just its values, or an error with its reason and its text."""
    lines = random_lines(kind)
    job = new_job(source={"file_format": kind, "schema": _SCHEMA}, expiry={"by": "never"})
    job.add_file([line for line, _ in lines], f"lines.{kind}")
    job.run()
    rows = {row["_dedup"]["position"]: row for port in PORTS for row in job.rows(port)}
    assert sorted(rows) == list(range(_LINES))
    wrong = []
    for number, (line, expected) in enumerate(lines):
        row = rows[number]
        dedup = row.pop("_dedup")
        if isinstance(expected, str):
            is_right = dedup["verdict"] == "error" and (dedup["reason"], dedup["raw"]) == (expected, line)
        else:
            is_right = dedup["verdict"] in ("unique", "duplicate") and row == expected
        if not is_right:
            wrong.append((line, expected, row, dedup["verdict"], dedup["reason"]))
    assert wrong[:5] == [], f"seed {_SEED}: {len(wrong)} of {_LINES} lines"


def of_topic(lines: Sequence[str | bytes], value: dict[str, Any], **settings: Any) -> pa.RecordBatch:
    """The lines as reading tasks take them, each the value of a record of a topic."""
    sections = {
        "name": "test",
        "source": {"format": "kafka", "bootstrap_servers": "b:1", "topics": ["t"], "value": value},
        "key": "k",
        "expiry": {"by": "never"},
        "store": {"url": "rocksdb:state"},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
        **settings,
    }
    config = Config.model_validate(sections)
    assert isinstance(config.source, KafkaSource)
    values = [line.encode() if isinstance(line, str) else line for line in lines]
    nothing = [pa.nulls(len(values), queue.SCHEMA.field(name).type) for name in (queue.KEY, queue.HEADERS)]
    numbers = pa.array(range(len(values)), pa.int64())
    given = pa.RecordBatch.from_arrays([numbers, numbers, pa.array(values, pa.binary()), *nothing], schema=queue.SCHEMA)
    reading = topic_reading(config, config.source, SALT)
    part = RangePart("t", 0, 0, len(values), 0, 0)
    return reading._records(part, given, reading.format.read(part, given, reading.declared.stored(())), math.inf)


def admissions(lines: Sequence[str], value: dict[str, Any]) -> list[bool]:
    """Whether each line, as a value of a topic, is a record that is judged."""
    found = of_topic(lines, value, null_keys="allow").column(ADMISSION)
    return [one == int(Admission.ADMITTED) for one in found.to_pylist()]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_random_values_of_topics(kind: str) -> None:
    """The same as values of a topic."""
    lines = random_lines(kind)
    found = of_topic([line for line, _ in lines], {"format": kind, "schema": _SCHEMA})
    wrong = []
    for (line, expected), row in zip(lines, found.to_pylist(), strict=True):
        if isinstance(expected, str):
            is_right = (Admission(row[ADMISSION]).reason, row[RAW]) == (expected, line)
        else:
            is_right = row[ADMISSION] == Admission.ADMITTED and expected == {
                name: row[parsed(number)] for number, name in enumerate(expected)
            }
        if not is_right:
            wrong.append((line, expected, row))
    assert wrong[:5] == [], f"seed {_SEED}: {len(wrong)} of {_LINES} lines"


_NESTED = (
    "k string, s struct<id:string,p:decimal(10,2)>, a array<decimal(10,2)>, m map<string,decimal(10,2)>, "
    "z array<struct<id:string,q:decimal(5,1)>>"
)
_FAR = "1e9999999"
_NESTED_LINES = {
    f'{{"s":{{"id":"x","p":"{_FAR}"}}}}': False,
    f'{{"s":{{"p":{_FAR}}}}}': False,
    f'{{"s":{{"p":"{_FAR}","p":1}}}}': False,
    f'{{"s":{{"\\u0070":"{_FAR}"}}}}': False,
    f'{{"s":{{"p":"{_FAR}"}}': False,
    f'{{"a":["1","{_FAR}"]}}': False,
    f'{{"a":["x:y","{_FAR}"]}}': False,
    f'{{"m":{{"a}}b":"{_FAR}"}}}}': False,
    f'{{"z":[{{"id":"x","q":1}},{{"q":"{_FAR}"}}]}}': False,
    f"{{'z':[{{'q':'{_FAR}'}}]}}": False,
    '{"s":{"p":"' + "1" * 2_000_000 + '"}}': False,
    '{"s":{"id":"3e4567890","p":"1"},"a":["1"],"id":"3e4567890","z":[{"id":"3e4567890","q":"1"},{"q":2}]}': True,
    f'{{"k":"\\"p\\":\\"{_FAR}\\"","s":{{"p":"1e3"}},"m":{{"{_FAR}":"1"}}}}': True,
    '{"k":"' + "1" * 20_000 + '","s":{"p":1}}': True,
    '{"k":"1e999999' + '\\"' * 20_000 + '","s":{"p":1}}': True,
}


def test_decimals_that_must_not_be_computed(new_job: Callable[..., Job]) -> None:
    """Wherever they stand in a record, and however they are written. The other records are read."""
    found = admissions(list(_NESTED_LINES), {"format": "json", "schema": _NESTED})
    assert dict(zip(_NESTED_LINES, found, strict=True)) == _NESTED_LINES
    job = new_job(source={"schema": _NESTED}, null_keys="allow")
    job.add_file(_NESTED_LINES)
    job.run()
    found = {row["_dedup"]["raw"] for row in job.rows("error")}
    assert found == {line for line, is_sound in _NESTED_LINES.items() if not is_sound}


_WIDE_LINES = {
    "a,1": True,
    "," * 20_478: False,
    "," * 50_000: False,
    '"' + "x," * 50_000 + '",1': True,
    '"' + 'x,"",' * 50_000 + '",1': True,
    'a"' + "," * 50_000 + '"': False,
    "b,1": True,
}


def test_lines_of_many_fields(new_job: Callable[..., Job]) -> None:
    """Each leaves by itself, and commas in quotes are no fields."""
    found = admissions(list(_WIDE_LINES), {"format": "csv", "schema": "k string, n int"})
    assert found == list(_WIDE_LINES.values())
    job = new_job(source={"file_format": "csv", "schema": "k string, n int"})
    job.add_file(_WIDE_LINES, "wide.csv")
    job.run()
    assert len(job.rows("unique")) == 4
    assert {(row["_dedup"]["reason"], row["_dedup"]["raw"]) for row in job.rows("error")} == {
        ("malformed", line) for line, is_sound in _WIDE_LINES.items() if not is_sound
    }


_DEEP_LINES = {
    '{"k":"a","m":' + "[" * 900 + "]" * 900 + "}": True,
    '{"k":"b","m":' + "[" * 100_000 + "]" * 100_000 + "}": False,
    '{"k":' + '{"x":' * 5_000 + "1" + "}" * 5_000 + "}": False,
    '{"k":"c","m":' + "1" * 5_000 + "}": False,
    '{"k":"d","' + "x" * 60_000 + '":1}': False,
    '{"k":"' + "x" * 21_000_000 + '"}': True,
    '{"k":"e"}': True,
}


def test_lines_beyond_the_limits_of_json() -> None:
    """Deep, long numbers, names and texts: each is malformed by itself."""
    assert admissions(list(_DEEP_LINES), {"format": "json", "schema": "k string, n int"}) == list(_DEEP_LINES.values())
