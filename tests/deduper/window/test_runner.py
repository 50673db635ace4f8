"""One window from its batch to its mark, judged as a test says: the record, the order, what follows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.errors import FencedError
from bucket_store.filesystem import is_temporary
from bucket_store.log import sources_file
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Published, read_intents, read_published
from bucket_store.log.profile import read_profiles
from bucket_store.log.records import ClaimRecord, CommitRecord, DeletionRecord, LogState, OutputFile
from bucket_store.log.sources_archive import SourcesReader, files_of, remove_left
from bucket_store.maintenance.compactions import Compactions
from bucket_store.maintenance.unnamed_pieces import EVERY_S, UnnamedPieces
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import local_place
from bucket_store.places.place import Place, Prepared
from bucket_store.tables.matches import TableLayout
from bucket_store.threads import on_a_thread
from deduper.config.model import Config
from deduper.core.statistics import SpanCounts, Statistics
from deduper.errors import UsageError
from deduper.sinks import names, staging
from deduper.sinks.names import Attempt, TopicPlace
from deduper.sources.files import folding
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.folding import FilesToFold
from deduper.sources.files.judged import FOLDER, KnownFiles
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.judge import Receipt
from deduper.testing import Settings
from deduper.window import left_sources, policy, publishing, recovery
from deduper.window import runner as window_run
from deduper.window.attempt import Judgement
from deduper.window.progress import BatchProgress
from deduper.window.runner import WindowInput, WindowRunner
from tests.bucket_store.maintenance.in_process import InProcess
from tests.bucket_store.table_samples import entries_of, random_keys
from tests.deduper.small_service import BEGIN_US, Trial
from tests.deduper.staged_file import staged_file
from tests.deduper.unread import UNREAD
from tests.deduper.window.last_moment import when_waited_for
from tests.tiers import is_night

SECOND_US = 1_000_000
DAY_US = 86_400_000_000
NONE = (0, 0, 0, 0)
ORDERED = Settings("ordered", period=20, span=10)


def receipt(shard: int, counts: tuple[int, int, int, int] = NONE, **changes: Any) -> Receipt:
    """Of a shard that has judged so many, and remembers nothing."""
    nothing = Receipt(shard, counts, {}, None, None, None, (), {0: sum(counts)}, {})
    return replace(nothing, **changes)


class Job:
    """A job whose windows are judged as a test says; `said` are the receipts of the next one."""

    def __init__(
        self,
        directory: Path,
        settings: Settings = ORDERED,
        *,
        backend: str = "file",
        snapshot_every: int = 1000,
        fold_windows: int | None = None,
        in_background: Callable[[Callable[[], None]], object] = lambda action: action(),
        is_searched: bool = False,
    ) -> None:
        """`is_searched`: for unnamed pieces. `fold_windows` makes it a job that folds what it knows of its files."""
        self._directory = directory
        self._fold_windows = fold_windows
        self._in_background = in_background
        self._is_searched = is_searched
        self.config: Config = Trial(
            settings, backend=backend, shards=2, ports=True, snapshot_every=snapshot_every
        ).config(directory)
        self.now_us = BEGIN_US
        self.said: Sequence[Receipt] = (receipt(0), receipt(1))
        self.judged: list[tuple[int, int]] = []
        self.states: list[LogState] = []
        self.fixed = policy.fixed_settings(self.config)
        CommitLog.create(
            local_place(self.config.store.path), self.fixed, wall_us=BEGIN_US, snapshot_every=snapshot_every
        )
        (directory / "in").mkdir()
        self.start()

    def start(self) -> None:
        """A driver."""
        self.log = recovery.open_or_create(self.config, self.now_us)
        self.log.claim_epoch("test", self.now_us)
        self.pieces = open_backend(self.config.store.url)
        recovery.recover(self.config, recovery.Ownership(self.log, self.pieces))
        source: Any = self.config.source
        self.known = KnownFiles(source, self.log)
        self.runner = WindowRunner(
            self.config,
            self.log,
            InProcess(self.pieces),
            self.judge,
            lambda: self.now_us,
            files=None if self._fold_windows is None else FilesToFold.of(source, self.known),
            in_background=self._in_background,
            fold_windows=self._fold_windows,
            pieces=self.pieces if self._is_searched else None,
        )

    def judge(self, batch: Any, state: LogState, wall_us: int) -> Judgement:
        """As a judge does: staged files, receipts, rows."""
        self.judged.append((state.next_window, wall_us))
        self.states.append(state)
        attempt = Attempt(state.next_window, state.epoch, 0)
        target = staging.make_staging(self.config, attempt)["unique"]
        staged = {"unique": [staged_file("unique", target / "part-0.parquet", b"rows", 1)]}
        receipts = {one.shard: one for one in reversed(self.said)}
        rows = sum(sum(one.counts) for one in self.said)
        seconds, in_tasks = {"read": 1.0, "shards": 2.0}, {"keys": 3.0}
        return Judgement(attempt, batch, receipts, staged, None, rows, seconds, in_tasks)

    def batch(self, *names: str) -> WindowInput:
        """Files that are listed, and are there."""
        paths = [self._directory / "in" / name for name in names or ("a",)]
        for path in paths:
            path.touch()
        files = tuple(stat_files([ListedFile(f"{path}", 7) for path in paths]))
        source: Any = self.config.source
        return WindowInput("query", 40 + self.log.state.next_window, SourceFileBatch(source, files, UNREAD))

    def run(self, *said: Receipt, names: Sequence[str] = ()) -> Any:
        """A window; gives its progress."""
        self.said = said or (receipt(0), receipt(1))
        progress: list[BatchProgress] = []
        self.runner.run(self.batch(*names), progress.append)
        return progress[0]

    def source_files(self) -> tuple[set[str], set[str]]:
        """The names of the files of sources: those that the log names, and those that are there."""
        named = {ref.name for ref in self.log.state.sources.values() if not ref.inline}
        return named, set((self.log.root / "sources").listed())

    def record(self) -> CommitRecord:
        """The newest commit record."""
        return [record.body for record in self.log.records() if isinstance(record.body, CommitRecord)][-1]

    def piece(self, window: int, shard: int = 0, bucket: int = 0) -> PieceRef:
        """A piece with a key in a bucket."""
        layout = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=False)
        (key,) = random_keys(window * 10 + shard, 1)
        return append_piece(
            self.pieces,
            entries_of({(bucket, key): (bucket * 10, 0, window)}, layout),
            store_id=bytes.fromhex(self.log.manifest.store_id),
            shard=shard,
            first_window=window,
            last_window=window,
            epoch=self.log.state.epoch,
            attempt=0,
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """With buckets of 10 in a period of 20."""
    return Job(tmp_path)


def test_a_record_holds_what_the_shards_have_said(job: Job) -> None:
    """Counts and reasons are sums, points are maxima, buckets are there once; and by which batch, clock and rules."""
    pieces = [job.piece(0, shard) for shard in (0, 1)]
    job.now_us += SECOND_US
    said = [
        receipt(
            0,
            (2, 1, 3, 0),
            reasons={"same_window": 1, "older_than_period": 3},
            max_admitted=35,
            max_remembered=33,
            piece=pieces[0],
            buckets=(3, 1),
            rows_by_partition={0: 4, 1: 2},
        ),
        receipt(
            1,
            (1, 0, 0, 2),
            reasons={"older_than_period": 0, "null_key": 2},
            max_admitted=31,
            max_remembered=34,
            piece=pieces[1],
            buckets=(2, 3),
            rows_by_partition={1: 3},
        ),
    ]
    progress = job.run(*said, names=("a", "b"))
    record = job.record()
    assert (record.window, record.epoch, record.attempt) == (0, 1, 0)
    assert (record.query_id, record.batch_id) == ("query", 40)
    assert record.counts == {"unique": 3, "duplicate": 1, "expired": 3, "error": 2}
    assert record.reasons == {"same_window": 1, "older_than_period": 3, "null_key": 2}
    assert (record.latest_point, record.timestamp) == (35, 34)
    assert record.wall_us == record.latest_moved_us == job.now_us
    assert record.buckets == (1, 2, 3)
    assert record.pieces == tuple(pieces)
    assert record.settings_hash == policy.settings_hash(job.config)
    assert [(output.port, output.rows) for output in record.outputs] == [("unique", 1)]
    assert record.sources is not None
    assert record.sources.name == "000000000000-000001-000"
    assert record.sources.is_kept
    assert record.sources.inline
    assert job.source_files() == (set(), set())
    assert (progress.window, progress.batch_id, progress.rows) == (0, 40, 9)
    assert (progress.unique, progress.duplicate, progress.expired, progress.error) == (3, 1, 3, 2)
    assert progress.latest_point == 35
    assert progress.rows_per_second == pytest.approx(9 / progress.seconds)


def test_the_latest_point_never_goes_back_and_tells_when_it_moved(job: Job) -> None:
    """A window whose tuples are all older leaves it, and one without tuples; and one that reaches it moves nothing."""
    moved = []
    for at, greatest in enumerate([30, 25, None, 30, 31]):
        job.now_us = BEGIN_US + at * SECOND_US
        job.run(receipt(0, max_admitted=greatest), receipt(1))
        record = job.record()
        moved.append((record.latest_point, (record.latest_moved_us or 0) - BEGIN_US))
    assert moved == [(30, 0), (30, 0), (30, 0), (30, 0), (31, 4 * SECOND_US)]


def test_an_unset_clock_stays_unset(job: Job) -> None:
    """Until a tuple is admitted; below 0 is a point like any other."""
    job.run()
    assert (job.record().latest_point, job.record().latest_moved_us) == (None, None)
    assert job.record().timestamp is None
    job.run(receipt(0, max_admitted=-7), receipt(1, max_admitted=-9))
    assert job.record().latest_point == -7


def test_processing_time_is_its_own_clock(tmp_path: Path) -> None:
    """The latest point is the wall clock of the intent, whatever was admitted."""
    job = Job(tmp_path, Settings("processing_time", period=20, span=10))
    job.now_us += 5
    job.run(receipt(0, max_admitted=3), receipt(1))
    assert job.record().latest_point == BEGIN_US + 5
    job.now_us -= 100
    job.run()
    assert job.record().wall_us == BEGIN_US + 5, "no wall clock is below the last one"


def test_a_category_list_goes_into_the_record(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the source says of itself."""

    class Categories:
        class after:  # stands for an attribute
            @staticmethod
            def to_wire() -> list[str]:
                return ["oslo"]

    judge = job.judge
    some: Any = Categories
    monkeypatch.setattr(job.runner, "_judge", lambda *given: replace(judge(*given), categories=some))
    monkeypatch.setattr(SourceFileBatch, "extra", lambda self: {"seen": 1})
    job.run()
    extra = job.record().extra
    assert extra == {policy.CATEGORIES: ["oslo"], "seen": 1, policy.STATISTICS: extra[policy.STATISTICS]}


