"""The log and the small files of a store on every kind of storage, without a branch: the same answers on each.

A storage joins by a parameter of `root`, or by a `root` of its own in a module that imports all of this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
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
from bucket_store.log import heartbeat
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.copies import original_of
from bucket_store.log.history import History, Sample, read_history
from bucket_store.log.leak_sample import LeakSample, read_leak_sample, write_leak_sample
from bucket_store.log.marks import (
    PUBLISHED_NAME,
    Intent,
    Published,
    prepare_published,
    read_intents,
    read_published,
    remove_intents,
    write_intent,
)
from bucket_store.log.profile import Profiles, WindowProfile, read_profiles
from bucket_store.log.records import ClaimRecord, CommitRecord, LogSnapshot, LogState
from bucket_store.log.sources_archive import SourcesReader, archive_ref, encode_archive
from bucket_store.log.sources_file import (
    FOLDED_DIRECTORY,
    SourcePartition,
    read_sources,
    remove_unnamed,
    write_sources,
)
from bucket_store.places.place import NotDurableError, NotPlacedError, Place, UnansweredError
from tests.bucket_store.log_samples import advance, commit, new_log
from tests.bucket_store.places import test_names_contract
from tests.tiers import is_night

root = test_names_contract.root

FILE = SourcePartition("a.parquet", 7, 0, 100, 10, bytes(range(16)))


class Faulty:
    """The names of a storage, with `fault` in place of its creations: it gets the real one."""

    def __init__(self, names: Any, fault: Callable[[Callable[[], None]], None]) -> None:
        self._names = names
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._names, name)

    def create(self, path: Any, data: bytes, *, failpoint: str = "") -> None:
        """See `Names`."""
        self._fault(lambda: self._names.create(path, data, failpoint=failpoint))


def opened_with(root: Place, fault: Callable[[Callable[[], None]], None]) -> CommitLog:
    """The log of a claimed store whose creations go through `fault` from now on."""
    names: Any = Faulty(root.names, lambda create: create())
    log = CommitLog.open(Place(names, root.path))
    log.claim_epoch("faulty", 7)
    names._fault = fault
    return log


def test_a_store_is_made_once_and_opened_again(root: Place) -> None:
    """With its identity; where there is none, that is said."""
    with pytest.raises(StoreMissingError):
        CommitLog.open(root)
    made = CommitLog.create(root, {"shards": 2}, wall_us=5)
    with pytest.raises(StoreError, match="is a store already"):
        CommitLog.create(root, {}, wall_us=5)
    again = CommitLog.open(root)
    assert (again.manifest, again.state) == (made.manifest, made.state)
    assert again.manifest.settings == {"shards": 2}


def test_a_creation_that_was_cut_short_is_repeated(root: Place) -> None:
    """The birth is there and the manifest is not."""
    CommitLog.create(root, {}, wall_us=5)
    (root / "manifest").remove()
    assert CommitLog.create(root, {}, wall_us=5).claim_epoch("me", 6) == 1


def test_what_was_placed_is_read_by_all(root: Place) -> None:
    """By a new process, and by one that reads on; the claim names the place."""
    log = new_log(root)
    reader = CommitLog.open(root)
    advance(log, 5)
    assert reader.refresh() == log.state == CommitLog.open(root).state
    assert log.state.next_window == 5
    assert log.state.root == str(root.resolved())
    assert original_of(log) is None
    assert [commit.window for commit in log.last_commits(2)] == [3, 4]


def test_an_old_owner_is_fenced(root: Place) -> None:
    """It places nothing more, wherever it stood, and the new one goes on."""
    old = new_log(root)
    advance(old, 2)
    new = CommitLog.open(root)
    assert new.claim_epoch("second", 7) == 2
    with pytest.raises(FencedError):
        old.check_owner()
    for _ in range(2):
        with pytest.raises(FencedError):
            old.place(commit(2, 1))
    advance(new, 1)
    assert CommitLog.open(root).state == new.state
    assert [type(record.body) for record in new.records(1)] == [
        ClaimRecord,
        *[CommitRecord] * 2,
        ClaimRecord,
        CommitRecord,
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("snapshot_every", "rounds"), [(2, 3), (1000, 3), pytest.param(7, 100, marks=pytest.mark.night)]
)
def test_of_all_claims_at_once_each_epoch_has_one_owner(root: Place, snapshot_every: int, rounds: int) -> None:
    """Eight claimers, with a snapshot before every claim and with none; the last one knows that it is the owner."""
    CommitLog.create(root, {}, wall_us=5, snapshot_every=snapshot_every)
    logs = [CommitLog.open(root) for _ in range(8)]
    barrier = Barrier(8)

    def claim(number: int) -> int | None:
        barrier.wait(30)
        try:
            return logs[number].claim_epoch(f"racer {number}", 6)
        except FencedError:
            return None

    with ThreadPoolExecutor(8) as pool:
        for _ in range(rounds):
            epochs = [epoch for epoch in pool.map(claim, range(8)) if epoch is not None]
            state = CommitLog.open(root).state
            assert len(set(epochs)) == len(epochs) > 0
            assert max(epochs) == state.epoch
    owners = [log for log in logs if log.epoch == state.epoch]
    assert len(owners) == 1
    advance(owners[0], 1)
    assert CommitLog.open(root).state.next_window == 1


def test_an_owner_and_a_claim_never_take_one_slot(root: Place) -> None:
    """The owner commits as fast as it can while others claim: its answers agree with the log."""
    log = new_log(root, snapshot_every=5)
    told: list[int] = []

    def commit_on() -> None:
        try:
            while len(told) < (200 if is_night() else 50):
                advance(log, 1)
                told.append(log.state.next_window - 1)
        except FencedError:
            return

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(commit_on)
        new = CommitLog.open(root)
        epoch = new.claim_epoch("second", 7)
        working.result(60)
    records = {record.body.window for record in new.records() if isinstance(record.body, CommitRecord)}
    assert set(told) <= records
    assert len(records - set(told)) <= 1, "beside one record that its writer was fenced for"
    advance(new, 1)
    assert new.state.epoch == epoch
    assert CommitLog.open(root).state == new.state


def before(_: Callable[[], None]) -> None:
    raise OSError("lost on the way there")


def after(create: Callable[[], None]) -> None:
    create()
    raise OSError("lost on the way back")


def taken_by_itself(create: Callable[[], None]) -> None:
    create()
    create()


def refused(_: Callable[[], None]) -> None:
    raise NotPlacedError("no room")


def not_durable(create: Callable[[], None]) -> None:
    create()
    raise NotDurableError("the directory was not synced")


@pytest.mark.parametrize(
    ("fault", "told", "is_there"),
    [
        (before, NotCommittedError, False),
        (refused, NotCommittedError, False),
        (after, None, True),
        (taken_by_itself, None, True),
        (not_durable, MaybeCommittedError, True),
    ],
)
def test_whatever_a_creation_says_the_outcome_is_true(
    root: Place, fault: Callable[[Callable[[], None]], None], told: type[Exception] | None, is_there: bool
) -> None:
    """Unclear ones are read back by their nonce; what is in the log counts."""
    new_log(root)
    log = opened_with(root, fault)
    if told is None:
        assert log.place(commit(0, 2)).next_window == 1
    else:
        with pytest.raises(told):
            log.place(commit(0, 2))
    assert CommitLog.open(root).state.next_window == int(is_there)
    assert log.refresh() == CommitLog.open(root).state


def test_a_storage_that_gives_no_answer_may_still_place_the_record(root: Place) -> None:
    """The slot is empty when it is read back, and the record comes into it afterwards, or the next writer's does."""
    new_log(root)
    late: list[Callable[[], None]] = []

    def no_answer(create: Callable[[], None]) -> None:
        late.append(create)
        raise UnansweredError("no answer")

    log = opened_with(root, no_answer)
    with pytest.raises(MaybeCommittedError, match="may still be put in place"):
        log.place(commit(0, 2))
    assert CommitLog.open(root).state.next_window == 0
    late.pop()()
    assert log.refresh() == CommitLog.open(root).state
    assert log.state.next_window == 1
    with pytest.raises(MaybeCommittedError):
        log.place(commit(1, 2))
    CommitLog.open(root).claim_epoch("next", 7)
    with pytest.raises(FileExistsError):
        late.pop()()


