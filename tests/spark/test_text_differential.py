"""Random lines of JSON and CSV against the rules that SEMANTICS.md states, said once more in Python.

A run takes a sample of lines; DIFFERENTIAL_SEED gives another one, DIFFERENTIAL_ALL=1 takes many (`make differential`).
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_SEED = int(os.environ.get("DIFFERENTIAL_SEED", "1"))
_LINES = 200_000 if os.environ.get("DIFFERENTIAL_ALL") else 4_000
_SCHEMA = "k string, n int, b boolean, d date, s string"
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
]
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
        "s": a_text(rnd),
    }
    return {name: None if rnd.random() < 0.1 else value for name, value in record.items()}


def expected_of(record: dict[str, Any]) -> Expected:
    """What must leave for a record that is read."""
    if record["k"] is None:
        return "null_key"
    return record | {"d": record["d"] and date.fromisoformat(record["d"])}


def json_line(rnd: random.Random) -> tuple[str, Expected]:
    """A line, and what the rules say of it."""
    record = a_record(rnd)
    given: dict[str, Any] = {name: value for name, value in record.items() if value is not None or rnd.random() < 0.5}
    if rnd.random() < 0.2:
        given["more"] = rnd.choice([1, "}", [{"k": "other"}], {"k": {"n": "}{"}}])
    is_wrong = rnd.random() < 0.15
    if is_wrong:
        given |= rnd.choice([{"n": "1"}, {"n": 1.5}, {"n": 2**31}, {"b": "true"}, {"d": "2024-02-30"}, {"n": [1]}])
    items = list(given.items())
    rnd.shuffle(items)
    separators = rnd.choice([(",", ":"), (", ", ": "), (" ,\t", " :  ")])
    text = json.dumps(dict(items), ensure_ascii=rnd.random() < 0.5, separators=separators)
    text = text.replace("\u2028", "\\u2028")
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
        at, wrong = rnd.choice([(1, "one"), (1, "1.0"), (1, str(2**31)), (2, "yes"), (3, "2024-02-30")])
        fields[at] = wrong
    quoting = rnd.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    choice = rnd.random()
    if choice < 0.06:
        return written([*fields, rnd.choice(["", "more", ","])], quoting), "malformed"
    if choice < 0.1:
        return written(fields[:-1], quoting) + ',"never closed', "malformed"
    if choice < 0.2:
        left = rnd.randrange(1, 5)
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


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_random_lines(new_job: Callable[..., Job], kind: str) -> None:
    """Each is one record with just its values, or an error with its reason and its text."""
    rnd = random.Random(f"{kind}{_SEED}")
    lines = [(json_line if kind == "json" else csv_line)(rnd) for _ in range(_LINES)]
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