def test_statistics_add_up_over_windows(job: Job) -> None:
    """Those of all shards and of all windows before, in the record of the newest."""
    job.run(
        receipt(0, distances=SpanCounts.of([(0, 2)]), first_windows={0: 1}, piece=job.piece(0)),
        receipt(1, distances=SpanCounts.of([(7e6, 3)])),
    )
    job.now_us += 20 * SECOND_US
    job.run(receipt(0, distances=SpanCounts.of([(7e6, 1)]), first_windows={0: 2, 1: 1}), receipt(1))
    after = policy.statistics_of(job.log.state)
    assert after.distance == SpanCounts.of([(0, 2), (7e6, 4)])
    assert after.age == SpanCounts.of([(0, 2), (20e6, 2)])
    assert [window for window, _ in after.marks] == [0, 1]


def test_a_window_is_committed_without_statistics_when_they_fail(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the window before stay in the record."""
    job.run(receipt(0, distances=SpanCounts.of([(0, 2)])), receipt(1))
    before = job.record().extra
    monkeypatch.setattr(Statistics, "with_window", lambda *_, **__: 1 // 0)
    job.run()
    assert job.log.state.next_window == 2
    assert job.record().extra == before


def test_the_steps_come_in_their_order(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is public before the record, and nothing marked before it is public; the staging goes last."""
    port = job.config.sinks.unique.path
    seen: dict[str, tuple[int, int, int, int, int]] = {}

    def look(name: str) -> None:
        if name.startswith("window."):
            mark = read_published(local_place(port / names.PUBLISHED))
            assert mark is not None
            seen[name] = (
                len(read_intents(job.log.root)),
                len(list((port / names.STAGING).rglob("*.parquet"))),
                CommitLog.open(job.log.root).state.next_window,
                len(list(port.glob("*.parquet"))),
                mark.window,
            )

    monkeypatch.setattr(window_run.failpoints, "hit", look)
    job.run()
    #                                 intents, staged, committed, public, marked
    assert seen == {
        "window.0.batch": (0, 0, 0, 0, -1),
        "window.1.intent": (1, 0, 0, 0, -1),
        "window.2.judged": (1, 1, 0, 0, -1),
        "window.3.synced": (1, 1, 0, 0, -1),
        "window.3.durable": (1, 1, 0, 0, -1),
        "window.4.committed": (1, 1, 1, 0, -1),
        "window.5.published": (1, 0, 1, 1, -1),
        "window.6.checked": (1, 0, 1, 1, -1),
        "window.6.half": (1, 0, 1, 1, -1),
        "window.6.marked": (1, 0, 1, 1, 0),
    }
    assert list((port / names.STAGING).iterdir()) == []
    assert [read_published(place) for place in publishing.mark_places(job.config, job.log)] == [
        Published(job.log.manifest.store_id, 0, job.log.state.epoch)
    ] * 5


def test_an_intent_says_what_is_about_to_be_judged(job: Job) -> None:
    """And by which clock; each window has one of its own."""
    job.run(receipt(0, max_admitted=30), receipt(1))
    job.now_us += SECOND_US
    job.run(names=("b", "c"))
    (intent,) = read_intents(job.log.root)
    assert (intent.window, intent.epoch, intent.query_id, intent.batch_id) == (1, 1, "query", 41)
    assert (intent.wall_us, intent.latest_point) == (BEGIN_US + SECOND_US, 30)
    assert intent.settings_hash == policy.settings_hash(job.config)
    assert len(intent.partitions) == 2
    # Records 0 and 1 are the birth and the claim, 2 is window 0.
    assert intent.log_position == 3
    assert job.judged == [(0, BEGIN_US), (1, BEGIN_US + SECOND_US)]


def test_who_was_overtaken_judges_nothing(job: Job) -> None:
    """It is noticed before a batch is begun."""
    CommitLog.open(job.log.root).claim_epoch("other", 1)
    with pytest.raises(FencedError):
        job.run()
    assert (job.judged, read_intents(job.log.root)) == ([], [])


@pytest.mark.parametrize("at", ["check", "intent"])
def test_a_claim_that_another_thread_has_read_ends_the_window(
    job: Job, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The publication reads the log too; nothing is judged or written under the new owner's epoch."""
    place, action = {"check": (job.log, "check_owner"), "intent": (job.runner, "_intend")}[at]
    done = getattr(place, action)

    def overtaken(*given: Any) -> Any:
        result = done(*given)
        monkeypatch.undo()
        CommitLog.open(job.log.root).claim_epoch("other", 1)
        job.log.refresh()
        return result

    monkeypatch.setattr(place, action, overtaken)
    with pytest.raises(FencedError):
        job.run()
    assert job.log.state.epoch == 2
    assert job.judged == []
    assert [intent.epoch for intent in read_intents(job.log.root)] == ([1] if at == "intent" else [])


def test_who_was_overtaken_after_its_record_publishes_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owner does."""

    def overtake(name: str) -> None:
        if name == "window.4.committed":
            monkeypatch.undo()
            CommitLog.open(job.log.root).claim_epoch("other", 1)

    monkeypatch.setattr(window_run.failpoints, "hit", overtake)
    with pytest.raises(FencedError):
        job.run()
    assert list(job.config.sinks.unique.path.glob("*.parquet")) == []


def test_who_was_overtaken_before_its_mark_sets_none(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owner may have set a later one. It leaves nothing, though the new owner has looked for that before."""
    prepare = publishing.prepare_published

    def overtaken(*given: Any, **named: Any) -> Prepared:
        monkeypatch.undo()
        CommitLog.open(job.log.root).claim_epoch("other", 1)
        return prepare(*given, **named)

    monkeypatch.setattr(publishing, "prepare_published", overtaken)
    with pytest.raises(FencedError):
        job.run()
    places = publishing.mark_places(job.config, job.log)
    assert {mark and mark.window for mark in map(read_published, places)} == {-1}
    assert [name for place in places for name in place.parent.listed() if is_temporary(name)] == []


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_mark_that_is_refused_is_set_again_by_the_owner_alone(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_overtaken: bool
) -> None:
    """A sleeper's older mark came between where marks are compared; or a later owner has removed this one."""
    prepare, refused, again = publishing.prepare_published, list[Place](), list[Place]()

    def refusing(place: Place, *given: Any, **named: Any) -> Prepared:
        prepared = prepare(place, *given, **named)
        if place in refused:
            again.append(place)
            return prepared

        def refuse() -> None:
            refused.append(place)
            if is_overtaken:
                CommitLog.open(job.log.root).claim_epoch("other", 1)
            raise FileNotFoundError

        return replace(prepared, put=refuse)

    monkeypatch.setattr(publishing, "prepare_published", refusing)
    with pytest.raises(FencedError) if is_overtaken else nullcontext():
        job.run()
    places = publishing.mark_places(job.config, job.log)
    assert refused == places[: 1 if is_overtaken else None]
    assert again == ([] if is_overtaken else places)
    marks = [read_published(place) for place in places]
    assert {mark and mark.window for mark in marks} == {-1 if is_overtaken else 0}
    assert not is_overtaken or not [name for place in places for name in place.parent.listed() if is_temporary(name)]


def test_what_attempts_have_left_goes_with_the_window(job: Job) -> None:
    """Of this window and epoch, whatever the attempt; nothing else."""
    home = job.config.sinks.unique.path / names.STAGING
    for attempt in (Attempt(0, 1, 7), Attempt(1, 1, 0), Attempt(0, 2, 0)):
        (home / attempt.folder).mkdir(parents=True)
    job.run()
    assert {path.name for path in home.iterdir()} == {Attempt(1, 1, 0).folder, Attempt(0, 2, 0).folder}


def test_where_the_time_went_is_kept(job: Job) -> None:
    """Of every window, phase by phase, the parts of the judging after them; for people."""
    progress = job.run(receipt(0, (3, 0, 0, 0), table_counters={"hits": 2}), receipt(1, table_counters={"hits": 3}))
    assert read_profiles(job.log.root) == (), "written every ten seconds, and at the end of a run"
    job.runner.close()
    (profile,) = read_profiles(job.log.root)
    assert (profile.window, profile.epoch, profile.wall_us, profile.rows) == (0, 1, BEGIN_US, 3)
    steps = ["intent", "judge", "durable", "commit", "publish", "clean", "expire", "measure"]
    assert list(profile.phases) == [*steps, "judge.read", "judge.shards", "task.keys"]
    assert [profile.phases[name] for name in ("judge.read", "judge.shards", "task.keys")] == [1.0, 2.0, 3.0]
    assert profile.phases.keys() == progress.phases.keys()
    assert 0 < sum(profile.phases[name] for name in steps) <= profile.seconds + 1e-4
    assert all(progress.phases[name] > 0 for name in steps)
    assert progress.tables == {"hits": 5}


def test_an_overtaken_owner_leaves_the_profile_alone(job: Job) -> None:
    """It is the later owner's file by then."""
    job.run()
    CommitLog.open(job.log.root).claim_epoch("other", 1)
    job.runner.close()
    assert read_profiles(job.log.root) == ()


def deletions(job: Job) -> list[DeletionRecord]:
    """The records that release pieces."""
    return [record.body for record in job.log.records() if isinstance(record.body, DeletionRecord)]


@pytest.mark.slow
def test_dead_pieces_leave_the_store_together(job: Job) -> None:
    """Once there are eight a shard, since a record costs two syncs; named with the last window that they hold."""
    for window in range(16):
        job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(window), max_remembered=5, max_admitted=5), receipt(1))
    job.run(receipt(0, max_admitted=29), receipt(1))
    assert deletions(job) == [], "the expiry point is 9: bucket 0 lives"
    job.now_us += SECOND_US
    job.run(receipt(0, max_admitted=30), receipt(1))
    (deletion,) = deletions(job)
    assert len(deletion.pieces) == 16
    assert (deletion.through_window, deletion.wall_us) == (15, job.now_us)
    assert job.log.state.pieces == {}


