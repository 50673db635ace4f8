"""Many processes on one log, with real files and real syncs: one winner a number, and losers get the right error."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bucket_store.errors import FencedError, NotCommittedError
from bucket_store.filesystem import is_temporary
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import ClaimRecord, CommitRecord
from bucket_store.places.local import local_place
from tests import tiers
from tests.bucket_store.log_samples import commit

_PATIENCE_S = 200


@dataclass
class Report:
    """The results of one process's tries: each has a name of its own, which a commit carries as a count."""

    racer: int
    epochs: list[int] = field(default_factory=list)
    committed: list[tuple[int, str]] = field(default_factory=list)
    not_committed: list[tuple[int, str]] = field(default_factory=list)
    fenced: list[tuple[int, str]] = field(default_factory=list)
    claims_lost: int = 0
    unexpected: str | None = None


def race(root: Path, racers: int, run: Callable[[Path, Report, Any], None], **options: Any) -> list[Report]:
    """Starts so many processes at one moment; the report of each."""
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(racers), context.Queue()

    def main(racer: int) -> None:
        reported = Report(racer)
        try:
            start.wait(_PATIENCE_S)
            run(root, reported, options)
        except BaseException as error:  # noqa: BLE001  # handed to the test, which fails for it
            reported.unexpected = f"{type(error).__name__}: {error}"
        results.put(reported)

    processes = [context.Process(target=main, args=(racer,)) for racer in range(racers)]
    for process in processes:
        process.start()
    reported = [results.get(timeout=_PATIENCE_S) for _ in processes]
    for process in processes:
        process.join(_PATIENCE_S)
        assert process.exitcode == 0
    assert [one.unexpected for one in reported] == [None] * racers
    return reported


def commit_windows(root: Path, reported: Report, options: dict[str, Any]) -> None:
    """Claims, commits what comes next, claims again when fenced, until all windows are there."""
    windows = options["windows"]
    log, dice = CommitLog.open(local_place(root)), random.Random(reported.racer)
    attempt = 0
    while log.refresh().next_window < windows:
        try:
            epoch = log.claim_epoch(str(reported.racer), 1)
        except (FencedError, NotCommittedError):
            reported.claims_lost += 1
            time.sleep(dice.uniform(0, 0.02))  # or else the processor has no time for anything but lost claims
            continue
        reported.epochs.append(epoch)
        while log.state.next_window < windows and log.epoch == epoch:
            window, name = log.state.next_window, f"{reported.racer}/{attempt}"
            attempt += 1
            try:
                log.place(commit(window, epoch, counts={name: 1}, pieces=(), outputs=(), sources=None))
            except FencedError:
                reported.fenced.append((window, name))
                break
            except NotCommittedError:
                reported.not_committed.append((window, name))
                break
            reported.committed.append((window, name))
            time.sleep(dice.uniform(0, 0.01))  # or else one of them is through before the others are awake
            if options["delete_folded"]:
                log.delete_folded(grace_us=0)


def assert_reports_are_true(root: Path, reported: list[Report], windows: int) -> None:
    """Against the log as a new process reads it: by the sum of its counts every try that is in it is known by name."""
    state = CommitLog.open(local_place(root)).state
    assert state.next_window == windows
    placed = Counter(state.totals)
    assert set(placed.values()) == {1}, "a try was counted twice"
    assert len(placed) == windows, "as many tries in the log as windows"
    committed = [name for one in reported for _, name in one.committed]
    not_committed = {name for one in reported for _, name in one.not_committed}
    fenced = {name for one in reported for _, name in one.fenced}
    assert set(committed) <= set(placed), "a reported commit is not in the log"
    assert not not_committed & set(placed), "reported as not in the log, and it is"
    assert set(placed) - set(committed) <= fenced, "in the log, and its writer got neither that nor a fence"
    won = Counter(window for one in reported for window, _ in one.committed)
    assert max(won.values()) == 1, "a window with two winners"
    epochs = Counter(epoch for one in reported for epoch in one.epochs)
    assert max(epochs.values()) == 1, "an epoch with two owners"
    assert all(one.epochs == sorted(set(one.epochs)) for one in reported)
    assert state.epoch >= max(epochs)