def test_folded_records_go_and_a_sleeper_in_a_freed_slot_is_fenced(root: Place) -> None:
    """Without a grace; readers that had read before go on at the snapshot."""
    old = new_log(root, snapshot_every=4)
    reader = CommitLog.open(root)
    new = CommitLog.open(root)
    new.claim_epoch("second", 7)
    advance(new, 9)
    newest = new.state.next_number - 1
    assert new.delete_folded() == 0, "all are of this hour"
    assert new.delete_folded(grace_us=0) == newest - newest % 4
    assert new.delete_folded(grace_us=0) == 0
    assert isinstance(next(new.records()).body, LogSnapshot)
    for _ in range(2):
        with pytest.raises(FencedError):
            old.place(commit(0, 1))
    assert reader.refresh() == new.state == CommitLog.open(root).state
    new.check_owner()
    advance(new, 1)


def test_a_record_that_is_missing_or_damaged_is_found(root: Place) -> None:
    """By its name; nothing is skipped."""
    log = new_log(root)
    advance(log, 3)
    record = root / "log" / f"{2:020d}"
    data = record.read()
    record.replace(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptionError, match=record.name):
        CommitLog.open(root)
    record.remove()
    with pytest.raises(CorruptionError, match="missing record"):
        CommitLog.open(root)


