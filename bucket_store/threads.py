"""Actions on threads of their own, for which no caller waits."""

from __future__ import annotations

import _thread
from collections.abc import Callable


def on_a_thread(action: Callable[[], None]) -> None:
    """Begins an action and returns at once. The thread does not keep an ending process alive.

    `threading.Thread.start` waits until the thread runs: 2 to 6 ms when the thread gets the caller's core and begins
    with a long system call.
    """
    _thread.start_new_thread(action, ())
