"""Stopping a job from outside: politely, in a hurry, before it has begun; and how long each takes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.crash import ledger
from tests.crash.scene import DEADLINE_S, MANY_WINDOWS, Scene, living, signal_all, wait_until
from tests.crash.undisturbed import Undisturbed
from tests.forked import Forked
from tests.processes import is_frozen

_AT_ONCE_S = 30.0  # a window takes longer on a slow machine; the figures are printed
_STARTS = 3


def stop_when_asked(undisturbed: Undisturbed, directory: Path) -> None:
    """Ctrl-C and SIGTERM end with 0 after the current window, a second Ctrl-C with 130 at once; nothing is left.

    Ctrl-C goes to the whole process group, as a terminal sends it; SIGTERM to every process, as a supervisor does.
    """
    rng, expected = random.Random(ledger.SEED), undisturbed("rocksdb")
    scene = Scene(directory).make(MANY_WINDOWS)
    try:
        for stop in WAYS.values():
            stop(scene, rng)
        assert not (directory / "state" / "heartbeat").exists() or scene.windows() < expected["windows"]
        assert scene.run() == 0, scene.output()
        scene.check_is_as_if_undisturbed(expected)
    finally:
        scene.clean_up()


def _while_spark_starts(scene: Scene, rng: random.Random) -> None:
    """Ctrl-C before the job has begun: 130, and nothing is committed.

    How long Spark takes to start is the machine's affair. A job that was quicker than we were has stopped as one at
    work does; then the next one is not given as long.
    """
    longest_s, ended, begun = 3.0, 0, 0
    while ended < _STARTS:
        driver = scene.start("--once")
        wait_until("Java", lambda driver=driver: "java" in living(driver).values())  # type: ignore[misc]
        time.sleep(rng.uniform(0.0, longest_s))
        before = _heard(scene)
        code = _stop(scene, driver, "Ctrl-C at the start", _interrupt, {130, 0})
        windows = scene.windows()
        if code == 130:
            ended += 1
            assert windows == begun, scene.output()
        else:
            assert _heard(scene) == before + 1, scene.output()
            begun, longest_s = windows, longest_s / 2
    assert begun <= MANY_WINDOWS - 6, f"{begun} windows were made meanwhile: too few are left for what is to come"


def _in_a_window(scene: Scene, rng: random.Random) -> None:
    driver, windows = _at_work(scene, "window.1.intent"), scene.windows()
    _stop(scene, driver, "Ctrl-C", _interrupt, {0}, within_s=DEADLINE_S)
    assert scene.windows() == windows + 1


def by_sigterm(scene: Scene) -> None:
    """SIGTERM to the driver amid a window: it ends with 0 after that."""
    driver, windows = _at_work(scene, "window.2.judged"), scene.windows()
    driver.send_signal(signal.SIGCONT)
    _stop(scene, driver, "SIGTERM", lambda d: d.send_signal(signal.SIGTERM), {0}, within_s=DEADLINE_S)
    assert scene.windows() > windows


def _by_sigterm_to_all(scene: Scene, rng: random.Random) -> None:
    """The JVM goes with it: what is half judged is given up."""
    windows = scene.windows()
    driver = _at_work(scene, rng.choice(("window.1.intent", "stage.written", "window.4.committed")))
    _stop(scene, driver, "SIGTERM to all", lambda d: signal_all(d, signal.SIGTERM), {0}, within_s=DEADLINE_S)
    assert scene.windows() in (windows, windows + 1)


def _twice(scene: Scene, rng: random.Random) -> None:
    driver = _at_work(scene, rng.choice(("window.1.intent", "window.3.durable", "publish.renamed")))
    before = _heard(scene)
    driver.send_signal(signal.SIGINT)
    driver.send_signal(signal.SIGCONT)
    wait_until("the first one heard", lambda: _heard(scene) > before or driver.poll() is not None)
    _stop(scene, driver, "a second Ctrl-C", _interrupt, {130, 0})


WAYS: dict[str, Callable[[Scene, random.Random], None]] = {
    "Ctrl-C at the start": _while_spark_starts,
    "Ctrl-C": _in_a_window,
    "SIGTERM": lambda scene, _: by_sigterm(scene),
    "SIGTERM to all": _by_sigterm_to_all,
    "a second Ctrl-C": _twice,
}


def _interrupt(driver: Forked) -> None:
    """Ctrl-C, unless all has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGINT)


def _heard(scene: Scene) -> int:
    """How often a driver has said that it stops."""
    return scene.output().count("finishing the current window, then stopping")


def _at_work(scene: Scene, point: str) -> Forked:
    """A driver in the middle of a window, frozen there."""
    driver = scene.start("--once", armed=f"{point}=freeze")
    wait_until(f"a driver at {point}", lambda: is_frozen(driver.pid))
    return driver


def _stop(
    scene: Scene,
    driver: Forked,
    what: str,
    send: Callable[[Forked], object],
    codes: set[int],
    within_s: float = _AT_ONCE_S,
) -> int:
    """Send, wake, and look at the exit code, which it gives, the time, and what is left of the processes."""
    sent = time.monotonic()
    send(driver)
    driver.send_signal(signal.SIGCONT)
    try:
        code = driver.wait(within_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{what}: not ended in {within_s} s\n{scene.output()}") from None
    ledger.note_stop(what, time.monotonic() - sent)
    assert code in codes, f"{what}: exit code {code}\n{scene.output()}"
    reported = scene.output().rpartition("\n--- ")[2]
    assert "Traceback" not in reported, f"{what}: a stop looks like a mistake of ours\n{reported}"
    assert "terminated with error" not in reported, f"{what}: a stop looks like a failed query\n{reported}"
    wait_until(f"{what}: no process left", lambda: not living(driver))
    return code
