"""What leaves by the ports: every mixture of formats, values that survive, `_dedup`, names, marks, records."""

from __future__ import annotations

import base64
import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import xxhash
from pyspark.sql import SparkSession

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import PUBLISHED_NAME, Published, read_published
from bucket_store.log.records import CommitRecord
from bucket_store.places.local import local_place
from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark

UTC = timezone.utc  # noqa: UP017 - the name is what Arrow gives back
_TYPES = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("text", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 6)),
        ("real", pa.float64()),
        ("flag", pa.bool_()),
        ("data", pa.binary()),
        ("deep", pa.struct([("x", pa.int32()), ("ys", pa.list_(pa.string()))])),
        ("tags", pa.list_(pa.int64())),
    ]
)
_SCHEMA = (
    "k string, t long, text string, ts timestamp, ntz timestamp_ntz, day date, price decimal(20,6), real double, "
    "flag boolean, data binary, deep struct<x:int,ys:array<string>>, tags array<bigint>"
)
_TEXTS = [
    "plain",
    "",
    None,
    'say "hi", twice',
    "two\nlines",
    "cr\r\nlf",
    "cr\ronly",
    "\rfirst",
    "last\r",
    "\r",
    "\n",
    "ünï 😀",
    " blanks ",
    "back\\slash",
    "\\",
    '"',
    "\t",
]


def ntz(*fields: int) -> datetime:
    """A time without a zone."""
    return datetime(*fields)  # type: ignore[arg-type]  # noqa: DTZ001 - that is what it is for


def record(key: str | None, number: int, text: str | None = None) -> dict[str, Any]:
    """A record with a value of every type, no two alike."""
    return {
        "k": key,
        "t": number,
        "text": text,
        "ts": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "ntz": ntz(2026, 1, 2, 3, 4, 5, number % 1_000_000),
        "day": date(2026, 2, 28),
        "price": Decimal(f"12345678901234.{number % 1_000_000:06}"),
        "real": number / 7,
        "flag": number % 2 == 0,
        "data": bytes([number % 256, 0, 255]),
        "deep": {"x": number, "ys": [None, "", "a\nb"]},
        "tags": [1, None, 3],
    }


_NOT_IN_CSV = ["data", "deep", "tags"]
_NULLS: dict[str, Any] = dict.fromkeys(_TYPES.names)
FIRST = [
    *(record(f"text {number}", 1000 + number, text) for number, text in enumerate(_TEXTS)),
    _NULLS | {"k": "nulls", "t": 1000},
    record("old", 1000) | {"ts": datetime(1, 1, 1, tzinfo=UTC), "ntz": ntz(1, 1, 1), "day": date(1, 1, 1)},
    record("far", 1000)
    | {
        "ts": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        "ntz": ntz(9999, 12, 31, 23, 59, 59, 999999),
        "day": date(9999, 12, 31),
    },
    record("text 3", 1003),
    record("late", 0),
    record(None, 1000),
]
SECOND = [record("new", 1001), record("text 0", 1000), record("far", 1000), record("new", 1001), record("late", -5)]
COUNTS = {"unique": 21, "duplicate": 4, "expired": 2, "error": 1}


def sink(kind: str, port: str, root: str = "out") -> dict[str, str]:
    return {"format": kind} if kind == "none" else {"format": kind, "path": f"{root}/{port}"}


MIXTURES = {
    "parquet, errors as json": ["parquet", "parquet", "parquet", "json"],
    "all json": ["json"] * 4,
    "all csv": ["csv"] * 4,
    "one of each": ["csv", "json", "none", "parquet"],
    "only duplicates": ["none", "json", "none", "none"],
    "none": ["none"] * 4,
}


