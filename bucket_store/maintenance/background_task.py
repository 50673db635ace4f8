"""An action on a thread of its own, its outcome taken at the end of a later window: no window waits for it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from bucket_store.threads import on_a_thread

InBackground: TypeAlias = Callable[[Callable[[], None]], object]
"""Runs an action in the background, one at a time; usually `on_a_thread`."""


class OneThread:
    """An `InBackground` with one thread: every thread that calls the JVM has a connection of its own."""

    def __init__(self) -> None:
        self._actions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_begun = False

    def __call__(self, action: Callable[[], None]) -> None:
        self._actions.put(action)
        if not self._is_begun:
            self._is_begun = True
            on_a_thread(self._run)

    def close(self) -> None:
        """Ends the thread after its current action. Safe to repeat."""
        self._actions.put(None)

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            action()


class BackgroundTask(ABC):
    """One action, for the thread that runs it, and its outcome once `is_over`."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.failure: Exception | None = None
        self.seconds = 0.0

    @abstractmethod
    def act(self) -> None:
        """The action itself. Called once, on the thread of `run`; an error becomes the `failure`."""

    def run(self) -> None:
        """Run the action, once."""
        began = time.perf_counter()
        try:
            self.act()
        except Exception as error:  # noqa: BLE001  # raised where the outcome is taken, on the thread that can end the job
            self.failure = error
        finally:
            self.seconds = time.perf_counter() - began
            self.is_over.set()
