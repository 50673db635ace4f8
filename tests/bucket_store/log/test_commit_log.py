"""The log on disk: one winner a number, no wrong outcome after any error, nobody but the newest owner."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bucket_store.errors import (
    CorruptionError,
    FencedError,
    MaybeCommittedError,
    NotCommittedError,
    StoreError,
    StoreMissingError,
)
from bucket_store.filesystem import LocalFileSystem, is_temporary
from bucket_store.log import commit_log
from bucket_store.log.codec import record_name
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import ClaimRecord, CommitRecord, DeletionRecord, LogRecord, LogSnapshot, LogState
from bucket_store.log.state import fold_all
from bucket_store.places.local import local_place
from tests.bucket_store.faulty_files import FaultyFiles
from tests.bucket_store.log_samples import advance, commit, die_after_the_due_snapshot, new_log, piece
from tests.faults.crash_disk import Disk, Machine, cut


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is synced is seen from the calls, and no test here cuts the machine's power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def committed_windows(root: Path) -> list[int]:
    """The windows in the records that lie in the log."""
    return [
        record.body.window
        for record in CommitLog.open(local_place(root)).records()
        if isinstance(record.body, CommitRecord)
    ]


def temporaries(root: Path) -> list[str]:
    """The names of writers' temporary files in the log."""
    return [path.name for path in (root / "log").iterdir() if is_temporary(path.name)]


# --- creating and reading


def test_a_new_store_is_a_birth_snapshot_and_a_manifest(tmp_path: Path) -> None:
    """Record 0 is the snapshot of the empty state."""
    log = CommitLog.create(local_place(tmp_path / "a" / "b"), {"shards": 2}, wall_us=5)
    (record,) = log.records()
    assert (record.number, record.epoch, record.body) == (0, 0, LogSnapshot(LogState(last_wall_us=5)))
    assert (log.state.next_number, log.state.next_window, log.manifest.settings) == (1, 0, {"shards": 2})


def test_no_store_and_a_second_store_are_refused(tmp_path: Path) -> None:
    """Opening nothing is StoreMissingError; creating over a store is a StoreError that changes nothing."""
    with pytest.raises(StoreMissingError):
        CommitLog.open(local_place(tmp_path / "none"))
    log = CommitLog.create(local_place(tmp_path), {}, wall_us=5)
    for _ in range(2):
        with pytest.raises(StoreError, match="is a store already"):
            CommitLog.create(local_place(tmp_path), {}, wall_us=9)
        assert CommitLog.open(local_place(tmp_path)).manifest == log.manifest
        log.claim_epoch("me", 6)


def test_a_broken_creation_left_a_whole_store_or_is_simply_done_again(tmp_path: Path) -> None:
    """At whatever call it broke off, opening or else creating once more gives a whole store."""
    for at in range(100):
        root = tmp_path / str(at)
        files = FaultyFiles(lambda index, name, path, at=at: "before" if index >= at else None)  # type: ignore[misc]
        try:
            CommitLog.create(local_place(root, files), {}, wall_us=5)
        except OSError:
            whole = (root / "manifest").exists()
            log = CommitLog.open(local_place(root)) if whole else CommitLog.create(local_place(root), {}, wall_us=5)
            assert log.claim_epoch("me", 6) == 1
        else:
            assert at > 5
            return
    pytest.fail("no creation ever came to its end")


def test_of_two_creators_one_makes_the_store(tmp_path: Path) -> None:
    """The other gets an error, and its salt and identity are nowhere."""
    made = []

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "link" and path.name == "manifest" and not made:
            made.append(CommitLog.create(local_place(tmp_path), {"by": "winner"}, wall_us=5))

    with pytest.raises(StoreError, match="already"):
        CommitLog.create(local_place(tmp_path, FaultyFiles(meanwhile)), {}, wall_us=6)  # type: ignore[arg-type]
    assert CommitLog.open(local_place(tmp_path)).manifest == made[0].manifest


def test_a_log_without_its_manifest_is_refused(tmp_path: Path) -> None:
    """A new salt over old digests would make every key unknown."""
    new_log(tmp_path)
    (tmp_path / "manifest").unlink()
    with pytest.raises(StoreError, match="without a manifest"):
        CommitLog.create(local_place(tmp_path), {}, wall_us=9)


