"""`Deduper` in somebody's own query: verdicts of the oracle, each row once, and the table of SEMANTICS.md.

Sessions here have a user's settings, not ours.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deduper
from bucket_store import failpoints
from bucket_store.errors import StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import RebaseRecord
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.places.open import open_place
from deduper import ConfigError, Deduper, EventTime, JsonSink, Never, OldCheckpointError, Ports, UsageError, Window
from deduper.admin.keys.explain import explain
from deduper.admin.move.rewind import plan_rewind
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from deduper.config.query import QuerySource, column_of, described, query_config, query_of
from deduper.dedup_column import DEDUP
from deduper.errors import IntegrityError, NewCheckpointError, OwnerAliveError, UnfinishedWindowError
from deduper.query import store as query_store
from deduper.tasks import write as write_task
from deduper.testing import Oracle, differences
from deduper.window.completeness import SEED, SEED_OPEN
from deduper.window.exchange_folder import ExchangeFolders
from deduper.window.owner_alive import last_end
from deduper.window.policy import FINGERPRINT
from deduper.window.recovery import require_of_job
from deduper.window.runner import WindowRunner
from tests import tiers
from tests.deduper.engine import comparable
from tests.deduper.streams import Stream, random_stream
from tests.ports import free_port
from tests.spark.test_job_oracle import expiry_section, schema, table

pytestmark = pytest.mark.spark

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
USERS_SETTINGS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
}
PORTS = ("unique", "duplicate", "expired", "error")


@pytest.fixture
def own(session: SparkSession) -> Iterator[SparkSession]:
    """A session with settings of a user's."""
    theirs = session.newSession()
    for name, value in USERS_SETTINGS.items():
        theirs.conf.set(name, value)
    yield theirs
    for name in (QUERY, BATCH, RUN):
        theirs.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]  # null removes it


class Taken:
    """Functions for the four ports, and what they were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Window, list[dict[str, Any]]]] = []

    def port(self, name: str) -> Callable[[DataFrame, Window], None]:
        """A function that takes the rows of a port."""

        def take(rows: DataFrame, window: Window) -> None:
            self.calls.append((name, window, [row.asDict(recursive=True) for row in rows.collect()]))

        return take

    def ports(self) -> dict[str, Any]:
        """All four."""
        return {name: self.port(name) for name in PORTS}

    def rows(self, port: str) -> list[dict[str, Any]]:
        """All rows of a port."""
        return [row for name, _, rows in self.calls if name == port for row in rows]


def as_query(session: SparkSession, query_id: str) -> None:
    """From here on this thread works for a query of that id, as Spark's own does."""
    session.sparkContext.setLocalProperty(QUERY, query_id)


def keys(session: SparkSession, *values: str | None) -> DataFrame:
    """One column `k`."""
    return session.createDataFrame([(value,) for value in values], "k string")


def a_deduper(folder: Path, **settings: Any) -> Deduper:
    """With a store of its own and two shards."""
    return Deduper(f"file:{folder}/state", **{"key": "k", "expiry": Never(), "shards": 2, **settings})


def partitions(session: SparkSession, stream: Stream, parts: list[list[Any]]) -> DataFrame:
    """A DataFrame with these partitions, in their order."""
    rows = [[tuple(row.values()) for row in table(stream, part).to_pylist()] for part in parts]
    each = session.sparkContext.parallelize(rows, len(rows)).flatMap(list)
    return session.createDataFrame(each, schema(stream))


@pytest.mark.night(but=["event_time-1"])
@pytest.mark.parametrize(
    ("mode", "seed"), [("event_time", 1), ("category", 2), ("processing_time", 3), ("ordered", 8), ("never", 4)]
)
def test_verdicts_are_the_oracles(
    mode: str, seed: int, own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port, reason and first copy of every row of a random stream, whose windows are batches of some partitions."""
    stream = random_stream(mode, seed)
    windows = [window for window in stream.windows if window.partitions][:12]
    now = [windows[0].now_us]
    monkeypatch.setattr(query_store, "wall_clock_us", lambda: now[0])
    taken = Taken()
    section = expiry_section(stream)
    dedup = Deduper(
        f"file:{tmp_path}/state",
        key=[f"k{number}" for number in range(len(stream.types))],
        expiry=_Section(section),  # type: ignore[arg-type]  # what a rule is to a Deduper
        null_keys=stream.settings.null_keys,  # type: ignore[arg-type]
        shards=3,
    )
    write = dedup.into(**taken.ports())
    oracle, expected = Oracle(stream.settings), []
    as_query(own, "q")
    for number, window in enumerate(windows):
        now[0] = window.now_us
        expected.append(
            comparable(oracle.judge(window.partitions, window.now_us), stream.settings, keep_first_seen=True)
        )
        write(partitions(own, stream, window.partitions), number)
    dedup.close()
    assert _answers(taken, windows) == expected


class _Section:
    """A rule by its section."""

    def __init__(self, section: dict[str, Any]) -> None:
        self._section = section

    def section(self) -> dict[str, Any]:
        return self._section


def _answers(taken: Taken, windows: list[Any]) -> list[list[list[Any]]]:
    """What left, in the shape of the stream."""
    answers: list[list[list[Any]]] = [[[None] * len(part) for part in window.partitions] for window in windows]
    for port, about, rows in taken.calls:
        assert not about.replayed
        for row in rows:
            told = row["_dedup"]
            batch, partition, position = _place(told)
            assert batch == f"batch {about.batch_id} of query q"
            assert answers[about.number][partition][position] is None, "a row left twice"
            answers[about.number][partition][position] = (port, told["reason"] or "", _first(told))
    return answers


def _place(told: dict[str, Any]) -> tuple[str, int, int]:
    """The batch, the partition, and the number in it."""
    batch, _, partition = told["source"].partition(", partition ")
    return batch, int(partition), told["position"]


def _first(told: dict[str, Any]) -> Any:
    first = told["first_seen"]
    if first is None:
        return None
    expiry = first["expiry"]
    if hasattr(expiry, "timestamp"):
        expiry = round(expiry.timestamp() * 1_000_000)
    return first["window"], *_place(first)[1:], expiry or 0


def test_each_row_of_the_table(own: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the function does for a batch, by what the store has."""
    taken = Taken()
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=taken.port("unique"), duplicate=tmp_path / "duplicate", expired=None, error=None)
    as_query(own, "q")
    write(keys(own, "a", "b", "a"), 0)
    write(keys(own, "c"), 1)
    assert [(window.number, window.batch_id, window.replayed) for _, window, _ in taken.calls] == [
        (0, 0, False),
        (1, 1, False),
    ]
    # Committed and marked: nothing at all, in this process and in the next.
    write(keys(own, "c"), 1)
    dedup.close()
    write(keys(own, "c"), 1)
    assert len(taken.calls) == 2
    # A later batch of the query.
    with pytest.raises(OldCheckpointError, match="checkpoint is older than the store"):
        write(keys(own, "a"), 0)
    # A query that the store does not know.
    as_query(own, "another")
    caplog.clear()
    write(keys(own, "a", "d"), 0)
    assert "query another is new to a store of 2 windows" in caplog.text
    assert [row["k"] for row in taken.rows("unique")] == ["a", "b", "c", "d"]
    assert [row.k for row in own.read.parquet(str(tmp_path / "duplicate")).orderBy("k").collect()] == ["a", "a"]
    # The first query goes on where it was.
    as_query(own, "q")
    write(keys(own, "e"), 2)
    dedup.close()
    strict = Deduper(f"file:{tmp_path}/state", key="k", expiry=Never(), shards=2, on_new_checkpoint="refuse")
    refused = strict.into(unique=None, duplicate=None, expired=None, error=None)
    as_query(own, "a third")
    with pytest.raises(NewCheckpointError, match="or use another store"):
        refused(keys(own, "a"), 0)


