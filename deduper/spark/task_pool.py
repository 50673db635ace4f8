"""A pool of Spark tasks, one per core, that runs the steps of a large window: one job instead of three.

Starting a job and collecting its results takes 30 ms in which the cores are nearly idle: with three jobs, an eighth of
a window of a million rows. So the tasks of one job stay for the whole window. Each connects to the driver, receives
functions and payloads, sends back the results, and ends when the driver closes the connection. Until then they occupy
the cores: the driver must not wait for any other Spark job.

An exception in a task fails the job, and the driver gets it as from any job. When Spark retries a task, because it
failed or because Spark lost it, the new worker replaces the old one and repeats its work; the old one may still be
running, or may have finished.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import TypeVar

from bucket_store.maintenance.background_task import InBackground

_T = TypeVar("_T")
_Payload = TypeVar("_Payload")
RunTasks = Callable[[Callable[[int], None], int], object]
"""Runs a function as so many tasks of a job; each gets its number."""


class TaskPool:
    """The workers of one window. For one thread, which is to `close` it.

    `all_tasks_finished`: true while no task was lost or retried; then each payload was given to one worker only.
    """

    def __init__(
        self,
        folder: Path,
        run: RunTasks,
        workers: int,
        in_background: InBackground,
    ) -> None:
        """Start that many workers. Only this user may enter `folder`."""
        name = secrets.token_hex(8)
        self._listener = socket.socket(socket.AF_UNIX)
        with _address(folder, name) as address:
            self._listener.bind(address)
        self._listener.listen(workers)
        self._connections: set[Connection] = set()
        self._workers: dict[int, Connection] = {}
        # The places of payloads.
        self._busy: dict[Connection, int] = {}
        self._lost: dict[int, int] = {}
        self._failure: Exception | None = None
        self.all_tasks_finished = True
        self._job_ended, ended = socket.socketpair()

        def run_job() -> None:
            try:
                run(partial(serve, folder, name), workers)
            except Exception as exc:  # noqa: BLE001  raised by `map`
                self._failure = exc
            finally:
                with ended, contextlib.suppress(OSError):
                    ended.shutdown(socket.SHUT_RDWR)  # closing alone has no effect while a fork holds it too

        in_background(run_job)

    def map(self, function: Callable[[_Payload], _T], payloads: Sequence[_Payload]) -> list[_T]:
        """The function's results for these payloads; all of them must be picklable.

        Raises:
            Exception: the job failed with it.
        """
        results: dict[int, _T] = {}
        waiting = deque(range(len(payloads)))
        while len(results) < len(payloads):
            for worker in self._workers.values():
                if waiting and worker not in self._busy:
                    self._busy[worker] = place = waiting.popleft()
                    _send(worker, (function, payloads[place]))
            for ready in wait([self._listener, self._job_ended, *self._connections, *self._busy]):
                if ready is self._job_ended:
                    raise self._failure or RuntimeError("the tasks of a window have ended before it")
                if ready is self._listener:
                    accepted, _ = self._listener.accept()
                    self._connections.add(Connection(accepted.detach()))
                elif ready in self._connections:
                    waiting.extend(self._register(ready))
                elif ready in self._busy:
                    answer = _received(ready)
                    if answer is None:
                        self._lose(ready)
                    else:
                        results[self._busy.pop(ready)] = pickle.loads(answer)
        return [results[place] for place in range(len(payloads))]

    def close(self) -> None:
        """Close all connections, so that the tasks end; does not wait for them."""
        for connection in (*self._connections, *self._workers.values()):
            connection.close()
        self._listener.close()
        self._job_ended.close()

    def _register(self, connection: Connection) -> list[int]:
        """Make a connection the worker of the task it names; the unfinished payload's place, of the one it replaces."""
        self._connections.remove(connection)
        hello = _received(connection)
        if hello is None:
            connection.close()
            return []
        task = pickle.loads(hello)
        before = self._workers.pop(task, None)
        unfinished = self._lost.pop(task, None)
        if before is not None:
            self.all_tasks_finished = False
            before.close()
            unfinished = self._busy.pop(before, None)
        self._workers[task] = connection
        return [] if unfinished is None else [unfinished]

    def _lose(self, worker: Connection) -> None:
        """A worker died: its payload waits for the worker that replaces it."""
        task = next(task for task, connection in self._workers.items() if connection is worker)
        del self._workers[task]
        worker.close()
        self.all_tasks_finished = False
        self._lost[task] = self._busy.pop(worker)


def serve(folder: Path, name: str, task: int) -> None:
    """Run a worker; `task` is its number in the job."""
    try:
        with _address(folder, name) as address:
            driver = Client(address, "AF_UNIX")
    except (FileNotFoundError, ConnectionRefusedError):
        return  # the window is over
    with driver:
        _send(driver, task)
        while (asked := _received(driver)) is not None:
            function, payload = pickle.loads(asked)
            _send(driver, function(payload))


def _send(connection: Connection, what: object) -> None:
    """Send; a closed connection shows when the next message is received."""
    with contextlib.suppress(OSError):
        connection.send_bytes(pickle.dumps(what))


def _received(connection: Connection) -> bytes | None:
    """The next message; None when the other end has closed."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


@contextlib.contextmanager
def _address(folder: Path, name: str) -> Iterator[str]:
    """A path for a socket in a folder: a socket's path has 107 bytes at most, the folder's may be longer."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)
