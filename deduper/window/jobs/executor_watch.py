"""A thread that warns while a session has no executor: Spark waits for one without a limit and without a message.

The cluster may be full, no worker may have the cores and the memory of an executor, or executors may end at their start
while Spark starts others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from deduper.spark.session import JVM_ERRORS

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_PATIENCE_S = 30.0
_AGAIN_S = 300.0
_END_S = 2.0


class ExecutorWatch(threading.Thread):
    """Calls `alive` periodically until it is closed. A daemon: it ends with the process.

    `wanted` describes an executor of the session. The first warning comes after `patience_s` without an executor, the
    next ones every `again_s`.
    """

    def __init__(
        self,
        alive: Callable[[], Sequence[object]],
        wanted: str,
        *,
        look_every_s: float = _LOOK_EVERY_S,
        patience_s: float = _PATIENCE_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        super().__init__(name="spark: executors", daemon=True)
        self._alive = alive
        self._wanted = wanted
        self._look_every_s, self._patience_s, self._again_s = look_every_s, patience_s, again_s
        self._ending = threading.Event()

    def close(self) -> None:
        """End the thread. Safe to repeat."""
        self._ending.set()
        self.join(_END_S)

    def run(self) -> None:
        """The thread."""
        since, warn_at = time.monotonic(), self._patience_s
        while not self._ending.wait(self._look_every_s):
            try:
                count = len(self._alive())
            except JVM_ERRORS as exc:
                logger.debug("executors are not known: %s", exc)
                return  # the JVM has ended, which the job reports
            without_s = time.monotonic() - since
            if count:
                if warn_at > self._patience_s:
                    logger.info("executors: %d, after %.0f s without one", count, without_s)
                since, warn_at = time.monotonic(), self._patience_s
            elif without_s >= warn_at:
                warn_at = without_s + self._again_s
                logger.warning(
                    "no executor for %.0f s, and no window is judged; Spark waits for %s: check that a worker has this "
                    "much free, and the executors' logs for early exits",
                    without_s,
                    self._wanted,
                )