def assert_log_is_sound(root: Path, reported: list[Report], *, is_whole: bool) -> None:
    """No number twice or missing, epochs strictly ascending, windows in order, no litter; then one more commit."""
    log = CommitLog.open(local_place(root))
    records = list(log.records())
    numbers = [record.number for record in records]
    first = numbers[0] if is_whole else max(n for n in numbers if n % log.manifest.snapshot_every == 0)
    live = [record for record in records if record.number >= first]
    assert [record.number for record in live] == list(range(first, log.state.next_number))
    assert len({record.nonce for record in records}) == len(records)
    claims = [(record.body.epoch, record.body.owner) for record in live if isinstance(record.body, ClaimRecord)]
    made = [(record.body.window, record.body.epoch) for record in live if isinstance(record.body, CommitRecord)]
    assert [epoch for epoch, _ in claims] == sorted({epoch for epoch, _ in claims})
    assert [window for window, _ in made] == list(range(made[0][0], made[-1][0] + 1)) if made else True
    assert [epoch for _, epoch in made] == sorted(epoch for _, epoch in made)
    owners = {epoch: str(one.racer) for one in reported for epoch in one.epochs}
    if is_whole:
        assert first == 0
        assert [epoch for epoch, _ in claims] == list(range(1, log.state.epoch + 1))
        assert owners.items() <= dict(claims).items()
    assert [path.name for path in (root / "log").iterdir() if is_temporary(path.name)] == []
    epoch = log.claim_epoch("after", 9)
    assert epoch > max(owners)
    assert log.place(commit(log.state.next_window, epoch)).next_window == log.state.next_window


def race_for_windows(root: Path, racers: int, windows: int, *, snapshot_every: int, delete_folded: bool) -> None:
    CommitLog.create(local_place(root), {}, wall_us=5, snapshot_every=snapshot_every)
    started = time.perf_counter()
    reported = race(root, racers, commit_windows, windows=windows, delete_folded=delete_folded)
    seconds = time.perf_counter() - started
    assert_reports_are_true(root, reported, windows)
    assert_log_is_sound(root, reported, is_whole=not delete_folded)
    lost = sum(one.claims_lost + len(one.fenced) + len(one.not_committed) for one in reported)
    print(
        f"{racers} processes, {windows} commits, {CommitLog.open(local_place(root)).state.epoch} epochs, {lost} told "
        f"that they lost, {sum(bool(one.committed) for one in reported)} with commits of their own, {seconds:.1f} s"
    )
    assert lost > 0, "nobody lost: that was no race"


@pytest.mark.slow
@pytest.mark.parametrize("delete_folded", [False, True], ids=["kept", "deleted"])
def test_processes_racing_for_commits(tmp_path: Path, delete_folded: bool) -> None:
    """Each number has one winner, each window is committed once, and no process gets a wrong result.

    With snapshots in between, also where what they fold is deleted at once.
    """
    racers, windows = (20, 200) if tiers.is_night() else (4, 24)
    race_for_windows(tmp_path, racers, windows, snapshot_every=5, delete_folded=delete_folded)


def claim_once(root: Path, reported: Report, options: dict[str, Any]) -> None:
    """One claim."""
    log = CommitLog.open(local_place(root))
    try:
        reported.epochs.append(log.claim_epoch(str(reported.racer), 1))
    except FencedError:
        reported.claims_lost += 1


def race_for_claims(root: Path, racers: int, rounds: int, snapshot_every: int) -> None:
    log = CommitLog.create(local_place(root), {}, wall_us=5, snapshot_every=snapshot_every)
    lost = done = 0
    while done < rounds or not lost:
        done += 1
        assert done < 10 * rounds, "nobody loses: that is no race"
        before = log.refresh().epoch
        reported = race(root, racers, claim_once)
        owners = {epoch: str(one.racer) for one in reported for epoch in one.epochs}
        assert len(owners) == sum(len(one.epochs) for one in reported), "an epoch with two owners"
        after = log.refresh().epoch
        claims = {
            record.body.epoch: record.body.owner
            for record in log.records()
            if isinstance(record.body, ClaimRecord) and record.body.epoch > before
        }
        # One that was placed and overtaken before its writer had looked again is in the log, and its writer fenced.
        assert sorted(claims) == list(range(before + 1, after + 1))
        assert owners.items() <= claims.items()
        assert after in owners, "the last claim has an owner who knows"
        lost += sum(one.claims_lost for one in reported)
    numbers = [record.number for record in log.records()]
    assert numbers == list(range(log.state.next_number))
    print(f"{done} rounds of {racers} claims: {log.state.epoch} epochs, {lost} lost")


@pytest.mark.slow
@pytest.mark.parametrize("snapshot_every", [1000, 2], ids=["no snapshots", "a snapshot before every claim"])
def test_processes_racing_for_claims(tmp_path: Path, snapshot_every: int) -> None:
    """Every epoch has one owner, claimed epochs ascend without a gap, and the last one's owner knows that it is his."""
    race_for_claims(tmp_path, 20 if tiers.is_night() else 6, 3, snapshot_every)