@pytest.mark.slow
def test_fifteen_dead_pieces_of_two_shards_are_too_few(job: Job) -> None:
    """They wait for another one."""
    for window in range(15):
        job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(window), max_remembered=5, max_admitted=5), receipt(1))
    job.run(receipt(0, max_admitted=60), receipt(1))
    assert deletions(job) == []
    job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(16, bucket=0), max_remembered=5), receipt(1))
    assert [len(deletion.pieces) for deletion in deletions(job)] == [16]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead pieces leave one by one."""
    monkeypatch.setattr(window_run, "_DELETION_BATCH", 0.5)


@pytest.mark.usefixtures("at_once")
def test_bytes_of_dead_pieces_stay_for_the_grace(job: Job) -> None:
    """Ten minutes for people who look at the store; then a record says that they are deleted."""
    job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(0), max_admitted=5), receipt(1))
    job.run(receipt(0, max_admitted=60), receipt(1))
    job.start()
    job.now_us += policy.DELETION_GRACE_US - 1
    job.run()
    assert (len(job.log.state.retired), len(list(job.pieces.pieces()))) == (1, 1)
    job.now_us += 1
    job.run()
    assert list(job.pieces.pieces()) == []
    job.run()
    assert job.log.state.retired == ()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["file", "rocksdb"])
def test_starts_of_one_window_each_do_not_gather_dead_pieces(tmp_path: Path, backend: str) -> None:
    """Dozens of them, 20 minutes apart, in which all keys of a window are dead two windows later.

    What is there: fewer dead pieces than a deletion record takes, that record's until their grace is over, and live
    ones.
    """
    job = Job(tmp_path, backend=backend, in_background=on_a_thread)
    batch = policy.DELETION_BATCH * 2
    bytes_there: list[int] = []
    for window in range(50 if is_night() else 34):
        if window:
            job.start()
        pieces = [job.piece(window, shard, 3 * window) for shard in (0, 1)]
        job.run(*(receipt(one.shard, (1, 0, 0, 0), piece=one, max_admitted=30 * window) for one in pieces))
        job.runner.finish()
        job.runner.close()
        job.now_us += 2 * policy.DELETION_GRACE_US
        state = CommitLog.open(job.log.root).state
        live = [piece for pieces in state.pieces.values() for piece in pieces]
        assert len(live) < batch + len(pieces) * 2
        assert len(state.retired) <= batch
        if window % policy.DELETION_BATCH == 1:
            assert len(list(job.pieces.pieces())) == len(live) + len(state.retired)
            files = (job.log.root.local / "pieces").rglob("*")
            bytes_there.append(sum(path.stat().st_size for path in files if path.is_file()))
    assert max(bytes_there[3:]) <= 1.1 * max(bytes_there[:3])


def test_a_clock_that_went_back_lets_no_piece_leave_in_the_past(job: Job) -> None:
    """The records' clock never goes back; that of an intent does not either."""
    job.now_us += 100 * SECOND_US
    for window in range(16):
        job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(window), max_admitted=5), receipt(1))
    job.now_us -= 50 * SECOND_US
    job.run(receipt(0, max_admitted=60), receipt(1))
    assert deletions(job)[0].wall_us == BEGIN_US + 100 * SECOND_US
    assert job.judged[-1][1] == BEGIN_US + 100 * SECOND_US


