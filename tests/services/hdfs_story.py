"""A job with its store and ports in HDFS that goes on while its processes and HDFS's are killed, one after another.

One run of the driver stands many kills: each failpoint waits for a file (`:on=`), so the test decides when it acts, and
measures from there to the next commit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bucket_store.errors import StoreError
from bucket_store.places.open import open_place
from tests.crash.scene import DEADLINE_S, Scene, session_of, wait_until
from tests.forked import Forked
from tests.processes import is_alive, is_frozen
from tests.services.hdfs import Hdfs
from tests.services.leashed import Daemon


@dataclass
class Outage:
    """One kill: where the job stood, the victim, and the seconds to the next commit."""

    point: str
    victim: str
    seconds: float
    ended_by: str = "goes on"


@dataclass
class Story:
    """A scene whose store and ports are in HDFS, and the driver that runs it."""

    scene: Scene
    hdfs: Hdfs
    armed: dict[str, str]
    outages: list[Outage] = field(default_factory=list)
    driver: Forked | None = None

    @classmethod
    def on(cls, hdfs: Hdfs, directory: Path, windows: int, armed: dict[str, str], **scene: Any) -> Story:
        """A job of so many windows that runs to its end; `armed` has the action of each failpoint."""
        url = f"{hdfs.url}/{uuid.uuid4().hex[:8]}"
        scene["spark"] = {"spark.local.dir": str(directory / "tmp"), **scene.get("spark", {})}
        return cls(Scene(directory, store=f"{url}/state", ports=f"{url}/out", **scene).make(windows), hdfs, armed)

    def start(self) -> None:
        """Start the driver, and wait for its first commit."""
        self.launch()
        before = self.windows()
        wait_until("a commit", lambda: self.windows() > before or self.has_ended())

    def launch(self) -> None:
        """Start the driver."""
        setting = ",".join(f"{point}={action}:on={self._trigger(point)}" for point, action in self.armed.items())
        with environment(HADOOP_CONF_DIR=str(self.hdfs.conf)):
            self.driver = self.scene.start("--once", armed=setting)

    def at(self, point: str, victim: str) -> None:
        """Let the failpoint act once, and wait for the next commit; a job that has ended is started again."""
        self._trigger(point).touch()
        wait_until(f"{point} met", lambda: not self._trigger(point).exists() or self.has_ended())
        assert not self._trigger(point).exists(), f"the job ended before {point}\n{self.scene.output()}"
        self._until_commit(point, victim, time.monotonic(), self.windows())

    def under(self, point: str, server: Daemon, *, back_after_s: float | None = None, back_when: str = "") -> None:
        """Kill a server while the process that is at the failpoint, which is armed with `freeze`, stands still.

        It comes back by itself, or after some seconds, or when the job has said so much.
        """
        self._trigger(point).touch()
        frozen: list[int] = []

        def stands() -> bool:
            assert self.driver is not None
            frozen[:] = [process for process in session_of(self.driver) if is_alive(process) and is_frozen(process)]
            return bool(frozen) or self.has_ended()

        wait_until(f"{point} met", stands)
        assert frozen, f"the job ended before {point}\n{self.scene.output()}"
        before = self.windows()
        server.kill()
        killed = time.monotonic()
        for process in frozen:
            os.kill(process, signal.SIGCONT)
        if back_when:
            wait_until(back_when, lambda: back_when in self.scene.output())
            back_after_s = 0.0
        if back_after_s is not None:
            time.sleep(back_after_s)
            server.launch()
        self._until_commit(point, server.name, killed, before)
        self.hdfs.start()

    def run_to_the_end(self) -> None:
        """Until the source is drained."""
        assert self.driver is not None
        code = self.driver.wait(DEADLINE_S)
        assert code == 0, f"exit code {code}\n{self.scene.output()}"
        code = self.scene.run_to_the_end()
        assert code == 0, f"exit code {code}\n{self.scene.output()}"

    def check(self, undisturbed: dict[str, Any]) -> None:
        """All rows in all four ports, once; a sound store; nothing staged is left."""
        outcome = self.scene.outcome()
        for port, rows in undisturbed["rows"].items():
            missing, surplus = rows - outcome["rows"][port], outcome["rows"][port] - rows
            assert not missing, f"{port} lost {missing.total()} rows: {list(missing)[:3]}\n{self.scene.output()}"
            assert not surplus, f"{port} has {surplus.total()} rows twice: {list(surplus)[:3]}\n{self.scene.output()}"
        assert outcome == undisturbed
        self.scene.check_store(settled=True)
        assert self.scene.staged() == []

    def table(self) -> str:
        """The kills as rows of a table."""
        rows = [f"| `{one.point}` | {one.victim} | {one.seconds:.1f} s | {one.ended_by} |" for one in self.outages]
        return "\n".join(["| at | killed | next commit | the job |", "|---|---|---|---|", *rows])

    def clean_up(self) -> None:
        """End all of it."""
        self.scene.clean_up()
        open_place(self.scene.store).parent.remove_tree()

    def _until_commit(self, point: str, victim: str, began: float, before: int) -> None:
        ended_by = "goes on"
        while (now := self.windows()) <= before:
            if self.has_ended():
                ended_s = time.monotonic() - began
                assert self.driver is not None
                code = self.driver.returncode
                assert code in (1, -signal.SIGKILL), f"exit code {code}\n{self.scene.output()}"
                assert (code != 1) or "error: " in self.scene.output(), self.scene.output()
                ended_by = f"ends with {code} after {ended_s:.1f} s, and is started again"
                self.hdfs.start()
                self.start()
                continue
            assert time.monotonic() - began < DEADLINE_S, f"{point}, {victim}: it hangs\n{self.scene.output()}"
            time.sleep(0.1)
        seconds = time.monotonic() - began
        self.outages.append(Outage(point, victim, seconds, ended_by))
        print(f"{point}, {victim}: {seconds:.1f} s to window {now}, {ended_by}", flush=True)

    def windows(self) -> int:
        """How many windows are committed; -1 while HDFS gives no answer."""
        with contextlib.suppress(StoreError, OSError):
            return self.scene.windows()
        return -1

    def has_ended(self) -> bool:
        assert self.driver is not None
        return self.driver.poll() is not None

    def _trigger(self, point: str) -> Path:
        return self.scene.directory / "tmp" / f"at-{point}"


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """These variables are set meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def undisturbed(directory: Path, windows: int) -> dict[str, Any]:
    """The outcome of the same job on one machine, with store and ports on its disk."""
    scene = Scene(directory, store="file:state", shards=4).make(windows)
    try:
        assert scene.run() == 0, scene.output()
        return scene.outcome()
    finally:
        scene.clean_up()