class Run:
    """A finished job of two windows, and the commit records it wrote."""

    def __init__(self, job: Job, kinds: list[str], records: list[CommitRecord]) -> None:
        self.job, self.records = job, records
        self.kinds = dict(zip(PORTS, kinds, strict=True))

    @property
    def file_ports(self) -> dict[str, Path]:
        return {port: each.path for port, each in self.job.config.sinks.items() if self.kinds[port] != "none"}

    def rows(self, port: str) -> list[dict[str, Any]]:
        """The rows of a port by the readers people use, in the source's order."""
        directory, kind = self.file_ports[port], self.kinds[port]
        if kind == "parquet":
            rows = ds.dataset(directory, format="parquet").to_table().to_pylist()
        elif kind == "json":
            rows = [json.loads(line) for file in directory.glob("*.json") for line in file.read_text().split("\n")[:-1]]
        else:
            rows = []
            for file in directory.glob("*.csv"):
                with file.open(newline="") as stream:
                    rows += list(csv.DictReader(stream))
            for row in rows:
                row["_dedup"] = json.loads(row["_dedup"])
        return sorted(rows, key=lambda row: (row["_dedup"]["window"], row["_dedup"]["position"]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, session: SparkSession) -> Iterator[Callable[[str], Run]]:
    """Runs each mixture once, however many tests look at it."""
    runs: dict[str, Run] = {}
    shared_memory = Path(tempfile.mkdtemp(prefix="deduper-test-", dir="/dev/shm"))

    def finish(name: str) -> Run:
        if name not in runs:
            kinds = MIXTURES.get(name, ["parquet", "parquet", "json", "json"])
            sinks = {port: sink(kind, port) for port, kind in zip(PORTS, kinds, strict=True)}
            if name == "another file system":
                sinks["duplicate"]["path"] = str(shared_memory / "duplicate")
            if name == "all on another":
                kinds = ["json"] * 4
                sinks = {port: sink("json", port) for port in PORTS}
                sinks["unique"]["path"] = str(shared_memory / "unique")
            left_out = _NOT_IN_CSV if "csv" in kinds else []
            columns = [column for column in _SCHEMA.split(", ") if column.split()[0] not in left_out]
            job = Job(
                tmp_path_factory.mktemp("sinks"),
                session,
                {
                    "source": {"file_format": "parquet", "schema": ", ".join(columns), "max_files_per_batch": 1},
                    "expiry": {"by": "ordered", "field": "t", "period": 500, "span": 100},
                    "store": {"shards": 3},
                    "sinks": sinks,
                },
            )
            job.add_table(pa.Table.from_pylist(FIRST, _TYPES))
            job.add_table(pa.Table.from_pylist(SECOND, _TYPES))
            records: list[CommitRecord] = []
            with pytest.MonkeyPatch.context() as patch:
                place = CommitLog.place

                def noted(log: CommitLog, record: Any) -> Any:
                    if isinstance(record, CommitRecord):
                        records.append(record)
                    return place(log, record)

                patch.setattr(CommitLog, "place", noted)
                job.run()
            runs[name] = Run(job, kinds, records)
        return runs[name]

    yield finish
    shutil.rmtree(shared_memory)


@pytest.fixture(params=[*MIXTURES, "another file system", "all on another"])
def done(request: pytest.FixtureRequest, finished: Callable[[str], Run]) -> Run:
    """One finished job of every mixture."""
    return finished(request.param)


def test_counts_do_not_depend_on_where_rows_go(done: Run) -> None:
    """Progress, commit records and the store say the same, and what the second window knew came from the first."""
    assert {port: sum(getattr(each, port) for each in done.job.progress) for port in PORTS} == COUNTS
    assert CommitLog.open(local_place(done.job.config.store.path)).state.totals == COUNTS
    assert [record.counts["duplicate"] for record in done.records] == [1, 3]
    for port in done.file_ports:
        assert len(done.rows(port)) == COUNTS[port]


def source_rows(window: int) -> list[dict[str, Any]]:
    return (FIRST, SECOND)[window]


def test_values_survive(done: Run) -> None:
    """Every column of every row, as it was in the source: microseconds, nulls, quotes, line ends, years 1 and 9999."""
    plain = {"parquet": lambda row: row, "json": as_json, "csv": as_csv}
    for port in done.file_ports:
        for row in done.rows(port):
            given = {name: value for name, value in row.items() if name != "_dedup"}
            source = source_rows(row["_dedup"]["window"])[row["_dedup"]["position"]]
            if "csv" in done.kinds.values():
                source = {name: value for name, value in source.items() if name not in _NOT_IN_CSV}
            assert given == plain[done.kinds[port]](source), (port, row["_dedup"])


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A record as a JSON port holds it: nulls are absent, times in ISO 8601 with microseconds, bytes as Base64."""
    shown = {name: text_of(value) for name, value in row.items() if value is not None}
    if row.get("price") is not None:
        shown["price"] = float(row["price"])
    return shown


def as_csv(row: dict[str, Any]) -> dict[str, str]:
    """A record as a CSV port holds it, for a reader that takes nothing for null."""
    shown = {}
    for name, value in row.items():
        if isinstance(value, float):
            shown[name] = repr(value)
        elif isinstance(value, bool):
            shown[name] = str(value).lower()
        else:
            shown[name] = "" if value is None else str(text_of(value))
    return shown


def text_of(value: Any) -> Any:
    match value:
        case datetime():
            zone = "Z" if value.tzinfo else ""
            return f"{value.year:04}-{value:%m-%dT%H:%M:%S}.{value.microsecond:06}{zone}"
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
    return value


def test_dedup_tells_the_story_of_each_row(done: Run) -> None:
    """Verdict, reason and place of every row; of a duplicate the first copy, in the same window or an earlier one."""
    files = [str(done.job.directory / "in" / f"file-{number:04d}.parquet") for number in (0, 1)]
    expected = {
        "duplicate": [
            ("same_window", 0, 20, (0, 3, 1003)),
            ("earlier_window", 1, 1, (0, 0, 1000)),
            ("earlier_window", 1, 2, (0, 19, 1000)),
            ("same_window", 1, 3, (1, 0, 1001)),
        ],
        "expired": [("older_than_period", 0, 21, None), ("older_than_period", 1, 4, None)],
        "error": [("null_key", 0, 22, None)],
    }
    for port in done.file_ports:
        rows = [row["_dedup"] for row in done.rows(port)]
        assert all(row["verdict"] == port and row["source"] == files[row["window"]] for row in rows)
        if port == "unique":
            assert all(row.get("reason") is None and row.get("first_seen") is None for row in rows)
            continue
        reported = []
        for row in rows:
            first = row.get("first_seen")
            if first is not None:
                assert first["source"] == files[first["window"]]
                first = (first["window"], first["position"], first["expiry"])
            reported.append((row["reason"], row["window"], row["position"], first))
        assert reported == expected[port]


def test_directories_hold_outputs_and_nothing_else(done: Run) -> None:
    """Published files under their window's name, the mark of the last window, empty staging; any reader may come."""
    config = done.job.config
    log = CommitLog.open(local_place(config.store.path))
    mark = Published(log.manifest.store_id, 1, log.state.epoch)
    assert read_published(local_place(config.store.path / PUBLISHED_NAME)) == mark
    for port, directory in done.file_ports.items():
        assert read_published(local_place(directory / "_published")) == mark
        kind = done.kinds[port]
        others = {path.name for path in directory.iterdir() if path.suffix != f".{kind}"}
        assert others <= {"_published", "_staging"}
        assert all(path.name.startswith(f"{mark.store_id[:8]}-00000000000") for path in directory.glob(f"*.{kind}"))
        if kind != "csv":  # Arrow's reader of CSV takes no line end inside a field
            assert ds.dataset(directory, format=kind).count_rows() == COUNTS[port]
        assert not list((directory / "_staging").rglob("*")) if (directory / "_staging").exists() else True
    assert not [path for path in (config.store.path / "_staging").rglob("*") if path.is_file()]


def test_commit_records_name_what_was_published(done: Run) -> None:
    """Every published file with its size, rows and checksum, and no other."""
    named = {output.final: output for record in done.records for output in record.outputs}
    there = {
        str(path): path
        for directory in done.file_ports.values()
        for path in directory.iterdir()
        if path.is_file() and path.name != "_published"
    }
    assert named.keys() == there.keys()
    for name, path in there.items():
        content = path.read_bytes()
        assert (named[name].size_bytes, named[name].checksum) == (len(content), xxhash.xxh3_64_intdigest(content))
        if path.suffix == ".parquet":
            assert named[name].rows == ds.dataset(path).count_rows()
    for port in done.file_ports:
        assert sum(output.rows for output in named.values() if output.port == port) == COUNTS[port]


def test_without_first_copies_duplicates_are_duplicates(new_job: Callable[..., Job]) -> None:
    """`first_seen: false`: no such field, the same verdicts."""
    job = new_job(store={"first_seen": False}, source={"max_files_per_batch": 1})
    for _ in range(2):
        job.add_records([{"k": "a", "t": 1}, {"k": "a", "t": 2}, {"k": "b"}, {"t": 3}])
    job.run()
    assert [row["_dedup"]["reason"] for row in job.rows("duplicate")].count("earlier_window") == 3
    assert len(job.rows("unique")) == 2
    fields = {"verdict", "reason", "window", "source", "position", "raw"}
    of_port = {port: fields | {"detail"} if port == "error" else fields for port in PORTS}
    assert all(set(row["_dedup"]) == of_port[port] for port in PORTS for row in job.rows(port))