def test_folded_records_are_deleted_when_there_is_a_snapshot_more(tmp_path: Path) -> None:
    """Those that are past the grace; looked for once a snapshot, not once a window."""
    job = Job(tmp_path, snapshot_every=4)
    for _ in range(3):
        job.run()
    folder = job.log.root.local / "log"
    for path in folder.iterdir():
        os.utime(path, (1000, 1000))
    (folder / ".00000000000000000077.abcdef.tmp").touch()
    os.utime(folder / ".00000000000000000077.abcdef.tmp", (1000, 1000))
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    assert numbers == [0, 1, 2, 3, 4, 5]
    job.run()
    assert (folder / ".00000000000000000077.abcdef.tmp").exists(), "looked for since the last snapshot"
    for _ in range(2):
        job.run()
    assert sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())[0] == 4
    assert not (folder / ".00000000000000000077.abcdef.tmp").exists()


@pytest.mark.parametrize("snapshot_every", [3, 1000])
def test_the_first_window_of_a_start_looks_for_folded_records(tmp_path: Path, snapshot_every: int) -> None:
    """Of whatever snapshot: a job of one window a start would never delete them otherwise."""
    job = Job(tmp_path, snapshot_every=snapshot_every)
    left = job.log.root.local / "log" / ".00000000000000000077.abcdef.tmp"
    left.touch()
    os.utime(left, (1000, 1000))
    job.run()  # record 2
    assert job.log.state.next_number // snapshot_every == (1 if snapshot_every == 3 else 0)
    assert not left.exists()


