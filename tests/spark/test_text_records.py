"""Lines of JSON and CSV: however they are read, the same records leave by the same ports, for equal reasons."""

from __future__ import annotations

import bz2
import gzip
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.columns import parse_columns
from deduper.config.files import FilesSource
from deduper.sources.declared_columns import file_reading
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks import write as write_task
from deduper.tasks.readers.reading_tasks import FileReading
from deduper.tasks.readers.text import TextReading
from deduper.window import attempt
from deduper.window.jobs import local
from tests.deduper.digest_cases import SALT
from tests.deduper.text import csv_lines, json_lines
from tests.spark.harness import PORTS, Job
from tests.spark.test_text_differential import of_topic

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


def name_of(path: str) -> str:
    """The name of a file, be it packed or not."""
    return Path(path).name.removesuffix(".gz")


def rows_of(job: Job) -> Rows:
    """Port, reason, text, first copy and values but `z` of every row by its place; of what is no record no values."""
    found: Rows = {}
    for port in PORTS:
        for row in port_rows(job, port):
            dedup = row.pop("_dedup")
            row.pop("z", None)
            place = (name_of(dedup["source"]), dedup["position"])
            assert place not in found
            is_record = dedup["reason"] not in ("malformed", "invalid_utf8")
            first = dedup["first_seen"] and dedup["first_seen"] | {"source": name_of(dedup["first_seen"]["source"])}
            found[place] = (port, dedup["reason"], dedup["raw"], first, repr(row) if is_record else None)
    return found


@pytest.mark.night(but=["event time-json"])
@pytest.mark.parametrize(
    ("expiry", "kind"),
    [
        *((expiry, "json") for expiry in _EXPIRIES),
        *(("event time", "csv"), ("epoch", "csv with header"), ("float", "csv with header"), ("category", "csv")),
    ],
)
def test_every_way_gives_the_same(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, ways: Counter[str], expiry: str, kind: str
) -> None:
    """Of every kind of expiry key: in the driver, by tasks, in one way after the other; packed, and below a folder."""
    files = files_of(sum(expiry.encode()), kind)
    csv = {"file_format": "csv", "delimiter": ";", "header": kind == "csv with header"}
    found = {}
    for way in ("driver", "tasks", "changed", "packed", "folder"):
        job = new_job(
            way,
            source={"schema": _SCHEMA, "max_files_per_batch": 4} | ({} if kind == "json" else csv),
            key=["k", "n", "at"] if expiry == "float" else ["k"],
            null_keys="allow" if expiry == "epoch" else "error",
            expiry=_EXPIRIES[expiry],
            store={"shards": 3, "first_seen": True},
        )
        for name, content in files.items():
            is_plain = name.endswith(".json")
            if way == "packed" and is_plain:
                put(job, f"{name}.gz", gzip.compress(content))
            else:
                put(job, f"z=1/{name}" if way == "folder" else name, content)
        ways.clear()
        with monkeypatch.context() as patch:
            if way == "folder":
                job.settings["source"]["schema"] += ", z int"
            if way == "tasks":
                patch.setattr(write_task, "_WRITER_BYTES", 1)
            if way == "changed":
                change_ways(patch)
            job.run(clock=lambda: 1_800_000_000_000_000)
        expected = {"tasks": {"tasks"}, "changed": {"driver", "tasks"}}.get(way, {"driver"})
        assert set(ways) == expected
        found[way] = rows_of(job)
    assert all(rows == found["driver"] for rows in found.values())
    reasons = {row[1] for row in found["driver"].values()}
    assert {"malformed", "invalid_utf8"} < reasons


