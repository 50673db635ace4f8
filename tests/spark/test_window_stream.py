"""The job as a streaming query: Spark's triggers and events, windows of ours, and every way it ends."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from deduper.errors import DeduperError, SourceAwayError, StopRequested
from deduper.service import stream
from deduper.service.current_step import CurrentStep
from deduper.service.stop import Stop
from deduper.service.stream import WindowStream
from deduper.service.windows import Reports, Windows
from tests.spark.harness import Job

pytestmark = [pytest.mark.spark, pytest.mark.query]


class Source:
    """Gives batches by their names; None where a trigger finds nothing new."""

    place = "/in"

    def __init__(self, *batches: str | Exception | None) -> None:
        self.batches = list(batches)
        self.begun: list[bool] = []
        self.done: list[str] = []
        self.put_offs = 0
        self.came: dict[str, Any] = {}
        """By the names of batches: what they are when Spark begins them."""
        self.then: Callable[[], None] = lambda: None

    def begin(self, *, drain: bool) -> None:
        self.begun.append(drain)

    def next_batch(self) -> Any:
        self.then()
        given = self.batches.pop(0) if self.batches else None
        if isinstance(given, Exception):
            raise given
        return None if given is None else SimpleNamespace(name=given, partitions=(part(given),))

    def newest(self, batch: Any) -> Any:
        return self.came.get(batch.name, batch)

    def judged(self, batch: Any) -> None:
        self.done.append(batch.name)

    def put_off(self, reason: SourceAwayError) -> None:
        self.put_offs += 1
        if self.begun[-1]:
            raise reason


def part(name: str) -> Any:
    """A source partition."""
    return SimpleNamespace(name=name, start=0, end=len(name))


class Made(Windows):
    """Windows without a store: the names of their batches. `act` is called in each."""

    def __init__(self, source: Source, act: Callable[[str], None] = lambda _: None) -> None:
        self.source, self.act, self.stop = source, act, Stop()
        self.checks = 0
        log = SimpleNamespace(state=SimpleNamespace(next_window=0, epoch=1), epoch=1, check_owner=self._check)
        runner = SimpleNamespace(publication_failure=None)
        super().__init__(*cast(Any, (log, runner, Reports(lambda _: None), self.stop, CurrentStep(), None)))

    def _check(self) -> None:
        self.checks += 1

    def make(self, batch: Any, batch_id: int, judged: Callable[[Any], None]) -> None:
        self.act(batch.name)
        judged(batch)

    def run(self, session: SparkSession, *, drain: bool, trigger_ms: int = 0) -> list[str]:
        """Run the query to its end; the batches that were judged."""
        with tempfile.TemporaryDirectory() as folder:
            scratch = contextlib.nullcontext(Path(folder))
            made = WindowStream(cast(Any, self.source), self, self.stop, CurrentStep(), session, scratch)
            made.run("made", drain=drain, trigger_ms=trigger_ms)
        return self.source.done


class Events(StreamingQueryListener):
    """What a listener of Spark's hears of a query. Events come late: those of an earlier query are none of this one."""

    def __init__(self) -> None:
        self.run_ids: list[Any] = []
        self.names: list[str | None] = []
        self.batches: list[int] = []
        self.offsets: list[str] = []
        self.ends: list[str | None] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.run_ids.append(event.runId)
        self.names.append(event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if event.progress.runId in self.run_ids:
            self.batches.append(event.progress.batchId)
            self.offsets.append(event.progress.sources[0].endOffset)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.runId in self.run_ids:
            self.ends.append(event.exception)

    def ended(self) -> None:
        """Wait for the end of a query."""
        until = time.monotonic() + 30
        while not self.ends:
            assert time.monotonic() < until
            time.sleep(0.02)


@pytest.fixture
def events(session: SparkSession) -> Iterator[Events]:
    """Those of all queries of the session."""
    heard = Events()
    session.streams.addListener(heard)
    yield heard
    session.streams.removeListener(heard)


def test_a_drained_job_is_a_query_with_an_event_a_window(new_job: Callable[..., Job], events: Events) -> None:
    """Under the job's name, with batches from 0; and it ends without an error."""
    job = new_job(source={"max_files_per_batch": 1})
    for number in range(3):
        job.add_records([{"k": f"k{number}", "t": 1}])
    assert job.run().windows == 3
    events.ended()
    assert events.names == ["test"]
    assert events.batches == [0, 1, 2]
    assert events.offsets == ["0", "1", "2"]
    assert events.ends == [None]


def test_a_window_at_each_trigger_until_a_stop(session: SparkSession) -> None:
    """Triggers without anything new are no batches; the owner is checked meanwhile."""
    made = Made(Source(None, "a", None, "b", "last"), lambda name: made.stop.request("max") if name == "last" else None)
    began = time.monotonic()
    assert made.run(session, drain=False, trigger_ms=100) == ["a", "b", "last"]
    assert time.monotonic() - began >= 0.3
    assert made.checks
    assert made.failure is None


def test_a_source_is_drained_to_its_end(session: SparkSession, events: Events) -> None:
    """A plan without a batch is the end."""
    source = Source("a", "b")
    assert Made(source).run(session, drain=True) == ["a", "b"]
    assert source.begun == [True]
    events.ended()
    assert (events.batches, events.ends) == ([0, 1], [None])
    assert Made(Source()).run(session, drain=True) == []


def test_a_window_has_what_has_come_until_spark_begins_it(session: SparkSession) -> None:
    """The source is asked once more then."""
    source = Source("a", "b", "c")
    source.came["b"] = SimpleNamespace(name="b and more", partitions=(part("b"),))
    assert Made(source).run(session, drain=True) == ["a", "b and more", "c"]


def test_a_failure_of_a_window_ends_the_query_with_it(session: SparkSession, events: Events) -> None:
    """It is kept for who ends the run, and listeners are told."""

    def fail(name: str) -> None:
        if name == "b":
            raise DeduperError(f"cannot judge {name}")

    made = Made(Source("a", "b", "c"), fail)
    assert made.run(session, drain=True) == ["a"]
    assert str(made.failure) == "cannot judge b"
    events.ended()
    assert "cannot judge b" in str(events.ends)


def test_a_failure_of_a_plan_ends_the_query(session: SparkSession) -> None:
    """Offsets that are gone, for instance."""
    made = Made(Source("a", DeduperError("offsets are gone"), "c"))
    assert made.run(session, drain=False) == ["a"]
    assert str(made.failure) == "offsets are gone"


def test_a_stop_lets_the_window_come_to_its_end(session: SparkSession) -> None:
    """And no other one begins."""
    is_in, may_go = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        is_in.set()
        assert may_go.wait(30)

    made = Made(Source("a", "b"), wait)

    def stop() -> None:
        assert is_in.wait(30)
        made.stop.request("signal")
        time.sleep(0.3)
        may_go.set()

    threading.Thread(target=stop).start()
    assert made.run(session, drain=False) == ["a"]
    assert made.failure is None


@pytest.mark.parametrize("where", ["plan", "window"])
def test_a_stop_amid_the_work_leaves_its_records_to_the_next_start(session: SparkSession, where: str) -> None:
    """What waits for brokers gives up: no failure, nothing judged."""

    def give_up(_: str = "") -> None:
        made.stop.request("signal")
        raise StopRequested("stopped while waiting for the brokers")

    source = Source("a")
    made = Made(source, give_up if where == "window" else lambda _: None)
    if where == "plan":
        source.then = give_up
    assert made.run(session, drain=False) == []
    assert made.failure is None


@pytest.mark.night(but=["window"])
@pytest.mark.parametrize("where", ["plan", "window"])
def test_files_that_are_away_are_put_off(session: SparkSession, where: str) -> None:
    """The next trigger looks again; a run that drains ends."""
    left = [SourceAwayError("/in: it is away")]

    def away_once(name: str) -> None:
        if where == "window" and left:
            raise left.pop()
        if name == "last":
            made.stop.request("max")

    first = SourceAwayError("/in: it is away") if where == "plan" else "a"
    made = Made(Source(first, "b", "last"), away_once)
    assert made.run(session, drain=False) == ["b", "last"]
    assert (made.failure, made.source.put_offs) == (None, 1)
    left[:] = [SourceAwayError("/in: it is away")]
    made = Made(Source(first, "b", "last"), away_once)
    assert made.run(session, drain=True) == []
    assert isinstance(made.failure, SourceAwayError)


def test_another_owner_ends_an_idle_query(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have taken the store while this one was frozen, and no file may ever come."""
    monkeypatch.setattr(stream, "_OWNER_CHECK_S", 0.1)
    made = Made(Source())
    check = made._check

    def fenced() -> None:
        check()
        if made.checks == 3:
            made.stop.request("fenced")

    cast(Any, made)._log.check_owner = fenced
    assert made.run(session, drain=False) == []
    assert made.stop.reason == "fenced"


def test_a_stop_before_the_run_is_a_stop(session: SparkSession) -> None:
    """A signal comes while the source is opened: nothing is listed."""
    made = Made(Source("a"))
    made.stop.request("signal")
    assert made.run(session, drain=True) == []
    assert (made.failure, made.source.begun) == (None, [])


def test_a_query_that_another_program_stops_is_not_drained(session: SparkSession) -> None:
    """The session may be somebody else's."""

    def stop(_: str = "") -> None:
        for query in session.streams.active:
            query.stop()

    source = Source(None, None)
    source.then = stop
    with pytest.raises(DeduperError, match="Spark has ended the job's query: another program has stopped it"):
        Made(source).run(session, drain=False, trigger_ms=50)


def test_a_planner_that_cannot_reach_spark_ends_the_run(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no query that waits for ever."""

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("deduper.spark.planned_batches.PlannedBatches.add", fail)
    monkeypatch.setattr(stream, "_ENDS_S", 1)
    made = Made(Source("a"))
    assert made.run(session, drain=True) == []
    assert str(made.failure) == "out of memory"


def test_the_shortest_trigger_does_not_spin(session: SparkSession) -> None:
    """A source without anything new is asked a hundred times a second at most."""
    source, asked = Source(), list[float]()
    made = Made(source)

    def count() -> None:
        asked.append(time.monotonic())
        if asked[-1] - asked[0] > 0.5:
            made.stop.request("max")

    source.then = count
    assert made.run(session, drain=False, trigger_ms=0) == []
    assert len(asked) < 100