def test_a_clock_far_ahead_is_corrected_before_the_window(job: Job) -> None:
    """By a record that deletes nothing; the window is judged by the state after it."""
    job.now_us += 2 * DAY_US
    job.run()
    job.now_us = BEGIN_US
    job.run()
    assert deletions(job) == [DeletionRecord((), wall_us=BEGIN_US, through_window=-1)]
    assert job.judged[-1] == (1, BEGIN_US)
    assert job.states[-1].last_wall_us == BEGIN_US


def output(port: str, staged: Path, final: str) -> OutputFile:
    """One of a record."""
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(b"rows")
    return OutputFile(port, str(staged), final, 4, 0, 1)


class Topics:
    """Notes what is to be published, and what was public then."""

    def __init__(self, look: Callable[[], int]) -> None:
        self.look = look
        self.asked: list[tuple[int, int, int]] = []

    def extra(self) -> dict[str, Any]:
        """Nothing is known of them."""
        return {}

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Nothing goes anywhere."""
        self.asked.append((window, len(outputs), self.look()))


def test_topics_are_published_with_the_files(job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both or an error; and never where no output is a topic's."""
    job.run()
    port = job.config.sinks.unique.path
    to_topic = output("unique", tmp_path / "x", str(TopicPlace("unique", (0,), "clicks")))
    to_file = output("unique", tmp_path / "y", str(port / "y.parquet"))
    topics = Topics(lambda: len(list(port.glob("y.parquet"))))
    publishing.publish_window(job.config, job.log, 0, [to_file], topics)
    assert topics.asked == []
    assert (port / "y.parquet").exists()
    to_file = output("unique", tmp_path / "z", str(port / "z.parquet"))
    with pytest.raises(UsageError, match="window 0 was staged for topics, and no port is a topic now"):
        publishing.publish_window(job.config, job.log, 0, [to_topic, to_file])
    assert not (port / "z.parquet").exists()
    publishing.publish_window(job.config, job.log, 0, [to_topic, to_file], topics)
    assert topics.asked == [(0, 1, 1)]
    assert (port / "z.parquet").exists()
    assert "a reader must have taken it" not in caplog.text
    (port / "z.parquet").unlink()
    publishing.publish_window(job.config, job.log, 0, [to_file])
    assert "z.parquet was published and is gone: a reader must have taken it" in caplog.text