def test_an_owner_whose_log_is_gone_is_told(root: Place) -> None:
    """An empty listing is no log without claims."""
    log = new_log(root)
    advance(log, 2)
    (root / "log").remove_tree()
    with pytest.raises(FileNotFoundError):
        log.check_owner()


def test_sources_of_a_window_and_their_archive(root: Place) -> None:
    """Read as they were written; what no record names goes, once its epoch is over."""
    ref = write_sources(root, window=3, epoch=1, attempt=0, partitions=(FILE,))
    with pytest.raises(FileExistsError):
        write_sources(root, window=3, epoch=1, attempt=0, partitions=(FILE, FILE))
    assert read_sources(root, 3, ref) == (FILE,)
    data = encode_archive({1: (FILE,), 2: ()})
    archive = archive_ref("000000000002-000001-0123abcd.archive", {1: (), 2: ()}, data)
    (root / FOLDED_DIRECTORY).make_directories()
    (root / FOLDED_DIRECTORY / archive.name).create(data)
    reader = SourcesReader(root, LogState(sources={3: ref}, archives=(archive,)))
    assert [reader.of(window) for window in (1, 2, 3, 4)] == [(FILE,), (), (FILE,), None]
    assert remove_unnamed(root, state=LogState(sources={3: ref}), below_epoch=1) == []
    assert remove_unnamed(root, state=LogState(sources={3: ref}), below_epoch=2) == [archive.name]
    with pytest.raises(CorruptionError, match="no file"):
        SourcesReader(root, LogState(archives=(archive,))).of(1)


def test_intents_are_by_epoch(root: Place) -> None:
    """Replaced whole, and removed below an epoch."""
    assert read_intents(root) == []
    for epoch, window in ((1, 3), (2, 3), (1, 4)):
        write_intent(root, Intent(window, epoch, "q", 0, (bytes(16),), 5, None, 9, "s"))
    assert [(intent.epoch, intent.window) for intent in read_intents(root)] == [(1, 4), (2, 3)]
    remove_intents(root, below_epoch=2)
    assert [intent.epoch for intent in read_intents(root)] == [2]


