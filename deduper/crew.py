"""As many of Spark's tasks as there are cores, which do all of a large window's work: one job in place of three.

To start a job and to take its results are 30 ms in which the cores have little to do: of three jobs, an eighth of a
window of a million rows. So the tasks of one job stay for a window: each connects to the driver, is given a function
and a number, gives back what comes of it, and goes home when the driver hangs up. They hold the cores until then:
nothing else of Spark's may be waited for meanwhile.

What a task raises fails its job, and that is what the driver hears of it, as of any job. Where Spark runs a failed task
again, or one that it has lost sight of, the new one takes the place of the old one and is given what that was at; the
old one may still be at it, or have done it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import TypeVar

from deduper.aside import Aside

_T = TypeVar("_T")


class Crew:
    """The members of one crew. For one thread, which is to `close` it.

    `has_lost_none`: whatever was given to a member, that one has done, and nobody else has ever been at it.
    """

    def __init__(
        self, folder: Path, run: Callable[[Callable[[int], None], int], object], members: int, aside: Aside
    ) -> None:
        """Call so many members. `folder` is this user's alone. `run` runs a function as so many tasks, `aside`."""
        name = secrets.token_hex(8)
        self._door = socket.socket(socket.AF_UNIX)
        with _address(folder, name) as address:
            self._door.bind(address)
        self._door.listen(members)
        self._strangers: set[Connection] = set()
        self._members: dict[int, Connection] = {}
        self._busy: dict[Connection, int] = {}
        self._lost: dict[int, int] = {}
        self._failure: Exception | None = None
        self.has_lost_none = True
        self._over, over = socket.socketpair()

        def run_job() -> None:
            try:
                run(partial(serve, folder, name), members)
            except Exception as exc:  # noqa: BLE001  raised by `map`
                self._failure = exc
            finally:
                with over, contextlib.suppress(OSError):
                    over.shutdown(socket.SHUT_RDWR)  # a fork may have it too, so that to close it would not be seen

        aside(run_job)

    def map(self, function: Callable[[int], _T], count: int) -> list[_T]:
        """What a function gives for each of the numbers below `count`; it has to be picklable.

        Raises:
            Exception: whatever the job has failed with.
        """
        results: dict[int, _T] = {}
        waiting = deque(range(count))
        while len(results) < count:
            for member in self._members.values():
                if waiting and member not in self._busy:
                    self._give(member, function, waiting.popleft())
            for ready in wait([self._door, self._over, *self._strangers, *self._busy]):
                if ready is self._over:
                    raise self._failure or RuntimeError("the tasks of a window have ended before it")
                if ready is self._door:
                    stranger, _ = self._door.accept()
                    self._strangers.add(Connection(stranger.detach()))
                elif ready in self._strangers:
                    waiting.extend(self._joined(ready))
                elif ready in self._busy:
                    answer = _received(ready)
                    if answer is None:
                        self._lose(ready)
                    else:
                        results[self._busy.pop(ready)] = pickle.loads(answer)
        return [results[number] for number in range(count)]

    def close(self) -> None:
        """Send all home. Nobody waits until they are."""
        for connection in (*self._strangers, *self._members.values()):
            connection.close()
        self._door.close()
        self._over.close()

    def _joined(self, stranger: Connection) -> list[int]:
        """Take a task in that says which one it is. Gives what the one before it was at, if there was one."""
        self._strangers.remove(stranger)
        hello = _received(stranger)
        if hello is None:
            stranger.close()
            return []
        task = pickle.loads(hello)
        before = self._members.pop(task, None)
        left = self._lost.pop(task, None)
        if before is not None:
            self.has_lost_none = False
            before.close()
            left = self._busy.pop(before, None)
        self._members[task] = stranger
        return [] if left is None else [left]

    def _lose(self, member: Connection) -> None:
        """A member has died: what it was at waits for the one that takes its place."""
        task = next(task for task, connection in self._members.items() if connection is member)
        del self._members[task]
        member.close()
        self.has_lost_none = False
        self._lost[task] = self._busy.pop(member)

    def _give(self, member: Connection, function: Callable[[int], object], number: int) -> None:
        self._busy[member] = number
        _send(member, (function, number))


def serve(folder: Path, name: str, task: int) -> None:
    """A member's work; `task` is its number in the job."""
    try:
        with _address(folder, name) as address:
            driver = Client(address, "AF_UNIX")
    except (FileNotFoundError, ConnectionRefusedError):
        return  # the window is over
    with driver:
        _send(driver, task)
        while (asked := _received(driver)) is not None:
            function, number = pickle.loads(asked)
            _send(driver, function(number))


def _send(connection: Connection, what: object) -> None:
    """That the other end is gone is seen when something is to come from it."""
    with contextlib.suppress(OSError):
        connection.send_bytes(pickle.dumps(what))


def _received(connection: Connection) -> bytes | None:
    """What has come; None when the other end is gone."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


@contextlib.contextmanager
def _address(folder: Path, name: str) -> Iterator[str]:
    """The path of a socket, which has room for 107 bytes, where the folder's may be longer."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)