def test_readers_and_the_writer_have_the_same_state(tmp_path: Path) -> None:
    """Over several snapshots, with tuples in `extra`, opening and following give what the writer has."""
    log = new_log(tmp_path, snapshot_every=4)
    follower = CommitLog.open(local_place(tmp_path))
    for window in range(11):
        log.place(commit(window, extra={"live": ("oslo", window)}))
        assert follower.refresh() == log.state
        assert CommitLog.open(local_place(tmp_path)).state == log.state
    log.place(DeletionRecord((piece(0, 0), piece(3, 1)), 9, 3))
    assert CommitLog.open(local_place(tmp_path)).state == log.state == follower.refresh()


def test_every_multiple_of_snapshot_every_is_a_snapshot_and_nothing_else_is(tmp_path: Path) -> None:
    """The name alone tells."""
    log = new_log(tmp_path, snapshot_every=3)
    advance(log, 7)
    kinds = {record.number: isinstance(record.body, LogSnapshot) for record in log.records()}
    assert kinds == {number: number % 3 == 0 for number in range(12)}


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_missing_or_misplaced_record_is_corruption(tmp_path: Path, number: int) -> None:
    """A hole is not the end of the log, and a snapshot stands at its numbers only."""
    log = new_log(tmp_path, snapshot_every=3)
    advance(log, 4)
    path = tmp_path / "log" / record_name(number)
    if number == 1:
        (tmp_path / "log" / record_name(6)).unlink()  # So that readers start at 3, whose record 4 claims nothing wrong.
        path = tmp_path / "log" / record_name(5)
        (tmp_path / "log" / record_name(7)).rename(path)
    else:
        path.unlink()
        for later in (6, 7):
            (tmp_path / "log" / record_name(later)).unlink()
    with pytest.raises(CorruptionError):
        CommitLog.open(local_place(tmp_path))


def test_a_damaged_record_stops_the_reader_and_names_the_file(tmp_path: Path) -> None:
    """Never a shorter log, never another state."""
    log = new_log(tmp_path)
    advance(log, 3)
    path = tmp_path / "log" / record_name(3)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError) as caught:
        CommitLog.open(local_place(tmp_path))
    assert caught.value.file == str(path)


# --- cost


def test_a_commit_costs_one_file_sync_and_one_directory_sync(tmp_path: Path) -> None:
    """And a look at the record before; nothing is listed."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.calls.clear()
    log.place(commit(0))
    assert [name for name, _ in files.calls] == ["write_file", "link", "fsync_dir", "remove", "open"]


@pytest.mark.parametrize("look", ["refresh", "check_owner"])
def test_looking_for_records_lists_nothing(tmp_path: Path, look: str) -> None:
    """Two numbers, in this order."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    advance(log, 2)
    files.calls.clear()
    getattr(log, look)()
    assert files.calls == [("open", tmp_path / "log" / record_name(number)) for number in (4, 3)]


def test_refreshing_reads_only_what_is_new(tmp_path: Path) -> None:
    """A follower three records behind reads three."""
    log = new_log(tmp_path)
    advance(log, 20)
    files = FaultyFiles()
    follower = CommitLog.open(local_place(tmp_path, files))
    advance(log, 3)
    files.calls.clear()
    assert follower.refresh() == log.state
    assert files.count("read") == 3


@pytest.mark.slow
def test_a_log_is_opened_by_one_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is read once, and the state copied once, not once a record."""
    log = CommitLog.create(local_place(tmp_path), {}, wall_us=5, snapshot_every=2000)
    log.claim_epoch("me", 6)
    advance(log, 300)
    folds: list[LogState] = []

    def counted(state: LogState, records: Iterable[LogRecord]) -> LogState:
        folds.append(state)
        return fold_all(state, records)

    monkeypatch.setattr(commit_log, "fold_all", counted)
    monkeypatch.setattr(commit_log, "fold", lambda state, record: pytest.fail("a copy a record"))
    files = FaultyFiles()
    opened = CommitLog.open(local_place(tmp_path, files))
    assert (len(folds), files.count("read")) == (1, 1 + log.state.next_number)  # one is the manifest
    assert opened.state == log.state


# --- taking over


def test_the_old_owner_is_fenced_wherever_it_stands(tmp_path: Path) -> None:
    """After a higher claim the old epoch places nothing and owns nothing; the log has the new owner's records alone."""
    old = new_log(tmp_path)
    advance(old, 1)
    new = CommitLog.open(local_place(tmp_path))
    assert new.claim_epoch("second", 7) == 2
    with pytest.raises(FencedError):
        old.place(commit(1, 1))
    for _ in range(2):
        with pytest.raises(FencedError):
            old.check_owner()
        with pytest.raises(FencedError):
            old.place(commit(1, 1))
    new.check_owner()
    new.place(commit(1, 2))
    assert committed_windows(tmp_path) == [0, 1]
    assert temporaries(tmp_path) == []


