"""Background work as late as it may be: once it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MethodType
from typing import Any, cast


class _LastMoment(threading.Event):
    """Is set by what the first wait for it runs."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._actions = [action]

    def wait(self, timeout: float | None = None) -> bool:
        """Run the action first."""
        if self._actions:
            self._actions.pop()()
        return super().wait(timeout)


def when_waited_for(action: Callable[[], None]) -> None:
    """An `InBackground` for the `run` of a `BackgroundTask`: without a wait for it nothing is done."""
    task: Any = cast(MethodType, action).__self__
    task.is_over = _LastMoment(action)
