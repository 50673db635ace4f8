"""Actions on threads of their own, for which no caller waits, or not for ever."""

from __future__ import annotations

import _thread
import queue
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_at_work: set[object] = set()
"""Bounded actions that are not over, whether a caller still waits for them or not."""


def on_a_thread(action: Callable[[], object]) -> None:
    """Begins an action and returns at once. The thread does not keep an ending process alive.

    `threading.Thread.start` waits until the thread runs: 2 to 6 ms when the thread gets the caller's core and begins
    with a long system call.
    """
    _thread.start_new_thread(action, ())


def bounded(action: Callable[[], T], limit_s: float) -> T:
    """What an action gives or raises; after `limit_s` its thread is left to itself.

    Raises:
        TimeoutError: the action is not over; it may still take effect.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    token = object()

    def act() -> None:
        try:
            answers.put((action(), None))
        except BaseException as error:  # noqa: BLE001  raised again by the waiting thread
            answers.put((None, error))
        _at_work.discard(token)

    _at_work.add(token)
    on_a_thread(act)
    try:
        result, failure = answers.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"not over after {limit_s:.0f} s") from None
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]  # None is a T when the action gives it


def are_at_work() -> bool:
    """Whether a bounded action is not over: left behind, or of a thread that does not keep the process alive.

    An ending interpreter would end its thread amid foreign code, which aborts the process: end it by `os._exit`.
    """
    return bool(_at_work)
