"""Lines of JSON and CSV, read without Spark and by it: the same records leave by the same ports, for equal reasons."""

from __future__ import annotations

import bz2
import gzip
import logging
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.columns import parse_columns
from deduper.sources.files.plain_reading import plain_reading
from deduper.tasks import write as write_task
from deduper.tasks.readers.text import TextReading
from deduper.window.jobs.local import SparkRun
from tests.deduper.digest_cases import SALT
from tests.deduper.text import csv_lines, json_lines
from tests.spark.harness import PORTS, READ_BY_SPARK, Job

pytestmark = pytest.mark.spark

_SCHEMA = (
    "k string, t bigint, at timestamp, x double, n int, s smallint, y tinyint, f float, c decimal(10,2), "
    "big decimal(30,3), b boolean, d date, local timestamp_ntz, bin binary, `na me` string"
)
_EXPIRIES: dict[str, dict[str, Any]] = {
    "never": {"by": "never"},
    "event time": {"by": "event_time", "field": "at", "period": "100000d", "span": "1000d"},
    "epoch": {"by": "event_time", "field": "n", "unit": "s", "period": "1h", "span": "10m", "max_jump": "10d"},
    "ordered": {"by": "ordered", "field": "t", "period": 10**15, "span": 10**14, "max_jump": 10**17},
    "float": {"by": "ordered", "field": "x", "period": 1e6, "span": 1e5, "max_jump": "off"},
    "category": {"by": "category", "field": "k", "live_categories": 5},
}
_DECIMAL = {"by": "ordered", "field": "t", "period": 10, "span": 1}
_ODD_JSON: list[str | bytes] = [
    "",
    " \t\r",
    "{}",
    "{",
    "null",
    "[1]",
    '{"k":null,"t":5}',
    '{"t":"5","k":"a"}',
    '{"k":"a","n":2147483648}',
    '{"k":"a","b":"true"}',
    '{"k":"a","d":"2023-02-29"}',
    '{"k":"a"} {"k":"b"}',
    '{"k":"ü"}\r',
    '  {"k" : "ü" , "more" : [ { "k" : "}" } ] }  ',
    '{"k":"\\u00fc\\ud83d\\ude00","t":1}',
    '{"k":{"a":[1, 2]},"t":1}',
    '{"k":"a","bin":"AP8="}',
    b'{"k":"\xff"}',
    b'{"k":"' + b"long and no text" * 20 + b'\xff"}',
    "x" * 300,
]
_ODD_CSV: list[str | bytes] = [
    "",
    "  \r",
    "\t",
    "x",
    ";;;",
    '"ü",5\r',
    '"a;b";5;"2026-01-01T00:00:00Z"',
    '"a ""b""";+5;2026-01-01 00:00:00;1d;7;007;1',
    ";5",
    '"";5',
    "null;5",
    "a;5.0",
    "a;5;;;2147483648",
    "a;;;;;;;;;;TRUE",
    "a;;;;;;;;;;yes",
    "a;;;;;;;;;;;2023-02-29",
    "a;;;;;;;;;1,5",
    "a" + ";" * 15,
    '"a";"5"',
    '"never closed;5',
    '"a"b;5',
    ' "a;b";5',
    '"a" ;5',
    "a\rb;5",
    b"\xff;5",
    b"long and no text" * 20 + b"\xff",
    "x" * 300,
]


