"""Publishing beside the judging of the next window: every order of events, and what a start finds after each death."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.errors import FencedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import PUBLISHED_NAME, read_intents, read_published
from bucket_store.log.profile import read_profiles
from bucket_store.log.records import CommitRecord, LogState, OutputFile
from bucket_store.pieces.open import open_backend
from deduper.admin.open_store import open_store
from deduper.admin.orphans import OrphanKind, orphans
from deduper.admin.status import store_status
from deduper.admin.verify.run import verify_store
from deduper.config.load import load_config
from deduper.core.statistics import SpanCounts
from deduper.errors import DeduperError, StopRequested, UsageError
from deduper.kafka.offsets import ENDS, End, TopicPartition, ends_to_wire
from deduper.service.current_step import CurrentStep
from deduper.service.stop import Stop
from deduper.service.windows import Reports, Windows
from deduper.sinks import staging
from deduper.sinks.names import STAGING, Attempt, TopicPlace, function_place
from deduper.sources.protocol import BatchPartition
from deduper.tasks.judge import Receipt
from deduper.window import recovery
from deduper.window.attempt import Judgement
from deduper.window.progress import BatchProgress
from deduper.window.publishing import Publishing, publish_window
from deduper.window.runner import WindowInput, WindowRunner
from tests.deduper.staged_file import described

NOW_US = 1_700_000_000_000_000
SOON_S = 30.0
CONFIG = """\
name: clicks
source: {format: kafka, bootstrap_servers: "127.0.0.1:9", topics: [in], value: {format: json, schema: "k string"}}
key: k
expiry: {by: never}
store: {url: "file:state", shards: 1}
sinks:
  unique: {format: none}
  duplicate: {format: parquet, path: out/duplicate}
  expired: {format: none}
  error: {format: kafka, topic: err}
"""


class Died(BaseException):
    """The process ends here."""


class Topics:
    """Topics that take a window's rows when `gate` is open, or raise `failure`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.failure: BaseException | None = None
        self.then: Callable[[], object] = lambda: None
        self.begun: list[int] = []
        self.sent: list[int] = []
        self.threads: list[int] = []

    def extra(self) -> dict[str, Any]:
        """Nothing is known of them."""
        return {}

    def publish(self, window: int, outputs: Sequence[tuple[OutputFile, TopicPlace]]) -> None:
        """As `KafkaPorts` does."""
        self.begun.append(window)
        assert [place.topic for _, place in outputs] == ["err"]
        assert all(Path(output.staged).is_file() for output, _ in outputs)
        assert self.gate.wait(SOON_S), "the gate was never opened"
        self.then()
        if self.failure is not None:
            raise self.failure
        self.sent.append(window)
        self.threads.append(threading.get_ident())