@pytest.mark.night(but=["window.4.committed"])
@pytest.mark.parametrize("name", ["window.2.judged", "window.4.committed", "window.5.published"])
def test_a_batch_that_breaks_off_is_finished_by_its_repetition(
    name: str, own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged once, whatever step fails: before the commit as if it never came, after it with the same rows."""
    taken = Taken()
    dedup = a_deduper(tmp_path)
    write = dedup.into(**taken.ports())
    as_query(own, "q")
    write(keys(own, "a"), 0)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_ARMED", {name: failpoints._Armed(name, "raise")})
        with pytest.raises(failpoints.FailpointError):
            write(keys(own, "a", "b"), 1)
    write(keys(own, "b", "a"), 1)  # Spark's order of rows may be another
    write(keys(own, "b"), 2)
    dedup.close()
    last = {window.number: window for _, window, _ in taken.calls}
    assert sorted(last) == [0, 1, 2]
    assert last[1].replayed == (name != "window.2.judged")
    assert last[1].counts == {"unique": 1, "duplicate": 1, "expired": 0, "error": 0}
    versions = {(window.number, window.txn_version) for _, window, _ in taken.calls}
    assert sorted(versions, key=lambda one: one[1]) == sorted(versions)
    assert len(versions) == 3  # one for each window, however often it is handed over
    unique = [(window.number, [row["k"] for row in rows]) for port, window, rows in taken.calls if port == "unique"]
    assert dict(unique) == {0: ["a"], 1: ["b"], 2: []}
    assert len(unique) == (4 if name == "window.5.published" else 3)


def test_a_function_that_raises_gets_the_same_rows_again(own: SparkSession, tmp_path: Path) -> None:
    """The batch fails; its repetition calls the functions again, those that had ended well too, and judges nothing."""
    taken, fails = Taken(), [True]

    def broken(rows: DataFrame, window: Window) -> None:
        assert rows.count() == rows.count() == 2  # any number of actions
        if fails:
            raise OSError("the target is away")

    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=taken.port("unique"), duplicate=broken, expired=None, error=None)
    as_query(own, "q")
    with pytest.raises(OSError, match="the target is away"):
        write(keys(own, "a", "a", "a"), 0)
    fails.clear()
    write(keys(own, "x", "y"), 0)  # whatever it holds: batch 0 was judged
    dedup.close()
    assert [(window.replayed, rows) for _, window, rows in taken.calls] == [
        (False, taken.calls[0][2]),
        (True, taken.calls[0][2]),
    ]
    assert [row["k"] for row in taken.calls[0][2]] == ["a"]
    store = open_store(f"file:{tmp_path}/state")
    assert verify_store(store).findings == ()
    with pytest.raises(UsageError, match="is a function: what was handed over cannot be taken back"):
        plan_rewind(store, 0)


def test_rows_of_a_function_that_cannot_take_them_stay(own: SparkSession, tmp_path: Path) -> None:
    """They never vanish: a port that is another, other columns and lost files are refused, until the user gives up."""
    folder, taken = tmp_path / "a [b] {c}*", Taken()

    def broken(rows: DataFrame, window: Window) -> None:
        assert rows.count() == window.counts["unique"]  # whatever Spark takes for a pattern in the folder's name
        raise OSError("the target is away")

    def opened(unique: Any) -> tuple[Deduper, Callable[[DataFrame, int], None]]:
        dedup = a_deduper(folder)
        return dedup, dedup.into(unique=unique, duplicate=None, expired=None, error=taken.port("error"))

    rows = keys(own, "a", "b", "a")
    as_query(own, "q")
    for port in (broken, broken):  # its files are read again too
        with pytest.raises(OSError, match="the target is away"):
            opened(port)[1](rows, 0)
    end = last_end(open_place(f"file:{folder}/state"), 2)
    assert end is not None
    assert (end.exit_code, end.message) == (1, "the target is away")
    for port in (None, folder / "unique"):
        with pytest.raises(UsageError, match="window 0 was committed for port unique to go to a function"):
            opened(port)[1](rows, 0)
    only = a_deduper(folder).into(unique=None, duplicate=None, expired=None, error=None)
    with pytest.raises(UsageError, match="port unique to go to a function"):
        only(rows, 0)
    with pytest.raises(UsageError, match=r"than the DataFrame now: n \(absent then, string now\); put"):
        opened(taken.port("unique"))[1](rows.withColumn("n", rows.k), 0)
    for file in (folder / "state" / "_staging").rglob("*.parquet"):
        file.unlink()
    dedup, write = opened(taken.port("unique"))
    with pytest.raises(IntegrityError, match="their file is gone: bring it back; or call"):
        write(rows, 0)
    assert taken.calls == []
    dedup.finish()
    write(rows, 0)
    write(keys(own, "b", "c"), 1)
    dedup.close()
    assert [(port, window.number, len(rows)) for port, window, rows in taken.calls] == [
        ("unique", 1, 1),
        ("error", 1, 0),
    ]
    assert taken.calls[0][1].txn_app_id == taken.calls[1][1].txn_app_id.removesuffix("-error") + "-unique"


def test_rows_that_wait_for_a_function_keep_their_types(own: SparkSession, tmp_path: Path) -> None:
    """Spark would read a narrower type's bits from them, or microseconds as a number, and say nothing."""
    taken = Taken()

    def broken(rows: DataFrame, window: Window) -> None:
        raise OSError("the target is away")

    def write(rows: DataFrame, unique: Any) -> None:
        with a_deduper(tmp_path) as dedup:
            dedup.into(unique=unique, duplicate=None, expired=None, error=None)(rows, 0)

    rows = own.sql(
        """SELECT 'a' k, 70000 i, 1Y b, TIMESTAMP'2026-01-01 00:00:00' t, TIMESTAMP_NTZ'2026-01-01 00:00:00' n,
        INTERVAL '1' DAY v, NULL u, X'61' x, 1.5BD d, map('a', array(named_struct('s', 1))) m, DATE'2026-01-01' day"""
    )
    with pytest.raises(OSError, match="the target is away"):
        write(rows, broken)
    for name, kind, said in (
        ("i", "smallint", r"i \(int32 then, int16 now\)"),
        ("t", "bigint", r"t \(timestamp\[us, tz=UTC\] then, int64 now\)"),
        ("n", "timestamp", r"n \(timestamp\[us\] then, timestamp\[us, tz=UTC\] now\)"),
        ("day", "void", r"day \(date32\[day\] then, absent now\)"),
    ):
        changed = rows.withColumn(name, F.lit(None) if kind == "void" else F.lit(1).cast("bigint").cast(kind))
        with pytest.raises(UsageError, match=f"than the DataFrame now: {said}; put them back"):
            write(changed, taken.port("unique"))
    own.conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
    write(rows, taken.port("unique"))
    own.conf.unset("spark.sql.parquet.inferTimestampNTZ.enabled")
    (row,) = taken.rows("unique")
    assert {name: value for name, value in row.items() if name != DEDUP} == rows.collect()[0].asDict(recursive=True)


@pytest.mark.night
def test_a_restored_copy_repeats_no_version(own: SparkSession, tmp_path: Path) -> None:
    """The number of a window comes again with other rows; a table that takes versions once takes both."""
    taken = Taken()
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=taken.port("unique"), duplicate=None, expired=None, error=None)
    as_query(own, "q")
    write(keys(own, "a"), 0)
    dedup.close()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    write(keys(own, "b"), 1)
    dedup.close()
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "copy").rename(tmp_path / "state")
    write(keys(own, "c"), 1)
    dedup.close()
    assert [window.number for _, window, _ in taken.calls] == [0, 1, 1]
    first, second, again = (window.txn_version for _, window, _ in taken.calls)
    assert first < second < again
    assert len({window.txn_app_id for _, window, _ in taken.calls}) == 1


