"""The log on disk, at the edges of its rules: what must be synced, read, refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from bucket_store.errors import (
    CorruptionError,
    FencedError,
    MaybeCommittedError,
    NotCommittedError,
    StorageAwayError,
)
from bucket_store.log import commit_log
from bucket_store.log.codec import encode_record, record_name
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import ClaimRecord, LogSnapshot, LogState
from bucket_store.log.sources_archive import path_of
from bucket_store.log.sources_file import SourcePartition, read_named, write_sources
from bucket_store.places.local import LocalNames, local_place
from bucket_store.places.outages import is_waiting, waiting
from bucket_store.places.place import Entry, Place
from tests.bucket_store.faulty_files import FaultyFiles
from tests.bucket_store.log_samples import advance, commit, die_after_the_due_snapshot, envelope, new_log

Fault = Callable[[int, str, Path], Any]


def advance_as(owner: str, log: CommitLog, windows: int) -> None:
    """Claim the store and commit that many windows."""
    log.claim_epoch(owner, 6)
    advance(log, windows)


def fold_away(log: CommitLog) -> None:
    """Delete all that the newest snapshot stands for."""
    log.delete_folded(grace_us=0)


def test_the_first_records_say_that_nothing_is_published_or_purged(tmp_path: Path) -> None:
    """Nonces have 16 bytes, and no two are equal: they tell whose a record is."""
    log = new_log(tmp_path)
    advance(log, 1)
    records = list(log.records())
    assert [(record.published_through, record.purged_through) for record in records] == [(-1, -1)] * 3
    assert [len(record.nonce) for record in records] == [16] * 3
    assert len({record.nonce for record in records}) == 3


def test_a_snapshot_stands_at_every_thousandth_number_unless_told_otherwise(tmp_path: Path) -> None:
    """The manifest keeps it for the life of the store."""
    assert CommitLog.create(local_place(tmp_path), {}, wall_us=5).manifest.snapshot_every == 1000


def test_a_birth_that_another_has_placed_is_made_durable(tmp_path: Path) -> None:
    """Before the manifest says that there is a store."""
    CommitLog.create(local_place(tmp_path), {}, wall_us=5)
    (tmp_path / "manifest").unlink()
    files = FaultyFiles()
    CommitLog.create(local_place(tmp_path, files), {}, wall_us=5)  # type: ignore[arg-type]
    names = [(name, path.name) for name, path in files.calls]
    assert names.index(("fsync_dir", "log")) < names.index(("link", "manifest"))


def test_a_log_that_is_empty_is_damage(tmp_path: Path) -> None:
    """It is no new store: its keys are lost."""
    CommitLog.create(local_place(tmp_path), {}, wall_us=5)
    (tmp_path / "log" / record_name(0)).unlink()
    with pytest.raises(CorruptionError, match=r"at byte 0: missing record: .*, found .*00000000"):
        CommitLog.open(local_place(tmp_path))


@pytest.mark.parametrize(
    ("number", "body", "says"),
    [
        (3, LogSnapshot(LogState(next_number=3)), "expected no snapshot, found LogSnapshot"),
        (4, ClaimRecord(2, "me", 5), "expected a snapshot, found ClaimRecord"),
    ],
)
def test_a_snapshot_out_of_its_place_is_damage(tmp_path: Path, number: int, body: Any, says: str) -> None:
    """Numbers alone say where readers begin."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, number - 2)
    (tmp_path / "log" / record_name(number)).write_bytes(encode_record(envelope(number, body)))
    with pytest.raises(CorruptionError, match=f"at byte 0: kind: {says}"):
        CommitLog.open(local_place(tmp_path))


class Elsewhere(LocalNames):
    """A storage that is not on this machine."""

    scheme = "elsewhere"  # type: ignore[assignment]


