"""Small pieces merged beside the windows: what is asked for, what is taken, and that nobody can tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bucket_store.errors import CorruptionError, StorageAwayError
from bucket_store.log.records import CompactionRecord, DeletionRecord
from bucket_store.maintenance.compactions import Answer, Compactions, Merges
from bucket_store.pieces import compaction
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from bucket_store.pieces.piece import PieceRef
from deduper.admin.verify.findings import Check
from deduper.admin.verify.run import verify_store
from deduper.testing import Row, Settings
from deduper.window import policy
from tests.bucket_store.log_samples import piece
from tests.deduper.settled import half_done
from tests.deduper.small_service import Process, Trial, World, machine_of
from tests.deduper.whole_job import KINDS, Kind, WholeJob

ORDERED = Settings(by="ordered", period=60, span=10, lookup="own_bucket", clock="batch")
TASK = CompactionTask((piece(0), piece(1)), "ab" * 16, 1, None, None)


class Later:
    """Beside the windows, when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, action: Callable[[], None]) -> None:
        self.waiting.append(action)

    def go_on(self) -> None:
        """Now."""
        self.waiting.pop()()


class Answers(Merges):
    """Who merges, and gives or raises what a test says."""

    def __init__(self, *answers: PieceRef | Exception | None) -> None:
        self._answers = list(answers)

    def merge(self, task: CompactionTask) -> PieceRef | None:
        """The next answer."""
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_nobody_waits_for_it() -> None:
    """The result is there when it is there, once."""
    later = Later()
    merging = Compactions(Answers(piece(0, last=1)), later)
    merging.begin([TASK])
    assert merging.is_under_way
    assert merging.result() == []
    later.go_on()
    assert merging.result() == [(TASK.pieces, piece(0, last=1))]
    assert not merging.is_under_way
    assert merging.result() == []


def test_shards_are_compacted_together() -> None:
    """One result has all of them, without those that gave no piece."""
    tasks = [CompactionTask((piece(0, shard), piece(1, shard)), "ab" * 16, 1, None, None) for shard in range(3)]
    merging = Compactions(Answers(piece(0, 0, last=1), None, piece(0, 2, last=1)), lambda do: do())
    merging.begin(tasks)
    assert merging.result() == [(tasks[0].pieces, piece(0, 0, last=1)), (tasks[2].pieces, piece(0, 2, last=1))]


def test_an_error_is_that_of_its_own_pieces() -> None:
    """The others are merged all the same; nothing is under way after it, nor after a process that has died."""
    error = OSError("no disk")
    tasks = [CompactionTask((piece(0, shard), piece(1, shard)), "ab" * 16, 1, None, None) for shard in range(2)]
    merging = Compactions(Answers(error, piece(0, 1, last=1), None), lambda do: do())
    merging.begin(tasks)
    assert merging.result() == [(tasks[0].pieces, error), (tasks[1].pieces, piece(0, 1, last=1))]
    assert not merging.is_under_way
    merging.begin([TASK])
    assert merging.result() == []
    assert not merging.is_under_way


def test_a_stop_takes_back_what_was_merged(caplog: pytest.LogCaptureFixture) -> None:
    """Beside one that failed, which is named."""
    merging = Compactions(Answers(OSError("no disk"), piece(0, last=1)), lambda do: do())
    merging.begin([TASK, TASK])
    assert merging.close() == [piece(0, last=1)]
    assert "pieces could not be merged: no disk" in caplog.text


class NoWorker(Merges):
    """Nothing can be merged at all."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def merge(self, task: CompactionTask) -> PieceRef | None:
        raise NotImplementedError

    def merge_each(self, tasks: Sequence[CompactionTask]) -> Iterator[Answer]:
        raise self._error


def test_an_error_of_all_merges_is_raised_or_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A storage that is away is tried again; any other error ends the job. At a stop it is named."""
    process = Process(world)
    for error in (StorageAwayError("the NameNode is away"), OSError("no process can be started")):
        process.runner._compaction = Compactions(NoWorker(error), lambda do: do())
        process.runner._compaction.begin([TASK])
        with caplog.at_level(logging.INFO, logger="deduper.window.runner"):
            if isinstance(error, StorageAwayError):
                process.runner._record_merged(process.log.state)
                assert "pieces are merged later: the NameNode is away" in caplog.text
            else:
                with pytest.raises(OSError, match="no process"):
                    process.runner._record_merged(process.log.state)
        assert not process.runner._compaction.is_under_way
    merging = Compactions(NoWorker(OSError("no memory")), lambda do: do())
    merging.begin([TASK])
    assert merging.close() == []
    assert "pieces could not be merged: no memory" in caplog.text


def test_a_stop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The next start removes what comes of it."""
    monkeypatch.setattr("bucket_store.maintenance.compactions._CLOSE_S", 0.0)
    merging = Compactions(Answers(piece(0)), Later())
    merging.begin([TASK])
    assert merging.close() == []
    assert "pieces are still being merged" in caplog.text
    assert merging.close() == []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A small job with its machine."""
    one = World(tmp_path, Trial(ORDERED, ports=True))
    with machine_of(one):
        yield one


def rows(window: int) -> list[Row]:
    """Two new keys, and one of three windows ago."""
    return [Row((f"k{2 * window}",), 1), Row((f"k{2 * window + 1}",), 1), Row((f"k{max(0, 2 * window - 6)}",), 1)]


