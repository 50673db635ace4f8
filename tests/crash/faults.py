"""What a machine does to a job that is not killed: no room, a read-only file system, a clock that goes back."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.places.local import local_place
from tests.crash import ledger
from tests.crash.kills import Kill, points
from tests.crash.scene import DEADLINE_S, MANY_WINDOWS, Scene, wait_until
from tests.crash.undisturbed import VARIANTS, Undisturbed
from tests.forked import Forked
from tests.processes import is_frozen

_ROOM = "48m"


@contextlib.contextmanager
def mounted(*directories: Path) -> Iterator[None]:
    """Each directory a small file system of its own. Skips where that is not permitted."""
    done: list[Path] = []
    try:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={_ROOM}", "tmpfs", str(directory)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                pytest.skip(f"no right to mount: {result.stderr.strip()}")
            done.append(directory)
        yield
    finally:
        for directory in reversed(done):
            subprocess.run(["umount", "-l", str(directory)], check=True)


@contextlib.contextmanager
def full(directory: Path) -> Iterator[None]:
    """Not a byte of room in a file system."""
    ballast = directory / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for block in (1 << 20, 1 << 12, 1 << 6, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\1" * block):
                        pass
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """A file system that nothing can be written to."""
    remount = ["mount", "-o", "remount,{}", str(directory)]
    wait_until(
        "nobody writes", lambda: not subprocess.run([part.format("ro") for part in remount], check=False).returncode, 30
    )
    try:
        yield
    finally:
        subprocess.run([part.format("rw") for part in remount], check=True)


def no_room(variant: str, undisturbed: Undisturbed, directory: Path) -> None:
    """Store or outputs without room or read-only: exit code 1 and a message that names the place.

    Without room for tables the job goes on. Once there is room again, a start goes on as if nothing had been.
    """
    rng = random.Random(ledger.SEED)
    state, out, tables = directory / "state", directory / "out", directory / "tables"
    with mounted(state, out, tables):
        scene = Scene(directory, **VARIANTS[variant]).make(MANY_WINDOWS)
        try:
            judging = ["window.1.intent", "stage.written", "window.2.judged"]
            for what, place, point in (
                (full, state, None),
                (full, state, rng.choice(judging)),
                (full, out, "window.1.intent"),
                (read_only, state, None),
                (read_only, state, rng.choice(["window.0.batch", *judging, "window.3.synced"])),
                (read_only, out, rng.choice(["window.1.intent", "window.4.committed"])),
            ):
                _is_told_of(scene, what, place, point)
                scene.check_nothing_is_public_twice(undisturbed(variant))
            with full(tables):
                assert scene.run("--set", "store.memory=1KiB") == 0, scene.output()
            assert scene.run() == 0, scene.output()
            scene.check_is_as_if_undisturbed(undisturbed(variant))
        finally:
            scene.clean_up()


def _is_told_of(scene: Scene, fault: Callable[[Path], object], place: Path, point: str | None) -> None:
    """A driver that meets a fault, from its start on or at a point, says so, naming the place, and exits with 1."""
    before = len(scene.output()) if scene.drivers else 0
    if point is None:
        with fault(place):  # type: ignore[attr-defined]
            code = scene.run()
    else:
        driver = scene.start("--once", armed=f"{point}=freeze")
        wait_until(f"the driver at {point}", lambda: is_frozen(driver.pid))
        with fault(place):  # type: ignore[attr-defined]
            driver.send_signal(signal.SIGCONT)
            code = driver.wait(DEADLINE_S)
    said = scene.output()[before:]
    error = said[said.rfind("error: ") :] if "error: " in said else ""
    at = f"{fault.__name__} {place.name} at {point}: exit code {code}\n{said}"
    assert code == 1, at
    assert str(place) in error, at
    assert any(text in error for text in ("No space left", "Read-only file system", "no room")), at


def clock_goes_back(by: str, directory: Path) -> None:
    """The machine's clock set back by hours between two runs and within one: no verdict changes, no time goes back."""
    directory.mkdir(parents=True)
    base_us = time.time_ns() // 1000
    clock = directory / "clock"

    def set_clock(hours: float) -> None:
        hidden = clock.with_name("clock.new")
        hidden.write_text(str(base_us + int(hours * 3600e6)))
        hidden.replace(clock)

    settings = {
        "event_time": {
            "schema": "k string, t timestamp",
            "expiry": "{by: event_time, field: t, period: 24h, span: 1h, max_ahead_of_now: 1h}",
        },
        "processing_time": {"expiry": "{by: processing_time, period: 1h, span: 10m}"},
    }[by]
    scene = Scene(directory, clock=clock, **settings).make(0)
    expected: Counter[str] = Counter()
    number = 0

    def feed(first_hours: float, port: str) -> None:
        """A window of ten keys that are meant to leave by a port, and one of tomorrow."""
        nonlocal number
        seen = datetime.fromtimestamp(base_us / 1e6, UTC) + timedelta(hours=first_hours)
        lines = [json.dumps({"k": f"{key}", "t": _written(seen, by)}) for key in range(10)]
        tomorrow = json.dumps({"k": f"tomorrow {number}", "t": _written(seen + timedelta(hours=24), by)})
        scene.put_file(number, lines)
        scene.put_file(number + 1, [tomorrow])
        expected[port] += 10
        expected["error" if by == "event_time" else "unique"] += 1
        number += 2

    try:
        set_clock(0)
        feed(0, "unique")
        feed(0, "duplicate")
        assert scene.run() == 0, scene.output()
        set_clock(-2)
        feed(0, "duplicate")
        feed(0, "duplicate")
        driver = scene.start("--once", armed="window.1.intent=freeze")
        wait_until("a window at work", lambda: is_frozen(driver.pid))
        set_clock(-3)
        driver.send_signal(signal.SIGCONT)
        assert driver.wait(DEADLINE_S) == 0, scene.output()
        set_clock(3)
        feed(3, "unique")
        assert scene.run() == 0, scene.output()
        counts = {port: rows.total() for port, rows in scene.rows().items() if rows}
        assert counts == dict(expected), scene.output()
        log = CommitLog.open(local_place(scene.config.store.path))
        commits = [record.body for record in log.records() if isinstance(record.body, CommitRecord)]
        walls = [commit.wall_us for commit in commits]
        assert walls == sorted(walls)
        # The last commit may be folded away.
        assert log.state.last_wall_us == base_us + 3 * 3600 * 10**6
        scene.check_store(settled=True)
    finally:
        scene.clean_up()