def test_a_start_elsewhere_reads_many_records_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, from the snapshot on; a missing one is found as ever."""
    monkeypatch.setattr(commit_log, "_READ_AHEAD", 8)
    several = threading.Barrier(4, timeout=30)

    class Slow(Elsewhere):
        """Whose reads of records wait until four are under way."""

        def read(self, path: PurePosixPath) -> bytes:
            if path.parent.name == "log":
                several.wait()
            return LocalNames.read(self, path)

    log = new_log(tmp_path, snapshot_every=100)
    advance(log, 23)
    advance(log, -len(list((tmp_path / "log").iterdir())) % 4)
    assert CommitLog.open(Place(Slow(), PurePosixPath(tmp_path))).state == log.state
    (tmp_path / "log" / record_name(7)).unlink()
    with pytest.raises(CorruptionError, match="missing record"):
        CommitLog.open(Place(Elsewhere(), PurePosixPath(tmp_path)))


# --- claims


def test_a_claim_makes_the_manifests_name_durable(tmp_path: Path) -> None:
    """The creator of the store may have died before; without it nothing is claimed."""
    CommitLog.create(local_place(tmp_path), {}, wall_us=5)
    files = FaultyFiles(lambda index, name, path: "before" if (name, path) == ("fsync_dir", tmp_path) else None)
    log = CommitLog.open(local_place(tmp_path, files))  # type: ignore[arg-type]
    with pytest.raises(NotCommittedError, match="could not be synced"):
        log.claim_epoch("me", 6)
    assert CommitLog.open(local_place(tmp_path)).state.epoch == 0
    files.fault = None
    assert log.claim_epoch("me", 6) == 1
    assert ("fsync_dir", tmp_path) in files.calls


def test_a_claim_that_failed_gives_no_right_of_an_earlier_one(tmp_path: Path) -> None:
    """Nothing is placed by an epoch that was to be left behind."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    files.fault = lambda index, name, path: "before" if name == "write_file" else None
    with pytest.raises(NotCommittedError):
        log.claim_epoch("again", 7)
    files.fault = None
    assert log.epoch is None
    with pytest.raises(ValueError, match="no epoch was claimed"):
        log.place(commit(0))


def test_a_claim_goes_above_those_that_were_made_since_the_log_was_read(tmp_path: Path) -> None:
    """They are no rivals of this moment."""
    log = new_log(tmp_path)
    assert [CommitLog.open(local_place(tmp_path)).claim_epoch("other", 7) for _ in range(2)] == [2, 3]
    assert log.claim_epoch("first", 8) == 4


def test_a_claim_that_is_overtaken_before_it_returns_is_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It owns nothing, though its record stands in the log."""
    CommitLog.create(local_place(tmp_path), {}, wall_us=5)
    log = CommitLog.open(local_place(tmp_path))

    def overtake(name: str) -> None:
        if name == "log.linked":
            monkeypatch.undo()
            CommitLog.open(local_place(tmp_path)).claim_epoch("other", 7)

    monkeypatch.setattr(commit_log.failpoints, "hit", overtake)
    with pytest.raises(FencedError, match="another claim of epoch 2 has taken over"):
        log.claim_epoch("me", 6)
    assert log.epoch is None


def test_a_claim_whose_link_happened_and_failed_is_made(tmp_path: Path) -> None:
    """Read back by its nonce, and so is the snapshot that was due before it."""
    CommitLog.create(local_place(tmp_path), {}, wall_us=5, snapshot_every=2)
    files = FaultyFiles(lambda index, name, path: "after" if name == "link" else None)
    log = CommitLog.open(local_place(tmp_path, files))  # type: ignore[arg-type]
    assert log.claim_epoch("me", 6) == 1
    assert log.claim_epoch("me", 6) == 2
    assert [type(record.body) for record in log.records(1)] == [ClaimRecord, LogSnapshot, ClaimRecord]


def test_an_owner_that_looks_sees_a_claim(tmp_path: Path) -> None:
    """Whatever it read before; a log without a claim has no owner."""
    log = new_log(tmp_path)
    log.check_owner()
    CommitLog.open(local_place(tmp_path)).claim_epoch("second", 7)
    with pytest.raises(FencedError):
        log.check_owner()
    files = FaultyFiles()
    other = CommitLog.open(local_place(tmp_path, files))  # type: ignore[arg-type]
    files.fault = lambda index, name, path: "before"
    with pytest.raises(ValueError, match="no epoch was claimed"):
        other.check_owner()


# --- placing


def test_a_slot_that_another_holds_is_not_committed_though_the_log_cannot_be_read(tmp_path: Path) -> None:
    """That much is certain."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    CommitLog.open(local_place(tmp_path)).claim_epoch("second", 7)
    files.fault = lambda index, name, path: "before" if name == "listdir" else None
    with pytest.raises(NotCommittedError, match=r"holds another record: .*injected before listdir"):
        log.place(commit(0))