@pytest.mark.slow
def test_a_job_keeps_few_pieces(world: World) -> None:
    """Verdicts are as ever, and a duplicate still knows where its first copy was read, of merged windows too."""
    process = Process(world)
    for window in range(24):
        process.offer(world.put([rows(window)]))
    (pieces,) = process.log.state.pieces.values()
    assert len(pieces) <= 6
    assert sum(ref.entries for ref in pieces) == 48
    for (window, _, _), judged in world.judged.items():
        (given,) = judged.answers
        assert [answer[0] for answer in given[:2]] == ["unique", "unique"]
        if window > 3:
            first = world.judged[window - 3, 1, window - 3].paths[0]
            assert given[2] == ("duplicate", "earlier_window", (window - 3, first, 0, 1))


@pytest.mark.slow
def test_what_has_died_meanwhile_does_not_come_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The merged piece stays unnamed, and the next start removes it."""
    process = Process(world)
    for window in range(compaction.FEWEST):
        process.offer(world.put([rows(window)]))
    assert process.runner._compaction.is_under_way
    live = process.log.state.pieces[0]
    process.log.place(DeletionRecord(live, world.now_us, live[-1].last_window))
    with caplog.at_level(logging.INFO, logger="deduper.window.runner"):
        process.offer(world.put([rows(compaction.FEWEST)]))
    assert "is left for the next start: some of the merged pieces have expired" in caplog.text
    lying = {found.name for found in process.pieces.pieces()}
    named = {ref.name for refs in process.log.state.pieces.values() for ref in refs}
    (orphan,) = lying - named - {ref.name for ref in live}
    assert orphan in caplog.text
    restarted = Process(world)
    assert orphan not in {found.name for found in restarted.pieces.pieces()}


def test_pieces_that_were_deleted_before_their_merge_are_no_damage(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The merge waits while its pieces expire and their bytes are deleted, as on a machine that was suspended."""
    process, later = Process(world), Later()
    process.runner._compaction = Compactions(process.runner._maintenance, later)
    for window in range(compaction.FEWEST):
        process.offer(world.put([rows(window)]))
    live = process.log.state.pieces[0]
    process.log.place(DeletionRecord(live, world.now_us, live[-1].last_window))
    assert process.pieces.delete(live) == ()
    later.go_on()
    with caplog.at_level(logging.INFO, logger="deduper.window.runner"):
        process.offer(world.put([rows(compaction.FEWEST)]))
    assert "pieces of shard 0 are not merged: some of them have expired" in caplog.text
    assert len(process.log.state.pieces[0]) == 1


def test_a_merge_of_live_pieces_that_are_damaged_ends_the_job(world: World) -> None:
    """Their bytes are gone although the store names them."""
    process, later = Process(world), Later()
    process.runner._compaction = Compactions(process.runner._maintenance, later)
    for window in range(compaction.FEWEST):
        process.offer(world.put([rows(window)]))
    assert process.pieces.delete(process.log.state.pieces[0]) == ()
    later.go_on()
    with pytest.raises(CorruptionError):
        process.runner._record_merged(process.log.state)


@pytest.mark.slow
def test_what_the_last_window_has_begun_is_recorded(world: World) -> None:
    """A job that is started again for every window keeps few pieces too."""
    for window in range(24):
        process = Process(world)
        process.offer(world.put([rows(window)]))
        process.runner.finish()
        process.runner.close()
        (pieces,) = process.log.state.pieces.values()
        assert len(pieces) <= 6
        assert {found.name for found in process.pieces.pieces()} >= {ref.name for ref in pieces}
    assert sum(ref.entries for ref in process.log.state.pieces[0]) == 48


def test_a_stop_leaves_nothing_behind(world: World) -> None:
    """What was just merged is deleted again: no record names it."""
    process = Process(world)
    for window in range(compaction.FEWEST):
        process.offer(world.put([rows(window)]))
    assert process.runner._compaction.is_under_way
    assert len(list(process.pieces.pieces())) == compaction.FEWEST + 1
    process.runner.close()
    named = {ref.name for refs in process.log.state.pieces.values() for ref in refs}
    assert {found.name for found in process.pieces.pieces()} == named
    process.runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_merged_store_is_sound(tmp_path: Path, kind: Kind) -> None:
    """Every check of `verify` passes on it."""
    job = WholeJob(tmp_path, kind, seed=5).make(2)
    for _ in range(6):
        job.run_window()
        state = job.log.refresh()
        dead = policy.dead_pieces(job.config, state)
        for shard in range(2):
            # Whatever they die with: these windows are too far apart for any rule.
            live = tuple(piece for piece in state.pieces[shard] if piece not in dead)[:3]
            if len(live) > 1:
                place = (policy.live_from_bucket(job.config, state), policy.entry_expiry_point(job.config, state))
                added = compact_pieces(
                    job.open().pieces, CompactionTask(live, job.log.manifest.store_id, state.epoch, *place)
                )
                assert added is not None
                job.log.place(CompactionRecord(live, (added,), state.last_wall_us))
    merged = [ref for refs in job.log.state.pieces.values() for ref in refs if ref.first_window < ref.last_window]
    assert merged
    report = verify_store(job.open())
    assert (report.findings, half_done(report)) == ((), [])
    assert report.ran == set(Check)