def test_a_sleepers_mark_never_sets_one_back(root: Place) -> None:
    """It slept between its look at the claims and the putting in place, over a takeover and its marks."""
    mark = root / PUBLISHED_NAME
    assert read_published(mark) is None
    prepare_published(mark, Published("ab", 2, 1)).put()
    sleeper = prepare_published(mark, Published("ab", 3, 1))
    mark.remove_prepared(below_epoch=2)
    for window in (3, 4):
        prepare_published(mark, Published("ab", window, 2)).put()
    with pytest.raises(FileNotFoundError):
        sleeper.put()
    assert read_published(mark) == Published("ab", 4, 2)


def test_a_sleepers_mark_stays_out_when_the_windows_come_again(root: Place) -> None:
    """It slept over a rewind, which set the marks back, and a start whose marks have reached the window it had seen.

    The window in its mark is committed again by then, and not published.
    """
    mark = root / PUBLISHED_NAME
    prepare_published(mark, Published("ab", 4, 1)).put()
    sleeper = prepare_published(mark, Published("ab", 5, 1))
    mark.remove_prepared(below_epoch=2)
    prepare_published(mark, Published("ab", 3, 2)).put()
    mark.remove_prepared(below_epoch=3)
    for window in (3, 4):
        prepare_published(mark, Published("ab", window, 3)).put()
    with pytest.raises(FileNotFoundError):
        sleeper.put()
    assert read_published(mark) == Published("ab", 4, 3)


def test_a_heart_beats(root: Place) -> None:
    """Watchers see it move, and whose it is; it is gone after a clean stop."""
    pause_s = 1.1 if root.names.scheme in ("s3", "gs", "az") else 0.02
    owner, other = heartbeat.HeartBeat(root, "host:1"), heartbeat.HeartBeat(root, "host:2")
    assert not heartbeat.moves(root, 1.0)
    owner.beat()
    assert not heartbeat.moves(root, 1.0, sleep=lambda _: None)

    def beat(_: float) -> None:
        time.sleep(pause_s)
        owner.beat()

    assert heartbeat.moves(root, 1.0, sleep=beat)
    found = heartbeat.read_beat(root)
    assert found is not None
    assert (found.owner, found.has_our_numbers) == ("host:1", True)
    other.stop()
    assert heartbeat.read_beat(root) is not None
    owner.stop()
    assert heartbeat.read_beat(root) is None


def test_accessories_are_kept(root: Place) -> None:
    """Profile, history, sample of the leak meter: replaced whole, absent at first."""
    assert (read_profiles(root), read_leak_sample(root), read_history(root, "id")) == ((), None, ((), (), ()))
    profile = WindowProfile(0, 1, 5, 10, 1.0, {"judge": 0.5})
    sample = LeakSample("id", 3, 0, 5, 1, "{}", 8, 30, 2, 1, {"words": bytes(8)})
    profiles = Profiles(root)
    profiles.add(profile)
    profiles.write()
    write_leak_sample(root, sample)
    history = History(root, "id", next_window=2)
    history.add(Sample(5, 2, {"unique": 7}))
    history.write()
    assert (read_profiles(root), read_leak_sample(root)) == ((profile,), sample)
    assert read_history(root, "id")[0] == (Sample(5, 2, {"unique": 7}),)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_rounds_of_eight_creators(root: Place) -> None:
    """Each slot has one winner, its bytes, and each creator's answer is right. Some of them by day."""
    rounds = 1000 if is_night() else 30
    with ThreadPoolExecutor(8) as pool:
        barrier = Barrier(8)

        def create(racer: int) -> list[bool]:
            won = []
            for number in range(rounds):
                barrier.wait(60)
                try:
                    (root / f"{number:04d}").create(bytes([racer]) * 100)
                except FileExistsError:
                    won.append(False)
                else:
                    won.append(True)
            return won

        told = list(pool.map(create, range(8)))
    for number in range(rounds):
        (winner,) = [racer for racer in range(8) if told[racer][number]]
        assert (root / f"{number:04d}").read() == bytes([winner]) * 100
    assert root.listed() == [f"{number:04d}" for number in range(rounds)]