@pytest.mark.parametrize("can_list", [True, False])
def test_a_link_that_failed_is_told_as_that(tmp_path: Path, can_list: bool) -> None:
    """Though the log cannot be listed either: the slot was seen to be empty."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    faults = ("link",) if can_list else ("link", "listdir")
    files.fault = lambda index, name, path: "before" if name in faults else None
    with pytest.raises(NotCommittedError, match="injected before link"):
        log.place(commit(0))


@pytest.mark.parametrize("litter", [(), (2,)])
def test_a_claim_in_place_of_a_deleted_claim_of_its_epoch_is_fenced(tmp_path: Path, litter: tuple[int, ...]) -> None:
    """An epoch has one owner, also when a record of another sleeper stands in the number before."""
    CommitLog.create(local_place(tmp_path), {}, wall_us=5, snapshot_every=4)
    advance_as("first", CommitLog.open(local_place(tmp_path)), 1)  # records 1 and 2
    files = FaultyFiles()
    slow = CommitLog.open(local_place(tmp_path, files))  # type: ignore[arg-type]
    old = (tmp_path / "log" / record_name(2)).read_bytes()

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "write_file":
            files.fault = None
            fast = CommitLog.open(local_place(tmp_path))
            advance_as("fast", fast, 2)  # records 3, 5 and 6, of the epoch that the slow one claims
            fold_away(fast)
            for number in litter:
                (tmp_path / "log" / record_name(number)).write_bytes(old)

    files.fault = meanwhile  # type: ignore[assignment]
    with pytest.raises(FencedError, match="another claim of epoch 2"):
        slow.claim_epoch("slow", 7)
    assert slow.epoch is None
    assert slow.state == CommitLog.open(local_place(tmp_path)).state


def test_a_snapshot_that_another_has_placed_is_as_good_though_all_before_it_is_gone(tmp_path: Path) -> None:
    """Folded away between this writer's look and its link."""
    files = FaultyFiles()
    log = new_log(tmp_path, snapshot_every=4, fs=files)
    advance(log, 2)

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "link":
            files.fault = None
            die_after_the_due_snapshot(tmp_path)
            fold_away(CommitLog.open(local_place(tmp_path)))

    files.fault = meanwhile  # type: ignore[assignment]
    assert log.place(commit(2)).next_window == 3


# --- reading on


def test_a_missing_record_without_a_newer_snapshot_is_damage(tmp_path: Path) -> None:
    """Only a snapshot lets records be deleted; the listing that named the record is not asked again and again."""
    log = new_log(tmp_path)
    advance(log, 1)
    gone = tmp_path / "log" / record_name(1)

    def delete(index: int, name: str, path: Path) -> None:
        if name == "read" and path == gone:
            gone.unlink()

    files: Any = FaultyFiles(delete)  # type: ignore[arg-type]
    with pytest.raises(CorruptionError, match="missing record"):
        CommitLog.open(local_place(tmp_path, files))


@pytest.mark.parametrize("woken", ["commit", "claim"])
def test_a_record_of_a_writer_that_slept_is_not_read_in_a_deleted_one_s_place(tmp_path: Path, woken: str) -> None:
    """Between listing and reading, the log goes on past a snapshot, the number is deleted, and a sleeper takes it.

    A commit of its epoch cannot follow the state, a claim could.
    """
    log = new_log(tmp_path, snapshot_every=4)
    late: Any = FaultyFiles()
    reader = CommitLog.open(local_place(tmp_path, late))
    old = encode_record(envelope(2, commit(0, 1) if woken == "commit" else ClaimRecord(2, "slept", 6), epoch=2))
    assert CommitLog.open(local_place(tmp_path)).claim_epoch("second", 7) == 2
    taken = tmp_path / "log" / record_name(2)

    def go_on(index: int, name: str, path: Path) -> None:
        if name == "read" and path == taken:
            late.fault = None
            new = CommitLog.open(local_place(tmp_path))
            new.claim_epoch("third", 8)
            advance(new, 2)
            fold_away(new)
            taken.write_bytes(old)

    late.fault = go_on
    assert reader.refresh() == CommitLog.open(local_place(tmp_path)).state
    assert reader.state.epoch == 3
    assert log.state.epoch == 1