class Job:
    """A job with a topic and files as ports, judged as a driver does, without Spark and brokers."""

    def __init__(self, directory: Path, config: str = CONFIG) -> None:
        self.file = directory / "clicks.yaml"
        self.file.write_text(config, encoding="utf-8")
        self.config = load_config(self.file)
        self.topics = Topics()
        self.reported: list[BatchProgress] = []
        self.ports = ("duplicate", "error")
        self.start()

    def start(self) -> None:
        """A driver: claims and recovers."""
        self.attempts = 0
        self.log = recovery.open_or_create(self.config, NOW_US)
        self.log.claim_epoch("test", NOW_US)
        self.pieces = open_backend(self.config.store.url)
        recovery.recover(self.config, recovery.Ownership(self.log, self.pieces), self.topics)
        self.runner = WindowRunner(self.config, self.log, self.pieces, self.judge, lambda: NOW_US, self.topics)

    def judge(self, batch: Any, state: LogState, wall_us: int) -> Judgement:
        """One row for each port."""
        attempt = Attempt(state.next_window, state.epoch, self.attempts)
        self.attempts += 1
        targets = staging.make_staging(self.config, attempt)
        staged = {}
        for port in self.ports:
            file = targets[port].local / f"{port}-0.parquet"
            table = pa.table({"key": pa.array([b"k"]), "slot": pa.array([0], pa.int32())})
            parquet.write_table(table, file)
            staged[port] = [described(port, file, 1, (0,) if port == "error" else ())]
        counts = tuple(int(port in self.ports) for port in ("unique", "duplicate", "expired", "error"))
        receipt = Receipt(
            0, counts, {"same_window": counts[1], "malformed": counts[3]}, None, None, None, (), {0: sum(counts)}, {}
        )
        return Judgement(attempt, batch, {0: receipt}, staged, None, sum(counts))

    def batch(self) -> WindowInput:
        """The next offsets of a partition."""
        start = 2 * self.log.state.next_window
        source = SimpleNamespace(
            partitions=(BatchPartition("in-0", bytes(15) + bytes([start]), "topic", start + 2, start),),
            is_known_by_digests=False,
            extra=lambda: {ENDS: ends_to_wire({TopicPartition("in", 0): End("topic", start + 2)})},
        )
        return WindowInput("query", start, cast(Any, source))

    def run(self) -> None:
        """A window."""
        self.runner.run(self.batch(), self.reported.append)

    @property
    def mark(self) -> int:
        """The greatest published window."""
        found = read_published(self.log.root / PUBLISHED_NAME)
        assert found is not None
        return found.window

    @property
    def committed(self) -> int:
        """The windows that are committed, to a reader."""
        return CommitLog.open(self.log.root).state.next_window

    @property
    def staged(self) -> list[int]:
        """The windows that have a staging folder."""
        homes = (self.config.store.path, self.config.file_ports["duplicate"].path)
        names = {path.name for home in homes for path in home.glob(f"{STAGING}/*")}
        return sorted(found.window for name in names if (found := Attempt.of_folder(name)) is not None)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Whose ports are a topic, exactly once, and files."""
    return Job(tmp_path)


def until(claim: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + SOON_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Does something each time a failpoint is passed."""
    actions: dict[str, Callable[[], object]] = {}
    monkeypatch.setattr(failpoints, "hit", lambda name: actions.get(name, lambda: None)())
    return actions.__setitem__


