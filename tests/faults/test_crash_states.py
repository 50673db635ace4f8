"""A power cut, or the death of the process, at every operation of every scenario: the next start makes it good.

Each scenario runs once on a disk that keeps all its moments. Each moment is cut with several seeds (see `crash_disk`);
what is left is checked at once, then the real code opens, claims, recovers and runs to the end of the source, and
everything is checked again: see `invariants`. A state that fails is made again by the scenario's name, the number of
the operation and the seed, which its message holds. At night all states are gone through, otherwise a fixed part.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.errors import FencedError
from bucket_store.log import sources_file
from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import LocalNames
from deduper.sinks import staging
from deduper.window import recovery
from tests import tiers
from tests.faults.crash_disk import Disk, Killed, Machine, cut
from tests.faults.invariants import check_end, demand, visible
from tests.faults.service import Plan, Process, Scene, limits, seeded_names
from tests.faults.states import (
    Moment,
    Recording,
    Tally,
    cut_everywhere,
    gone_through,
    mixed,
    recover,
    run_recorded,
    some_of,
    tried,
)

pytestmark = pytest.mark.slow

FOUR_PORTS = ("unique", "duplicate", "expired", "error")
DYING = Plan(period=6, windows=5, deletion_batch=1)

STRAIGHT = {
    # Name: the plan, what has to happen in it, and the least number of different states.
    "append": (Plan(shards=2, ports=FOUR_PORTS, windows=4), ("link", "state/manifest"), 1500),
    "expire": (DYING, ("remove", ".piece"), 1500),
    "all live": (replace(DYING, lookup="all_live", shards=2, seed=1), ("remove", ".piece"), 1500),
    "snapshot": (Plan(snapshot_every=3, windows=5), ("remove", "/log/0000"), 1500),
}
SEEDS = range(8) if tiers.is_night() else (0, 2)


def recorded(scene: Scene, name: str) -> list[Moment]:
    """The moments of an undisturbed run."""
    with limits(scene.plan), seeded_names(name):
        return run_recorded(scene)


def done(moments: list[Moment], operation: str, what: str) -> bool:
    """Whether an operation on such a path, or a write that left such bytes, is among the moments."""
    if what == "--dead--":
        return any(b"--dead--" in data for data in Disk(moments[-1].nodes).files().values())
    return any(moment.after.startswith(operation) and what in moment.after for moment in moments)


@pytest.mark.night(but=["expire", "snapshot"])
@pytest.mark.parametrize("name", STRAIGHT)
def test_a_cut_anywhere_is_made_good(name: str, tmp_path: Path) -> None:
    """The store's birth, appending, expiring, deleting bytes, snapshots and folding: nothing lost, nothing twice."""
    plan, happens, least = STRAIGHT[name]
    scene = Scene(plan, tmp_path)
    moments = recorded(scene, name)
    assert done(moments, *happens), f"the scenario is not what it is called: no {happens}"
    tally = cut_everywhere(scene, some_of(moments, 4), SEEDS, name)
    assert tally.violations == []
    assert tally.states >= (least if tiers.is_night() else 100)


@pytest.mark.night
def test_a_cut_of_a_recovery_is_made_good(tmp_path: Path) -> None:
    """A start that dies while it repairs what a cut, or the death of a process, has left: the next one finishes."""
    scene = Scene(replace(DYING, snapshot_every=4), tmp_path)
    moments = recorded(scene, "first")
    tally = gone_through(lambda at: _twice(scene, moments, at), some_of(range(0, len(moments), 4), 14), "recovery")
    assert tally.violations == []
    assert tally.states >= (1500 if tiers.is_night() else 100)


def _twice(scene: Scene, moments: list[Moment], number: int) -> Tally:
    """The process dies at a moment, by a cut or by itself; its successor is cut at several."""
    first = moments[number]
    tally = Tally()
    for seed in (0, 2, None):
        name = f"recovery, operation {number} ({first.after}), seed {seed}"
        # Without a cut everything stays as the kernel has it, synced or not.
        disk = Disk(dict(first.nodes)) if seed is None else cut(first.nodes, mixed(number, seed))
        second: list[Moment] = []
        tally.add(tried(name, scene, lambda disk=disk, second=second: second.extend(run_recorded(scene, disk))))
        draw = random.Random(name)
        for then in draw.sample(range(len(second)), min(6, len(second))):
            moment = second[then]
            moment = replace(moment, acknowledged=max(moment.acknowledged, first.acknowledged))
            later = draw.choice((0, 1, 2, 3))
            state = cut(moment.nodes, mixed(then, later))
            tally.add(
                tried(
                    f"{name}, then operation {then} ({moment.after}), seed {later}",
                    scene,
                    lambda moment=moment, state=state: recover(scene, moment, state),
                )
            )
    return tally


