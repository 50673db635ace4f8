"""Who sleeps while others go on: frozen drivers that are overtaken, frozen workers whose task is given to another.

A sleeper wakes when it no longer matters, and must find out. Drivers end with exit code 5 and change not a byte;
workers leave an orphan piece at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import threading
import time
import zlib
from pathlib import Path

from bucket_store.filesystem import is_temporary
from deduper.sinks.names import STAGING
from tests.crash import ledger
from tests.crash.scene import (
    DEADLINE_S,
    MANY_WINDOWS,
    Scene,
    freeze_all,
    living,
    signal_all,
    wait_until,
)
from tests.crash.undisturbed import VARIANTS, Undisturbed
from tests.forked import Forked
from tests.processes import is_alive, is_frozen

_SLEEPERS = 3
_UNNAMED = ("state/pieces/", "state/sources/", "state/intents/")
# Where an owner looks, acts, and may sleep in between; nothing of what follows may change anything then.
_SLEEPS = (
    "start.claimed",
    "window.0.batch",
    "window.1.intent",
    "judge.judged",
    "stage.written",
    "window.2.judged",
    "window.3.synced",
    "window.3.durable",
    "log.written",
    "window.4.committed",
    "publish.renamed",
    "window.5.published",
    "window.6.checked",
    "window.6.half",
    "window.6.marked",
    "expire.recorded",
    "window.7.checkpoint",
)
_ZOMBIES = (
    "read.spilled",
    "judge.drained",
    "tables.applying",
    "judge.piece.before",
    "piece.half",
    "piece.entered",
    "judge.piece.after",
    "write.done",
)


def are_overtaken(variant: str, points: list[str], undisturbed: Undisturbed, directory: Path) -> None:
    """Drivers frozen, each overtaken by the next; the last one goes to the end; then all wake, in any order.

    Outputs, marks and log stay as they are, byte for byte.
    """
    rng = random.Random(ledger.SEED + zlib.crc32(variant.encode()))
    scene = Scene(directory, **VARIANTS[variant]).make(MANY_WINDOWS)
    try:
        sleepers = []
        for point in points:
            driver = scene.start("--once", "--take-over", armed=f"{point}=freeze")
            wait_until(f"the driver frozen at {point}", lambda driver=driver: is_frozen(driver.pid) or driver.poll())
            assert driver.poll() is None, f"{point} was never met\n{scene.output()}"
            sleepers.append((point, driver))
        assert scene.run("--take-over") == 0, scene.output()
        before = scene.everything()
        rng.shuffle(sleepers)
        for point, driver in sleepers:
            woken = time.monotonic()
            driver.send_signal(signal.SIGCONT)
            code = driver.wait(DEADLINE_S)
            ledger.note_stop(f"woken at {point}", time.monotonic() - woken)
            assert code == 5, f"frozen at {point}: exit code {code}\n{scene.output()}"
        # A driver's JVM may outlive it for a moment, and write what the next start would have to find.
        for _, driver in sleepers:
            wait_until("no process left", lambda driver=driver: not living(driver))
        after = scene.everything()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        # A sleeper that had not judged yet does so, for nothing: what it stages and appends, no record names.
        seen = {
            name
            for name in changed
            if STAGING not in name and not name.startswith(_UNNAMED) and not is_temporary(Path(name).name)
        }
        assert seen == set(), f"{[point for point, _ in sleepers]}: {seen}"
        scene.check_store()
        # Folders without a file are no change, but left to be discarded all the same.
        if changed or scene.staged():
            assert scene.run() == 0, scene.output()
        scene.check_is_as_if_undisturbed(undisturbed(variant))
    finally:
        scene.clean_up()


def sleeping_points(rng: random.Random) -> dict[str, list[str]]:
    """Some points for each variant, none twice, in the order in which a job can still meet them."""
    drawn = rng.sample(_SLEEPS, _SLEEPERS * len(VARIANTS))
    return {
        variant: drawn[number * _SLEEPERS : (number + 1) * _SLEEPERS] for number, variant in enumerate(sorted(VARIANTS))
    }


def tasks_come_back(variant: str, undisturbed: Undisturbed, directory: Path) -> None:
    """Workers frozen in the middle of a task, cut off from Spark, which gives the task to another; woken later.

    At once, so that two do the same part of the same window at the same time; after two more windows; or when the job
    is over. What a sleeper adds is an orphan piece at most: its exchange and staging folders are gone by then.
    """
    rng = random.Random(ledger.SEED + zlib.crc32(variant.encode()))
    scene = Scene(directory, master="local[2,8]", **VARIANTS[variant]).make(MANY_WINDOWS)
    wake_after = {point: rng.choice((0, 0, 2, MANY_WINDOWS)) for point in _ZOMBIES}
    wake_after[rng.choice(_ZOMBIES)] = 0
    # Hits are counted by each process, and a sleeping process is replaced by one that begins to count.
    armed = ",".join(
        f"{point}=freeze@{1 + number // 2}:once={directory / 'tmp' / point}" for number, point in enumerate(_ZOMBIES)
    )
    asleep: dict[int, tuple[str, int]] = {}
    over = threading.Event()
    woken: list[str] = []
    failures: list[BaseException] = []

    def watch(driver: Forked) -> None:
        seen: set[str] = set()
        while not over.is_set():
            for process in living(driver):
                if process not in asleep and process != driver.pid and is_frozen(process):
                    # Of two that fall asleep at the same moment it does not matter which is which.
                    point = min({p for p in _ZOMBIES if (directory / "tmp" / p).exists()} - seen)
                    seen.add(point)
                    cut_off(process)
                    asleep[process] = (point, scene.windows() + wake_after.get(point, 0))
            for process, (point, at) in list(asleep.items()):
                if is_frozen(process) and scene.windows() >= at:
                    os.kill(process, signal.SIGCONT)
                    woken.append(point)
            time.sleep(0.1)

    def watched(driver: Forked) -> None:
        try:
            watch(driver)
        except BaseException as exc:  # noqa: BLE001  # told by the story, not by the thread
            failures.append(exc)
            driver.kill()

    try:
        driver = scene.start("--once", armed=armed)
        thread = threading.Thread(target=watched, args=(driver,))
        thread.start()
        try:
            code = driver.wait(DEADLINE_S)
        finally:
            over.set()
            thread.join()
        assert not failures, failures[0]
        assert code == 0, f"exit code {code}\n{scene.output()}"
        met = {point for point in _ZOMBIES if (directory / "tmp" / point).exists()}
        assert met == set(_ZOMBIES), f"never met: {set(_ZOMBIES) - met}"
        for process, (point, _) in asleep.items():
            if is_frozen(process):
                os.kill(process, signal.SIGCONT)
                woken.append(point)
        wait_until("every sleeper gone", lambda: not any(is_alive(process) for process in asleep))
        expected = undisturbed(variant)
        scene.check_nothing_is_public_twice(expected)
        scene.check_store()
        assert scene.run() == 0, scene.output()
        scene.check_is_as_if_undisturbed(expected)
    finally:
        scene.clean_up()


def cut_off(process: int) -> None:
    """Shut a frozen worker's connection with Spark, as a network that parts does: Spark takes it for dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(process)
    try:
        for entry in Path("/proc", str(process), "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if not str(entry.readlink()).startswith("socket:"):
                    continue
                taken = libc.syscall(438, pidfd, int(entry.name), 0)  # pidfd_getfd
                if taken < 0:
                    raise OSError(ctypes.get_errno(), f"the connection of process {process} cannot be had")
                with socket.socket(fileno=taken) as connection, contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(pidfd)


def notices_in_idleness(undisturbed: Undisturbed, directory: Path) -> None:
    """A whole machine asleep with nothing to do, overtaken, and woken: it exits with 5 though no file has come."""
    expected = undisturbed("rocksdb")
    scene = Scene(directory).make(MANY_WINDOWS)
    try:
        old = scene.start()
        wait_until("everything judged", lambda: scene.windows() == expected["windows"])
        # Frozen while it still publishes the last window, it would be another story: `are_overtaken` tells that one.
        wait_until("nothing left to do", scene.is_idle)
        freeze_all(old)
        assert scene.run("--take-over") == 0, scene.output()
        before = scene.everything()
        signal_all(old, signal.SIGCONT)
        assert old.wait(DEADLINE_S) == 5, scene.output()
        after = scene.everything()
        # It may have fallen asleep while, beside its last window, the bytes of dead pieces went.
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert {name for name in changed if not name.startswith("state/pieces/")} == set()
        scene.check_store()
        scene.check_is_as_if_undisturbed(expected)
    finally:
        scene.clean_up()


def is_taken_over_at_work(undisturbed: Undisturbed, directory: Path) -> None:
    """Two live drivers: the second is refused; with --take-over it wins and the first exits with 5.

    The first makes a window a second and does not end by itself, however quickly or slowly the second one starts.
    """
    scene = Scene(directory).make(MANY_WINDOWS)
    try:
        first = scene.start()
        wait_until("the first at work", lambda: scene.windows() >= 1)
        assert scene.run() == 5
        code = scene.run("--take-over")
        assert first.wait(DEADLINE_S) == 5, scene.output()
        assert code == 0, scene.output()
        # What the first one's tasks wrote after it was overtaken goes with the next start.
        assert scene.run() == 0, scene.output()
        scene.check_is_as_if_undisturbed(undisturbed("rocksdb"))
    finally:
        scene.clean_up()