def zst(data: bytes) -> bytes:
    """One frame."""
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def put(job: Job, name: str, content: bytes) -> None:
    """A file of these bytes, later than all before it."""
    path = job.add_file([], name)
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def files_of(seed: int, kind: str) -> dict[str, bytes]:
    """Files by name: ordinary lines with odd ones among them; marks, line ends, compression of every kind."""
    rnd = random.Random(seed)
    odd = [line.encode() if isinstance(line, str) else line for line in (_ODD_JSON if kind == "json" else _ODD_CSV)]
    text = json_lines.text_format(_SCHEMA) if kind == "json" else csv_lines.csv_format(_SCHEMA, ";")
    ordinary = json_lines.ordinary_line if kind == "json" else csv_lines.ordinary_line

    def content(lines: int) -> bytes:
        chosen = [rnd.choice(odd) if rnd.random() < 0.1 else ordinary(text, rnd) for _ in range(lines)]
        chosen += [rnd.choice(chosen) for _ in range(lines // 4)]
        # In CSV Spark takes U+FFFF for a line end.
        return (b"\n".join(chosen) + rnd.choice([b"", b"\n"])).replace("\uffff".encode(), b"")

    def headed(first: bytes) -> bytes:
        """With the header of the columns, behind a mark; a file of nothing has none."""
        mark = first[:3] if first.startswith(b"\xef\xbb\xbf") else b""
        rest = first.removeprefix(mark)
        return mark + header + rest if rest else first

    names = ";".join(f'"{column.name}"' for column in parse_columns(_SCHEMA))
    header = f"{names}\n".encode() if kind == "csv with header" else b""
    return {
        "a.json": headed(b"\n".join(odd) + b"\n" + content(100)),
        "mark.json": headed(b"\xef\xbb\xbf" + content(5)),
        "only-mark.json": b"\xef\xbb\xbf",
        "mark-of-an-error.json": headed(b"\xef\xbb\xbfno record\n" + content(5)),
        "end.json": headed(b"\n"),
        "members.json.gz": gzip.compress(headed(content(20))) + gzip.compress(content(20)) + gzip.compress(b""),
        "streams.json.bz2": bz2.compress(headed(content(20))) + bz2.compress(content(20)),
        "frames.json.zst": zst(headed(content(20))) + zst(content(20)),
        "nothing.json.gz": gzip.compress(b""),
        "big.JSON.GZ": gzip.compress(headed(content(300))),
    }


Rows = dict[tuple[str, int], tuple[str, str | None, str | None, Any, Any]]


def with_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for days and times: Python has none beyond the year 9999."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_numbers(field.type)) for field in kind])
    return {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64(), pa.timestamp("us"): pa.int64()}.get(
        kind, kind
    )


def port_rows(job: Job, port: str) -> list[dict[str, Any]]:
    """The rows of a port."""
    rows: list[dict[str, Any]] = []
    for file in sorted((job.directory / "out" / port).glob("*.parquet")):
        table = pq.ParquetFile(file).read()
        rows += table.cast(pa.schema([field.with_type(with_numbers(field.type)) for field in table.schema])).to_pylist()
    return rows


def rows_of(job: Job) -> Rows:
    """Port, reason, text, first copy and values of every row by its place; of what is no record no values."""
    found: Rows = {}
    for port in PORTS:
        for row in port_rows(job, port):
            dedup = row.pop("_dedup")
            place = (Path(dedup["source"]).name, dedup["position"])
            assert place not in found
            is_record = dedup["reason"] not in ("malformed", "invalid_utf8")
            first = dedup["first_seen"] and dedup["first_seen"] | {"source": Path(dedup["first_seen"]["source"]).name}
            found[place] = (port, dedup["reason"], dedup["raw"], first, repr(row) if is_record else None)
    return found


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many files were read in which way."""
    counted: Counter[str] = Counter()
    plainly, by_spark = SparkRun.plain, SparkRun.by_spark

    def counting(run: SparkRun, reader: Any, parts: Any, *arguments: Any, **more: Any) -> Any:
        read = plainly(run, reader, parts, *arguments, **more)
        counted["driver" if run._pool is None else "tasks"] += len(parts)
        return read

    def counting_spark(run: SparkRun, *arguments: Any) -> Any:
        counted["spark"] += 1
        return by_spark(run, *arguments)

    monkeypatch.setattr(SparkRun, "plain", counting)
    monkeypatch.setattr(SparkRun, "by_spark", counting_spark)
    return counted


@pytest.mark.night(but=["event time-json", "float-csv with header"])
@pytest.mark.parametrize(
    ("expiry", "kind"),
    [
        *((expiry, "json") for expiry in _EXPIRIES),
        *(("event time", "csv"), ("epoch", "csv with header"), ("float", "csv with header"), ("category", "csv")),
    ],
)
def test_both_ways_give_the_same(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, ways: Counter[str], expiry: str, kind: str
) -> None:
    """Of every kind of expiry key; by tasks, in the driver, and by Spark."""
    files = files_of(sum(expiry.encode()), kind)
    csv = {"file_format": "csv", "delimiter": ";", "header": kind == "csv with header"}
    found = {}
    for way in ("driver", "tasks", "spark"):
        job = new_job(
            way,
            source={"schema": _SCHEMA, "max_files_per_batch": 4} | ({} if kind == "json" else csv),
            key=["k", "n", "at"] if expiry == "float" else ["k"],
            null_keys="allow" if expiry == "epoch" else "error",
            expiry=_EXPIRIES[expiry],
            store={"shards": 3, "first_seen": True},
            spark=READ_BY_SPARK if way == "spark" else {},
        )
        for name, content in files.items():
            put(job, name, content)
        ways.clear()
        with monkeypatch.context() as patch:
            if way == "tasks":
                patch.setattr(write_task, "_WRITER_BYTES", 1)
            job.run(clock=lambda: 1_800_000_000_000_000)
        assert {name for name, count in ways.items() if count} == {way}
        found[way] = rows_of(job)
    assert found["driver"] == found["tasks"]
    assert set(found["driver"]) == set(found["spark"])
    different = {
        place: (row, found["spark"][place]) for place, row in found["driver"].items() if row != found["spark"][place]
    }
    assert different == {}
    reasons = {row[1] for row in found["driver"].values()}
    assert {"malformed", "invalid_utf8"} < reasons


def test_one_file_that_is_sparks_takes_no_other_along(new_job: Callable[..., Job], ways: Counter[str]) -> None:
    """A compression that only Spark knows, a folder's value that it casts, a torn file, in one window with others."""
    job = new_job(source={"schema": "k string, x double"}, expiry={"by": "never"})
    put(job, "plain.json", b'{"k":"a","x":1}\n{"k":"b"}\n')
    put(job, "torn.json.gz", gzip.compress(b'{"k":"c"}\n' * 1000)[:-3])
    (job.directory / "in/x=1.5").mkdir()
    put(job, "x=1.5/cast.json", b'{"k":"d"}\n{"k":"a"}\n')
    put(job, "last.json.zst", zst(b'{"k":"e"}\n'))
    job.run()
    assert {place: (row[0], row[1]) for place, row in rows_of(job).items()} == {
        ("plain.json", 0): ("unique", None),
        ("plain.json", 1): ("unique", None),
        ("torn.json.gz", 0): ("error", "file_unreadable"),
        ("cast.json", 0): ("unique", None),
        ("cast.json", 1): ("duplicate", "same_window"),
        ("last.json.zst", 0): ("unique", None),
    }
    assert ways["driver"] == 3
    assert ways["spark"] > 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"digest": "secure"}, "digest is secure"),
        ({"spark": READ_BY_SPARK}, "spark.sql.exchange.reuse may change what is read"),
        ({"source": {"schema": "k string, deep struct<x: int>"}}, "column deep is of type struct<x:int>"),
        ({"source": {"schema": "k string, `t.u` bigint"}}, "column t.u has a dot in its name"),
        ({"source": {"schema": "k string, t decimal(9,2)"}, "expiry": _DECIMAL}, "the expiry key needs"),
    ],
)
def test_jobs_that_read_by_spark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], reason: str
) -> None:
    """Nested columns, other types, other settings of Spark's: its expressions decide, and the log says why."""
    job = Job(tmp_path, None, settings)
    with caplog.at_level(logging.INFO, "deduper.sources.files.plain_reading"):
        assert plain_reading(job.config, SALT) is None
    assert f"all files are read by Spark: {reason}" in caplog.text


def test_the_zone_of_times_is_the_sessions(tmp_path: Path) -> None:
    """Of a setting that is the store's."""
    for spark, zone in (({}, "UTC"), ({"spark.sql.session.timeZone": "Europe/Berlin"}, "Europe/Berlin")):
        reading = plain_reading(Job(tmp_path, None, {"spark": spark}).config, SALT)
        assert isinstance(reading, TextReading)
        assert reading.zone == zone


def test_the_format_is_the_sources(tmp_path: Path) -> None:
    """Delimiter and header count for CSV."""
    for source, expected in (
        ({"file_format": "json"}, (None, False)),
        ({"file_format": "csv"}, (",", False)),
        ({"file_format": "csv", "delimiter": ";", "header": True}, (";", True)),
    ):
        reading = plain_reading(Job(tmp_path, None, {"source": source}).config, SALT)
        assert isinstance(reading, TextReading)
        assert (reading.delimiter, reading.header) == expected