def _written(moment: datetime, by: str) -> str | int:
    return moment.isoformat() if by == "event_time" else int(moment.timestamp())


def gc_dies(variant: str, undisturbed: Undisturbed, directory: Path) -> None:
    """`deduper gc --delete` killed at each of its points after a crash, and run to its end; then the job goes on."""
    rng = random.Random(ledger.SEED)
    scene = Scene(directory, **VARIANTS[variant]).make(MANY_WINDOWS)
    try:
        kill = Kill(rng.choice(("window.2.judged", "window.3.durable")), rng.choice(("driver", "machine")), 4)
        assert scene.run(armed=kill.armed) in kill.codes, scene.output()
        ledger.note_kill(kill.point, kill.victim, variant)
        gc_points = [point for point in points() if point.startswith("gc.")]
        assert gc_points
        for point in gc_points:
            code = _gc(scene, f"{point}=kill")
            assert code == -signal.SIGKILL, f"{point}: exit code {code}\n{scene.output()}"
            ledger.note_kill(point, "gc", variant)
            scene.check_store()
        assert _gc(scene) == 0, scene.output()
        scene.check_store()
        assert scene.run() == 0, scene.output()
        scene.check_is_as_if_undisturbed(undisturbed(variant))
    finally:
        scene.clean_up()


def _gc(scene: Scene, armed: str = "") -> int:
    """`deduper gc --delete` with no grace."""
    log = scene.directory / "driver.log"
    words = ("gc", str(scene.config_path), "--delete", "--grace", "0s")
    return Forked(words, scene.environment(armed), log, log).wait(DEADLINE_S)