def test_a_claim_goes_after_a_commit_that_was_faster(tmp_path: Path) -> None:
    """The old owner commits between the claimer's reading and its placing: the window counts, then the claim."""
    old = new_log(tmp_path)

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "link" and old.state.next_window == 0:
            advance(old, 1)

    new = CommitLog.open(local_place(tmp_path, FaultyFiles(meanwhile)))  # type: ignore[arg-type]
    assert new.claim_epoch("second", 7) == 2
    assert (new.state.next_window, new.state.next_number) == (1, 4)


def test_of_two_claims_at_one_moment_the_slower_is_fenced(tmp_path: Path) -> None:
    """It must not take over from an owner that has only just begun."""
    new_log(tmp_path)
    racer = CommitLog.open(local_place(tmp_path))

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "link" and racer.epoch is None:
            racer.claim_epoch("racer", 7)

    with pytest.raises(FencedError):
        CommitLog.open(local_place(tmp_path, FaultyFiles(meanwhile))).claim_epoch("slower", 7)  # type: ignore[arg-type]
    racer.check_owner()


@pytest.mark.parametrize("moment", ["fsync_dir", "open"])
def test_a_claim_right_after_ones_own_commit_fences_its_writer(tmp_path: Path, moment: str) -> None:
    """The commit is in the log and the new owner sees it; before the old one publishes, it sees the claim."""
    files = FaultyFiles()
    old = new_log(tmp_path, fs=files)
    new = CommitLog.open(local_place(tmp_path))

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == moment and new.epoch is None:
            new.claim_epoch("second", 7)

    files.fault = meanwhile  # type: ignore[assignment]
    old.place(commit(0))
    with pytest.raises(FencedError):
        old.check_owner()
    assert (new.refresh().next_window, new.state.epoch) == (1, 2)


@pytest.mark.parametrize("windows_before", [0, 1, 2, 3])
def test_a_writer_below_a_newer_snapshot_is_fenced_though_its_number_is_free(
    tmp_path: Path, windows_before: int
) -> None:
    """Its slot was folded and deleted, at a snapshot's number too; what it placed there never counts."""
    old = new_log(tmp_path, snapshot_every=4)
    advance(old, windows_before)
    reader = CommitLog.open(local_place(tmp_path))
    new = CommitLog.open(local_place(tmp_path))
    new.claim_epoch("second", 7)
    advance(new, 9)
    newest = new.state.next_number - 1
    assert new.delete_folded(grace_us=0) == newest - newest % 4
    with pytest.raises(FencedError):
        old.place(commit(windows_before))
    with pytest.raises(FencedError):
        old.place(commit(windows_before))
    assert CommitLog.open(local_place(tmp_path)).state == new.state == reader.refresh()


def test_a_writer_whose_number_is_free_is_fenced_while_its_slot_is_being_deleted(tmp_path: Path) -> None:
    """The name was taken at the link and gone at the reading back."""
    files = FaultyFiles()
    old = new_log(tmp_path, snapshot_every=4, fs=files)
    new = CommitLog.open(local_place(tmp_path))
    new.claim_epoch("second", 7)
    advance(new, 3)

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "read":
            new.delete_folded(grace_us=0)

    files.fault = meanwhile  # type: ignore[assignment]
    with pytest.raises(FencedError):
        old.place(commit(0))


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_snapshot_above_ones_number_is_no_claim(tmp_path: Path, is_deleted: bool) -> None:
    """Its writer may die before its claim; then no other process would own the store.

    Also when all below it is deleted: it holds the record and no claim after the writer's own, so nobody else could
    have taken that number.
    """
    files = FaultyFiles()
    log = new_log(tmp_path, snapshot_every=4, fs=files)
    advance(log, 1)

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "fsync_dir":
            files.fault = None
            die_after_the_due_snapshot(tmp_path)
            if is_deleted:
                CommitLog.open(local_place(tmp_path)).delete_folded(grace_us=0)

    files.fault = meanwhile  # type: ignore[assignment]
    log.place(commit(1))
    log.check_owner()
    assert log.state == CommitLog.open(local_place(tmp_path)).state
    assert log.state.next_window == 2
    advance(log, 1)
    assert CommitLog.open(local_place(tmp_path)).state == log.state