def test_a_published_window_is_forgotten_by_the_next_record(job: Job) -> None:
    """The log need not name its files any longer."""
    job.run()
    assert list(job.log.state.outputs) == [0]
    job.run()
    assert list(job.log.state.outputs) == [1]


def test_sources_that_the_store_forgets_lose_their_files(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the records say so, and not those that are still named."""
    monkeypatch.setattr(sources_file, "INLINE_BYTES", 0)
    monkeypatch.setattr(SourceFileBatch, "is_known_by_digests", property(lambda self: False))
    for _ in range(4):
        job.run()
    named, there = job.source_files()
    assert there == named
    assert 0 < len(named) < 4


def test_one_file_of_sources_goes_at_once_and_many_beside_the_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handing over one costs more than deleting it; no window waits for those of a fold."""
    monkeypatch.setattr(sources_file, "INLINE_BYTES", 0)
    begun: list[Callable[[], None]] = []
    (tmp_path / "one").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(SourceFileBatch, "is_known_by_digests", property(lambda self: False))
        job = Job(tmp_path / "one", in_background=begun.append)
        job.run()
        job.run()
        named, there = job.source_files()
        assert (there, len(there), begun) == (named, 1, [])
    (tmp_path / "many").mkdir()
    job = Job(tmp_path / "many", fold_windows=2, in_background=begun.append)
    job.run(names=("a",))
    job.run(names=("b",))
    begun.pop()()  # the fold
    job.run(names=("c",))
    named, there = job.source_files()
    assert (len(named), len(there), len(begun)) == (1, 3, 1)
    begun.pop()()
    assert job.source_files() == (named, named)


@pytest.mark.usefixtures("at_once")
def test_files_that_a_fold_reads_stay_until_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later records may forget their windows while it is under way: their last keys are dead, and the bytes gone."""
    monkeypatch.setattr(sources_file, "INLINE_BYTES", 0)
    monkeypatch.setattr(SourceFileBatch, "is_known_by_digests", property(lambda self: False))
    begun: list[Callable[[], None]] = []

    def do_all() -> None:
        while begun:
            begun.pop(0)()

    job = Job(tmp_path, fold_windows=2, in_background=begun.append)
    job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(0), max_admitted=5), receipt(1), names=("a",))
    job.run(names=("b",))
    fold = begun.pop()
    folded = job.source_files()[0]
    job.run(receipt(0, max_admitted=60), receipt(1), names=("c",))
    job.log.forget_retired(job.log.state.next_number - 1)
    job.run(names=("d",))
    do_all()
    named, there = job.source_files()
    assert not named & folded
    assert folded < there
    fold()
    job.run(names=("e",))
    do_all()
    assert job.log.state.judged is not None
    assert not job.source_files()[1] & folded


def test_sources_stand_in_the_record_while_they_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer list has a file, and so has every one while the state holds many; either way all are read back."""
    job = Job(tmp_path)
    job.run(names=("a",))
    monkeypatch.setattr(sources_file, "INLINE_BYTES", len(job.log.state.sources[0].inline))
    job.run(names=("b",))
    job.run(names=("c", "d"))
    monkeypatch.setattr(sources_file, "INLINE_STATE_BYTES", sources_file.inline_bytes(job.log.state))
    job.run(names=("e",))
    refs = job.log.state.sources
    assert [bool(ref.inline) for ref in refs.values()] == [True, True, False, False]
    named, there = job.source_files()
    assert named == there == {refs[2].name, refs[3].name}
    reader = SourcesReader(job.log.root, job.log.state)
    read = [[Path(partition.name).name for partition in reader.of(window) or ()] for window in range(4)]
    assert read == [["a"], ["b"], ["c", "d"], ["e"]]
    assert set(files_of(job.log.state)) == {PurePosixPath("sources") / name for name in named}
    job.start()
    assert job.log.state.sources == refs
    paths = [partition.name for partition in job.batch("a", "b", "c", "d", "e").source.partitions]
    assert job.known.new(paths) == []


def test_sources_in_records_are_folded_before_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few the windows are: every snapshot has them."""
    job = Job(tmp_path, fold_windows=1024)
    job.run(names=("a",))
    assert job.log.state.judged is None
    monkeypatch.setattr(folding, "INLINE_STATE_BYTES", 3 * sources_file.inline_bytes(job.log.state))
    for name in ("b", "c"):
        job.run(names=(name,))
    assert job.log.state.judged is not None
    assert job.log.state.judged.through_window == 1


def test_the_files_of_a_window_are_known_and_folded(tmp_path: Path) -> None:
    """From its record on; a fold is recorded with a later window."""
    job = Job(tmp_path, fold_windows=2)
    for name in ("a", "b", "c"):
        batch = job.batch(name)
        paths = [partition.name for partition in batch.source.partitions]
        assert job.known.new(paths) == paths
        job.runner.run(batch)
        assert job.known.new(paths) == []
    assert job.log.state.judged is not None
    assert job.log.state.judged.through_window == 1


@pytest.mark.slow
def test_the_end_of_a_drained_source_records_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold, and the compaction once it is over: a job of one window a start would never have either.

    Nothing is left of what was folded, however slowly it goes.
    """
    monkeypatch.setattr(sources_file, "INLINE_BYTES", 0)
    begun: list[Callable[[], None]] = []
    job = Job(tmp_path, fold_windows=2, in_background=begun.append)
    for window in range(2):
        job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(window)), receipt(1), names=(f"{window}",))
    begun.pop()()  # the fold
    parts = job.log.state.pieces[0]
    merged = replace(job.piece(7), first_window=0, last_window=1)
    compactions: list[Any] = []
    monkeypatch.setattr(job.runner._compaction, "wait", lambda: compactions.append((parts, merged)))
    monkeypatch.setattr(job.runner._compaction, "result", lambda: [compactions.pop()] if compactions else [])

    def slowly(root: Place, paths: Sequence[PurePosixPath]) -> None:
        time.sleep(0.3)
        remove_left(root, paths)

    monkeypatch.setattr(left_sources, "remove_left", slowly)
    monkeypatch.setattr(job.runner._left_sources, "_aside", on_a_thread)
    job.runner.finish()
    assert job.log.state.pieces[0] == (merged,)
    assert job.log.state.judged is not None
    assert job.source_files() == (set(), set())


