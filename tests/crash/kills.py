"""Chains of kills: each run is killed somewhere else, the next picks up what it left, the last runs to the end.

Every point is met by the driver, the whole machine or the JVM in a chain, since that ends the run; and by Python
workers, many in one run, since Spark starts a failed task again. Victims, backends, occurrences and order are drawn
from the seed. `BRIEF` is a chain that draws nothing.
"""

from __future__ import annotations

import random
import re
import signal
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.sources_archive import files_of
from bucket_store.places.local import local_place
from tests.crash import ledger
from tests.crash.scene import DELETE, FORGET, MANY_WINDOWS, ROOT, TEAR, Scene
from tests.crash.undisturbed import VARIANTS, Undisturbed

KILLED = -signal.SIGKILL
DRIVER, MACHINE, JVM, WORKER = "driver", "machine", "jvm", "worker"
_LAST_WINDOWS = 3  # left for the end of a chain, so that a run never ends before it is killed
_KILLS_A_STORY = 12
_TASK_FAILURES = 8


def points() -> dict[str, str]:
    """Every failpoint, and whether it is in the `driver`, in a `worker` or in the `deleter`; see docs/failpoints.md."""
    lines = (ROOT / "docs" / "failpoints.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([a-z0-9.]+)` \| (driver|worker|deleter) \|", lines, re.MULTILINE))


# Where a start stands before there is a JVM, and what only some kill leaves for it.
STARTS = (
    "start.claimed",
    "start.published",
    "start.discarded",
    "stage.discarded",
    "sources.removed",
)
_IN_HDFS = ("log.open", "piece.open", "stage.open")
# Of other commands, in need of a broker or a cluster, or of more windows than a story has: others kill there.
_ELSEWHERE = (
    *("gc.", "seed.", "replay.", "ranges.", "kafka.", "compact.", "sources.forgotten", "write.arrived"),
    *_IN_HDFS,
)
OTHERS: tuple[str, ...] = tuple(name for name in points() if name.startswith(_ELSEWHERE))
# Nothing is dead before so many windows.
AGED = {
    "expire.recorded": 4,
    "expire.deleted": 4,
    "piece.deleted": 3,
    "piece.file.gone": 4,
    "log.folded": 2,
    "sources.archived": 4,
    "sources.folded": 4,
}
# What leaves behind what a start at this point can find.
HELPERS = {"stage.discarded": "window.2.judged", "sources.removed": "sources.archived"}


@dataclass(frozen=True)
class Kill:
    """One run that ends in a kill, and what else is broken before the next one starts."""

    point: str
    victim: str
    nth: int = 1
    then: str = ""

    @property
    def armed(self) -> str:
        """The failpoint's setting."""
        where = points()[self.point]
        action = {
            DRIVER: "kill" if where == "driver" else "kill-driver",
            MACHINE: "kill-all",
            JVM: "kill-jvm",
            WORKER: "kill" if where == "worker" else "kill-worker",
        }[self.victim]
        return f"{self.point}={action}@{self.nth}"

    @property
    def codes(self) -> set[int]:
        """What the driver may end with."""
        return {KILLED} if self.victim in (DRIVER, MACHINE) else {1}


BRIEF = [
    Kill("start.discarded", DRIVER),
    Kill("window.4.committed", JVM),
    Kill("publish.renamed", MACHINE, then=TEAR),
]


def victims(point: str) -> tuple[str, ...]:
    """Who can be killed at a point in a chain."""
    return (DRIVER, MACHINE) if point in STARTS else (DRIVER, MACHINE, JVM)


