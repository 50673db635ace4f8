"""A process that deletes and merges pieces, so that whoever judges windows is neither stopped by it nor grows with it.

RocksDB's binding keeps Python's interpreter to itself while it opens a database, 5 to 20 ms, and what it allocates then
stays with the process. Here that is a process of no more use than this.

    python -m deduper.housekeeping_process URL      for a store's pieces; requests on stdin, answers on stdout, pickled

It begins with the first request, makes place for another after some, since RocksDB does not give back all it takes, and
ends with its driver, however that ends: when nobody can ask any more, stdin is at its end. What it may delete of whose
pieces, `deleting` says, and what becomes of a piece it has made, `collating`, also when its driver is gone or was
overtaken: nothing depends on who does it. That it was killed means no more than that the pieces are still there.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO, Any, cast

from bucket_store.backend import Located, PieceStore, open_backend
from bucket_store.merging import Merging, merge_pieces
from bucket_store.piece import PieceRef

logger = logging.getLogger(__name__)

_END_S = 5.0
_REQUESTS = 200
"""How many a process answers: a database each, so one bucket of a store of 200 shards, or 100 of one of two."""


class HousekeepingProcess:
    """Deletes the pieces of a store as `PieceStore.delete` does, and merges them. Any thread asks, and closes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """Delete pieces; gives those that are still there, all of them when the process has ended meanwhile.

        Raises:
            Exception: what deleting has met there.
        """
        asked = tuple(pieces)
        answer = self._ask("delete", asked, frozenset(keep), writing_epoch)
        return asked if answer is None else cast("tuple[Located, ...]", answer)

    def merge(self, task: Merging) -> PieceRef | None:
        """As `merge_pieces`; None also when the process has ended meanwhile.

        Raises:
            Exception: what merging has met there.
        """
        return cast("PieceRef | None", self._ask("merge", task))

    def _ask(self, *request: object) -> object:
        """The answer to a request; None when there is none, as the process has ended. One at a time."""
        with self._asking:
            process = self._living()
            if process is None:
                return None
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump(request, process.stdin)
                process.stdin.flush()
                answer = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError, ValueError):  # ValueError: closed meanwhile
                if not self._is_closed:
                    code = process.wait()
                    logger.warning("the process that keeps house has ended (%d): the next window asks again", code)
                return None
            self._answers += 1
        if isinstance(answer, Exception):
            raise answer
        return cast(object, answer)

    def close(self) -> None:
        """End the process; what it is at is asked for again at the next start. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        _end(process)

    def _living(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_closed:
                return None
            if self._process is not None and self._answers >= _REQUESTS:
                _end(self._process)
            if self._process is None or self._process.poll() is not None:
                self._answers = 0
                _let_go(self._process)
                root = str(Path(__file__).resolve().parent.parent)
                paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, self._url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                )
            return self._process


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        logger.warning("the process that keeps house (%d) does not end; its disk may hang", process.pid)
    _let_go(process)


def _let_go(process: subprocess.Popen[bytes] | None) -> None:
    """Close what leads to a process that has ended."""
    for pipe in () if process is None else (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                logger.debug("a request was not taken any more")


def serve(pieces: PieceStore, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more; an error is the answer to its request."""
    while True:
        try:
            name, *arguments = pickle.load(requests)
        except (EOFError, pickle.UnpicklingError):
            return  # a driver that was killed may have been in the middle of a request
        answer: Any
        try:
            if name == "delete":
                asked, keep, writing_epoch = arguments
                answer = pieces.delete(asked, keep=keep, writing_epoch=writing_epoch)
            else:
                answer = merge_pieces(pieces, *arguments)
            # Handles of databases that are gone would keep their bytes.
            pieces.close()
        except Exception as error:  # noqa: BLE001  raised again by who has asked
            answer = error
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            return


def main() -> None:
    """See the module. Ctrl-C goes to the whole group of a terminal: the driver says when it is time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(open_backend(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
    # Whatever still wants to flush has nobody to flush to.
    os._exit(0)


if __name__ == "__main__":
    main()