def test_a_claimer_that_was_overtaken_up_to_the_next_snapshot_places_that_too(tmp_path: Path) -> None:
    """No claim ever takes a snapshot's number."""
    old = new_log(tmp_path, snapshot_every=4)
    advance(old, 2)  # records 2 and 3

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "fsync_dir" and (tmp_path / "log" / record_name(4)).exists() and old.state.next_number == 4:
            advance(old, 3)  # records 5, 6 and 7

    new = CommitLog.open(local_place(tmp_path, FaultyFiles(meanwhile)))  # type: ignore[arg-type]
    assert new.claim_epoch("second", 7) == 2
    assert [type(record.body) for record in new.records(8)] == [LogSnapshot, ClaimRecord]


def test_another_writers_snapshot_is_as_good(tmp_path: Path) -> None:
    """A claimer that placed the due snapshot and died does not stop the owner."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 2)  # records 2 and 3
    die_after_the_due_snapshot(tmp_path)
    advance(log, 1)
    assert [type(record.body) for record in log.records(4)] == [LogSnapshot, CommitRecord]


def test_placing_needs_a_claim_and_the_claimed_epoch(tmp_path: Path) -> None:
    """Both are mistakes of the caller, not outcomes."""
    log = CommitLog.create(local_place(tmp_path), {}, wall_us=5)
    with pytest.raises(ValueError, match="no epoch"):
        log.place(commit(0))
    with pytest.raises(ValueError, match="no epoch"):
        log.check_owner()
    log.claim_epoch("me", 6)
    with pytest.raises(ValueError, match="epoch 2"):
        log.place(commit(0, 2))


def test_a_record_that_does_not_follow_is_never_written(tmp_path: Path) -> None:
    """A window out of turn or the deletion of an unknown piece would poison every reader."""
    log = new_log(tmp_path)
    for body in (commit(1), DeletionRecord((piece(9),), 5, 9)):
        with pytest.raises(NotCommittedError, match="does not follow"):
            log.place(body)
    assert CommitLog.open(local_place(tmp_path)).state == log.state
    advance(log, 1)


# --- unclear errors


def test_a_link_that_happened_but_failed_is_committed(tmp_path: Path) -> None:
    """Read back by its nonce."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.fault = lambda index, name, path: "after" if name == "link" else None
    assert log.place(commit(0)).next_window == 1
    assert ("fsync_dir", tmp_path / "log") in files.calls[-4:]
    assert CommitLog.open(local_place(tmp_path)).state == log.state


@pytest.mark.parametrize("name", ["write_file", "link"])
def test_a_write_or_link_that_failed_is_not_committed(tmp_path: Path, name: str) -> None:
    """Nothing is left, and the same window may be committed again."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.fault = lambda index, called, path: "before" if called == name else None
    with pytest.raises(NotCommittedError):
        log.place(commit(0))
    assert temporaries(tmp_path) == []
    assert committed_windows(tmp_path) == []
    files.fault = None
    assert log.place(commit(0)).next_window == 1


@pytest.mark.parametrize("name", ["fsync_dir", "open"])
def test_after_the_link_an_error_leaves_it_open(tmp_path: Path, name: str) -> None:
    """The record is there but may not last, or may not count: only a fresh reading can tell."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.fault = lambda index, called, path: "before" if called == name else None
    with pytest.raises(MaybeCommittedError):
        log.place(commit(0))
    files.fault = None
    assert log.refresh().next_window == 1
    assert log.place(commit(1)).next_window == 2


