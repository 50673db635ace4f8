"""What Spark's Java process writes to its outputs: lines of our log, and the last words of one that has ended.

The process and its Python workers write there for developers: notes at the start, errors that come as exceptions too,
stack traces. As lines of the log they are shown on request, and in the form of the log. Those of a dying Java machine
are warnings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from typing import IO, Any

from pyspark import context

logger = logging.getLogger(__name__)

_FATAL = re.compile(r"OutOfMemoryError|^# \S|insufficient memory|^Error: |Unrecognized (?:VM )?option|^Invalid ")
_JOIN_S = 1.0


class JvmLog(threading.Thread):
    """Reads the pipe until it ends, whatever a line holds. A daemon: it ends with this process."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(name="spark: output", daemon=True)
        self._pipe = pipe
        self._fatal: deque[str] = deque(maxlen=3)

    def run(self) -> None:
        """The thread. It stops reading at the pipe's end alone: a full pipe would stop the Java process."""
        for raw in self._pipe:
            line = raw.decode("utf-8", "replace").rstrip()
            with contextlib.suppress(Exception):
                self._take(line)

    def _take(self, line: str) -> None:
        is_fatal = _FATAL.search(line) is not None
        if is_fatal:
            self._fatal.append(line.lstrip("# "))
        if line:
            logger.log(logging.WARNING if is_fatal else logging.INFO, "%s", line)

    def last_words(self) -> str:
        """The fatal lines, once the process has ended; empty when there were none."""
        self.join(_JOIN_S)
        return "; ".join(self._fatal)


@contextlib.contextmanager
def logged_jvm() -> Iterator[JvmLog]:
    """A Java process that is started inside writes to our log."""
    reading, writing = os.pipe()
    log = JvmLog(os.fdopen(reading, "rb"))
    log.start()
    module: Any = context
    theirs = module.launch_gateway
    module.launch_gateway = lambda conf=None: theirs(conf, popen_kwargs={"stdout": writing, "stderr": writing})
    try:
        yield log
    finally:
        module.launch_gateway = theirs
        os.close(writing)