def test_a_batch_is_judged_by_one_call(own: SparkSession, tmp_path: Path) -> None:
    """Its other rows would go nowhere; the next run of the query may ask for the batch again."""
    taken = Taken()
    with a_deduper(tmp_path / "into") as dedup:
        write = dedup.into(unique=taken.port("unique"), duplicate=None, expired=None, error=None)
        as_query(own, "q")
        own.sparkContext.setLocalProperty(RUN, "run 1")
        write(keys(own, "a"), 0)
        own.sparkContext.setLocalProperty(RUN, "a group of the function's")
        with pytest.raises(UsageError, match="a second call for batch 0 of query q: its rows were not judged"):
            write(keys(own, "b"), 0)

        def run_again(query_id: str) -> None:
            as_query(own, query_id)
            own.sparkContext.setLocalProperty(RUN, "run 2")
            write(keys(own, "a"), 0)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run_again, "q").result()
        assert [row["k"] for row in taken.rows("unique")] == ["a"]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run_again, "another").result()
        with pytest.raises(UsageError, match="a second call for batch 0 of query q"):
            write(keys(own, "d"), 0)
    with a_deduper(tmp_path / "split") as dedup:
        own.sparkContext.setLocalProperty(BATCH, "0")
        dedup.split(keys(own, "a"))
        with pytest.raises(UsageError, match="a second call for batch 0"):
            dedup.split(keys(own, "b"))


def test_a_function_calls_nothing_of_its_own_deduper(own: SparkSession, tmp_path: Path) -> None:
    """Its window is not finished while it runs: another one, or the end of the store, would be mistaken for it."""
    refused: list[str] = []
    calls: list[Callable[[DataFrame, int], object]] = []

    def function(rows: DataFrame, window: Window) -> None:
        for call in calls:
            with pytest.raises(UsageError, match="a function of a port calls the Deduper that has called it"):
                call(rows.select("k"), window.batch_id + 1 if window.batch_id is not None else 1)
            refused.append(f"window {window.number}")

    with a_deduper(tmp_path) as dedup:
        write = dedup.into(unique=function, duplicate=None, expired=None, error=None)
        calls += [write, lambda rows, _: dedup.split(rows), lambda *_: dedup.close(), lambda *_: dedup.finish()]
        as_query(own, "q")
        write(keys(own, "a"), 0)
        write(keys(own, "a", "b"), 1)
    assert refused == ["window 0"] * 4 + ["window 1"] * 4


def test_rows_that_are_asked_for_again_are_not_given_up(own: SparkSession, tmp_path: Path) -> None:
    """By their number, with another column: they wait for a call with the columns that they have."""
    with a_deduper(tmp_path) as dedup:
        rows = keys(own, "a", "b")
        dedup.split(rows, batch_id=7)
        with pytest.raises(UsageError, match=r"n \(absent then, string now\); put them back"):
            dedup.split(rows.withColumn("n", rows.k), batch_id=7)
        again = dedup.split(rows, batch_id=7)
        assert again.window.replayed
        assert sorted(row.k for row in again.unique.collect()) == ["a", "b"]


def test_a_batch_without_rows_is_handed_over_again(own: SparkSession, tmp_path: Path) -> None:
    """Its function sees each window, whatever is in it."""
    calls: list[tuple[int, bool, int]] = []

    def broken(rows: DataFrame, window: Window) -> None:
        calls.append((window.number, window.replayed, rows.count()))
        if len(calls) == 1:
            raise OSError("the target is away")

    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=broken, duplicate=None, expired=None, error=None)
    as_query(own, "q")
    none = keys(own, "a").limit(0)
    with pytest.raises(OSError, match="the target is away"):
        write(none, 0)
    write(none, 0)
    write(none, 0)
    dedup.close()
    assert calls == [(0, False, 0), (0, True, 0)]


def test_an_error_of_the_last_publication_is_raised(
    own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `close`, or no one would hear of it; the next start sends the rows. Small pieces are merged at a clean end."""

    class Topics:
        failure: Exception | None = OSError("the broker refuses")

        def __init__(self) -> None:
            self.sent: list[int] = []

        def extra(self) -> dict[str, Any]:
            return {}

        def publish(self, window: int, outputs: Any) -> None:
            if self.failure is not None:
                raise self.failure
            self.sent.append(window)

    topics = Topics()
    stops: list[threading.Event] = []
    finished: list[WindowRunner] = []

    def opened(*given: Any) -> contextlib.AbstractContextManager[Topics]:
        stops.append(given[4])
        return contextlib.nullcontext(topics)

    def finish(runner: WindowRunner) -> None:
        finished.append(runner)

    monkeypatch.setattr(query_store, "open_topics", opened)
    monkeypatch.setattr(WindowRunner, "finish", finish)
    dedup = a_deduper(tmp_path)
    sink = deduper.TopicSink("unique", "localhost:1")
    write = dedup.into(unique=sink, duplicate=None, expired=None, error=None)
    as_query(own, "q")
    write(keys(own, "a"), 0)
    with pytest.raises(OSError, match="the broker refuses"):
        dedup.close()
    with pytest.raises(OSError, match="the broker refuses"):
        write(keys(own, "a"), 0)
    topics.failure = None
    write(keys(own, "a"), 0)
    assert not finished
    with pytest.raises(ConfigError):
        write(keys(own, "a").withColumnRenamed("k", "other"), 1)
    assert (topics.sent, len(finished)) == ([0], 1)
    write(keys(own, "b"), 1)
    dedup._close_at_exit()
    assert (topics.sent, len(finished)) == ([0, 1], 2)
    assert [stop.is_set() for stop in stops] == [True, False, False, True]  # after a failure, and at exit


def test_relative_paths_are_those_of_the_folder_in_which_it_was_made(
    own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that goes elsewhere between two openings finds the same keys, and writes to the same port."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(tmp_path)
    with Deduper("rocksdb:state", key="k", expiry=Never()) as dedup:
        write = dedup.into(unique="out/unique", duplicate=None, expired=None, error=None)
        as_query(own, "q")
        write(keys(own, "a"), 0)
        dedup.close()
        monkeypatch.chdir(there)
        write(keys(own, "a", "b"), 1)
    assert sorted(row["k"] for row in own.read.parquet(str(tmp_path / "out" / "unique")).collect()) == ["a", "b"]
    assert list(there.iterdir()) == []


def test_a_store_is_a_jobs_or_a_dedupers(own: SparkSession, tmp_path: Path) -> None:
    """Each would forget what the other has judged; a half seed is no store yet."""
    with a_deduper(tmp_path) as dedup:
        dedup.split(keys(own, "a"))
    log = CommitLog.open(open_place(f"file:{tmp_path}/state"))
    with pytest.raises(UsageError, match="this store is a `Deduper`'s, and a job has one of its own"):
        require_of_job(log)
    for extra, message in (
        ({SEED_OPEN: "files"}, "a seed of this store is not over"),
        ({"folder": "/in"}, "this store is a job's, and a Deduper has one of its own"),
    ):
        log.refresh()
        log.claim_epoch("test", 1)
        log.place(RebaseRecord(replace(log.state, extra=extra, retired=()), 1))
        with pytest.raises(UsageError, match=message):
            a_deduper(tmp_path, take_over=True).split(keys(own, "b"))
        log.check_owner()  # was left alone
    log.refresh()
    log.claim_epoch("test", 1)
    log.place(RebaseRecord(replace(log.state, extra={"folder": "/in", SEED: {"files /old": {}}}, retired=()), 1))
    with a_deduper(tmp_path) as dedup:
        assert dedup.split(keys(own, "a", "b")).window.counts["unique"] == 1, "a seeded store is nobody's yet"


def test_pieces_that_are_not_merged_are_no_error_of_a_close(
    own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where Spark merges them, and has stopped. An error of the store is raised."""
    failures: list[Exception] = [Py4JError("SparkContext was shut down"), StoreError("the log is damaged")]

    def finish(_: WindowRunner) -> None:
        raise failures.pop(0)

    monkeypatch.setattr(WindowRunner, "finish", finish)
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)
    write(keys(own, "a"), 0)
    dedup.close()
    assert "small pieces of the store are merged later: SparkContext was shut down" in caplog.text
    write(keys(own, "b"), 1)
    with pytest.raises(StoreError, match="damaged"):
        dedup.close()


