"""Going through crash states: what a run was at each of its operations, cut, recovered with the real code, and checked.

A state is named by (scenario, operation, seed), which makes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests import tiers
from tests.faults.crash_disk import Disk, Machine, Nodes, cut, fingerprint
from tests.faults.invariants import check_end, check_moment, seen_at
from tests.faults.service import Process, Scene, limits, seeded_names

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Moment:
    """A disk during a run, and what somebody outside may rely on then."""

    nodes: Nodes
    after: str
    acknowledged: int
    seen: frozenset[int]


@dataclass
class Tally:
    """How many different states were gone through, and what was wrong with some."""

    states: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Sum up."""
        self.states += other.states
        self.violations += other.violations


class Recording:
    """A disk whose moments are kept from now on, with the windows that its owners know to be committed."""

    def __init__(self, scene: Scene, disk: Disk) -> None:
        self.scene, self.disk = scene, disk
        self._acknowledged = [(0, 0)]
        disk.is_kept = True

    def process(self) -> Process:
        """A process on a new machine at the disk."""
        process = Process(self.scene, Machine(self.disk))
        process.committed = self._commit
        return process

    def _commit(self, windows: int) -> None:
        self._acknowledged.append((len(self.disk.moments), windows))

    def moments(self) -> list[Moment]:
        """All that was kept."""
        return [
            Moment(
                nodes,
                operation,
                max(windows for at, windows in self._acknowledged if at <= number),
                frozenset(seen_at(self.scene, nodes)),
            )
            for number, (nodes, operation) in enumerate(zip(self.disk.moments, self.disk.operations, strict=True))
        ]


def run_recorded(scene: Scene, disk: Disk | None = None) -> list[Moment]:
    """An undisturbed run to the end of the source, from an empty disk or from this one."""
    recording = Recording(scene, scene.new_disk() if disk is None else disk)
    process = recording.process()
    process.start()
    process.run()
    check_end(scene, process)
    return recording.moments()


def recover(scene: Scene, moment: Moment, disk: Disk) -> None:
    """Check a disk as it was found, let the next owner run to the end, check all."""
    check_moment(scene, Machine(disk), moment.acknowledged, set(moment.seen))
    process = Process(scene, Machine(disk))
    process.start()
    process.run()
    check_end(scene, process)


def some_of(things: Sequence[Thing], one_of: int) -> Sequence[Thing]:
    """All of them at night, otherwise one of so many."""
    return things if tiers.is_night() else things[::one_of]


def gone_through(work: Callable[[Thing], Tally], things: Iterable[Thing], name: str) -> Tally:
    """The sum of `work` over all things."""
    tally = Tally()
    for thing in things:
        tally.add(work(thing))
    print(f"{name}: {tally.states} states, {len(tally.violations)} violations")
    return tally


def cut_everywhere(
    scene: Scene, moments: Sequence[Moment], seeds: Sequence[int], name: str, *, stop_at_first: bool = False
) -> Tally:
    """Every moment, cut with every seed; states that cannot be told apart are gone through once."""
    states: dict[Any, tuple[int, int]] = {}
    for number, moment in enumerate(moments):
        for seed in seeds:
            known = fingerprint(cut(moment.nodes, mixed(number, seed)).nodes), moment.acknowledged, moment.seen
            states.setdefault(known, (number, seed))

    def work(state: tuple[int, int]) -> Tally:
        number, seed = state
        return tried(
            f"{name}, operation {number} ({moments[number].after}), seed {seed}",
            scene,
            lambda: recover(scene, moments[number], cut(moments[number].nodes, mixed(number, seed))),
        )

    tasks = sorted(states.values())
    if stop_at_first:
        for task in tasks:
            tally = work(task)
            if tally.violations:
                return tally
        return Tally(len(tasks))
    return gone_through(work, tasks, f"{name}: {len(moments)} operations, seeds {list(seeds)}")


def mixed(number: int, seed: int) -> int:
    """The seed of a cut: 0 and 1 are the extremes at every operation, others differ from one to the next."""
    return seed if seed < 2 else seed + 1000 * (number + 1)


def tried(name: str, scene: Scene, do: Callable[[], None]) -> Tally:
    """One state: whatever is raised is a violation."""
    with limits(scene.plan), seeded_names(name):
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever it is, this state was not survived
            return Tally(1, [f"{name}: {type(error).__name__}: {error}"])
    return Tally(1)