@pytest.mark.usefixtures("at_once")
def test_what_the_last_record_forgets_is_gone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that bytes are deleted, and they were the last that needed the windows' sources."""
    monkeypatch.setattr(sources_file, "INLINE_BYTES", 0)
    monkeypatch.setattr(SourceFileBatch, "is_known_by_digests", property(lambda self: False))
    job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(0), max_admitted=5), receipt(1))
    job.run(receipt(0, max_admitted=60), receipt(1))
    job.log.forget_retired(job.log.state.next_number - 1)
    named, there = job.source_files()
    assert (len(named), there) == (2, named)
    job.runner.finish()
    assert job.source_files() == (set(), set())


def test_a_moved_source_is_folded_before_its_next_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are known by their new paths from then on. Another source folds nothing then."""
    job = Job(tmp_path, fold_windows=100)
    with monkeypatch.context() as patch:
        patch.setattr(SourceFileBatch, "extra", lambda self: {FOLDER: "/elsewhere"})
        for name in ("a", "b"):
            job.run(names=(name,))
    job.runner.fold_moved()
    assert job.log.state.judged is None, "it was here that this process found its files"
    job.start()
    assert job.known.has_moved
    job.runner.fold_moved()
    assert job.log.state.judged is not None
    assert not job.known.has_moved
    assert job.source_files() == (set(), set())


def test_a_source_that_counts_has_no_files_to_fold(job: Job) -> None:
    """It is never moved."""
    job.run()
    job.runner.fold_moved()
    assert len(job.log.state.sources) == 1


def test_a_start_names_its_claims(job: Job) -> None:
    """One epoch a driver; each window belongs to the epoch that has judged it."""
    job.run()
    job.start()
    job.run()
    assert job.record().epoch == 2
    assert [record.body.epoch for record in job.log.records() if isinstance(record.body, ClaimRecord)] == [1, 2]


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_merged_piece_takes_the_place_of_all_of_a_shard(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    """Unless one of them has left the store meanwhile: then it stays without a name, and the next start takes it."""
    for window in range(2):
        job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(window)), receipt(1))
    parts = job.log.state.pieces[0]
    merged = replace(job.piece(7), first_window=0, last_window=1)
    leaving = (*parts, job.piece(9)) if is_dead else parts
    results: list[Any] = [[(leaving, merged)], []]
    monkeypatch.setattr(job.runner._compaction, "result", lambda: results.pop(0))
    job.run()
    assert job.log.state.pieces[0] == (parts if is_dead else (merged,))


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_merge_that_failed_counts_while_its_pieces_are_live(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    """Expired pieces may be gone before their merge reads them; the other shards' pieces take their places."""
    for window in range(2):
        job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(window)), receipt(1, piece=job.piece(window, 1)))
    merged = replace(job.piece(7, 1), first_window=0, last_window=1)
    leaving = (job.piece(9),) if is_dead else job.log.state.pieces[0]
    results: list[Any] = [[(job.log.state.pieces[1], merged), (leaving, OSError("disk"))], []]
    monkeypatch.setattr(job.runner._compaction, "result", lambda: results.pop(0))
    with nullcontext() if is_dead else pytest.raises(OSError, match="disk"):
        job.run()
    assert (job.log.state.pieces[1] == (merged,)) is is_dead