def test_a_function_may_have_a_job_group(own: SparkSession, tmp_path: Path) -> None:
    """A batch that it could not use comes again at each start, in the same process too."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.json").write_text('{"k": "a"}\n{"k": "a"}\n')
    dedup = a_deduper(tmp_path)
    seen: list[tuple[bool, list[str]]] = []

    def use(batch: DataFrame, _: int) -> None:
        batch.sparkSession.sparkContext.setJobGroup("mine", "my jobs")
        ports = dedup.split(batch)
        seen.append((ports.window.replayed, [row.k for row in ports.unique.collect()]))
        if len(seen) < 3:
            raise OSError("the target is away")

    write = own.readStream.schema("k string").json(str(source)).writeStream.foreachBatch(use)
    for _ in range(3):
        query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()
    dedup.close()
    assert seen == [(False, ["a"]), (True, ["a"]), (True, ["a"])]


def test_a_query_that_runs(own: SparkSession, tmp_path: Path) -> None:
    """Files through Spark's own source, after a join and with nested columns, stopped and started again."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        lines = [{"k": f"k{one % 7}", "at": {"n": one, "tags": [str(one)]}} for one in range(number, number + 10)]
        (source / f"{number}.json").write_text("".join(json.dumps(line) + "\n" for line in lines[: 8 + number]))
    names = own.createDataFrame([(f"k{number}", f"name {number}") for number in range(7)], "k string, name string")
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=tmp_path / "unique", duplicate=tmp_path / "duplicate", expired=None, error=None)

    def run() -> list[dict[str, Any]]:
        stream = own.readStream.schema("k string, at struct<n: int, tags: array<string>>")
        query = (
            stream.option("maxFilesPerTrigger", 1)
            .json(str(source))
            .join(names, "k")
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    assert sorted(progress["numInputRows"] for progress in run()) == [8, 9, 10, 10]
    dedup.close()
    assert run() == []  # nothing new
    (source / "4.json").write_text('{"k": "k3", "at": {"n": 1, "tags": null}}\n')
    assert len(run()) == 1
    dedup.close()
    unique = own.read.parquet(str(tmp_path / "unique"))
    assert sorted(row.name for row in unique.collect()) == [f"name {number}" for number in range(7)]
    copies = own.read.parquet(str(tmp_path / "duplicate"))
    assert copies.count() == 37 + 1 - 7
    assert copies.filter("at.tags IS NULL").collect()[0]["_dedup"]["first_seen"]["window"] == 0


def test_a_large_batch_has_two_jobs_of_its_query(
    own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads it by one, and the tasks of the other judge and write it. The next window writes over its files."""
    left: list[bool] = []

    def leave(places: ExchangeFolders, folder: Path, reads: Sequence[str]) -> None:
        left.append(bool(reads))
        places.remove(folder)

    monkeypatch.setattr(ExchangeFolders, "leave", leave)
    rows = own.range(40_000).selectExpr("id % 30000 AS k", "repeat('x', 150) || id AS payload")
    rows.write.parquet(str(tmp_path / "in"))
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)
    tracker = own.sparkContext.statusTracker()
    stream = own.readStream.schema("k bigint, payload string").parquet(str(tmp_path / "in"))
    before = set(tracker.getJobIdsForGroup())
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    dedup.close()
    assert len(tracker.getJobIdsForGroup(running.runId)) == 2
    assert not set(tracker.getJobIdsForGroup()) - before
    assert left == [True]
    assert own.read.parquet(str(tmp_path / "unique")).count() == 30_000


def test_a_deleted_commit_file_judges_nothing_again(
    own: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark repeats its last batch, as it was planned; a deleted checkpoint makes all of its rows duplicates."""
    source = tmp_path / "in"
    own.range(5).selectExpr("CAST(id AS STRING) AS k").write.json(str(source))
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=tmp_path / "unique", duplicate=tmp_path / "duplicate", expired=None, error=None)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = own.readStream.schema("k string").json(str(source)).writeStream.foreachBatch(write)
        stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    def counts() -> list[int]:
        return [own.read.schema("k string").parquet(str(tmp_path / port)).count() for port in ("unique", "duplicate")]

    run()
    assert counts() == [5, 0]
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    run()
    assert counts() == [5, 0]
    assert "does not say when it was planned" not in caplog.text
    shutil.rmtree(checkpoint)
    run()
    dedup.close()
    assert counts() == [5, 5]


def test_a_checkpoint_that_is_one_batch_older_is_refused(own: SparkSession, tmp_path: Path) -> None:
    """Spark plans the last batch anew, with the rows that have come since: none of them is taken for judged."""
    source, checkpoint, copy = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "copy"
    source.mkdir()
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)

    def run(key: str) -> None:
        (source / f"{key}.json").write_text(json.dumps({"k": key}) + "\n")
        stream = own.readStream.schema("k string").json(str(source)).writeStream.foreachBatch(write)
        stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run("a")
    shutil.copytree(checkpoint, copy)
    run("b")
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    with pytest.raises(StreamingQueryException, match=r"has planned batch 1 of query .* anew"):
        run("c")  # the batch holds `b` too
    dedup.close()
    unique = own.read.parquet(str(tmp_path / "unique")).collect()
    assert sorted(row.k for row in unique) == ["a", "b"]


