"""`range_aggregate` on Spark: the rows of the rules, whole index or parts, bad rows, errors of arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deduper.errors import UsageError
from deduper.ranges.aggregate.aggregates import Own
from deduper.ranges.batch import workers
from deduper.ranges.batch.frames import RangeAggregates, range_aggregate
from deduper.ranges.batch.job import run
from deduper.ranges.batch.settings import RangeJob
from tests import tiers
from tests.deduper.ranges.aggregate import oracle

pytestmark = pytest.mark.spark

SEED = 20_261_125
TIME_MS = pa.timestamp("ms", "UTC")
PARTITIONS = "spark.sql.shuffle.partitions"
ZONE = "spark.sql.session.timeZone"
EVENTS = "shop string, id bigint, at timestamp, value bigint, note string"
RANGES = "id bigint, shop string, start timestamp, end timestamp, value bigint"
TEXTS = (
    "count",
    "sum(value)",
    "variance(value)",
    "min(value)",
    "last(value)",
    "top_k(value, 2)",
    "list(value)",
    "set(value)",
)


@pytest.fixture(autouse=True)
def few_partitions(session: SparkSession) -> Iterator[None]:
    """Spark's 200 partitions would take seconds for a dozen rows."""
    session.conf.set(PARTITIONS, 3)
    yield
    session.conf.unset(PARTITIONS)


