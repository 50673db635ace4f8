"""What a write that a signal stops has done, and what the next one does: said in one line before the process ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stage(StrEnum):
    """How far a write is, and what becomes of it if the process ends there."""

    BEFORE = "nothing was committed, the table is as it was; the next write removes what is staged; repeat the command"
    COMMITTING = (
        "it may be committed: the next write completes it, or removes what it has left; "
        "`deduper table status` shows the table's version; repeat the command"
    )
    COMMITTED = "it is committed, the table has all its rows; the next write completes its ports and the index"
    REBUILDING = "the old index counts; repeat the command, which continues"


_STAGE: ContextVar[Stage] = ContextVar("stage", default=Stage.BEFORE)


def reached(stage: Stage) -> None:
    """The write of this thread has come to a stage."""
    _STAGE.set(stage)


@contextmanager
def saying_when_stopped(begins: Stage = Stage.BEFORE) -> Iterator[None]:
    """SIGTERM and SIGINT end the process at once, as safely as a power cut, with a line. In the main thread only."""
    reached(begins)
    before = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> None:
    # A stream may be in use by what the signal has interrupted, so it is left alone.
    os.write(sys.stderr.fileno(), f"{signal.Signals(number).name}: stopped; {_STAGE.get()}\n".encode())
    os._exit(128 + number)