def test_what_the_dead_left_unsynced_is_synced_by_the_living(tmp_path: Path) -> None:
    """A process dies at any operation, the next finds its work and builds on it; then all that is not synced goes."""
    scene = Scene(Plan(windows=3), tmp_path)
    moments = recorded(scene, "first")
    numbers = some_of(range(len(moments)), 5)
    tally = gone_through(lambda at: _built_upon(scene, moments[at], at), numbers, "built upon")
    assert tally.violations == []
    assert tally.states >= (150 if tiers.is_night() else 30)


def _built_upon(scene: Scene, first: Moment, number: int) -> Tally:
    name = f"built upon, operation {number} ({first.after})"

    def live_and_die() -> None:
        last = run_recorded(scene, Disk(dict(first.nodes)))[-1]
        recover(scene, last, cut(last.nodes, 0))

    return tried(name, scene, live_and_die)


def test_a_sleeper_that_wakes_changes_nothing(tmp_path: Path) -> None:
    """At every operation of one window another owner takes over and commits; then the first one goes on, then a cut."""
    scene = Scene(replace(DYING, snapshot_every=4), tmp_path)
    with limits(scene.plan), seeded_names("quiet"):
        begun = _begin(scene)
        steps = _count_steps(scene, begun)
    tally = gone_through(
        lambda at: _overtaken(scene, begun, at), some_of(range(steps), 7), f"take-over: {steps} operations"
    )
    assert tally.violations == []
    assert tally.states >= (900 if tiers.is_night() else 120)


_BEFORE = 2
"""How many windows lie behind the first owner when it runs the one in which it is overtaken."""


def _begin(scene: Scene) -> dict[int, Any]:
    disk = scene.new_disk()
    process = Process(scene, Machine(disk))
    process.start()
    process.run(_BEFORE)
    return dict(disk.nodes)


def _count_steps(scene: Scene, begun: dict[int, Any]) -> int:
    machine = Machine(Disk(dict(begun)))
    process = Process(scene, machine)
    steps = 0

    def step(name: str, path: Path) -> None:
        nonlocal steps
        steps += 1

    machine.step = step
    process.start()
    process.run(1)
    return steps


def _overtaken(scene: Scene, begun: dict[int, Any], at: int) -> Tally:
    moments: list[Moment] = []
    tally = tried(f"take-over at {at}", scene, lambda: moments.extend(_overtake(scene, begun, at)))
    draw = random.Random(at)
    for then in draw.sample(range(len(moments)), min(9, len(moments))):
        seed = draw.randrange(6)
        moment = moments[then]
        tally.add(
            tried(
                f"take-over at {at}, operation {then} ({moment.after}), seed {seed}",
                scene,
                lambda moment=moment, then=then, seed=seed: recover(
                    scene, moment, cut(moment.nodes, mixed(then, seed))
                ),
            )
        )
    return tally


def _overtake(scene: Scene, begun: dict[int, Any], at: int) -> list[Moment]:
    """The first owner sleeps before operation `at`; the second starts and commits; the first wakes; the second ends."""
    disk = Disk(dict(begun))
    recording = Recording(scene, disk)
    first, second = recording.process(), recording.process()
    steps = 0
    began = 0
    before: dict[str, object] = {}

    def step(name: str, path: Path) -> None:
        nonlocal steps, began
        if steps == at:
            began = len(disk.moments)
            second.start()
            second.run(1)
            before.update(visible(scene, second.fs))
        steps += 1

    assert isinstance(first.fs, Machine)
    first.fs.step = step
    try:
        first.start()
        first.run(1)
    except Exception as error:
        why = error if first.log.epoch is None else recovery.reason_to_stop(first.log, error)
        if not isinstance(why, FencedError):
            raise
    if (first.log.epoch or 0) > (second.log.epoch or 0):
        # It slept before it had claimed, so it is the one that takes over.
        second = first
    else:
        for what, was in before.items():
            demand(f"{what}, which the sleeper must not change", was, visible(scene, second.fs)[what])
    second.run()
    # What the sleeper has written since the second one's start lies about, to no effect, until the next start.
    third = recording.process()
    third.start()
    third.run()
    check_end(scene, third)
    return recording.moments()[began:]


@pytest.mark.night
def test_a_process_that_dies_leaves_tables_that_are_never_wrong(tmp_path: Path) -> None:
    """Tables have room for one bucket, so buckets are evicted and read from pieces again; they outlive a process."""
    scene = Scene(Plan(shards=2, windows=4, table_bytes=130_000, period=20), tmp_path)
    with limits(scene.plan), seeded_names("steps"):
        process, steps = _killed_at(scene, scene.new_disk(), None)
    assert process.judge.evicted > 0
    killed = range(0, steps, 4)
    tally = Tally()
    for at in killed:
        tally.add(tried(f"evict, killed at {at}", scene, lambda at=at: _die_and_go_on(scene, at)))
    print(f"evict: {tally.states} states, {len(tally.violations)} violations")
    assert tally.violations == []
    assert tally.states >= 60