@pytest.mark.parametrize("act", ["refresh", "check_owner", "place"])
def test_a_sleepers_record_in_the_number_before_hides_no_claim(tmp_path: Path, act: str) -> None:
    """All that was read is folded and deleted, and a writer that slept since takes the number of the last one of it.

    That name is there, the next one is not, and size and time of the file are those of the first: its nonce is not.
    """
    old = new_log(tmp_path, snapshot_every=4)
    advance(old, 1)
    last = tmp_path / "log" / record_name(2)
    size, time_ns = last.stat().st_size, last.stat().st_mtime_ns
    advance_as("second", CommitLog.open(local_place(tmp_path)), 6)
    fold_away(CommitLog.open(local_place(tmp_path)))
    last.write_bytes(encode_record(envelope(2, commit(0))))
    os.utime(last, ns=(time_ns, time_ns))
    assert (last.stat().st_size, (tmp_path / "log" / record_name(3)).exists()) == (size, False)
    if act == "refresh":
        assert old.refresh().epoch == 2
    else:
        with pytest.raises(FencedError):
            old.place(commit(1)) if act == "place" else old.check_owner()
    assert CommitLog.open(local_place(tmp_path)).state == old.state


def test_a_record_of_an_owner_that_slept_proves_nothing_before_it_is_proven(tmp_path: Path) -> None:
    """It stands in a slot that was folded away, and the look at the record before it fails: only a later one can tell.

    Were it taken for the first one at its number, this owner would see no claim any more, and set its marks back.
    """
    files = FaultyFiles()
    old = new_log(tmp_path, snapshot_every=4, fs=files)
    advance(old, 1)
    advance_as("second", CommitLog.open(local_place(tmp_path)), 6)
    fold_away(CommitLog.open(local_place(tmp_path)))
    files.fault = lambda index, name, path: "before" if name == "open" and path.name == record_name(2) else None
    with pytest.raises(MaybeCommittedError):
        old.place(commit(1))
    files.fault = None
    assert (tmp_path / "log" / record_name(3)).exists()
    with pytest.raises(FencedError):
        old.check_owner()


def test_a_record_that_cannot_be_read_now_holds_up_no_window(tmp_path: Path) -> None:
    """As when its only DataNode restarts: the NameNode creates and lists, and nothing waits for the bytes."""

    class Away(LocalNames):
        def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
            assert not is_waiting()
            raise StorageAwayError.of(110, "no DataNode has it", "hdfs://namenode:8020", "reads")

    new_log(tmp_path, snapshot_every=4)
    log = CommitLog.open(Place(Away(), PurePosixPath(tmp_path)))
    with waiting(60.0, threading.Event(), RuntimeError):
        log.claim_epoch("second", 7)
        for window in range(3):
            log.check_owner()
            log.place(commit(window, 2))
            assert is_waiting()
    assert CommitLog.open(local_place(tmp_path)).state == log.state


def test_a_deletion_whose_listing_lasted_leaves_no_gap(tmp_path: Path) -> None:
    """A listing of a large folder is many calls: a record may come that is not named, and one behind it that is."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 7)
    missed = record_name(2)

    class Slow(LocalNames):
        def entries(self, path: PurePosixPath) -> list[Entry]:
            return [one for one in LocalNames.entries(self, path) if one.name != missed]

    CommitLog.open(Place(Slow(), PurePosixPath(tmp_path))).delete_folded(grace_us=0)
    assert [path.name for path in (tmp_path / "log").iterdir() if path.name < record_name(8)] == []


def test_a_damaged_record_is_no_later_owner(tmp_path: Path) -> None:
    """The log goes on in the owner's memory; its next snapshot holds what the record said."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 1)
    (tmp_path / "log" / record_name(2)).write_bytes(b"BSLOGREC")
    log.check_owner()
    advance(log, 2)
    assert CommitLog.open(local_place(tmp_path)).state == log.state