def gated_by_the_wait(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let topics take rows only once the judging thread waits for them."""
    wait = Publishing.wait

    def opening(publishing: Publishing) -> float | None:
        job.topics.gate.set()
        return wait(publishing)

    monkeypatch.setattr(Publishing, "wait", opening)


def test_a_slow_publication_delays_the_next_commit_and_nothing_else(
    job: Job, at: Callable[[str, Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next window is judged and durable meanwhile; its record is placed when the mark is there."""
    job.run()
    seen = []

    def look() -> None:
        (intent,) = read_intents(job.log.root)
        seen.append((job.committed, job.mark, job.topics.sent.copy(), job.staged, intent.window))

    at("window.3.durable", look)
    at("window.4.committed", look)
    gated_by_the_wait(job, monkeypatch)
    job.run()
    assert seen == [(1, -1, [], [0, 1], 1), (2, 0, [0], [1], 1)]
    job.runner.wait_until_published()
    assert (job.mark, job.topics.sent, job.staged) == (1, [0, 1], [])
    records = [record for record in job.log.records() if isinstance(record.body, CommitRecord)]
    assert [record.published_through for record in records] == [-1, 0]


def test_a_quick_publication_is_marked_before_the_next_window_is_judged(
    job: Job, at: Callable[[str, Callable[[], object]], None]
) -> None:
    """Readers of whole windows do not wait for the next one, which may never come."""
    job.topics.gate.set()
    job.run()
    until(lambda: job.mark == 0 and len(job.reported) == 1)
    at("window.2.judged", job.topics.gate.clear)
    job.run()
    assert (job.committed, job.mark) == (2, 0)
    job.topics.gate.set()
    job.runner.wait_until_published()
    assert job.mark == 1


def test_a_window_is_reported_when_it_is_published(job: Job) -> None:
    """Not at its commit; in the order of the windows, with what it has waited and the seconds beside the next one."""
    job.run()
    assert job.reported == []
    job.topics.gate.set()
    job.run()
    job.runner.wait_until_published()
    assert [progress.window for progress in job.reported] == [0, 1]
    first, second = (progress.phases for progress in job.reported)
    assert "wait" not in first
    assert list(second) == ["intent", "judge", "durable", "wait", "commit", "expire", "measure", "send"]
    assert job.reported[1].seconds >= sum(seconds for name, seconds in second.items() if name != "send")
    job.runner.close()
    assert [set(profile.phases) for profile in read_profiles(job.log.root)] == [set(first), set(second)]


def test_a_held_window_is_reported_before_it_is_published(job: Job) -> None:
    """Its rows are with the caller, who may use them for as long as the next window does not come."""
    job.runner.close()
    job.runner = WindowRunner(job.config, job.log, job.pieces, job.judge, lambda: NOW_US, job.topics, is_held=True)
    job.topics.gate.set()
    job.run()
    assert ([progress.window for progress in job.reported], job.topics.sent) == ([0], [])
    job.runner.wait_until_published()
    assert ([progress.window for progress in job.reported], job.topics.sent, job.mark) == ([0], [0], 0)


def test_a_report_that_fails_ends_the_job(job: Job) -> None:
    """Whatever thread it is made on: a window that nobody heard of is not passed over."""

    def fail(_: BatchProgress) -> None:
        raise BrokenPipeError

    job.runner.run(job.batch(), fail)
    job.topics.gate.set()
    with pytest.raises(BrokenPipeError):
        job.runner.wait_until_published()
    assert (job.mark, job.topics.sent) == (0, [0])


def test_a_publication_that_fails_stops_the_next_commit(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """With its own error, every time; the next start publishes the window and discards what was judged after it."""
    job.run()
    job.topics.failure = DeduperError("a record is too large")
    job.topics.gate.set()
    for _ in range(2):
        with pytest.raises(DeduperError, match="too large"):
            job.run()
        assert (job.committed, job.mark) == (1, -1)
    job.runner.close()
    assert "too large" not in caplog.text, "it was raised"
    assert job.reported == []
    job.topics.failure = None
    job.start()
    assert (job.topics.sent, job.mark, job.committed, job.staged) == ([0], 0, 1, [])
    job.run()
    job.runner.wait_until_published()
    assert (job.topics.sent, job.mark) == ([0, 1], 1)


def test_a_failure_that_no_window_waits_for_is_logged(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Another failure ends the job: the message has that one, the log both."""
    job.run()
    job.topics.failure = DeduperError("a record is too large")
    threading.Timer(0.05, job.topics.gate.set).start()
    job.runner.close()
    assert "the last window is committed, the next start publishes it: a record is too large" in caplog.text


def test_an_owner_that_is_overtaken_while_it_sends_marks_and_commits_nothing(
    job: Job, at: Callable[[str, Callable[[], object]], None]
) -> None:
    """The new owner publishes the window; the old one leaves no prepared mark, whenever it notices."""
    job.run()
    old = job.log

    def overtake() -> None:
        at("window.3.durable", lambda: None)
        job.topics.gate.set()
        job.start()

    at("window.3.durable", overtake)
    runner = job.runner
    with pytest.raises(FencedError):
        job.run()
    assert (job.committed, job.mark) == (1, 0)
    assert job.log is not old
    assert runner.publication_failure is None or isinstance(runner.publication_failure, FencedError | FileNotFoundError)
    assert not list(job.file.parent.rglob("*.tmp"))


def test_a_claim_that_was_read_elsewhere_prepares_no_mark_of_the_new_epoch(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads read the log: the mark is prepared for the owner's own epoch, whatever the state says by now.

    So the next start would find it after a death, and an owner that lives removes it itself.
    """
    job.run()
    prepared: list[str] = []
    check = CommitLog.check_owner

    def listing(log: CommitLog) -> None:
        prepared.extend(path.name.split(".")[2] for path in job.file.parent.rglob(".*published.*.tmp"))
        check(log)

    monkeypatch.setattr(CommitLog, "check_owner", listing)

    def overtaken() -> None:
        CommitLog.open(job.log.root).claim_epoch("other", NOW_US)
        with pytest.raises(FencedError):
            job.log.check_owner()

    job.topics.then = overtaken
    job.topics.gate.set()
    with pytest.raises(FencedError):
        job.runner.wait_until_published()
    assert prepared == ["000001", "000001"], "of the store, and of the one port of files"
    assert not list(job.file.parent.rglob("*.tmp"))
    job.topics.then = lambda: None
    job.start()
    assert job.mark == 0


def test_a_window_without_rows_for_a_topic_is_published_at_once(job: Job) -> None:
    """After the one before, whose sending it waits for."""
    job.run()
    job.ports = ("duplicate",)
    job.topics.gate.set()
    job.run()
    assert (job.mark, job.topics.sent, job.staged) == (1, [0], [])
    assert [progress.window for progress in job.reported] == [0, 1]
    assert len(list(job.config.file_ports["duplicate"].path.glob("*.parquet"))) == 2


def test_rows_for_functions_are_not_passed_over(job: Job) -> None:
    """Only the query that has staged them can call the functions: until then the window is not published."""
    job.topics.gate.set()
    job.run()
    job.runner.wait_until_published()
    output = OutputFile("unique", "staged", function_place("unique"), 1, 1, 1)
    with pytest.raises(UsageError, match="window 1 has rows for the functions of a query: start the query that has"):
        publish_window(job.config, job.log, 1, [output], job.topics)
    assert job.mark == 0


@pytest.mark.parametrize(("order", "cause"), [("time", "in spite of `order: time`"), ("arrival", "`source: {order")])
def test_the_cause_of_expired_rows_is_by_the_order_of_the_source(tmp_path: Path, order: str, cause: str) -> None:
    """What is set already is no advice."""
    source = "format: kafka, order: time, slack: 10m," if order == "time" else "format: kafka,"
    config = CONFIG.replace("format: kafka,", source, 1).replace('"k string"', '"k string, t timestamp"')
    job = Job(tmp_path, config.replace("{by: never}", "{by: event_time, field: t, period: 1h, span: 10m}"))
    job.ports = ("duplicate",)

    def judge(batch: Any, state: LogState, wall_us: int) -> Judgement:
        judgement = job.judge(batch, state, wall_us)
        receipt = replace(judgement.receipts[0], counts=(0, 1, 4, 0), max_admitted=NOW_US)
        return replace(judgement, receipts={0: receipt}, rows=5, lateness=SpanCounts.of([(72 * 3.6e9, 4)]), behind=4)

    job.runner = WindowRunner(job.config, job.log, job.pieces, judge, lambda: NOW_US, job.topics)
    job.run()
    job.runner.wait_until_published()
    assert cause in str(job.reported[0].expired_cause)


# What a start finds. The publication of window 0 hangs, and the process dies while window 1 is at a point.

DEATHS = {
    # point: whether window 1 has an intent, and a staging folder
    "window.0.batch": (False, False),
    "window.1.intent": (True, False),
    "window.2.judged": (True, True),
    "window.3.synced": (True, True),
    "window.3.durable": (True, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("point", [*DEATHS, "no batch"])
def test_a_death_while_a_window_is_sent_loses_and_repeats_nothing(
    job: Job, at: Callable[[str, Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The store is sound, with one unpublished window and no orphan to delete; a start publishes it, and once."""

    def die() -> None:
        raise Died

    monkeypatch.setattr(
        "deduper.admin.status.source_lag", lambda _: None
    )  # no broker is there, which takes seconds to find out
    job.run()
    until(lambda: job.topics.begun == [0])
    if point in DEATHS:
        at(point, die)
        with pytest.raises(Died):
            job.run()
        at(point, lambda: None)
    has_intent, is_staged = DEATHS.get(point, (False, False))
    assert read_intents(job.log.root)[-1].window == int(has_intent)
    assert job.staged == ([0, 1] if is_staged else [0])
    store = open_store(str(job.file))
    assert verify_store(store).findings == ()
    assert [left for left in orphans(store) if left.kind is OrphanKind.STAGING and left.is_abandoned] == []
    status = store_status(store, last=1)
    assert (status.published_through, status.unpublished) == (None, (0,))

    hanging, sleeper, job.topics = job.topics, job.runner, Topics()
    job.topics.gate.set()
    job.start()
    assert (job.topics.sent, job.mark, job.committed, job.staged) == ([0], 0, 1, [])
    job.run()
    job.runner.wait_until_published()
    assert (job.topics.sent, job.mark, job.staged) == ([0, 1], 1, [])
    assert verify_store(open_store(str(job.file))).findings == ()
    # The process that slept in the publication is fenced by Kafka; if it were not, it would still mark nothing.
    hanging.gate.set()
    until(lambda: sleeper.publication_failure is not None)
    assert isinstance(sleeper.publication_failure, FencedError)
    assert job.mark == 1


@pytest.mark.parametrize("point", ["log.written", "log.linked", "window.4.committed"])
def test_a_death_at_the_commit_after_the_wait(
    job: Job, at: Callable[[str, Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The window before is marked: a start publishes the next one if its record is there, and no other."""

    def die() -> None:
        raise Died

    job.run()
    gated_by_the_wait(job, monkeypatch)
    at(point, die)
    with pytest.raises(Died):
        job.run()
    at(point, lambda: None)
    is_committed = point != "log.written"
    assert (job.mark, job.topics.sent, job.committed) == (0, [0], 1 + is_committed)
    job.start()
    assert (job.topics.sent, job.mark) == (([0, 1], 1) if is_committed else ([0], 0))
    assert verify_store(open_store(str(job.file))).findings == ()


# The run around it.


def windows_of(job: Job, most: int | None = None) -> tuple[Windows, Stop, Reports]:
    """As `service.job` makes them."""
    stop, reports = Stop(), Reports(job.reported.append)
    return Windows(job.log, job.runner, reports, stop, CurrentStep(), most), stop, reports


def make(windows: Windows, job: Job) -> None:
    """The window of a batch."""
    batch = job.batch()
    with windows.attempted():
        windows.make(batch.source, batch.batch_id, judged=lambda _: None)


def test_a_run_ends_when_its_last_window_is_published(job: Job) -> None:
    """At the end of the source, or at a stop between two batches."""
    windows, _, reports = windows_of(job)
    make(windows, job)
    assert (windows.failure, reports.windows) == (None, 0)
    threading.Timer(0.05, job.topics.gate.set).start()
    windows.wait_until_published()
    assert (windows.failure, reports.windows, job.mark) == (None, 1, 0)
    assert reports.totals == {"unique": 0, "duplicate": 1, "expired": 0, "error": 1}


def test_what_is_left_is_told_by_the_rate_since_there_was_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not since the start: a source that had nothing for a day would take a day for its next file."""
    now = [0.0]
    monkeypatch.setattr("deduper.service.windows.time.monotonic", lambda: now[0])
    source, left = SimpleNamespace(pending=0, changed=0), list[Any]()
    reports = Reports(lambda progress: left.append(progress.left))

    def judge(pending: int) -> None:
        now[0] += 10
        source.pending = pending
        reports.window_ended(BatchProgress(0, 0, 1, 1, 0, 0, 0, 10.0, 0.1))

    for listed in (3, 2):
        source.pending = listed
        reports.listed(cast(Any, source))
        while source.pending:
            judge(source.pending - 1)
        now[0] += 86_400
    assert [(one.count, one.seconds) for one in left] == [(2, 20), (1, 10), (0, 0), (1, 10), (0, 0)]


def test_the_limit_of_windows_stops_after_the_publication(job: Job) -> None:
    """A stop before it would cut the waits for brokers short."""
    windows, stop, reports = windows_of(job, most=1)
    job.topics.then = lambda: stopped.append(stop.is_requested)
    stopped: list[bool] = []
    job.topics.gate.set()
    make(windows, job)
    assert (stopped, stop.reason, reports.windows) == ([False], "max_windows", 1)


def test_a_stop_while_a_window_waits_for_the_one_before(job: Job) -> None:
    """The brokers do not answer, and the publication gives up: no failure, nothing is committed."""
    windows, stop, _ = windows_of(job)
    make(windows, job)
    job.topics.failure = StopRequested("stopped while waiting for the brokers")
    job.topics.then = lambda: stop.request("signal")
    job.topics.gate.set()
    with pytest.raises(StopRequested):
        make(windows, job)
    windows.between()
    windows.wait_until_published()
    assert (windows.failure, stop.reason, job.committed, job.mark) == (None, "signal", 1, -1)


def test_a_failed_publication_ends_an_idle_job(job: Job) -> None:
    """No batch may ever come: it is noticed between two."""
    windows, stop, _ = windows_of(job)
    make(windows, job)
    windows.between()
    assert windows.failure is None
    job.topics.failure = DeduperError("a record is too large")
    job.topics.gate.set()
    until(lambda: job.runner.publication_failure is not None)
    windows.between()
    assert windows.failure is job.topics.failure
    assert stop.is_requested
    with pytest.raises(StopRequested):
        make(windows, job)


def test_a_failed_publication_that_a_takeover_explains(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The run ends as fenced, whatever broke first."""
    windows, _, _ = windows_of(job)
    make(windows, job)

    def overtaken() -> None:
        CommitLog.open(job.log.root).claim_epoch("other", NOW_US)
        raise FileNotFoundError("a staged file")

    job.topics.then = overtaken
    job.topics.gate.set()
    with caplog.at_level(logging.ERROR):
        windows.wait_until_published()
    assert isinstance(windows.failure, FencedError)