@pytest.mark.night
@pytest.mark.parametrize("splits", [False, True])
def test_states_before_it_are_committed_again(splits: bool, own: SparkSession, tmp_path: Path) -> None:
    """Spark refuses a batch whose stateful operators did not run: they do, though its rows were judged."""
    source = tmp_path / "in"
    rows = own.range(6).selectExpr("CAST(id % 4 AS STRING) k", "timestamp_seconds(1e9 + id) ts")
    rows.coalesce(1).write.json(str(source))
    dedup = a_deduper(tmp_path)
    counts: list[tuple[int, bool, int]] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        ports = dedup.split(batch)
        counts.append((batch_id, ports.window.replayed, ports.unique.count()))

    write = take if splits else dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)

    def run() -> None:
        stream = own.readStream.schema("k string, ts timestamp").json(str(source)).withWatermark("ts", "1 hour")
        query = stream.dropDuplicatesWithinWatermark(["k"]).writeStream.foreachBatch(write)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().processAllAvailable()
        for running in own.streams.active:
            running.stop()
        dedup.close()

    run()
    commits = sorted(path for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdecimal())
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
    run()
    more = [{"k": key, "ts": "2001-09-09T01:46:50Z"} for key in ("4", "0")]
    (source / "more.json").write_text("".join(json.dumps(row) + "\n" for row in more))
    run()
    if splits:
        assert [replayed for number, replayed, _ in counts if number == len(commits) - 1] == [False, True]
        assert sum(count for _, replayed, count in counts if not replayed) == 5
    else:
        assert own.read.parquet(str(tmp_path / "unique")).count() == 5


def test_values_of_all_types_come_back(own: SparkSession, tmp_path: Path) -> None:
    """As they were, in functions and in files, whatever the session says of times and calendars."""
    rows = own.sql(
        """
        SELECT k, CAST(1 AS TINYINT) b, CAST(-7 AS SMALLINT) s, 2147483647 i, 1L l, CAST(1.5 AS FLOAT) f,
          CAST('NaN' AS DOUBLE) d, CAST(1234567890.123456789 AS DECIMAL(38, 9)) dec, TRUE t, X'00FF' bin,
          DATE '0001-01-01' old, TIMESTAMP '1883-11-18 12:00:00' ts, TIMESTAMP_NTZ '2024-03-10 02:30:00.000001' ntz,
          INTERVAL '1 02:03:04.000005' DAY TO SECOND gap, array(1, NULL) a, map('x', named_struct('y', array(1.5D))) m,
          named_struct('odd name', 1, 'when', DATE '1500-02-28') st, NULL nothing, 'x' `with.dot`, 'y' `with ``tick`
        FROM VALUES ('a'), ('b') AS v(k)
        """
    )
    taken = Taken()
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=taken.port("unique"), duplicate=tmp_path / "duplicate", expired=None, error=None)
    write(rows, 0)
    write(rows, 1)
    dedup.close()
    expected = [row.asDict(recursive=True) for row in rows.orderBy("k").collect()]
    found = sorted(taken.rows("unique"), key=lambda row: row["k"])
    for row in found:
        del row["_dedup"]
    assert str(found) == str(expected)  # a NaN is not itself
    assert found[0]["dec"] == Decimal("1234567890.123456789")
    assert own.read.schema(rows.drop("nothing").schema).parquet(str(tmp_path / "duplicate")).count() == 2


def test_a_port_of_json(own: SparkSession, tmp_path: Path) -> None:
    """A line a row, as a job writes it; times in the zone of the session. An interval is refused before anything is."""
    ports = {"duplicate": None, "expired": None, "error": None}
    write = a_deduper(tmp_path).into(unique=JsonSink(tmp_path / "unique"), **ports)
    with pytest.raises(UsageError, match=r"column `gap` is .*, which JSON cannot hold; cast it"):
        write(own.sql("SELECT 'a' k, named_struct('x', INTERVAL '1' DAY) gap"), 0)
    assert list(tmp_path.iterdir()) == []
    dedup = a_deduper(tmp_path)
    write = dedup.into(unique=JsonSink(tmp_path / "unique"), **ports)
    write(own.sql("SELECT 'a' k, TIMESTAMP '2024-07-01 12:00:00' ts, NULL nothing, array(1, NULL) numbers"), 0)
    dedup.close()
    (file,) = (tmp_path / "unique").glob("*.json")
    row = json.loads(file.read_bytes())
    assert row.pop("_dedup")["verdict"] == "unique"
    assert row == {"k": "a", "ts": "2024-07-01T12:00:00.000000-02:30", "numbers": [1, None]}


def test_rows_that_are_no_stream(own: SparkSession, tmp_path: Path) -> None:
    """Each call is a window; lazy DataFrames, which stay until the next call."""
    with a_deduper(tmp_path) as dedup:
        first = dedup.split(keys(own, "a", "b", "a", None))
        assert isinstance(first, Ports)
        assert first.window.counts == {"unique": 2, "duplicate": 1, "expired": 0, "error": 1}
        assert sorted(row.k for row in first.unique.collect()) == ["a", "b"]
        assert first.error.select("_dedup.reason", "_dedup.detail").collect() == [("null_key", "k: null")]
        second = dedup.split(keys(own, "b", "c"))
        assert [row.k for row in second.unique.collect()] == ["c"]
        assert second.expired.columns == ["k", "_dedup"]
        wider = dedup.split(own.sql("SELECT 'c' k, 1 n UNION ALL SELECT 'x', 2"))
        assert [(row.k, row.n) for row in wider.unique.collect()] == [("x", 2)]
    with a_deduper(tmp_path) as dedup:  # the block ended well, so its last rows were used
        assert dedup.split(keys(own, "c", "d")).window.counts["unique"] == 1


def test_rows_that_nobody_may_have_used_are_named(own: SparkSession, tmp_path: Path) -> None:
    """A program that dies with them leaves their files; by its number a batch is given again."""
    with contextlib.suppress(KeyError), a_deduper(tmp_path) as dedup:
        dedup.split(keys(own, "a"))
        raise KeyError("a bug")
    dedup = a_deduper(tmp_path)
    with pytest.raises(UnfinishedWindowError, match="window 0 was judged, and nobody knows") as told:
        dedup.split(keys(own, "b"))
    folder = str(told.value).split("they are in ")[1].split(". Repeat")[0]
    assert own.read.parquet(folder).count() == 1
    dedup.finish()
    dedup.split(keys(own, "b"), batch_id=5)
    dedup.close()
    again = dedup.split(keys(own, "b"), batch_id=5)
    assert again.window.replayed
    assert again.window.counts["unique"] == 1
    assert [row.k for row in again.unique.collect()] == ["b"]
    assert not dedup.split(keys(own, "b"), batch_id=6).window.replayed
    dedup.close()
    with pytest.raises(UnfinishedWindowError, match=r"\(batch 6 of query without an id\) was judged, and nobody knows"):
        dedup.split(keys(own, "e"), batch_id=7)  # it may be another program's, which knows nothing of these rows
    dedup.finish()
    dedup.split(keys(own, "e"))
    old = dedup.split(keys(own, "b"), batch_id=6)  # no rows of another window
    assert (old.window.number, old.window.replayed, old.window.counts["duplicate"]) == (2, True, 1)
    assert [rows.count() for rows in old[:4]] == [0, 0, 0, 0]
    dedup.finish()
    dedup.split(keys(own, "f"), batch_id=7)
    dedup.close()
    (tmp_path / "state").rename(tmp_path / "moved")
    moved = Deduper(f"file:{tmp_path}/moved", key="k", expiry=Never(), shards=2)
    assert [row.k for row in moved.split(keys(own, "f"), batch_id=7).unique.collect()] == ["f"]
    moved.close()