def planned(rng: random.Random) -> dict[str, tuple[str, list[Kill]]]:
    """Chains of kills with every point once, half of them on each backend and as many by each victim.

    Which victim dies where is the seed's affair: a few nights have met them all.
    """
    names = sorted(points().keys() - set(OTHERS))
    rng.shuffle(names)
    dealt: dict[str, list[Kill]] = {variant: [] for variant in VARIANTS}
    for number, point in enumerate(names):
        able = victims(point)
        dealt[sorted(VARIANTS)[number % 2]].append(_drawn(rng, point, able[number // 2 % len(able)]))
    stories = {}
    for variant, kills in dealt.items():
        # Without retries of tasks a worker's death ends the job.
        of_workers = [name for name, where in points().items() if where == "worker" and name not in OTHERS]
        kills[3:3] = [_drawn(rng, rng.choice(of_workers), WORKER)]
        count = -(-len(kills) // _KILLS_A_STORY)
        for number in range(count):
            stories[f"kills {number}, {variant}"] = (variant, kills[number::count])
    return stories


def met_by_workers() -> set[str]:
    """The points that are met while windows run: all but those of starts."""
    # A file dies wholly when an epoch has passed, and a run has one epoch only.
    # Sources are folded beside the windows, at no moment that a worker's death could be told by.
    never = {*STARTS, *OTHERS, "piece.file.gone", "sources.archived", "sources.folded"}
    return points().keys() - never


def _drawn(rng: random.Random, point: str, victim: str) -> Kill:
    # Tables are built once in a while only.
    nth = 1 if point in (*STARTS, "tables.building") else rng.choice((1, 1, 1, 1, 2, 2, 3))
    return Kill(point, victim, nth, rng.choice(("", "", "", "", "", FORGET, FORGET, DELETE, TEAR)))


def at_random(rng: random.Random) -> tuple[str, list[Kill]]:
    """A chain of kills of anybody anywhere."""
    kills = []
    for _ in range(_KILLS_A_STORY):
        point = rng.choice(sorted(points().keys() - set(OTHERS)))
        kill = _drawn(rng, point, rng.choice(victims(point)))
        kills.append(replace(kill, nth=rng.choice((1, 1, 2, 3, 5))))
    return rng.choice(sorted(VARIANTS)), kills


class Chain:
    """The kills of one story, over as many jobs as it takes."""

    def __init__(
        self,
        variant: str,
        kills: list[Kill],
        undisturbed: Undisturbed,
        directory: Path,
        *,
        may_miss: bool,
    ) -> None:
        self._variant = variant
        self._waiting = list(kills)
        self._calm = undisturbed
        self._directory = directory
        self._missed: dict[Kill, int] = {}
        self._may_miss = may_miss

    def tell(self) -> None:
        """To the end of the last job."""
        number = 0
        while self._waiting:
            self._one_job(self._directory / str(number))
            number += 1

    def _one_job(self, directory: Path) -> None:
        scene = Scene(directory, **VARIANTS[self._variant]).make(MANY_WINDOWS)
        expected = self._calm(self._variant)
        try:
            while self._waiting and MANY_WINDOWS - scene.windows() >= _LAST_WINDOWS:
                kill = self._next(scene)
                code = scene.run(armed=kill.armed)
                if code == 0:
                    self._miss(kill, scene)
                    break
                assert code in kill.codes, f"{kill}: exit code {code}\n{scene.log}\n{scene.output()}"
                ledger.note_kill(kill.point, kill.victim, self._variant)
                if kill in self._waiting:
                    self._waiting.remove(kill)
                scene.check_nothing_is_public_twice(expected)
                self._break(scene, kill.then)
            code = scene.run_to_the_end()
            assert code == 0, f"exit code {code}\n{scene.log}\n{scene.output()}"
            scene.check_is_as_if_undisturbed(expected)
        finally:
            scene.clean_up()

    def _break(self, scene: Scene, what: str) -> None:
        {
            "": lambda: None,
            FORGET: scene.delete_mark,
            DELETE: scene.delete_intents,
            TEAR: scene.tear_intent,
        }[what]()
        if what:
            scene.log.append(what)

    def _miss(self, kill: Kill, scene: Scene) -> None:
        """The run came to its end: the job was over before the point was met so often."""
        if self._may_miss:
            self._waiting.remove(kill)
            return
        self._missed[kill] = self._missed.get(kill, 0) + 1
        assert self._missed[kill] < 3, f"{kill} was never met\n{scene.log}\n{scene.output()}"

    def _next(self, scene: Scene) -> Kill:
        """The next kill that the state of the job lets come to pass; else one that leads to such a state."""
        if self._may_miss:
            return self._waiting[0]
        left = {
            "stage.discarded": bool(scene.staged()),
            "sources.removed": _has_unnamed_sources(scene),
        }
        windows = scene.windows()
        ready = [
            kill
            for kill in self._waiting
            if left.get(kill.point, True)
            and windows >= AGED.get(kill.point, 0)
            and (kill.nth == 1 or MANY_WINDOWS - windows > _LAST_WINDOWS + kill.nth)
        ]
        urgent = [kill for kill in ready if kill.point in left]
        if urgent or ready:
            return (urgent or ready)[0]
        return Kill(HELPERS.get(self._waiting[0].point, "window.4.committed"), DRIVER)


def _has_unnamed_sources(scene: Scene) -> bool:
    log = CommitLog.open(local_place(scene.config.store.path))
    named = {path.name for path in files_of(log.state)}
    lying = [name for directory in ("sources", "folded") for name in (log.root / directory).listed()]
    return any(name not in named for name in lying if name[0] != ".")


def chain_of_kills(
    variant: str,
    kills: list[Kill],
    undisturbed: Undisturbed,
    directory: Path,
    *,
    may_miss: bool = False,
) -> None:
    """Kill, start again, kill; to the end.

    A kill that comes too late for its job is no failure if it may miss.
    """
    Chain(variant, kills, undisturbed, directory, may_miss=may_miss).tell()


def workers_die(variant: str, undisturbed: Undisturbed, directory: Path) -> None:
    """At every point a worker is killed, or its task fails, once; Spark tries again, and the run does not notice."""
    rng = random.Random(ledger.SEED + zlib.crc32(variant.encode()))
    scene = Scene(directory, master=f"local[2,{_TASK_FAILURES}]", **VARIANTS[variant]).make(MANY_WINDOWS)
    try:
        armed = {}
        where_is = points()
        for point in sorted(met_by_workers()):
            where = where_is[point]
            actions = ("kill", "kill", "raise") if where == "worker" else ("kill-worker",)
            # Hits are counted by each process, and workers die young here.
            nth = rng.choice((1, 1, 2)) if where == "worker" else rng.choice((1, 2, 3, 4, 5))
            nth = 1 if point == "tables.building" else nth
            armed[point] = f"{point}={rng.choice(actions)}@{nth}:once={directory / 'tmp' / point}"
        code = scene.run(armed=",".join(armed.values()))
        assert code == 0, f"exit code {code}\n{scene.log}\n{scene.output()}"
        met = {point for point in armed if (directory / "tmp" / point).exists()}
        for point in met:
            ledger.note_kill(point, WORKER if "=kill" in armed[point] else "task", variant)
        assert met == armed.keys(), f"never met: {armed.keys() - met}"
        scene.check_nothing_is_public_twice(undisturbed(variant))
        # What the dead have left goes with the next start.
        assert scene.run() == 0, scene.output()
        scene.check_is_as_if_undisturbed(undisturbed(variant))
    finally:
        scene.clean_up()
