"""`deduper range-aggregate` as a shell starts it: files in and out, the plan, bad rows, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deduper.config.problems import ConfigError
from deduper.errors import DeduperError, UsageError
from deduper.ranges.batch.arrow_sides import OnlySpark
from deduper.ranges.batch.job import run
from deduper.ranges.batch.report import RangeReport
from deduper.ranges.batch.settings import RangeJob

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parent.parent.parent
TIME_MS = pa.timestamp("ms", "UTC")

EVENTS = """\
id,at,note
1,2026-03-01T10:00:00Z,a
1,2026-03-01T10:15:00Z,b
2,2026-03-01T10:01:00Z,c
1,2026-03-01T10:30:00Z,d
3,2026-03-01T10:00:00Z,e
"""
RANGES = [
    {"id": 1, "start": "2026-03-01T09:30:00Z", "end": "2026-03-01T10:30:00Z", "points": 10},
    {"id": 1, "start": "2026-03-01T10:01:00Z", "end": "2026-03-01T10:05:00Z", "points": 20},
    {"id": 1, "start": "2026-03-01T10:08:00Z", "end": "2026-03-01T10:20:00Z", "points": 30},
    {"id": 1, "start": "2026-03-01T10:30:00Z", "end": "2026-03-01T10:45:00Z", "points": 40},
    {"id": 2, "start": "2026-03-01T09:30:00Z", "end": "2026-03-01T10:30:00Z", "points": 50},
]
BAD_RANGES = [
    {"id": 1, "start": "2026-03-01T10:30:00Z", "end": "2026-03-01T10:00:00Z", "points": 7},
    {"id": 1, "start": "2026-03-01T09:30:00Z", "end": "2026-03-01T10:30:00Z", "points": "many"},
    {"id": 1, "start": "2026-03-01T09:30:00Z", "end": "2026-03-01T10:30:00Z", "points": 8, "is_free": "x"},
]
POINTS = {"a": 10, "b": 40, "c": 50, "d": 50, "e": None}
CONFIG = """\
events: {path: events, format: csv, schema: "id INT, at TIMESTAMP, note STRING"}
ranges: {path: ranges, format: json, schema: "id INT, start TIMESTAMP, end TIMESTAMP, points INT, is_free BOOLEAN"}
on: id
time: at
start: start
end: end
aggregates: {points: sum(points)}
output: {path: out/points, format: parquet}
spark: {spark.master: "local[2]"}
"""


def write(directory: Path, events: str, ranges: list[dict[str, Any]], config: str = CONFIG) -> Path:
    """The inputs and the configuration of a run."""
    for name, text in (("events", events), ("ranges", "".join(json.dumps(one) + "\n" for one in ranges))):
        (directory / name).mkdir()
        (directory / name / "a").write_text(text, encoding="utf-8")
    file = directory / "points.yaml"
    file.write_text(config, encoding="utf-8")
    return file


def shell(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "deduper.cli", "range-aggregate", *map(str, arguments)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("DEDUPER__")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def points(directory: Path) -> dict[str, int | None]:
    """The answers by the notes of events."""
    table = pq.read_table(directory / "out" / "points")
    return dict(zip(table["note"].to_pylist(), table["points"].to_pylist(), strict=True))


def test_files_in_and_out(tmp_path: Path) -> None:
    """The plan, the rows, nothing left over; a second run does not write over the first."""
    file = write(tmp_path, EVENTS, RANGES)
    done = shell(file)
    assert done.returncode == 0, done.stderr
    assert "plan: 5 ranges indexed; one index, no shuffle" in done.stderr
    assert "rows written" in done.stdout
    assert points(tmp_path) == POINTS
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["points"]
    again = shell(file)
    assert (again.returncode, again.stdout) == (2, "")
    assert f"{tmp_path / 'out/points'} exists; name another folder, or remove it" in again.stderr


@pytest.mark.night
def test_the_plan_alone_writes_nothing(tmp_path: Path) -> None:
    """And its JSON is all that is printed."""
    file = write(tmp_path, EVENTS, RANGES)
    done = shell(file, "--plan", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report.pop("seconds") > 0
    assert report == {"per": "event", "indexed_rows": 5, "parts": None, "sliced_ids": 0, "rows": None, "errors": {}}
    assert not (tmp_path / "out").exists()


def answered(file: Path, **more: str) -> RangeReport:
    """The same in this process, beside its session."""
    job = RangeJob.load(file, overrides=[f"{name}={value}" for name, value in more.items()], environment={})
    return run(job, plan_only=False, on_progress=lambda _: None)


@pytest.fixture
def shared_session(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process take the session of the tests, and leave it running."""
    monkeypatch.setattr("deduper.ranges.batch.spark_files.start_session", lambda *_: session)
    monkeypatch.setattr("deduper.ranges.batch.spark_files.end_session", lambda _: None)