def test_split_inside_a_query(own: SparkSession, tmp_path: Path) -> None:
    """The batch is Spark's: a repetition gets the same rows, the next batch finishes it."""
    dedup = a_deduper(tmp_path)
    as_query(own, "q")
    own.sparkContext.setLocalProperty(BATCH, "0")
    first = dedup.split(keys(own, "a", "a"))
    assert (first.window.query_id, first.window.batch_id, first.window.replayed) == ("q", 0, False)
    dedup.close()
    again = dedup.split(keys(own, "other"))
    assert again.window.replayed
    assert [row.k for row in again.unique.collect()] == ["a"]
    own.sparkContext.setLocalProperty(BATCH, "1")
    assert [row.k for row in dedup.split(keys(own, "a", "b")).unique.collect()] == ["b"]
    dedup.close()
    assert list((tmp_path / "state" / "_staging").iterdir()) != []
    own.sparkContext.setLocalProperty(BATCH, "2")
    dedup.split(keys(own, "c"))
    dedup.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "K"}, "key.0: the DataFrame has no column `K`; did you mean `k`?"),
        ({"key": "f"}, "column `f` is double: two computations of one number differ"),
        ({"key": "o.id"}, 'it is a field of an object; write `rows.withColumn("o_id", rows["o.id"])` in a query'),
        ({"key": "m"}, "column `m` is map<string,int>, which cannot be part of a key"),
        ({"expiry": EventTime("k", period="1h")}, "column `k` is string, which is not a time"),
        ({"expiry": EventTime("gone", period="1h")}, "expiry.field: the DataFrame has no column `gone`"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    arguments: dict[str, Any], message: str, own: SparkSession, tmp_path: Path
) -> None:
    """At the first batch, which knows the columns: by name, and with what to write instead."""
    dedup = a_deduper(tmp_path, **arguments)
    write = dedup.into(unique=tmp_path / "unique", duplicate=None, expired=None, error=None)
    with pytest.raises(ConfigError) as told:
        write(own.sql("SELECT 'a' k, 1.5D f, map('x', 1) m, named_struct('id', 1) o"), 0)
    assert message in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'a' k, 1 K", "two columns `k` and `K`"),
        ("'a' k, 1 _dedup", "a column `_dedup`, which the ports add"),
        ("'a' k, INTERVAL '1' MONTH m", "column `m` is interval month, which Spark hands to no Python; cast it"),
        ("'a' k, array() e", "column `e` is array<void>: Spark reads no part without a type"),
    ],
)
def test_dataframes_that_cannot_be_judged(columns: str, message: str, own: SparkSession, tmp_path: Path) -> None:
    """The message names the column."""
    with pytest.raises(UsageError, match=message):
        a_deduper(tmp_path).split(own.sql(f"SELECT {columns}"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expiry": EventTime("ts", period="soon")}, "Deduper: expiry.period: `soon` is not a duration"),
        ({"expiry": EventTime("ts", period="1h", span="2h")}, "expiry.span: is longer than the period"),
        ({"expiry": "24h"}, "expiry: '24h' is no rule; write EventTime"),
        ({"shards": 0}, "store.shards: must be at least 1, found 0"),
        ({"memory": "2"}, "store.memory: a size needs a unit"),
        ({"name": "No Name"}, "`No Name` is not a valid name"),
        ({"surprise": 1}, "surprise"),
        ({"key": []}, "key: must name at least one column"),
        ({"on_new_checkpoint": "ask"}, "write `warn` or `refuse`"),
        ({"unpublished": "ask"}, "write one of refuse, publish, skip"),
    ],
)
def test_settings_are_checked_by_the_constructor(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """As those of a file are, with the same words."""
    with pytest.raises((ConfigError, UsageError)) as told:
        a_deduper(tmp_path, **settings)
    assert message in str(told.value)


def test_one_store_has_one_owner(own: SparkSession, tmp_path: Path) -> None:
    """The second one gets the message that a job gets, and takes over if it is told to."""
    first, second = a_deduper(tmp_path), a_deduper(tmp_path)
    first.split(keys(own, "a"))
    with pytest.raises(OwnerAliveError, match="another process owns this store"):
        second.split(keys(own, "b"))
    third = a_deduper(tmp_path, take_over=True)
    third.finish()
    assert third.split(keys(own, "a", "c")).window.counts["unique"] == 1
    with pytest.raises(deduper.FencedError):
        first.split(keys(own, "d"))
    third.close()
    first.close()


@pytest.mark.night
def test_workers_without_the_package_are_named(own: SparkSession, tmp_path: Path) -> None:
    """With the variable to set, not Spark's traceback alone."""

    def missing(name: str) -> DataFrame:
        def found(_: int) -> tuple[str]:
            raise ModuleNotFoundError(f"No module named '{name}'")

        return own.createDataFrame(own.sparkContext.parallelize([1], 1).map(found), "k string")

    with pytest.raises(UsageError, match="workers has no module deduper: set PYSPARK_PYTHON"):
        a_deduper(tmp_path).split(missing("deduper.tasks"))
    with pytest.raises(PySparkException, match="No module named 'pandas'"):  # of the user's own code
        a_deduper(tmp_path).split(missing("pandas"))


def test_functions_need_a_place_that_spark_reads(own: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a store in an object store are staged there."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    dedup = Deduper("s3://bucket/prefix", key="k", expiry=Never())
    write = dedup.into(**Taken().ports())
    with pytest.raises(UsageError, match="rows for functions are staged beside the store"):
        write(keys(own, "a"), 0)


def test_ports_are_checked(tmp_path: Path) -> None:
    """All four are named, each is something a port can be, and a Deduper has one set of them."""
    dedup = a_deduper(tmp_path)
    with pytest.raises(UsageError, match="error: int is no port"):
        dedup.into(unique=None, duplicate=None, expired=None, error=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expired"):
        dedup.into(unique=None, duplicate=None, error=None)  # type: ignore[call-arg]
    dedup.into(unique=None, duplicate=None, expired=None, error=None)
    with pytest.raises(UsageError, match="a second query needs a store of its own"):
        dedup.into(unique=None, duplicate=None, expired=None, error=None)


def test_rows_between_partitions_keep_their_places(own: SparkSession, tmp_path: Path) -> None:
    """A row's number is its number in its partition, be others empty."""
    rows = own.range(0, 10, 1, 5).filter("id > 3").selectExpr("CAST(id AS STRING) k")
    with a_deduper(tmp_path) as dedup:
        found = dedup.split(rows).unique.select("k", "_dedup.source", "_dedup.position").collect()
        places = [(str(4 + number), f"rows, partition {2 + number // 2}", number % 2) for number in range(6)]
        assert sorted(found) == places
        again = dedup.split(rows.union(rows)).duplicate.select("k", "_dedup.first_seen.*").drop("window", "expiry")
        assert Counter(map(tuple, again.collect())) == Counter(dict.fromkeys(places, 2))


@pytest.mark.parametrize("asked", [["topic", "partition", "offset"], None])
def test_rows_may_name_their_places(asked: list[str] | None, own: SparkSession, tmp_path: Path) -> None:
    """First copies are named by them, whatever the partition that Spark reads them in; so do commands find them."""
    rows = [("a", "clicks", 3, 70), ("b", "clicks", 3, 71), ("c", "clicks", 4, 5), ("d", None, 4, 6)]
    frame = own.createDataFrame(rows, "k string, topic string, partition int, offset bigint").coalesce(1)
    if asked is None:
        frame = frame.selectExpr("k", "concat(topic, '-', partition) as _dedup_source", "offset as _dedup_position")
    with a_deduper(tmp_path, place=asked, first_seen=True) as dedup:
        dedup.split(frame)
        _, duplicate, _, _, _ = dedup.split(frame.filter("k <> 'b'"))
        firsts = {row["k"]: row["_dedup"]["first_seen"] for row in duplicate.collect()}
    assert {key: (first["source"], first["position"]) for key, first in firsts.items()} == {
        "a": ("clicks-3", 70),
        "c": ("clicks-4", 5),
        "d": ("rows, partition 0", 3),
    }


def test_conflicts_of_a_query(own: SparkSession, tmp_path: Path) -> None:
    """Payloads of DataFrames: nested columns, places by columns, errors; rows are named as in a job."""
    taken = Taken()
    kind = "k string, at timestamp, o struct<a: int, l: array<string>>, m map<string, double>, part string, n bigint"
    one = ("x", datetime(2026, 5, 1, tzinfo=UTC), (1, ["p", None]), {"a": 1.0, "b": 0.0})
    same = ("x", datetime(2026, 5, 2, tzinfo=UTC), (1, ["p", None]), {"b": -0.0, "a": 1.0})
    other = ("x", datetime(2026, 5, 1, tzinfo=UTC), (1, ["p"]), {"a": 1.0, "b": 0.0})
    rules = {"fingerprint": {"except": ["at"]}, "on_conflict": "error", "place": ["part", "n"]}
    with a_deduper(tmp_path, **rules) as dedup:
        write = dedup.into(**taken.ports())
        as_query(own, "q")
        for number, rows in enumerate(([one], [same, other])):
            placed = [(*row, "p", 10 * number + at) for at, row in enumerate(rows)]
            write(own.createDataFrame(placed, kind).coalesce(1), number)
    assert [len(taken.rows(port)) for port in PORTS] == [1, 1, 0, 1]
    (copy,), (conflict,) = taken.rows("duplicate"), taken.rows("error")
    assert (copy["_dedup"]["reason"], copy["_dedup"]["fingerprint"]) == ("earlier_window", None)
    assert conflict["_dedup"]["reason"] == "conflict_refused"
    assert conflict["_dedup"]["position"] == 11
    assert conflict["_dedup"]["first_seen"]["source"] == "p"
    assert len({conflict["_dedup"]["fingerprint"], conflict["_dedup"]["first_fingerprint"]}) == 2
    assert "fingerprint" not in taken.rows("unique")[0]["_dedup"]
    stored = open_store(f"file:{tmp_path}/state")
    assert stored.config is not None
    assert [leaf.name for leaf in stored.config.payload or ()] == ["o.a", "o.l", "m"]
    assert stored.log.state.extra[FINGERPRINT][1] == stored.config.payload_identity


def noted(folder: Path) -> list[str]:
    """The names of the source partitions of window 0 in the store."""
    store = open_store(f"file:{folder}/state")
    return sorted(partition.name for partition in SourcesReader(store.root, store.log.state).of(0) or ())


def test_places_may_come_in_any_order(own: SparkSession, tmp_path: Path) -> None:
    """After a sort or a join: the clock runs as rows come, each source has one name, and the store notes it once."""
    names = [("e", 0, 40), ("d", 5, 61), ("c", 4, 51), ("b", 4, 62), ("a", 5, 49)]
    times = [datetime.fromtimestamp(time, UTC) for _, _, time in names]
    rows = [(key, f"s{number % 2}", at, times[number]) for number, (key, at, _) in enumerate(names)]
    kind = "k string, s string, n bigint, ts timestamp"
    frame = own.createDataFrame(rows, kind).repartitionByRange(2, "k").sortWithinPartitions("ts", ascending=False)
    rule = EventTime("ts", period="12s", span="1s", lookup="all_live", max_ahead_of_now="off")
    found = []
    for place in (["s", "n"], None):
        folder = tmp_path / ("named" if place else "plain")
        folder.mkdir()
        with a_deduper(folder, expiry=rule, place=place, first_seen=True) as dedup:
            ports = dedup.split(frame)
            found.append([sorted(row.k for row in rows.collect()) for rows in ports[:4]])
            again = dedup.split(frame.filter("ts >= timestamp_seconds(61)")).duplicate
            named = [(row.k, row.first_seen) for row in again.select("k", "_dedup.first_seen").collect()]
        if place:
            assert {key: (first.source, first.position) for key, first in named} == {"d": ("s1", 5), "b": ("s1", 4)}
            assert noted(folder) == ["s0", "s1"]
            with pytest.raises(UsageError, match="columns name the rows"):
                differences(f"file:{folder}/state", {})
    assert found[0] == found[1] == [["b", "c", "d"], [], ["a", "e"], []]


@pytest.mark.night
def test_thousands_of_sources(own: SparkSession, tmp_path: Path) -> None:
    """A place may be a device: rows of 3,000 in four partitions are judged, and each is noted once."""
    frame = own.range(0, 12_000, 1, 4).selectExpr("CAST(id % 6000 AS STRING) k", "concat('d', id % 3000) s", "id n")
    with a_deduper(tmp_path, place=["s", "n"], first_seen=True) as dedup:
        ports = dedup.split(frame)
        assert dict(ports.window.counts) == {"unique": 6000, "duplicate": 6000, "expired": 0, "error": 0}
        named = ports.duplicate.select("k", "s", "n", "_dedup.*").limit(50).collect()
        assert all((row.source, row.position) == (row.s, row.n) for row in named)
        assert all(row.first_seen.source == row.s and row.first_seen.position == row.n - 6000 for row in named)
    assert len(noted(tmp_path)) == 3000


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("offset", "place: 'offset': write a list"),
        (["offset"], "write a list of columns"),
        (["k", "no"], "place: the DataFrame has no column `no`; it has k"),
        (["k", "k"], "place: `k` is string: the last column is a row's number, a bigint"),
    ],
)
def test_places_are_checked(place: Any, message: str, own: SparkSession, tmp_path: Path) -> None:
    """By the constructor, or by the first batch before anything is written."""
    with pytest.raises(UsageError, match=message):
        a_deduper(tmp_path, place=place).split(keys(own, "a"))
    assert not (tmp_path / "state").exists()


@pytest.mark.night(but=["3"])
@pytest.mark.parametrize("part", range(20))
def test_random_histories(part: int, own: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, failures at every step, functions that raise, lost checkpoints and replays, against a dictionary.

    0 lost, 0 twice, and no function gets rows again without `replayed`. Every other one has large windows: tasks judge
    and write them.
    """
    draw = random.Random(f"{tiers.seed()} {part}")
    for number in range(3 if tiers.is_night() else 1):  # each night has 60 others: 10 took half of a part's time
        with monkeypatch.context() as patch:
            if (part + number) % 2:
                patch.setattr(write_task, "_WRITER_BYTES", 1)
            History(own, tmp_path / str(number), draw, monkeypatch).run(steps=8)


class History:
    """One store, and what becomes of it."""

    POINTS = ("window.1.intent", "window.2.judged", "window.3.durable", "window.4.committed", "window.5.published")

    def __init__(self, session: SparkSession, folder: Path, draw: random.Random, patch: pytest.MonkeyPatch) -> None:
        self.session, self.folder, self.draw, self.patch = session, folder, draw, patch
        folder.mkdir()
        self.raises = False
        self.given: dict[tuple[str, int], list[tuple[str, int]]] = {}  # (port, window) -> (key, n), of the last call
        self.calls: Counter[tuple[str, int]] = Counter()
        self.dedup, self.write = self._opened()
        self.query = 0
        self.batch = -1
        self.rows: list[tuple[str, int]] = []  # of the batch that Spark last asked for
        self.n = 0
        self.judged: list[list[tuple[str, int]]] = []  # rows by window

    def _opened(self) -> tuple[Deduper, Callable[[DataFrame, int], None]]:
        dedup = a_deduper(self.folder)
        return dedup, dedup.into(
            unique=self._port("unique"), duplicate=self._port("duplicate"), expired=None, error=self.folder / "error"
        )

    def _port(self, name: str) -> Callable[[DataFrame, Window], None]:
        def take(rows: DataFrame, window: Window) -> None:
            place = name, window.number
            assert window.replayed or not self.calls[place]
            self.calls[place] += 1
            found = sorted((row.k, row.n) for row in rows.collect())
            assert self.given.setdefault(place, found) == found, "other rows than before"
            if self.raises:
                self.raises = False
                raise OSError("the target is away")

        return take

    def run(self, steps: int) -> None:
        """Some steps, then an end without a fault."""
        for _ in range(steps):
            self._step()
        self._ask_until_done()
        self.dedup.close()
        self._check()

    def _step(self) -> None:
        what = self.draw.choice(("next", "next", "fail", "raise", "again", "new process", "lost checkpoint"))
        if what == "again" and self.batch >= 0:
            self._ask_until_done()  # Spark has lost its commit file
        elif what == "lost checkpoint":
            self.query += 1
            self.batch = -1
        elif what == "new process":
            self.dedup.close()
            self.dedup, self.write = self._opened()
        else:
            self._next()
            if what == "fail":
                name = self.draw.choice(self.POINTS)
                with self.patch.context() as patch:
                    patch.setattr(failpoints, "_ARMED", {name: failpoints._Armed(name, "raise")})
                    with contextlib.suppress(failpoints.FailpointError):
                        self._ask()
            self.raises = what == "raise"
            self._ask_until_done()

    def _next(self) -> None:
        """The next batch of the query."""
        self.batch += 1
        count = self.draw.choice((0, 1, 5, 20))
        self.rows = [(f"k{self.draw.randrange(12)}", self.n + number) for number in range(count)]
        self.n += count
        self.judged.append(self.rows)

    def _ask(self) -> None:
        """Spark calls the function for the batch."""
        as_query(self.session, f"query-{self.query}")
        self.write(self.session.createDataFrame(self.rows, "k string, n int").repartition(2), self.batch)

    def _ask_until_done(self) -> None:
        if self.batch >= 0:
            try:
                self._ask()
            except OSError:
                self._ask()

    def _check(self) -> None:
        seen: set[str] = set()
        for window, rows in enumerate(self.judged):
            keys = Counter(key for key, _ in rows)
            new = keys.keys() - seen
            unique, copies = self.given.get(("unique", window), []), self.given.get(("duplicate", window), [])
            assert Counter(key for key, _ in unique) == Counter(dict.fromkeys(new, 1))
            assert sorted(unique + copies) == sorted(rows), "a row is lost, or there twice"
            seen |= new


def test_the_store_is_looked_at_as_a_jobs(own: SparkSession, tmp_path: Path) -> None:
    """By its URL alone: verify reads all outputs, explain finds the copies; metrics have the dashboard's names."""
    free = free_port()
    dedup = a_deduper(tmp_path, metrics_port=free, name="clicks")
    topic = deduper.TopicSink("unsent", "localhost:1", {"kafka.ssl.key.password": "hidden", "kafka.linger.ms": "5"})
    with pytest.raises(UsageError):
        dedup.into(unique=3, duplicate=topic, expired=None, error=None)  # type: ignore[arg-type]
    write = dedup.into(unique=tmp_path / "unique", duplicate=tmp_path / "duplicate", expired=None, error=None)
    write(keys(own, "a", "b", "a"), 0)
    write(keys(own, "a", "c"), 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{free}/metrics") as page:
        text = page.read().decode()
    assert 'deduper_job_info{expiry="never",name="clicks",source="query"' in text
    assert 'deduper_records_total{verdict="duplicate"} 2.0' in text
    store = open_store(f"file:{tmp_path}/state")
    assert store.config is not None
    assert verify_store(store).findings == ()
    found = explain(store, ["a"])
    read = {
        (f"batch {batch}, partition {part}", row): {"k": key}
        for batch, parts in enumerate((("a", "ba"), ("a", "c")))
        for part, of_part in enumerate(parts)
        for row, key in enumerate(of_part)
    }
    assert differences(f"file:{tmp_path}/state", read) == []
    assert [copy.verdict for copy in found.copies] == ["unique", "duplicate", "duplicate"]
    assert found.copies[0].place == "batch 0, partition 0:0"
    dedup.close()
    secret = query_config(
        {"name": "x", "key": "k", "expiry": {"by": "never"}, "store": {"url": "file:/x"}},
        QuerySource(parsed_columns=(column_of("k", "string"),), arrow=()),
        {port: {"format": "none"} for port in PORTS} | {"unique": topic.section()},
    )
    assert b"hidden" not in described(secret)
    again = query_of(described(secret), "file:/y")
    assert again is not None
    assert again.topic_ports["unique"].options == {"kafka.linger.ms": "5"}
    assert query_of(b"{", "file:/y") is None


def test_settings_of_a_jobs_file(own: SparkSession, tmp_path: Path) -> None:
    """Key, expiry and store are its own; mistakes have their line."""
    file = tmp_path / "clicks.yaml"
    file.write_text(
        """\
name: clicks
source: {format: files, path: in, file_format: json, schema: "k string, ts timestamp"}
key: k
expiry: {by: event_time, field: ts, period: 24h, lookup: all_live, max_ahead_of_now: off}
store: {url: "file:state", shards: 2}
sinks:
  unique: {format: none}
  duplicate: {format: none}
  expired: {format: none}
  error: {format: none}
"""
    )
    with Deduper.from_config(file, overrides=["store.shards=3"]) as dedup:
        assert dedup.name == "clicks"
        rows = own.sql("SELECT k, TIMESTAMP '2030-01-01 00:00:00' ts FROM VALUES ('a'), ('a') AS v(k)")
        assert dedup.split(rows).window.counts == {"unique": 1, "duplicate": 1, "expired": 0, "error": 0}
    store = open_store(f"file:{tmp_path}/state")
    assert store.settings["shards"] == 3
    assert store.config is not None
    assert store.config.expiry.model_dump()["period"] == 24 * 3_600_000_000
    file.write_text(file.read_text().replace("24h", "soon"))
    with pytest.raises(ConfigError, match=r"clicks.yaml:4:45: expiry.period: `soon` is not a duration"):
        Deduper.from_config(file)