def _die_and_go_on(scene: Scene, at: int) -> None:
    shutil.rmtree(scene.root / "tables")
    disk = scene.new_disk()
    _killed_at(scene, disk, at)
    process = Process(scene, Machine(disk))
    process.start()
    process.run()
    check_end(scene, process)


def _killed_at(scene: Scene, disk: Disk, at: int | None) -> tuple[Process, int]:
    """A process that is killed before operation `at`, and how many operations it came to."""
    machine = Machine(disk)
    process = Process(scene, machine)
    steps = 0

    def step(name: str, path: Path) -> None:
        nonlocal steps
        if steps == at:
            machine.kill()
        steps += 1

    machine.step = step
    try:
        process.start()
        process.run()
    except Killed:
        pass
    return process, steps


# --- the tests can fail


def _in(folder: str) -> Callable[[str, Path], bool]:
    return lambda name, path: name == "fsync_dir" and folder in path.parts


LIES: dict[str, Callable[[str, Path], bool]] = {
    "the piece": lambda name, path: name == "sync" and path.suffix == ".piece",
    "the piece's directories": _in("pieces"),
    "the staged file": lambda name, path: name == "sync" and "_staging" in path.parts,
    "the staging directories": _in("_staging"),
    "the log record": lambda name, path: name == "sync" and path.parent.name == "log",
    "the log's directory": lambda name, path: name == "fsync_dir" and path.name == "log",
    "both directories of the renames": lambda name, path: name == "fsync_dir" and "out" in path.parts,
    "the ports' directories": lambda name, path: name == "fsync_dir" and path.parent.name == "out",
    "the directory of the ports": lambda name, path: name == "fsync_dir" and path.name == "out",
    "the sources file": lambda name, path: name == "sync" and path.parent.name == "sources",
    "the sources directory": lambda name, path: name == "fsync_dir" and path.name == "sources",
    "the manifest": lambda name, path: name == "sync" and "manifest" in path.name,
    "the store's directory": lambda name, path: name == "fsync_dir" and path.name == "state",
}


def first_violation(scene: Scene, name: str, lies: Callable[[str, Path], bool]) -> str:
    """What is found in a run whose syncs of some kind do nothing; empty when nothing is."""
    reported = 0

    def lie(operation: str, path: Path) -> bool:
        nonlocal reported
        reported += lies(operation, path)
        return lies(operation, path)

    with limits(scene.plan), seeded_names(name):
        recording = Recording(scene, scene.new_disk())
        process = recording.process()
        assert isinstance(process.fs, Machine)
        process.fs.lies = lie
        process.start()
        process.run()
    if name in LIES:
        assert reported, "a sync that never happens"
    moments = recording.moments()
    found = cut_everywhere(scene, moments[::-1], (0, 2), name, stop_at_first=True).violations
    return found[0] if found else ""


@pytest.mark.parametrize("what", LIES)
def test_a_sync_that_is_left_out_is_found(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of the syncs some state is lost: these tests would show it."""
    if "sources" in what:
        monkeypatch.setattr(sources_file, "INLINE_BYTES", 0)
    scene = Scene(Plan(windows=2), tmp_path)
    found = first_violation(scene, what, LIES[what])
    print(found)
    assert found


def test_publishing_before_the_commit_record_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader would have seen rows of a window that a cut takes back."""

    def publish_too(*args: Any, **options: Any) -> Any:
        outputs = make_durable(*args, **options)
        staging.publish(outputs, names=options["names"])
        return outputs

    make_durable = staging.make_durable
    monkeypatch.setattr(staging, "make_durable", publish_too)
    found = first_violation(Scene(Plan(windows=2), tmp_path), "early", lambda name, path: False)
    assert "was public, committed are only those below" in found


def test_a_recovery_that_leaves_publishing_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed and not published would be discarded."""
    monkeypatch.setattr(recovery, "publish_window", lambda config, log, window, *_: log.forget_outputs(window))
    found = first_violation(Scene(Plan(windows=2), tmp_path), "unpublished", lambda name, path: False)
    assert "rows of window" in found


@pytest.mark.night
def test_a_sleeper_that_looks_at_no_claims_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look before its marks are put in place it sets them back."""
    scene = Scene(DYING, tmp_path)
    with limits(scene.plan), seeded_names("quiet"):
        begun = _begin(scene)
        steps = _count_steps(scene, begun)
    monkeypatch.setattr(CommitLog, "check_owner", lambda log: None)
    monkeypatch.setattr(LocalNames, "remove_prepared", lambda names, path, below_epoch: None)
    monkeypatch.setattr(recovery, "reason_to_stop", lambda log, error: FencedError("is taken for that"))
    found: list[str] = []
    for at in reversed(range(steps)):
        found += _overtaken(scene, begun, at).violations
        if found:
            break
    print(found[-1:])
    assert any("which the sleeper must not change" in what for what in found)
