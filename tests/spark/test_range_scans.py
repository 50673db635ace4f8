"""Ranges of Parquet files are read without a job of Spark's where a DataFrame is nothing but such files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deduper.ranges.batch import frames
from deduper.ranges.batch.frames import range_aggregate

pytestmark = [pytest.mark.spark, pytest.mark.night]

DAY = datetime(2026, 3, 1, tzinfo=UTC)
TIMES: dict[str, Callable[[int], Any]] = {
    "bigint": int,
    "double": float,
    "date": lambda day: date(1500, 1, 1) + timedelta(days=day),
    "timestamp": lambda minute: DAY + timedelta(minutes=minute),
    "timestamp_ntz": lambda minute: (DAY + timedelta(minutes=minute, days=-190_000)).replace(tzinfo=None),
}
IDS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "string": str,
    "decimal(9,2)": lambda number: Decimal(number) / 4,
    "binary": lambda number: bytes([0, number]),
}


@pytest.fixture
def found_here(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call, whether the ranges were read without Spark."""
    found: list[bool] = []

    def looked(*arguments: Any, **more: Any) -> Any:
        table = read(*arguments, **more)
        found.append(table is not None)
        return table

    read = frames.rows_of_scan
    monkeypatch.setattr(frames, "rows_of_scan", looked)
    return found


def written(rows: DataFrame, folder: Path) -> DataFrame:
    rows.repartition(2).write.parquet(str(folder), mode="overwrite")
    return rows.sparkSession.read.parquet(str(folder))


def sides(session: SparkSession, key: str = "int", time: str = "bigint") -> tuple[DataFrame, DataFrame]:
    """Some of the ranges are open, and have no value."""
    key_of, time_of = IDS[key], TIMES[time]
    events = [(key_of(at % 4), time_of(at), at) for at in range(24)]
    ranges = [
        (
            *(key_of(at % 3), time_of(at) if at % 5 else None, time_of(at + at % 7) if at % 4 else None),
            *(None if at % 6 == 0 else Decimal(at) / 8, float("nan") if at == 5 else -at / 8),
        )
        for at in range(20)
    ]
    return (
        session.createDataFrame(events, f"id {key}, at {time}, event int"),
        session.createDataFrame(ranges, f"id {key}, start {time}, end {time}, price decimal(12,3), share double"),
    )


AGGREGATES = {"n": "count", "sum": "sum(price)", "mean": "mean(share)", "since": "last(start)", "all": "list(price)"}


def answers(events: DataFrame, ranges: DataFrame, **more: Any) -> list[str]:
    """As texts: NaN is not equal to itself."""
    arguments: dict[str, Any] = {"on": "id", "time": "at", "start": "start", "end": "end", "aggs": AGGREGATES}
    return sorted(map(str, range_aggregate(events, ranges, **{**arguments, **more}).rows.collect()))


@pytest.mark.parametrize(("key", "time"), [*((key, "bigint") for key in IDS), *(("int", time) for time in TIMES)])
def test_ranges_read_from_files_give_the_answers_of_spark_s_rows(
    session: SparkSession, tmp_path: Path, found_here: list[bool], key: str, time: str
) -> None:
    """Ids and times of each type: the same answers, with and without Spark's job."""
    events, ranges = sides(session, key, time)
    of_files = written(ranges, tmp_path / "with space %41")
    assert answers(events, of_files) == answers(events, ranges)
    assert found_here == [True, False]


def test_events_read_from_files_answer_ranges(session: SparkSession, tmp_path: Path, found_here: list[bool]) -> None:
    """The mirror image indexes events."""
    events, ranges = sides(session)
    more = {"per": "range", "aggs": {"n": "count", "last": "last(event)"}}
    assert answers(written(events, tmp_path / "events"), ranges, **more) == answers(events, ranges, **more)
    assert found_here == [True, False]