@pytest.mark.usefixtures("shared_session")
def test_bad_rows_leave_by_the_errors(tmp_path: Path) -> None:
    """With side, reason and the row; of files, a row that does not match its schema too, in whichever column."""
    events = EVENTS + "1,,f\n,2026-03-01T10:00:00Z,g\n1,yesterday,h\n"
    config = CONFIG + "errors: {path: out/errors, format: json}\n"
    found = answered(write(tmp_path, events, RANGES + BAD_RANGES, config))
    assert points(tmp_path) == POINTS
    assert found.rows == 5
    assert found.errors == {
        "event.null_id": 1,
        "event.null_time": 1,
        "event.unparsable": 1,
        "range.start_after_end": 1,
        "range.unparsable": 2,
    }
    lines = [path.read_text() for path in (tmp_path / "out/errors").glob("*.json")]
    kept = [json.loads(line) for line in "".join(lines).splitlines()]
    record = next(row["record"] for row in kept if row["reason"] == "start_after_end")
    assert json.loads(record)["points"] == 7


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        ("1,2026-03-01T10:00:00Z,a", ",2026-03-01T10:00:00Z,a", DeduperError, r"bad event: null_id: .*keep bad rows"),
        ("path: events", "path: gone", UsageError, "gone: there is no such file or folder"),
        ("at TIMESTAMP", "at STRING", UsageError, "`at` is string, which is no time"),
        ("sum(points)", "sum(is_free)", UsageError, "points: sum takes numbers, and `is_free` is bool"),
        ("time: at", "time: when", ConfigError, "the schema of events has no column `when`"),
    ],
)
def test_a_failure_says_why_and_leaves_nothing(
    tmp_path: Path, old: str, new: str, kind: type[Exception], message: str
) -> None:
    """A bad row by default, absent files, types that do not fit: no output and nothing half written."""
    assert old in EVENTS + CONFIG
    file = write(tmp_path, EVENTS.replace(old, new), RANGES, CONFIG.replace(old, new))
    with pytest.raises(kind, match=message):
        answered(file)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.usefixtures("shared_session")
def test_a_sum_beyond_its_type_is_an_error_of_ours(tmp_path: Path) -> None:
    """With the aggregate, the value and the cast; it comes from a worker."""
    large = {"id": [1, 1], "start": [None, None], "end": [None, None], "points": [2**62, 2**62]}
    types = {"id": pa.int32(), "start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")}
    columns = {name: pa.array(values, types.get(name, pa.int64())) for name, values in large.items()}
    file = write(tmp_path, EVENTS, [], CONFIG.replace(CONFIG.splitlines()[1], "ranges: {path: large, format: parquet}"))
    pq.write_table(pa.table(columns), tmp_path / "large")
    with pytest.raises(DeduperError, match=r"points: a sum is 9223372036854775808, which int64 .*cast the column"):
        answered(file)


def test_a_wrong_file_ends_with_2_before_spark(tmp_path: Path) -> None:
    """File, line, column, the setting, and what to write; every mistake at once."""
    file = write(tmp_path, EVENTS, RANGES, CONFIG.replace("time: at", "tim: at").replace("sum(points)", "som(points)"))
    done = shell(file)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:4:1: tim: unknown setting; did you mean `time`?" in done.stderr
    assert f"{file}:7:22: aggregates.points: `som(points)` is not an aggregate; write one of" in done.stderr
    assert "3 problems; nothing was started." in done.stderr
    assert "Spark" not in done.stderr


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("per", ["event", "range"])
def test_without_spark_the_answers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str) -> None:
    """Rows, names and types of Parquet files, whichever way they are read and written; ids of several columns."""
    minutes = [None, 0, 5, 5, 9, 30, 30, 61]
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    times = [None if one is None else begin + timedelta(minutes=one) for one in minutes]
    notes = ["é", "", "é", None, "b", "b", "é", ""]
    columns = {
        "shop": pa.array(["é", "", "é", "", "b", "b", "é", ""]),
        "id": pa.array([1, -1, 1, -1, 7, 7, 1, 7], pa.int16()),
        "price": pa.array([Decimal(one) / 100 for one in range(8)], pa.decimal128(7, 2)),
        "share": pa.array([0.1, None, -0.0, 1e300, float("nan"), 0.25, 2.5, 3.0]),
        "note": pa.array(notes),
        "raw": pa.array([None if one is None else one.encode() for one in notes], pa.large_binary()),
        "day": pa.array([None, *range(7)], pa.date32()),
        "is_free": pa.array([True, None] * 4),
        "place": pa.array(range(8)),
    }
    ends = [None, *times[2:], None]
    ranges = {**columns, "start": pa.array(times, TIME_MS), "end": pa.array(ends, TIME_MS)}
    events = {**columns, "at": pa.array([begin, *times[1:]], TIME_MS)}
    for name, rows in (("events", events), ("ranges", ranges)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(rows), tmp_path / name / "a.parquet", row_group_size=3)
    texts = ("count", "sum(price)", "sum(share)", "mean(price)", "variance(id)", "max(day)", "last(note)")
    more = ("min(raw)", "top_k(price, 2)", "list(note)", "set(is_free)", "sum(id)")
    aggregates = ", ".join(f'a{number}: "{text}"' for number, text in enumerate((*texts, *more)))
    config = CONFIG.replace(CONFIG[: CONFIG.index("on: id")], "")
    config = config.replace("on: id", "on: [shop, id]").replace("points: sum(points)", aggregates)
    file = tmp_path / "job.yaml"
    inputs = "".join(f"{name}: {{path: {name}, format: parquet}}\n" for name in ("events", "ranges"))
    file.write_text(f"{inputs}per: {per}\n{config}", encoding="utf-8")
    found = answered(file)

    def only_spark(*_: Any, **__: Any) -> RangeReport:
        raise OnlySpark("asked for")

    monkeypatch.setattr("deduper.ranges.batch.job.run_on_arrow", only_spark)
    by_spark = answered(file, output="{path: out/spark, format: parquet}")
    assert (found.rows, found.indexed_rows) == (by_spark.rows, by_spark.indexed_rows) == (8, 8)
    ours, spark = (pq.read_table(tmp_path / "out" / name).sort_by("place") for name in ("points", "spark"))
    assert ours.schema.remove_metadata() == spark.schema.remove_metadata()
    assert repr(ours.to_pylist()) == repr(spark.to_pylist())


