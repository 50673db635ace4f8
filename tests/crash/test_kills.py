"""Real drivers, killed or frozen at every named point and started again: the outputs are those of an undisturbed run.

A story is a chain of runs over one job. Each run is killed somewhere else, the next one picks up what it left, the last
one runs to the end; so a kill costs one start of a JVM. Two stories run at a time. `CRASH_KILLS=n` (`make crash
KILLS=n`) adds about n kills at points and moments drawn from `CRASH_SEED`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.crash.scene import ROOT, Scene, is_frozen, session_of, signal_all, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

KILLED = -signal.SIGKILL
VARIANTS = {
    "rocksdb": {"store": "rocksdb:state"},
    "file": {"store": "file:state", "lookup": "all_live", "error_format": "json"},
}
FORGET = "forget the last commit"

# One run a line. kill: the driver; kill-all: the whole machine; a run with FORGET finds Spark's last commit deleted.
KILLS: dict[str, tuple[str, list[str]]] = {
    "before the commit": (
        "rocksdb",
        [
            "window.0.batch=kill-all@2",
            "start.claimed=kill",
            "window.1.intent=kill",
            "judge.drained=kill-all",
            "start.discarded=kill",
            "judge.piece.before=kill-all",
            "piece.half=kill-all",
            "stage.discarded=kill",
            "piece.entered=kill-all",
            "judge.piece.after=kill-all",
            "start.published=kill",
        ],
    ),
    "around the commit": (
        "file",
        [
            "tables.applying=kill-all",
            "stage.written=kill",
            "window.2.judged=kill-all",
            "window.3.synced=kill",
            "window.3.durable=kill-all",
            "log.written=kill@3",
            "log.linked=kill-all@2",
            "publish.renamed=kill@2",
            "window.5.published=kill",
            "piece.half=kill-all",
            "log.snapshot=kill",
        ],
    ),
    "after the commit": (
        "rocksdb",
        [
            "window.4.committed=kill",
            f"publish.renamed=kill-all@3, {FORGET}",
            "window.5.published=kill-all@2",
            "window.6.checked=kill@2",
            "window.6.half=kill@3",
            f"window.6.marked=kill-all, {FORGET}",
            "window.7.checkpoint=kill",
            f"start.claimed=kill, {FORGET}",
        ],
    ),
    "expiry": (
        "rocksdb",
        [
            "expire.recorded=kill",
            "piece.deleted=kill-all",
            f"expire.deleted=kill, {FORGET}",
            "log.folded=kill",
        ],
    ),
    "expiry in files": ("file", ["expire.recorded=kill-all", "piece.deleted=kill", "log.linked=kill@5"]),
}


def points() -> list[str]:
    """The failpoints of the code, but for those that need a broker: tests/services kills at them."""
    sources = [
        path.read_text(encoding="utf-8") for top in ("bucket_store", "deduper") for path in (ROOT / top).glob("*.py")
    ]
    names = {name for text in sources for name in re.findall(r'failpoints\.hit\("([^"]+)"\)', text)}
    return sorted(name for name in names if not name.startswith("kafka."))


def random_kills() -> dict[str, tuple[str, list[str]]]:
    """Chains of six kills, as many as CRASH_KILLS asks for."""
    wanted = int(os.environ.get("CRASH_KILLS") or 0)
    rng = random.Random(int(os.environ.get("CRASH_SEED") or 1))
    stories = {}
    for number in range(-(-wanted // 6)):
        chain = [
            f"{rng.choice(points())}={rng.choice(('kill', 'kill-all'))}@{rng.choice((1, 1, 1, 2, 2, 3, 5))}"
            + rng.choice(("", "", f", {FORGET}"))
            for _ in range(6)
        ]
        stories[f"random {number}"] = (rng.choice(sorted(VARIANTS)), chain)
    return stories


def undisturbed(variant: str, directory: Path) -> dict[str, Any]:
    """The outcome of a run to the end."""
    scene = Scene(directory, **VARIANTS[variant]).make()
    try:
        assert scene.run() == 0, (scene.directory / "driver.log").read_text()
        outcome = scene.outcome()
        scene.check_is_as_if_undisturbed(outcome)
        reasons = outcome["reasons"]
        assert {"same_window", "earlier_window", "older_than_period", "null_key", "malformed"} <= reasons.keys(), (
            reasons
        )
        return outcome
    finally:
        scene.clean_up()


def chain_of_kills(variant: str, kills: list[str], expected: Callable[[str], Any], directory: Path) -> None:
    """Kill, start again, kill; then to the end. A kill that random chains may miss counts as a run to the end."""
    scene = Scene(directory, **VARIANTS[variant]).make()
    must_hit = not directory.name.startswith("random")
    try:
        for kill in kills:
            armed, _, forget = kill.partition(", ")
            code = scene.run(armed=armed)
            in_a_worker = "=kill@" in armed and armed.startswith(("judge.", "piece.", "tables."))
            assert code in {KILLED, 1} if in_a_worker or not must_hit else code == KILLED or not must_hit, (
                f"{kill}: exit code {code}\n{(directory / 'driver.log').read_text()}"
            )
            scene.check_nothing_is_public_twice(expected(variant))
            if forget:
                scene.forget_last_commit()
        assert scene.run() == 0, (directory / "driver.log").read_text()
        scene.check_is_as_if_undisturbed(expected(variant))
    finally:
        scene.clean_up()


def finishes_on_sigterm(expected: Callable[[str], Any], directory: Path) -> None:
    """SIGTERM in the middle of a window: it is finished and published, exit code 0, and a start goes on from there."""
    scene = Scene(directory).make()
    try:
        driver = scene.start("--once", armed="window.1.intent=freeze@2")
        wait_until("a window at work", lambda: is_frozen(driver))
        driver.send_signal(signal.SIGTERM)
        driver.send_signal(signal.SIGCONT)
        assert driver.wait(120) == 0, (directory / "driver.log").read_text()
        assert scene.windows() == 2
        assert not (directory / "state" / "heartbeat").exists()
        assert scene.run() == 0
        scene.check_is_as_if_undisturbed(expected("rocksdb"))
    finally:
        scene.clean_up()


def is_fenced_when_it_wakes(point: str, expected: Callable[[str], Any], directory: Path) -> None:
    """A driver frozen at a point, overtaken, and woken: exit code 5, and not a byte changes."""
    scene = Scene(directory).make()
    try:
        old = scene.start("--once", armed=f"{point}=freeze@2")
        wait_until("the driver frozen", lambda: is_frozen(old))
        assert scene.run("--take-over") == 0, (directory / "driver.log").read_text()
        before = scene.everything()
        old.send_signal(signal.SIGCONT)
        assert old.wait(120) == 5, (directory / "driver.log").read_text()
        after = scene.everything()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert changed == set()
        scene.check_is_as_if_undisturbed(expected("rocksdb"))
    finally:
        scene.clean_up()


def notices_in_idleness(expected: Callable[[str], Any], directory: Path) -> None:
    """A whole machine asleep with nothing to do, overtaken, and woken: it exits with 5 though no file has come."""
    scene = Scene(directory).make()
    try:
        old = scene.start()
        wait_until("everything judged", lambda: scene.windows() == expected("rocksdb")["windows"])
        signal_all(old, signal.SIGSTOP)
        assert scene.run("--take-over") == 0, (directory / "driver.log").read_text()
        before = scene.everything()
        signal_all(old, signal.SIGCONT)
        assert old.wait(120) == 5, (directory / "driver.log").read_text()
        assert scene.everything() == before
        scene.check_is_as_if_undisturbed(expected("rocksdb"))
    finally:
        scene.clean_up()


def is_taken_over_at_work(expected: Callable[[str], Any], directory: Path) -> None:
    """Two live drivers: the second is refused; with --take-over it wins and the first exits with 5."""
    scene = Scene(directory).make()
    try:
        first = scene.start("--once")
        wait_until("the first at work", lambda: scene.windows() >= 1)
        assert scene.run() == 5
        code = scene.run("--take-over")
        assert first.wait(120) in {0, 5}, (directory / "driver.log").read_text()
        assert code == 0, (directory / "driver.log").read_text()
        # What the first one's tasks wrote after it was overtaken goes with the next start.
        assert scene.run() == 0, (directory / "driver.log").read_text()
        scene.check_is_as_if_undisturbed(expected("rocksdb"))
    finally:
        scene.clean_up()


def survives_its_jvm(expected: Callable[[str], Any], directory: Path) -> None:
    """The JVM killed while a window is judged: the driver ends by itself with exit code 1, and a start goes on."""
    scene = Scene(directory).make()
    try:
        driver = scene.start("--once", armed="window.1.intent=freeze@2")
        wait_until("a window at work", lambda: is_frozen(driver))
        commands = {process: Path("/proc", str(process), "comm").read_text().strip() for process in session_of(driver)}
        (jvm,) = [process for process, command in commands.items() if command == "java"]
        os.kill(jvm, signal.SIGKILL)
        driver.send_signal(signal.SIGCONT)
        assert driver.wait(120) == 1, (directory / "driver.log").read_text()
        assert scene.run() == 0, (directory / "driver.log").read_text()
        scene.check_is_as_if_undisturbed(expected("rocksdb"))
    finally:
        scene.clean_up()


STORIES: dict[str, Callable[..., None]] = {
    **{name: partial(chain_of_kills, *story) for name, story in {**KILLS, **random_kills()}.items()},
    "SIGTERM": finishes_on_sigterm,
    "frozen before the commit": partial(is_fenced_when_it_wakes, "window.3.durable"),
    "frozen while publishing": partial(is_fenced_when_it_wakes, "publish.renamed"),
    "frozen before the mark": partial(is_fenced_when_it_wakes, "window.5.published"),
    "frozen at the mark": partial(is_fenced_when_it_wakes, "window.6.checked"),
    "frozen in idleness": notices_in_idleness,
    "two drivers": is_taken_over_at_work,
    "no JVM": survives_its_jvm,
}


@pytest.fixture(scope="session")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """The stories of this run, all begun, two at a time."""
    base = tmp_path_factory.mktemp("crash")
    asked = [
        item.callspec.params["story"]
        for item in request.session.items
        if "story" in getattr(getattr(item, "callspec", None), "params", {})
    ]
    with ThreadPoolExecutor(2) as calm_pool, ThreadPoolExecutor(2) as pool:
        calm = {name: calm_pool.submit(undisturbed, name, base / f"calm-{name}") for name in VARIANTS}
        for future in calm.values():
            future.exception()
        stories = {
            name: pool.submit(STORIES[name], lambda variant: calm[variant].result(), base / name.replace(" ", "-"))
            for name in asked
        }
        yield stories
        for future in stories.values():
            future.cancel()
    shutil.rmtree(base, ignore_errors=True)


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_and_nothing_comes_twice(told: dict[str, Future[None]], story: str) -> None:
    """Whatever dies, and whenever."""
    told[story].result()


def test_every_failpoint_is_killed_at() -> None:
    """No named place is left out of the stories."""
    killed = {kill.partition("=")[0] for _, kills in KILLS.values() for kill in kills}
    assert sorted(killed) == points()