def at(minute: int | None) -> datetime | None:
    return None if minute is None else datetime(2026, 3, 1, 9 + minute // 60, minute % 60, tzinfo=UTC)


def rows(seed: int, events: int, ranges: int, ids: int) -> tuple[list[oracle.Row], list[oracle.Row]]:
    """Events and ranges of some ids, with times in whole minutes: many are equal."""
    draw = random.Random(seed)

    def id_of() -> tuple[str, int]:
        return draw.choice("ab"), draw.randrange(ids)

    found = [{"id": id_of(), "time": draw.randrange(300), "value": draw.choice([None, 1, 2, 5])} for _ in range(events)]
    made = []
    for _ in range(ranges):
        start, length = draw.randrange(300), draw.choice([0, 3, 40, 250])
        end = None if draw.random() < 0.05 else start + length
        begin = None if draw.random() < 0.05 else start
        made.append({"id": id_of(), "start": begin, "end": end, "value": draw.randrange(9)})
    return found, made


def frames(session: SparkSession, events: list[oracle.Row], ranges: list[oracle.Row]) -> tuple[DataFrame, DataFrame]:
    of_events = [(*one["id"], at(one["time"]), one["value"], str(place)) for place, one in enumerate(events)]
    of_ranges = [(one["id"][1], one["id"][0], at(one["start"]), at(one["end"]), one["value"]) for one in ranges]
    return session.createDataFrame(of_events, EVENTS), session.createDataFrame(of_ranges, RANGES)


def asked(events: DataFrame, ranges: DataFrame, **more: Any) -> RangeAggregates:
    arguments = {"on": ["shop", "id"], "time": "at", "start": "start", "end": "end", "aggs": {"n": "count"}}
    return range_aggregate(events, ranges, **{**arguments, **more})


def test_the_example_of_the_documentation(session: SparkSession) -> None:
    """Points of overlapping campaigns; the event at 10:30 touches two closed ranges."""
    day = "2026-03-01 "
    ranges = session.createDataFrame(
        [
            (1, "09:30", "10:30", 10),
            (1, "10:01", "10:05", 20),
            (1, "10:08", "10:20", 30),
            (1, "10:30", "10:45", 40),
            (2, "09:30", "10:30", 50),
        ],
        "id int, start string, end string, points int",
    ).selectExpr("id", f"timestamp('{day}' || start) start", f"timestamp('{day}' || end) end", "points")
    events = session.createDataFrame(
        [(1, "10:00"), (1, "10:15"), (2, "10:01"), (1, "10:30"), (3, "10:00")], "id int, at string"
    ).selectExpr("id", "at clock", f"timestamp('{day}' || at) at")
    found = range_aggregate(
        events, ranges, on="id", time="at", start="start", end="end", aggs={"points": "sum(points)"}
    )
    answers = {(row.id, row.clock): row.points for row in found.rows.collect()}
    assert answers == {(1, "10:00"): 10, (1, "10:15"): 40, (2, "10:01"): 50, (1, "10:30"): 50, (3, "10:00"): None}


@pytest.mark.night
@pytest.mark.parametrize("ids", [1, 40])
@pytest.mark.parametrize("per", ["event", "range"])
def test_parts_give_the_answers_of_one_index(session: SparkSession, per: str, ids: int) -> None:
    """Both are those of all pairs, for any number of tasks, also if one id has all rows."""
    events, ranges = rows(SEED, 300, 80, ids)
    kind = {"per": per, "ends": "[)", "aggs": {text: text for text in TEXTS}}
    of = oracle.of_events if per == "event" else oracle.of_ranges
    by_text = [of(events, ranges, "[)", text, "int") for text in TEXTS]
    expected = sorted(map(repr, zip(*by_text, strict=True)))
    whole = asked(*frames(session, events, ranges), **kind)
    parts = asked(*frames(session, events, ranges), **kind, index_bytes=4000)
    assert whole.parts is None
    assert parts.parts is not None
    assert parts.parts >= 4
    for one in (whole, parts):
        assert sorted(repr(tuple(row[text] for text in TEXTS)) for row in one.rows.collect()) == expected, SEED


MINUTE = timedelta(minutes=1)
ZERO = datetime(2026, 3, 8, 6, tzinfo=UTC)
"""The day on which New York's clocks go forward; no test may depend on the zone of a session."""
TYPES: dict[str, tuple[str, Callable[[int], Any], str, Callable[[int], Any]]] = {
    "timestamp": ("timestamp", lambda n: ZERO + n * MINUTE, "int", lambda n: n),
    "timestamp_ntz": (
        "timestamp_ntz",
        lambda n: (ZERO + n * MINUTE).replace(tzinfo=None),
        "decimal(9,2)",
        lambda n: Decimal(n) / 4,
    ),
    "date": ("date", lambda n: date(1969, 6, 1) + timedelta(n), "double", lambda n: n / 10),
    "double": ("double", lambda n: (n - 150) / 8, "bigint", lambda n: n - (1 << 50)),
    "int": ("int", lambda n: n - 150, "string", lambda n: f"v{n}"),
}
"""Of each type of time: a time by its number; and a type of values, with a value by its number."""


@pytest.mark.night(but=["timestamp_ntz"])
@pytest.mark.parametrize("name", TYPES)
def test_all_ends_and_types_give_what_all_pairs_give(session: SparkSession, name: str) -> None:
    """Of one index and of parts, in a session of any zone; several id columns."""
    time_type, time_of, value_type, value_of = TYPES[name]
    events, ranges = rows(SEED + len(name), 60, 30, 2)
    for one in events:
        one["time"] = time_of(one["time"])
    for one in ranges:
        one |= {side: None if one[side] is None else time_of(one[side]) for side in ("start", "end")}
        one["value"] = value_of(one["value"])
    of_events = [(*one["id"], one["time"], str(place)) for place, one in enumerate(events)]
    of_ranges = [(one["id"][1], one["id"][0], one["start"], one["end"], one["value"]) for one in ranges]
    schemas = (
        f"shop string, id int, at {time_type}, place string",
        (f"id int, shop string, start {time_type}, end {time_type}, value {value_type}"),
    )
    kind = {"decimal(9,2)": "decimal", "double": "double"}.get(value_type, "int")
    texts = ("count(value)", "max(value)", "list(value)", *(() if value_type == "string" else ("sum(value)",)))
    session.conf.set(ZONE, "America/New_York")
    try:
        for ends in ("[]", "[)", "(]", "()") if tiers.is_night() else ("(]",):  # others have the others
            expected = list(zip(*(oracle.of_events(events, ranges, ends, text, kind) for text in texts), strict=True))
            for index_bytes in (1 << 30, 1000):
                found = asked(
                    session.createDataFrame(of_events, schemas[0]),
                    session.createDataFrame(of_ranges, schemas[1]),
                    aggs={text: text for text in texts},
                    ends=ends,
                    index_bytes=index_bytes,
                )
                assert (found.parts is None) == (index_bytes > 1000)
                answers = {int(row.place): tuple(row[text] for text in texts) for row in found.rows.collect()}
                assert [answers[place] for place in range(len(events))] == expected, (ends, index_bytes, SEED)
    finally:
        session.conf.set(ZONE, "UTC")


@pytest.mark.night
def test_times_are_answers_too(session: SparkSession) -> None:
    """`max` of a start is the latest one, in a session of any zone; a column may have any name."""
    events = session.createDataFrame([(1, at(60))], "`a.b` int, `an ``at` timestamp")
    ranges = session.createDataFrame(
        [(1, at(50), at(70)), (1, at(55), at(70))], "`a.b` int, s timestamp, `e e` timestamp"
    )
    session.conf.set(ZONE, "Asia/Kathmandu")
    try:
        for index_bytes in (1 << 30, 1):
            found = range_aggregate(
                *(events, ranges),
                on="a.b",
                time="an `at",
                start="s",
                end="e e",
                aggs={"latest": "max(s)", "ends": "set(`e e`)"},
                index_bytes=index_bytes,
            ).rows.selectExpr("unix_micros(latest)", "transform(ends, e -> unix_micros(e))")
            start, end = (int(one.timestamp() * 1e6) for one in (at(55), at(70)) if one is not None)
            assert [tuple(row) for row in found.collect()] == [(start, [end])]
    finally:
        session.conf.set(ZONE, "UTC")


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_one_s_own_aggregate(session: SparkSession, is_broadcast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain functions with a state that they change in place; in both ways of an index to the workers."""
    monkeypatch.setattr(workers, "is_this_machine", lambda _: not is_broadcast)
    events, ranges = rows(SEED, 50, 20, 2)

    def add(state: dict[int, int], value: int) -> dict[int, int]:
        state[value] = state.get(value, 0) + 1
        return state

    def remove(state: dict[int, int], value: int) -> dict[int, int]:
        state[value] -= 1
        return state

    own = Own("value", dict, add, remove, lambda state: sum(1 for count in state.values() if count), "int")
    found = asked(*frames(session, events, ranges), aggs={"own": own, "set": "set(value)"}).rows.collect()
    assert len(found) == 50
    assert all(row.own == len(row["set"]) for row in found)


def test_bad_rows_are_kept_with_their_reasons(session: SparkSession) -> None:
    """Every event is a row or an error; so is every range."""
    events, ranges = frames(session, *rows(SEED, 20, 10, 2))
    bad_events = session.createDataFrame([("a", None, at(1), 1, "x"), ("a", 1, None, 1, "y")], EVENTS)
    bad_ranges = session.createDataFrame(
        [(1, "a", at(9), at(8), 1), (1, None, at(1), at(2), 1), (1, "a", at(0), at(299), 1), (1, "a", None, at(1), 1)],
        RANGES,
    )
    found = asked(events.union(bad_events), ranges.union(bad_ranges), bad_rows="keep", longest_us=280 * 60_000_000)
    assert found.rows.count() == 20
    errors = [(row.side, row.reason) for row in found.errors.collect()]
    kept = [one for one in errors if one != ("range", "too_long")]
    assert sorted(kept) == [
        ("event", "null_id"),
        ("event", "null_time"),
        ("range", "null_id"),
        ("range", "start_after_end"),
    ]
    assert errors.count(("range", "too_long")) >= 2
    assert '"note":"y"' in "".join(row.record for row in found.errors.collect())


def test_a_bad_row_stops_the_job_by_default(session: SparkSession) -> None:
    """With its side, its reason and the row."""
    events, ranges = frames(session, *rows(SEED, 20, 10, 2))
    bad = session.createDataFrame([("a", 1, None, 1, "y")], EVENTS)
    with pytest.raises(PySparkException, match=r"bad event: null_time: .*note"):
        asked(events.union(bad), ranges).rows.collect()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on": "user"}, "events have no column `user`; columns are shop, id"),
        ({"time": "note"}, "`note` is string, which is no time; cast it"),
        ({"time": "value"}, "`value` and `start` are bigint and timestamp"),
        ({"aggs": {"note": "count"}}, "aggregate `note` has the name of a column"),
        ({"aggs": {"n": "sum(shop)"}}, "n: sum takes numbers, and `shop` is string"),
        ({"aggs": {"n": "median(value)"}}, "`median.value.` is not an aggregate"),
        ({"ends": "]["}, "ends are one of"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(session: SparkSession, changes: dict[str, Any], message: str) -> None:
    """With the column, its type and what to write."""
    with pytest.raises(UsageError, match=message):
        asked(*frames(session, *rows(SEED, 5, 5, 1)), **changes)


@pytest.mark.parametrize("per", ["event", "range"])
def test_files_by_the_command_and_frames_of_them_give_the_same(session: SparkSession, tmp_path: Path, per: Any) -> None:
    """Rows, names and types of Parquet files; ids of several columns."""
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
    settings: dict[str, Any] = {"on": ["shop", "id"], "time": "at", "start": "start", "end": "end", "per": per}
    aggregates: dict[str, Any] = {f"a{number}": text for number, text in enumerate((*texts, *more))}
    paths = {name: {"path": str(tmp_path / name), "format": "parquet"} for name in ("events", "ranges")}
    output = {"path": str(tmp_path / "out"), "format": "parquet"}
    run(RangeJob.model_validate({**paths, **settings, "aggregates": aggregates, "output": output}), on_progress=print)
    events_frame, ranges_frame = (session.read.parquet(str(tmp_path / name)) for name in ("events", "ranges"))
    by_spark = range_aggregate(events_frame, ranges_frame, **settings, aggs=aggregates).rows
    by_spark.write.parquet(str(tmp_path / "spark"))
    ours, theirs = (pq.read_table(tmp_path / name).sort_by("place") for name in ("out", "spark"))
    assert ours.schema.remove_metadata() == theirs.schema.remove_metadata()
    assert repr(ours.to_pylist()) == repr(theirs.to_pylist())