def test_a_read_back_that_fails_leaves_it_open(tmp_path: Path) -> None:
    """The link gave an error and so did the look at its outcome."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.fault = lambda index, name, path: {"link": "after", "read": "before"}.get(name)
    with pytest.raises(MaybeCommittedError):
        log.place(commit(0))


def test_a_snapshot_that_may_be_placed_leaves_its_record_certainly_unplaced(tmp_path: Path) -> None:
    """The window is not committed, whatever became of the snapshot before it."""
    files = FaultyFiles()
    log = new_log(tmp_path, snapshot_every=2, fs=files)
    files.fault = lambda index, called, path: "before" if called == "fsync_dir" else None
    with pytest.raises(NotCommittedError):
        log.place(commit(0))
    files.fault = None
    log.refresh()
    assert log.place(commit(0)).next_window == 1


def test_a_claim_that_slept_beyond_the_grace_is_fenced(tmp_path: Path) -> None:
    """Its slot was folded away and its temporary file cleaned up: another has the store, and that is what it says."""

    class Sleepy(LocalFileSystem):
        def link(self, source: Path, target: Path) -> None:
            for number in range(5):
                CommitLog.open(local_place(tmp_path)).claim_epoch(f"meanwhile {number}", 7)
            CommitLog.open(local_place(tmp_path)).delete_folded(grace_us=0)
            super().link(source, target)

    CommitLog.create(local_place(tmp_path), {"shards": 2}, wall_us=5, snapshot_every=2)
    with pytest.raises(FencedError):
        CommitLog.open(local_place(tmp_path, Sleepy())).claim_epoch("sleeper", 6)
    assert CommitLog.open(local_place(tmp_path)).state.epoch == 5


def test_a_slot_with_another_record_of_the_same_epoch_is_not_committed(tmp_path: Path) -> None:
    """As when a first try of this process was placed after all: refresh tells."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.fault = lambda index, name, path: "before" if name in ("fsync_dir", "listdir") else None
    with pytest.raises(MaybeCommittedError):
        log.place(commit(0))
    files.fault = None
    with pytest.raises(NotCommittedError):
        log.place(commit(0, attempt=1))
    assert (log.state.next_window, committed_windows(tmp_path)) == (1, [0])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("windows_before", [0, 1])
def test_whatever_call_fails_the_outcome_is_true(tmp_path: Path, windows_before: int, how: str) -> None:
    """Fail at the n-th call for every n, with and without a due snapshot: committed or not is never said wrongly."""
    for at in range(100):
        root = tmp_path / str(at)
        files = FaultyFiles()
        log = new_log(root, snapshot_every=3, fs=files)
        advance(log, windows_before)
        files.calls.clear()
        files.fault = lambda index, name, path, at=at: how if index == at else None  # type: ignore[misc]
        outcome = None
        try:
            log.place(commit(windows_before))
            outcome = True
        except NotCommittedError:
            outcome = False
        except MaybeCommittedError:
            pass
        found = CommitLog.open(local_place(root))
        is_in = found.state.next_window == windows_before + 1
        assert outcome in (is_in, None)
        found.claim_epoch("next", 8)
        advance(found, 4)
        assert [w for w in committed_windows(root) if w < windows_before] == list(range(windows_before))
        if at >= len(files.calls):
            assert outcome
            return
    pytest.fail("no placing ever came to its end")


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 6 else pytest.mark.night) for seed in range(40)]
)
def test_what_place_returned_survives_a_power_cut(seed: int) -> None:
    """After a cut at any moment the log opens, and holds every window that was reported, whole."""
    disk = Disk()
    root = Path("/store")
    log = CommitLog.create(local_place(root, Machine(disk)), {}, wall_us=5, snapshot_every=4)
    log.claim_epoch("me", 6)
    reported = 0
    promises = [0] * len(disk.moments)
    disk.is_kept = True
    for window in range(9):
        log.place(commit(window))
        promises += [reported] * (len(disk.moments) - len(promises))
        reported = window + 1
        promises[-1] = reported
    for promised, nodes in zip(promises, disk.moments, strict=True):
        found = CommitLog.open(local_place(root, Machine(cut(nodes, seed))))
        assert promised <= found.state.next_window <= promised + 1
        found.claim_epoch("next", 7)
        found.place(commit(found.state.next_window, 2))


# --- forgetting and deleting