def test_a_piece_that_cannot_be_taken_back_at_a_stop_is_left(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message has the reason why the job ends, not this; the next start takes the piece."""
    ref = job.piece(0)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(job.runner._compaction, "close", lambda: [ref])
    monkeypatch.setattr(job.runner._maintenance, "delete", fail)
    job.runner.close()
    assert f"pieces are left for the next start: {ref.name}: disk" in caplog.text


@pytest.mark.usefixtures("at_once")
def test_a_stop_ends_deletions_and_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A deletion that failed is named, since no window comes that would fail; files of a fold without a record go."""
    begun: list[Callable[[], None]] = []
    job = Job(tmp_path, fold_windows=3, in_background=begun.append)
    job.run(receipt(0, (1, 0, 0, 0), piece=job.piece(0), max_admitted=5), receipt(1), names=("a",))
    job.run(receipt(0, max_admitted=60), receipt(1), names=("b",))
    job.start()
    job.now_us += policy.DELETION_GRACE_US

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(job.runner._maintenance, "delete", fail)
    job.run(names=("c",))
    assert len(begun) == 2
    for action in begun:
        action()
    folded = job.log.root.local / "folded"
    assert list(folded.iterdir()) != []
    job.runner.close()
    assert "retired pieces could not be deleted, the next start tries again: disk" in caplog.text
    assert list(folded.iterdir()) == []


def test_merges_and_searches_for_unnamed_pieces_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that runs may still name a piece, so none begins before the search is over, and the reverse."""
    begun: list[Callable[[], None]] = []
    asked: list[LogState] = []
    job = Job(tmp_path, in_background=begun.append, is_searched=True)
    monkeypatch.setattr(policy, "next_compactions", lambda _config, _store_id, state: asked.append(state) or ())
    now = [0.0]
    assert job.runner._unnamed is not None
    job.runner._unnamed = UnnamedPieces(job.runner._unnamed._pieces, begun.append, lambda: now[0])

    def after_window(*, hours: int = 0) -> tuple[int, int]:
        """How many merges were asked for, and what was begun."""
        now[0] += hours * EVERY_S
        asked.clear()
        job.runner._compact(job.log.state)
        return len(asked), len(begun)

    assert after_window() == (1, 0)
    assert after_window(hours=1) == (0, 1)
    assert after_window() == (0, 1)
    begun.pop()()
    assert after_window() == (1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Compactions, "is_under_way", True)
        assert after_window(hours=1) == (0, 0)
    assert after_window() == (0, 1)


def test_the_end_of_a_job_waits_for_a_search_for_unnamed_pieces(tmp_path: Path) -> None:
    """Or it would delete pieces beside the next owner."""
    job = Job(tmp_path, is_searched=True)
    now = [0.0]
    unnamed = job.runner._unnamed = UnnamedPieces(job.pieces, when_waited_for, lambda: now[0])
    now[0] += EVERY_S
    job.runner._compact(job.log.state)
    assert unnamed.is_under_way
    job.runner.close()
    assert not unnamed.is_under_way


def test_groups_of_errors_are_in_the_order_of_size_reason_and_detail() -> None:
    """So that a window that is judged again names the same ones."""
    counts = {("null_key", "b"): 2, ("malformed", "z"): 2, ("null_key", "a"): 2, ("malformed", None): 9}
    judgement = SimpleNamespace(errors=SimpleNamespace(counts=counts))
    groups = window_run._error_groups(judgement, SimpleNamespace(reasons={}))
    assert [(group.reason, group.detail) for group in groups] == [
        ("malformed", None),
        ("malformed", "z"),
        ("null_key", "a"),
        ("null_key", "b"),
    ]


def test_a_runner_that_closes_closes_all_that_it_has(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples and profiles that are not written yet are written then; what waits to be deleted is deleted."""
    parts = ("_publishing", "_leaks", "_history", "_profile_file", "_deletion", "_folding", "_compaction")
    closed: list[str] = []

    def noted(name: str) -> None:
        part = getattr(job.runner, name)
        close = part.close

        def and_note() -> Any:
            closed.append(name)
            return close()

        monkeypatch.setattr(part, "close", and_note)

    for name in parts:
        noted(name)
    job.runner.close()
    assert set(closed) == set(parts)