def test_refreshing_after_a_snapshot_lists_nothing(tmp_path: Path) -> None:
    """Though all before the snapshot is deleted: the record before the next one is there."""
    files = FaultyFiles()
    log = new_log(tmp_path, snapshot_every=4, fs=files)
    advance(log, 2)
    die_after_the_due_snapshot(tmp_path)
    log.refresh()
    fold_away(log)
    assert [path.name for path in (tmp_path / "log").iterdir()] == [record_name(4)]
    files.calls.clear()
    log.refresh()
    assert [name for name, _ in files.calls] == ["open", "open"]


def test_records_that_go_while_they_are_read_are_passed_over(tmp_path: Path) -> None:
    """Those that stay are given."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 7)
    reading = log.records()
    assert next(reading).number == 0
    fold_away(log)
    assert [record.number for record in reading] == [8, 9, 10]


def test_a_snapshot_of_a_wrong_clock_lets_nothing_be_deleted_early(tmp_path: Path) -> None:
    """It stands ahead of the records after it; a lower one that is past its grace counts."""
    log = new_log(tmp_path, snapshot_every=4)
    advance(log, 7)  # records 0..10, snapshots 0, 4, 8
    for number, hour in {0: 1, 4: 2, 8: 1000, 10: 4}.items():
        os.utime(tmp_path / "log" / record_name(number), (hour * 3600, hour * 3600))
    assert [path.name for path in log.folded()] == [record_name(number) for number in range(4)]


@pytest.mark.parametrize("is_emptied", [True, False])
def test_an_owner_whose_log_is_gone_owns_nothing(tmp_path: Path, is_emptied: bool) -> None:
    """An empty listing is no log without claims."""
    log = new_log(tmp_path)
    advance(log, 2)
    for path in sorted((tmp_path / "log").iterdir())[0 if is_emptied else 2 :]:
        path.unlink()
    with pytest.raises(FileNotFoundError, match="neither record 3 nor a later one"):
        log.check_owner()


def test_files_that_go_while_the_log_is_tidied_are_no_error(tmp_path: Path) -> None:
    """Another writer takes its own temporary file away; and what is gone is not counted as old."""
    files = FaultyFiles()
    log = new_log(tmp_path, snapshot_every=4, fs=files)
    advance(log, 7)
    litter = tmp_path / "log" / ".00000000000000000009.ab.tmp"
    litter.write_bytes(b"half")

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "modified_us" and path in (litter, newest):
            path.unlink(missing_ok=True)

    newest = tmp_path / "log" / record_name(8)
    files.fault = meanwhile  # type: ignore[assignment]
    assert log.delete_folded(grace_us=0) == 4
    looked = {name for name, path in files.calls if path == litter}
    assert looked == {"is_dir", "modified_us"}, "nobody else removes it"


def test_errors_of_the_disk_while_the_log_is_read_on_leave_it_open(tmp_path: Path) -> None:
    """The record is there; whether it counts, a fresh reading tells."""
    files = FaultyFiles()
    log = new_log(tmp_path, fs=files)
    other: list[CommitLog] = []

    def meanwhile(index: int, name: str, path: Path) -> str | None:
        if name == "fsync_dir" and not other:
            other.append(CommitLog.open(local_place(tmp_path)))
            other[0].claim_epoch("second", 7)
        return "before" if name == "open" else None

    files.fault = meanwhile
    with pytest.raises(MaybeCommittedError):
        log.place(commit(0))


def test_a_name_that_a_call_has_taken_without_an_answer_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store gives no answer, and refuses the repeated put for the name that the first one has taken."""
    create = LocalNames.create

    def unanswered(names: LocalNames, path: PurePosixPath, data: bytes, **more: Any) -> None:
        create(names, path, data, **more)
        raise FileExistsError(path)

    monkeypatch.setattr(LocalNames, "create", unanswered)
    root = local_place(tmp_path)
    log = CommitLog.create(root, {}, wall_us=5)
    assert log.manifest == CommitLog.open(root).manifest
    first, other = (SourcePartition(f"{number}.parquet", 7, 0, 100, 10, bytes(16)) for number in range(2))
    ref = write_sources(root, window=0, epoch=1, attempt=0, partitions=(first,))
    assert read_named(root / path_of(ref), ref.length, ref.checksum)
    with pytest.raises(FileExistsError):
        write_sources(root, window=0, epoch=1, attempt=0, partitions=(other,))