def test_published_outputs_are_forgotten_with_the_next_record(tmp_path: Path) -> None:
    """For every reader alike, and over a snapshot."""
    log = new_log(tmp_path, snapshot_every=5)
    advance(log, 2)
    assert sorted(log.state.outputs) == [0, 1]
    log.forget_outputs(0)
    log.forget_outputs(-1)
    assert sorted(log.state.outputs) == [0, 1]
    advance(log, 1)
    assert sorted(log.state.outputs) == [1, 2]
    advance(log, 3)
    assert sorted(log.state.outputs) == sorted(CommitLog.open(local_place(tmp_path)).state.outputs) == [1, 2, 3, 4, 5]


def test_purged_pieces_are_forgotten_with_the_next_record(tmp_path: Path) -> None:
    """Up to the number of the record in which they left."""
    log = new_log(tmp_path)
    advance(log, 2)
    log.place(DeletionRecord((piece(0, 0),), 9, 0))
    log.place(DeletionRecord((piece(1, 0),), 9, 1))
    log.forget_retired(log.state.retired[0].at_number)
    advance(log, 1)
    assert [gone.ref for gone in log.state.retired] == [piece(1, 0)]
    assert CommitLog.open(local_place(tmp_path)).state == log.state


def test_nothing_is_forgotten_before_it_is_there(tmp_path: Path) -> None:
    """A published mark beyond the log would hide the outputs of windows to come."""
    log = new_log(tmp_path)
    with pytest.raises(ValueError, match="not committed"):
        log.forget_outputs(0)
    with pytest.raises(ValueError, match="no record 2"):
        log.forget_retired(2)
    log.place(commit(0))
    log.forget_outputs(0)
    log.forget_retired(2)


def test_folded_records_go_after_the_grace_and_never_the_newest_snapshot(tmp_path: Path) -> None:
    """Both sides of the edge: what counts is the age of the snapshot above them."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 7)  # records 0..10, snapshots 0, 4, 8
    times = {0: 100, 4: 1000, 8: 5000}
    for number, seconds in times.items():
        os.utime(tmp_path / "log" / record_name(number), (seconds, seconds))
    litter = tmp_path / "log" / ".00000000000000000009.ab.tmp"
    litter.write_bytes(b"half")
    os.utime(litter, (5000, 5000))

    def left(now_s: int, before_us: int = 0) -> list[int]:
        os.utime(tmp_path / "log" / record_name(10), ns=(0, (now_s * 1_000_000 - before_us) * 1000))
        log.delete_folded()
        return [record.number for record in log.records()]

    assert left(1000 + 3600, before_us=1) == list(range(11))
    assert left(1000 + 3600) == list(range(4, 11))
    assert left(5000 + 3600, before_us=1) == list(range(4, 11))
    assert litter.exists()
    assert left(5000 + 3600) == [8, 9, 10]
    assert not litter.exists()
    assert left(10**9) == [8, 9, 10]
    assert CommitLog.open(local_place(tmp_path)).state == log.state
    advance(log, 3)


def test_a_reader_that_listed_before_the_deletion_starts_again_at_the_newer_snapshot(tmp_path: Path) -> None:
    """A record that went away between listing and reading is no hole."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 2)

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "read" and path.name == record_name(1) and log.state.next_window == 2:
            advance(log, 5)
            log.delete_folded(grace_us=0)

    reader = CommitLog.open(local_place(tmp_path, FaultyFiles(meanwhile)))  # type: ignore[arg-type]
    assert reader.state == log.state


def test_the_last_commits_are_found_among_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ascending, at most as many as there are, and without reading the log from its beginning."""
    log = new_log(tmp_path)
    for window in range(4):
        advance(log, 1)
        for _ in range(3 * window):
            log.place(DeletionRecord((), 9, -1))
    for count in range(7):
        expected = list(range(4))[4 - min(count, 4) :]
        assert [record.window for record in log.last_commits(count)] == expected
    begun = []
    records = log.records

    def noted(from_number: int = 0) -> Any:
        begun.append(from_number)
        return records(from_number)

    monkeypatch.setattr(log, "records", noted)
    end = log.state.next_number
    log.last_commits(1)
    assert begun == [end - 1, end - 4, end - 16]


def test_no_commit_is_asked_for_while_the_log_grows(tmp_path: Path) -> None:
    """0 gives none, also where the owner has committed since this reader read the log."""
    log = new_log(tmp_path)
    reader = CommitLog.open(local_place(tmp_path))
    advance(log, 2)
    assert reader.last_commits(0) == []