TEXT_SCHEMA = "id BIGINT, at TIMESTAMP, price DECIMAL(9,2), x DOUBLE, note STRING, day DATE, free BOOLEAN, n INT"
TEXT_LINES = {
    "csv": [
        "\ufeffid,at,price,x,note,day,free,n",
        '1,2026-03-01T10:00:00Z,1.50,1e3,"a ""b"", c",2026-03-01,true,1',
        "1,2026-03-01T10:00:00.5+01:00,+2,-0.0,a\\b,,TRUE,2",
        '"1",2026-03-01 10:00:00,1.235,NaN,"",2024-02-29,,3',
        "2,2026-03-01,7,Infinity, x ,1969-12-31,false",
        "2,2026-03-01T10:00:00Z,,,\r",
        "-3,2026-03-01T23:59:59.123456Z,99.999,5E-1,\u00fc,2026-03-01,false,7",
    ],
    "json": [
        '{"id":1,"at":"2026-03-01T10:00:00Z","price":1.50,"x":1e3,"note":"a \\"b\\"","day":"2026-03-01","n":1}',
        ' { "id" : 1, "at": "2026-03-01T10:00:00.5+01:00", "price": "2", "x": -0.0, "free": true, "n": 2 } \r',
        '{"n":3,"id":1,"at":"2026-03-01 10:00:00","note":{"a":[1, 2]},"other":[{"id":7}],"price":1.235}',
        '{"id":2,"at":"2026-03-01","x":"NaN","note":"\\u00fc\\ud83d\\ude00","n":4}',
        '{"id":2,"at":"2026-03-01T10:00:00Z","note":null,"free":null,"n":5}',
        '{"id":-3,"at":"2026-03-01T23:59:59.123456Z","note":12.50,"n":6}',
    ],
}


@pytest.mark.night
@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("kind", TEXT_LINES)
def test_lines_of_text_mean_the_same_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Odd records, which leave a reader much to decide; both ways take each, and give the same rows."""
    for name in ("events", "ranges"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("\n".join(TEXT_LINES[kind]), encoding="utf-8")
        (tmp_path / name / "b").write_text("\n".join(TEXT_LINES[kind][:3]) + "\n", encoding="utf-8")
    texts = ("count", "sum(price)", "sum(x)", "list(note)", "max(day)", "set(free)", "count(n)")
    aggregates = ", ".join(f'a{number}: "{text}"' for number, text in enumerate(texts))
    inputs = "".join(
        f'{name}: {{path: {name}, format: {kind}, schema: "{TEXT_SCHEMA}"}}\n' for name in ("events", "ranges")
    )
    config = CONFIG[CONFIG.index("on: id") :].replace("start: start\nend: end", "start: at\nend: at")
    file = tmp_path / "job.yaml"
    file.write_text(inputs + config.replace("points: sum(points)", aggregates), encoding="utf-8")
    with monkeypatch.context() as without_spark:
        without_spark.delattr("deduper.ranges.batch.spark_files.run_on_spark")
        found = answered(file)

    def only_spark(*_: Any, **__: Any) -> RangeReport:
        raise OnlySpark("asked for")

    monkeypatch.setattr("deduper.ranges.batch.job.run_on_arrow", only_spark)
    by_spark = answered(file, output="{path: out/spark, format: parquet}")
    records = len(TEXT_LINES[kind]) - (kind == "csv")
    assert found.rows == by_spark.rows == records + (2 if kind == "csv" else 3)
    order = [("id", "ascending"), ("at", "ascending"), ("note", "ascending")]
    ours, spark = (pq.read_table(tmp_path / "out" / name).sort_by(order) for name in ("points", "spark"))
    assert ours.schema.remove_metadata() == spark.schema.remove_metadata()
    assert repr(ours.to_pylist()) == repr(spark.to_pylist())
