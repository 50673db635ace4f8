"""Processes that tests look at and put to sleep, as the kernel shows them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_FREEZE_DEADLINE_S = 30.0


def is_alive(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    return _look(Path("/proc", str(process)))[1] != "Z"


def is_frozen(process: int) -> bool:
    """Whether a process lives and each of its threads stands still."""
    try:
        states = {_look(thread)[1] for thread in Path("/proc", str(process), "task").iterdir()}
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A thread may end meanwhile; of a process that ends, all do, and none stands still.
    return "T" in states and states <= {"T", "Z"}


def name_of(process: int) -> str:
    """The name of the program, as the kernel cuts it; empty when the process is gone."""
    return _look(Path("/proc", str(process)))[0]


def freeze(*processes: int) -> None:
    """SIGSTOP to each; none does anything more when this returns. One that has ended is passed over.

    The call that sends a signal does not wait for it: on a busy machine a process runs on for milliseconds, and answers
    what a test asks of "the frozen one".
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    until = time.monotonic() + _FREEZE_DEADLINE_S
    for process in processes:
        while is_alive(process) and not is_frozen(process):
            assert time.monotonic() < until, f"process {process} does not stand still"
            time.sleep(0.001)


def _look(directory: Path) -> tuple[str, str]:
    """(name, state) of a process or a thread: T stands still, Z is a zombie, or gone."""
    try:
        head, _, tail = (directory / "stat").read_text(errors="replace").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return "", "Z"
    return head.partition("(")[2], tail.split()[0]
