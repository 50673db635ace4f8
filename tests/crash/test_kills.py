"""Real drivers killed, frozen, cut off, starved of room and started again: the outputs are those of an undisturbed run.

A story is a chain of runs over one job, so that a fault costs one start of a JVM. Of each kind of kill the tier
`change` has one story, in which nothing is left to chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.crash import faults, ledger, sleepers, stops
from tests.crash.kills import (
    BRIEF,
    DRIVER,
    JVM,
    MACHINE,
    OTHERS,
    WORKER,
    at_random,
    chain_of_kills,
    met_by_workers,
    planned,
    points,
    workers_die,
)
from tests.crash.undisturbed import VARIANTS, Undisturbed, undisturbed_in

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]

PLANNED = planned(random.Random(ledger.SEED))
SLEEPING = sleepers.sleeping_points(random.Random(ledger.SEED + 2))
_BY_CLOCK = ("event_time", "processing_time")


def _without_calm(story: Callable[..., None], by: str, undisturbed: Undisturbed, directory: Path) -> None:
    """A story that knows its outcome."""
    story(by, directory)


# The long ones first.
STORIES: dict[str, Callable[[Undisturbed, Path], None]] = {
    **{name: partial(chain_of_kills, *story) for name, story in PLANNED.items()},
    "random": partial(chain_of_kills, *at_random(random.Random(ledger.SEED + 1)), may_miss=True),
    "brief": partial(chain_of_kills, "rocksdb", BRIEF),
    **{f"workers die, {variant}": partial(workers_die, variant) for variant in VARIANTS},
    **{f"tasks come back, {variant}": partial(sleepers.tasks_come_back, variant) for variant in VARIANTS},
    **{
        f"sleepers, {variant}": partial(sleepers.are_overtaken, variant, asleep) for variant, asleep in SLEEPING.items()
    },
    "a sleeper": partial(sleepers.are_overtaken, "rocksdb", ["window.3.durable"]),
    **{f"no room, {variant}": partial(faults.no_room, variant) for variant in VARIANTS},
    **{f"gc, {variant}": partial(faults.gc_dies, variant) for variant in VARIANTS},
    **{f"the clock, {by}": partial(_without_calm, faults.clock_goes_back, by) for by in _BY_CLOCK},
    "stops": stops.stop_when_asked,
    "frozen in idleness": sleepers.notices_in_idleness,
    "two drivers": sleepers.is_taken_over_at_work,
}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What the jobs of the stories come to otherwise."""
    return undisturbed_in(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.night(but=["brief"])
@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_and_nothing_comes_twice(undisturbed: Undisturbed, tmp_path: Path, story: str) -> None:
    """Whatever dies, and whenever."""
    STORIES[story](undisturbed, tmp_path / "story")


def test_every_failpoint_is_killed_at() -> None:
    """No named place is left out of the stories, nobody who can be killed, no backend; whatever the seed."""
    kills = [(variant, kill) for variant, chain in PLANNED.values() for kill in chain]
    assert {kill.point for _, kill in kills} == points().keys() - set(OTHERS)
    assert met_by_workers() <= points().keys() - set(OTHERS)
    assert {variant for variant, _ in kills} == VARIANTS.keys()
    assert {kill.victim for _, kill in kills} == {DRIVER, MACHINE, JVM, WORKER}
    assert {kill.victim for kill in BRIEF} == {DRIVER, MACHINE, JVM}, "a worker dies in tests/spark, for less"