def change_ways(patch: pytest.MonkeyPatch) -> None:
    """Each window is judged twice, first by the driver and then by tasks, or the other way round in the next."""
    attempts = 0
    disagreement = attempt._disagreement

    def again(*arguments: Any) -> str | None:
        nonlocal attempts
        attempts += 1
        return "for a test" if attempts % 2 else disagreement(*arguments)

    patch.setattr(attempt, "_disagreement", again)
    patch.setattr(local, "is_small", lambda _: attempts % 4 in (0, 3))


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_topic_gives_what_a_file_gives(tmp_path: Path, kind: str) -> None:
    """The same keys, admissions, texts and values of each line."""
    lines = files_of(1, kind)["a.json"].split(b"\n")
    csv = {"file_format": "csv", "delimiter": ";"}
    job = Job(tmp_path, None, {"source": {"schema": _SCHEMA} | ({} if kind == "json" else csv)})
    path = job.add_file(lines)
    reading = reading_of(job)
    (file,) = stat_files([ListedFile(str(path), path.stat().st_mtime_ns // 1_000_000)])
    part = reading.part(0, file)
    assert part is not None
    (of_file,) = reading.records(part)
    value = {"format": kind, "schema": _SCHEMA} | ({} if kind == "json" else {"delimiter": ";"})
    of_values = of_topic(lines, value)
    assert of_file.schema == of_values.schema
    for name, ours, theirs in zip(of_file.schema.names, of_file.columns, of_values.columns, strict=True):
        kind_of = with_numbers(ours.type)
        assert repr(ours.cast(kind_of).to_pylist()) == repr(theirs.cast(kind_of).to_pylist()), name


def test_one_unreadable_file_takes_no_other_along(new_job: Callable[..., Job]) -> None:
    """A torn file, one with something behind its end, and one in a format that is not unpacked, among others."""
    job = new_job(source={"schema": "k string, x double"}, expiry={"by": "never"})
    put(job, "plain.json", b'{"k":"a","x":1}\n{"k":"b"}\n')
    put(job, "torn.json.gz", gzip.compress(b'{"k":"c"}\n' * 1000)[:-3])
    put(job, "more.json.gz", gzip.compress(b'{"k":"c"}\n' * 1000) + b"more")
    put(job, "other.json.lz4", b"any")
    (job.directory / "in/x=1.5").mkdir()
    put(job, "x=1.5/folder.json", b'{"k":"d"}\n{"k":"a"}\n')
    put(job, "last.json.deflate", zlib.compress(b'{"k":"e"}\n'))
    job.run()
    found = rows_of(job)
    assert {place: (row[0], row[1]) for place, row in found.items()} == {
        ("plain.json", 0): ("unique", None),
        ("plain.json", 1): ("unique", None),
        ("torn.json", 0): ("unique", None),
        **{("torn.json", n): ("duplicate", "same_window") for n in range(1, 1000)},
        ("torn.json", 1000): ("error", "file_unreadable"),
        ("more.json", 0): ("error", "file_unreadable"),
        ("other.json.lz4", 0): ("error", "file_unreadable"),
        ("folder.json", 0): ("unique", None),
        ("folder.json", 1): ("duplicate", "same_window"),
        ("last.json.deflate", 0): ("unique", None),
    }
    assert found["torn.json", 1000][2] == (
        f"{job.directory / 'in/torn.json.gz'}: Truncated compressed stream: it was cut off behind line 1,000, and the "
        "lines up to there were judged"
    )


_NESTED = (
    "k string, `t.u` bigint, d date, c decimal(12,3), w decimal(30,5), s struct<x:int,y:array<date>>, "
    "m map<string,double>"
)
_NESTED_LINES = [
    '{"k":"a","t.u":1,"d":"2024-01-05","c":1.5,"w":"12345678901234567890.5","s":{"x":1,"y":["2024-01-05",null]}}',
    '{"k":"a","t.u":1,"d":"12024-1-5","c":-1.5,"w":"12345678901234567890.5","m":{"a":1,"b":null}}',
    '{"k":"b","t.u":1,"d":"-0001-02-03","c":999999999,"w":"-1e20","s":{"x":"1"}}',
    '{"k":"b","t.u":1,"d":"0000-02-03","c":999999999,"w":"-1e20","s":{}}',
    '{"k":null,"t.u":1,"d":"2024-01-05","c":"0.0004","w":1,"m":{}}',
    '{"k":"c","c":1,"w":1,"m":[]}',
    '{"k":"c","w":1}',
]


@pytest.mark.parametrize(
    "settings",
    [
        {
            "digest": "secure",
            "key": ["k", "d", "w"],
            "expiry": {"by": "ordered", "field": "c", "period": 9e8, "span": 1},
        },
        {"key": ["t.u", "w"], "expiry": {"by": "category", "field": "d", "live_categories": 9}},
    ],
    ids=["secure", "category"],
)
def test_columns_and_keys_of_any_type(new_job: Callable[..., Job], settings: dict[str, Any]) -> None:
    """Nested columns, a name with a dot, secure digests, long decimals, expiry keys of all types."""
    job = new_job(source={"schema": _NESTED}, null_keys="allow", **settings)
    put(job, "a.json", "\n".join(_NESTED_LINES).encode())
    job.run()
    found = [row for _, row in sorted(rows_of(job).items())]
    of_fifth = "older_than_period" if settings["expiry"]["by"] == "ordered" else "unique"
    assert [row[1] or row[0] for row in found] == [
        *("unique", "unique", "malformed", "unique", of_fifth, "malformed", "null_expiry")
    ]
    assert [row[4] for row in found[1:4:2]] == [
        "{'k': 'a', 't.u': 1, 'd': 3672152, 'c': Decimal('-1.500'), 'w': Decimal('12345678901234567890.50000'), "
        "'s': None, 'm': [('a', 1.0), ('b', None)]}",
        "{'k': 'b', 't.u': 1, 'd': -719495, 'c': Decimal('999999999.000'), "
        "'w': Decimal('-100000000000000000000.00000'), 's': {'x': None, 'y': None}, 'm': None}",
    ]


def reading_of(job: Job) -> FileReading:
    """How the job reads its files."""
    source = job.config.source
    assert isinstance(source, FilesSource)
    return file_reading(job.config, source, SALT)


def test_the_zone_of_times_is_the_sessions(tmp_path: Path) -> None:
    """Of a setting that is the store's."""
    for spark, zone in (({}, "UTC"), ({"spark.sql.session.timeZone": "Europe/Berlin"}, "Europe/Berlin")):
        reading = reading_of(Job(tmp_path, None, {"spark": spark}))
        assert isinstance(reading, TextReading)
        assert reading.declared.zone == zone


def test_the_format_is_the_sources(tmp_path: Path) -> None:
    """Delimiter and header count for CSV."""
    for source, expected in (
        ({"file_format": "json"}, ("json", ",", False)),
        ({"file_format": "csv"}, ("csv", ",", False)),
        ({"file_format": "csv", "delimiter": ";", "header": True}, ("csv", ";", True)),
        ({"file_format": "logfmt"}, ("logfmt", ",", False)),
    ):
        reading = reading_of(Job(tmp_path, None, {"source": source}))
        assert isinstance(reading, TextReading)
        assert (reading.form, reading.delimiter, reading.header) == expected