NOT_PLAIN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a filter": lambda rows: rows.where("share > -1"),
    "an expression": lambda rows: rows.selectExpr("id", "start", "end", "price * 2 AS price", "share"),
    "names changed over": lambda rows: rows.toDF("id", "start", "end", "share", "price"),
    "a limit": lambda rows: rows.limit(100),
    "a union": lambda rows: rows.union(rows),
    "another type": lambda rows: rows.selectExpr("id", "start", "end", "price", "CAST(share AS float) AS share"),
}


@pytest.mark.night
@pytest.mark.parametrize("what", NOT_PLAIN)
def test_more_than_a_scan_is_left_to_spark(
    session: SparkSession, tmp_path: Path, found_here: list[bool], what: str
) -> None:
    """Whatever stands between the files and the rows counts."""
    events, ranges = sides(session)
    of_files = written(ranges, tmp_path / "ranges")
    assert answers(events, NOT_PLAIN[what](of_files)) == answers(events, NOT_PLAIN[what](ranges))
    assert not any(found_here)


def test_rows_in_a_cache_count_and_not_the_files(session: SparkSession, tmp_path: Path, found_here: list[bool]) -> None:
    """Files that were replaced since then are not read."""
    events, ranges = sides(session)
    cached = written(ranges, tmp_path / "ranges").cache()
    cached.count()
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "ranges" / "more.parquet")
    assert answers(events, cached) == answers(events, ranges)
    assert not any(found_here)
    cached.unpersist()


def test_options_folders_and_calendars_are_left_to_spark(
    session: SparkSession, tmp_path: Path, found_here: list[bool]
) -> None:
    """What changes how Spark reads files, or which."""
    events, ranges = sides(session)
    folder = str(tmp_path / "ranges")
    written(ranges, tmp_path / "ranges")
    ranges.write.partitionBy("id").parquet(str(tmp_path / "by_id"))
    rebasing = "spark.sql.parquet.datetimeRebaseModeInRead"
    before = session.conf.get(rebasing)
    expected = answers(events, ranges)
    assert answers(events, session.read.option("mergeSchema", "true").parquet(folder)) == expected
    assert answers(events, session.read.parquet(str(tmp_path / "by_id"))) == expected
    session.conf.set(rebasing, "LEGACY")
    try:
        assert answers(events, session.read.parquet(folder)) == expected
    finally:
        session.conf.set(rebasing, before)
    assert not any(found_here)


def test_bad_ranges_and_large_sets_are_left_to_spark(
    session: SparkSession, tmp_path: Path, found_here: list[bool]
) -> None:
    """It has the message for a bad range, the reasons, and the parts."""
    events, ranges = sides(session)
    good = written(ranges, tmp_path / "good")
    assert answers(events, good, index_bytes=0) == answers(events, ranges)
    late = session.createDataFrame([(1, 9, 8, None, None)], ranges.schema)
    bad = written(ranges.union(late), tmp_path / "bad")
    with pytest.raises(PySparkException, match="bad range: start_after_end"):
        answers(events, bad)
    kept = range_aggregate(
        events, bad, on="id", time="at", start="start", end="end", aggs={"n": "count"}, bad_rows="keep"
    )
    assert [row["reason"] for row in kept.errors.collect()] == ["start_after_end"]
    assert kept.indexed_rows == 20
    assert not any(found_here)


def test_empty_files_and_folders(session: SparkSession, tmp_path: Path, found_here: list[bool]) -> None:
    """An empty file adds nothing to others; with no rows at all, Spark has the empty index."""
    events, ranges = sides(session)
    written(ranges, tmp_path / "ranges")
    none = ranges.where("false").toArrow()
    pq.write_table(none, tmp_path / "ranges" / "empty.parquet")
    (tmp_path / "nothing").mkdir()
    nothing = session.read.schema(ranges.schema).parquet(str(tmp_path / "nothing"))
    assert answers(events, session.read.parquet(str(tmp_path / "ranges"))) == answers(events, ranges)
    assert answers(events, nothing) == answers(events, ranges.where("false"))
    assert found_here == [True, False, False, False]
