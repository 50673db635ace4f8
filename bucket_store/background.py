"""What nobody waits for: an action on a thread of its own."""

from __future__ import annotations

import _thread
from collections.abc import Callable


def on_a_thread(action: Callable[[], None]) -> None:
    """Begins an action and goes on. Its thread does not keep a process alive that has to end.

    `threading.Thread.start` waits until the thread runs: 2 to 6 ms where that gets the caller's core and goes straight
    into a long system call.
    """
    _thread.start_new_thread(action, ())
