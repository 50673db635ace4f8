"""Deletes and compacts pieces in a child process, so that RocksDB's stalls and memory growth stay out of the driver.

RocksDB's binding holds Python's interpreter lock while it opens a database, 5 to 20 ms, and the process keeps the
memory it allocates then.

    python -m bucket_store.maintenance.worker_process URL FD

serves the pieces of the store at URL; requests and answers are pickled, on socket FD.

Requests have a socket of their own: libraries and C code print to stdout, which goes to stderr. The process begins with
the first request, is replaced after `_REQUESTS`, since RocksDB does not give back all its memory, and ends with its
driver, also with a killed one: then the socket is at its end. `maintenance.deletions` says which pieces may be deleted,
and `maintenance.compactions` what becomes of a new piece, also when the driver is gone or was overtaken: neither
depends on the process that does it. After a kill the pieces are still there, and nothing else follows from it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, cast

from bucket_store.filesystem import package_root
from bucket_store.maintenance.compactions import Merges
from bucket_store.maintenance.deletions import Deletes
from bucket_store.pieces.compaction import CompactionTask, compact_pieces
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import Located, PieceStore

logger = logging.getLogger(__name__)

_END_S = 5.0
_STDERR = 2
_REQUESTS = 200
"""Requests per process, one database each: one bucket of a store of 200 shards, or 100 buckets of a store of two."""


class Maintenance(Deletes, Merges):
    """Deletes and compacts pieces on request. Mostly on background threads of the owner."""


class MaintenanceWorker(Maintenance):
    """Deletes and compacts the pieces of a store in a child process. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pieces = open_backend(url)
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: Connection | None = None
        self._answers = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._requesting = threading.Lock()

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """Delete pieces; gives those that are still there: all of them when the process has ended meanwhile.

        Raises:
            Exception: the error of the deletion in that process.
        """
        dying = tuple(pieces)
        answer = self._request("delete", dying, frozenset(keep), writing_epoch)
        return dying if answer is None else cast("tuple[Located, ...]", answer)

    def merge(self, task: CompactionTask) -> PieceRef | None:
        """As `compact_pieces`; None also when the process has ended meanwhile.

        Raises:
            Exception: the error of the compaction in that process.
        """
        return cast("PieceRef | None", self._request("merge", task))

    def _request(self, *request: object) -> object:
        """The answer to a request; None when the process ended without one. One request at a time."""
        with self._requesting:
            living = self._living()
            if living is None:
                return None
            process, talk = living
            self._pieces.close_writers()
            try:
                talk.send(request)
                answer = talk.recv()
            except (OSError, EOFError):
                if not self._is_closed:
                    code = process.wait()
                    logger.warning("the maintenance worker has ended (%d): the next window asks again", code)
                return None
            self._answers += 1
        if isinstance(answer, Exception):
            raise answer
        return cast(object, answer)

    def close(self) -> None:
        """End the process; the next start repeats its current request. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        _end(process)

    def _living(self) -> tuple[subprocess.Popen[bytes], Connection] | None:
        with self._lock:
            if self._is_closed:
                return None
            if self._process is not None and self._answers >= _REQUESTS:
                _end(self._process)
            if self._process is None or self._talk is None or self._process.poll() is not None:
                self._answers = 0
                root = str(package_root())
                paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
                ours, theirs = socket.socketpair()
                with theirs, _without_interrupts():
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", __name__, self._url, str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=_STDERR,
                        pass_fds=(theirs.fileno(),),
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                    )
                # The connection to an earlier process closes when it is collected.
                self._talk = Connection(ours.detach())
            return self._process, self._talk


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Blocks SIGINT in this thread and in processes that it starts, from their first instruction on.

    A terminal sends Ctrl-C to the whole group, and the driver ends its child. An interpreter that starts would die of
    it with a traceback, before a line of ours can ignore it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        logger.warning("the maintenance worker (%d) does not end; its disk may hang", process.pid)


def serve(pieces: PieceStore, driver: Connection) -> None:
    """Answer requests until the socket ends; an error is the answer to its request."""
    while True:
        try:
            name, *arguments = driver.recv()
        except (EOFError, OSError):
            return  # a killed driver may leave half a request
        answer: Any
        try:
            if name == "delete":
                dying, keep, writing_epoch = arguments
                answer = pieces.delete(dying, keep=keep, writing_epoch=writing_epoch)
            else:
                answer = compact_pieces(pieces, *arguments)
            # Open handles would keep the bytes of deleted databases.
            pieces.close()
        except Exception as error:  # noqa: BLE001  raised again by the requesting process
            answer = error
        try:
            driver.send(answer)
        except OSError:
            return


def main() -> None:
    """See the module."""
    serve(open_backend(sys.argv[1]), Connection(int(sys.argv[2])))
    # No exit handlers: there is no reader left to flush to.
    os._exit(0)


if __name__ == "__main__":
    main()
