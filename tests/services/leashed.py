"""Servers that cannot outlive the tests: started by leash.py, each in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LEASH = Path(__file__).parent / "leash.py"


def leashed(
    command: Sequence[str], log: Path, directory: Path | None = None, *, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """The leash of a started command, and the command's process id, 0 if it could not be started.

    Its output goes to the end of `log`. Ctrl-C does not reach it: who asked for it stops it in order.
    """
    words = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *command]
    with log.open("ab") as out:
        leash = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            start_new_session=True,
            cwd=directory,
            env=environment,
        )
    assert leash.stdout is not None
    with leash.stdout as said:
        line = said.readline()
    return leash, int(line or 0)


class Daemon:
    """A process that tests kill and start again. Not for several threads at once."""

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`<name>.log` in the directory, in which it runs, has what it said, of all its starts."""
        self.name = name
        self.log = directory / f"{name}.log"
        self._directory = directory
        self._command = command
        self._environment = environment
        self._leash: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._leash is not None and self._leash.poll() is None

    def launch(self) -> None:
        """Start the process, which answers some time later; nothing is done when it runs."""
        if not self.is_running:
            self._leash, self._pid = leashed(self._command(), self.log, self._directory, environment=self._environment)
            assert self._pid, f"{self.name} cannot be started\n{self.last_words()}"

    def kill(self) -> None:
        """`kill -9`, frozen or not; when this returns the process is gone. Nothing is done when it isn't running."""
        if self.is_running:
            os.kill(self._pid, signal.SIGKILL)
        self._gone()

    def says(self, text: str) -> int:
        """How often its log has a text."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    def last_words(self, size_bytes: int = 3000) -> str:
        """The end of its log."""
        data = self.log.read_bytes() if self.log.exists() else b""
        return f"{self.log}:\n{data[-size_bytes:].decode('utf-8', errors='replace')}"

    def _gone(self) -> None:
        if self._leash is not None:
            self._leash.wait(30)
        self._leash = None
