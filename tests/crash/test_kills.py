"""Real drivers killed, frozen, cut off, starved of room and started again: the outputs are those of an undisturbed run.

A story is a chain of runs over one job, so that a fault costs one start of a JVM. Two stories run at a time.
`CRASH_SEED` repeats what a session has drawn; `CRASH_ALL` leaves nothing to chance (`make crash`); `CRASH_KILLS=n`
(`make crash KILLS=n`) adds n kills of anybody anywhere.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests import tiers
from tests.crash import faults, ledger, sleepers, stops
from tests.crash.kills import (
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
from tests.crash.undisturbed import VARIANTS, Undisturbed

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]

# All victims everywhere, and every story on every backend; otherwise a choice that fits into a quarter of an hour.
ALL = tiers.is_night()
PLANNED = planned(random.Random(ledger.SEED), everyone=ALL)
RANDOM = at_random(random.Random(ledger.SEED + 1), int(os.environ.get("CRASH_KILLS") or 0))
SLEEPING = sleepers.sleeping_points(random.Random(ledger.SEED + 2))

_SOME = random.Random(ledger.SEED + 3).sample(sorted(VARIANTS), len(VARIANTS))
_BY_CLOCK = ("event_time", "processing_time")


def _without_calm(story: Callable[..., None], by: str, undisturbed: Undisturbed, directory: Path) -> None:
    """A story that knows its outcome."""
    story(by, directory)


# The long ones first.
STORIES: dict[str, Callable[[Undisturbed, Path], None]] = {
    **{name: partial(chain_of_kills, *story) for name, story in {**PLANNED, **RANDOM}.items()},
    **{f"workers die, {variant}": partial(workers_die, variant) for variant in VARIANTS},
    **{f"tasks come back, {variant}": partial(sleepers.tasks_come_back, variant) for variant in VARIANTS},
    **{
        f"sleepers, {variant}": partial(sleepers.are_overtaken, variant, asleep) for variant, asleep in SLEEPING.items()
    },
    **{f"no room, {variant}": partial(faults.no_room, variant) for variant in (VARIANTS if ALL else _SOME[:1])},
    **{f"gc, {variant}": partial(faults.gc_dies, variant) for variant in (VARIANTS if ALL else _SOME[1:])},
    **{f"the clock, {by}": partial(_without_calm, faults.clock_goes_back, by) for by in _BY_CLOCK},
    "stops": stops.stop_when_asked,
    "frozen in idleness": sleepers.notices_in_idleness,
    "two drivers": sleepers.is_taken_over_at_work,
}


@pytest.fixture(scope="session")
def begun(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The stories of this run, all begun, two at a time."""
    base = tmp_path_factory.mktemp("crash")
    asked = [
        item.callspec.params["story"]
        for item in request.session.items
        if "story" in getattr(getattr(item, "callspec", None), "params", {})
    ]
    with ThreadPoolExecutor(2) as calm_pool, ThreadPoolExecutor(2) as pool:
        undisturbed = Undisturbed(calm_pool, base)
        undisturbed.wait()
        stories = {name: pool.submit(STORIES[name], undisturbed, base / re.sub(r"\W+", "-", name)) for name in asked}
        yield stories
        for future in stories.values():
            future.cancel()
    shutil.rmtree(base, ignore_errors=True)


@pytest.mark.night
@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_and_nothing_comes_twice(begun: dict[str, Future[None]], story: str) -> None:
    """Whatever dies, and whenever."""
    begun[story].result()


def test_every_failpoint_is_killed_at() -> None:
    """No named place is left out of the stories, nobody who can be killed, no backend."""
    kills = [(variant, kill) for variant, chain in PLANNED.values() for kill in chain]
    in_chains = {kill.point for _, kill in kills}
    assert in_chains | set().union(*map(met_by_workers, VARIANTS)) == points().keys() - set(OTHERS)
    assert {variant for variant, _ in kills} == VARIANTS.keys()
    assert {kill.victim for _, kill in kills} == {DRIVER, MACHINE, JVM, WORKER}
    assert len(in_chains) >= len(points()) // 3
