"""Tasks that stay on the executors of a cluster from window to window: what they do needs no job of Spark's.

A job costs the JVMs of a driver and two executors 60 ms of CPU when they are warm, and several times as much in their
first minutes: more than the judging of a small window. So one job puts a task on each executor, or as many as its cores
but one, which is for the jobs that come meanwhile. Each connects to the driver, receives functions and payloads, and
sends back the results:

    driver                                            task
    32 random bytes                              ->
                                                 <-   32 random bytes, its number: 8; HMAC-SHA256(key, "task" and all)
    HMAC-SHA256(key, "driver" and all)           ->
    a function and its payload, pickled          ->
                                                 <-   the result, pickled
    and so on, until either closes the connection

The key is random and travels with the job. Neither side unpickles anything before the other has shown that it has the
key. Nothing is encrypted, nor are Spark's own calls by default; where they are, the caller keeps no task.

No result depends on them. When a task dies, fails, has no connection, or its executor is lost, all of them end, and the
caller has the same done by a job, which Spark repeats, and whose errors have a meaning (`failures`). A task that
receives nothing for a while ends as well, so no other job waits for its core for ever.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import math
import pickle
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from bucket_store.maintenance.background_task import InBackground, OneThread
from deduper.spark.messages import received, send
from deduper.spark.placing import Executor, Executors, located

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Payload = TypeVar("_Payload")
_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 3600.0
"""Before tasks begin again that have served nothing, and four times as long after each further one in succession."""
_VAIN = 4
"""Until Spark sees that an executor is gone, some begin in vain; of so many the way to the driver is the reason."""
_MOST = 256
"""Tasks: each takes one of the files that the driver may have open, 1,024 by default."""
_NONCE, _NUMBER, _PROOF = 32, 8, 32
_GREETING_S = 10.0
"""To connect, and for each message of the proof."""
_BEGIN_S = 120.0
"""An earlier task may still be at work on the only core; a job waits for it as well, but is Spark's to look after."""
_IDLE_S = 25.0
"""More than between windows with the usual triggers of 1 s and 10 s, less than with those of 30 s."""
_UNANSWERED_MS = 60_000
"""A host that is gone acknowledges nothing; the system's own patience is a quarter of an hour."""
_LOOK_S = 1.0
"""Between two looks whether the executors are still there, while the driver waits."""


class TasksLostError(Exception):
    """A standing task is gone, or has failed. Do what it was given by a job."""


class Connections:
    """The driver's side: the tasks of one job, each with a connection. For one thread, which is to `close` it.

    `have_served`: those that were needed have given a result. `is_over`: their job has ended.
    """

    def __init__(
        self, address: tuple[str, str], tasks: int, run: Callable[[Callable[[int], None]], object], begin: InBackground
    ) -> None:
        """Start that many tasks. `run` runs a function as tasks of one job, with their numbers.

        `address` is the host of the driver, as executors reach it, and its own name for it.

        Raises:
            OSError: there is no such address here.
        """
        host, bound = address
        self._key = secrets.token_bytes(32)
        self._listener = socket.create_server((bound, 0), backlog=tasks)
        self._of: dict[int, Connection] = {}
        self._job_ended, ended = socket.socketpair()
        self._gone: set[int] = set()
        self.is_over = threading.Event()
        self.have_served = False
        self._begun = time.monotonic()
        port = self._listener.getsockname()[1]

        def run_job() -> None:
            try:
                run(partial(serve, host, port, self._key))
            except (PySparkException, Py4JError, OSError) as exc:
                logger.info("the job of the standing tasks has failed: %s", exc)
            finally:
                self.is_over.set()
                with ended, contextlib.suppress(OSError):
                    ended.shutdown(socket.SHUT_RDWR)  # closing alone has no effect while a fork holds it too

        begin(run_job)

    def map(
        self, function: Callable[[_Payload], _T], payloads: Mapping[int, _Payload], are_there: Callable[[], bool]
    ) -> dict[int, _T]:
        """The results of the function by task, for the payloads of some. `are_there`: all their executors still are.

        Raises:
            TasksLostError: some have no result.
        """
        given: set[int] = set()
        results: dict[int, _T] = {}
        while len(results) < len(payloads):
            for number in self._of.keys() & payloads.keys() - given:
                given.add(number)
                send(self._of[number], (function, payloads[number]))
            number_of = {connection: number for number, connection in self._of.items()}
            ready = wait([self._listener, self._job_ended, *number_of], _LOOK_S)
            if not ready and not are_there():
                raise TasksLostError("an executor is gone")
            if not ready and len(given) < len(payloads) and time.monotonic() > self._begun + _BEGIN_S:
                raise TasksLostError("they do not begin")
            for one in ready:
                if one is self._job_ended:
                    raise TasksLostError("their job has ended")
                if one is self._listener:
                    self._accept()
                else:
                    assert isinstance(one, Connection)
                    number, answer = number_of[one], received(one)
                    if answer is not None:
                        results[number] = pickle.loads(answer)
                    elif number in payloads and number not in results:
                        raise TasksLostError("a task has ended")
                    else:
                        self._end(number)
        self.have_served = True
        return results

    @property
    def gone(self) -> set[int]:
        """The tasks that have ended for want of work, while others may be at work. Not during `map`."""
        number_of = {connection: number for number, connection in self._of.items()}
        for connection in wait(list(number_of), 0):
            assert isinstance(connection, Connection)
            self._end(number_of[connection])  # a task says nothing that it was not asked for
        return self._gone

    def _end(self, number: int) -> None:
        self._of.pop(number).close()
        self._gone.add(number)

    def close(self) -> None:
        """Close all connections, so that the tasks end; does not wait for them. Safe to repeat."""
        for connection in self._of.values():
            connection.close()
        self._of.clear()
        self._listener.close()
        self._job_ended.close()

    def _accept(self) -> None:
        """Take a task's connection; of anything else that connects it closes the connection."""
        accepted, _ = self._listener.accept()
        try:
            number = _proven_by_task(accepted, self._key)
        except (OSError, ValueError) as exc:
            logger.info("a connection that is no task's was closed: %s", exc)
            accepted.close()
            return
        if number in self._of:
            accepted.close()
            raise TasksLostError("Spark runs a task again")
        self._of[number] = _connection(accepted)
        self._gone.discard(number)


def serve(host: str, port: int, key: bytes, number: int) -> None:
    """The task of this number."""
    try:
        connected = socket.create_connection((host, port), _GREETING_S)
    except OSError as exc:
        logger.info("no connection with the driver at %s, port %d: %s", host, port, exc)
        return
    try:
        _prove_to_driver(connected, key, number)
    except (OSError, ValueError) as exc:
        logger.info("%s, port %d, is not the driver: %s", host, port, exc)
        connected.close()
        return
    with _connection(connected) as driver:
        while driver.poll(_IDLE_S) and (asked := received(driver)) is not None:
            function, payload = pickle.loads(asked)
            try:
                result = function(payload)
            except Exception:  # raised by the job that does it again, where its meaning is found
                logger.info("a standing task has failed", exc_info=True)
                return
            send(driver, result)


class StandingTasks:
    """The standing tasks of a run of the service: begun when they are needed, ended when their cores are.

    For one thread.
    """

    def __init__(self, context: SparkContext, executors: Executors) -> None:
        self._context = context
        self._executors = executors
        self._job_thread = OneThread()
        conf = context.getConf()
        host = conf.get("spark.driver.host") or ""
        self._address = host, conf.get("spark.driver.bindAddress") or host
        self._places: list[Executor] = []
        self._connections: Connections | None = None
        self._is_closed = False
        self._begun_in_vain = 0
        self._not_before = -math.inf

    def map(
        self, function: Callable[[_Payload], _T], payloads: Sequence[_Payload], places: Sequence[Executor]
    ) -> list[_T]:
        """The results of the function for these payloads, each on its executor if that can be, by a task of its own.

        No executor is there more often than in `places`.

        Raises:
            TasksLostError: they have none. The tasks end.
        """
        try:
            connections, numbers = self._at(places)
            results = connections.map(function, dict(zip(numbers, payloads, strict=True)), self._are_there)
        except (TasksLostError, OSError) as exc:
            logger.info("standing tasks are lost, a job does their work: %s", exc)
            self.end()
            raise TasksLostError(str(exc)) from exc
        return [results[number] for number in numbers]

    @property
    def places(self) -> list[Executor]:
        """The executor of each task that can stay: all of them, in turns, each as often as it has cores but one.

        None where there are too many.
        """
        executors = self._executors.alive()
        if len(executors) > _MOST:
            return []
        most = _MOST // max(1, len(executors))
        count = {executor: max(1, min(self._executors.cores(executor) - 1, most)) for executor in executors}
        turns = range(max(count.values(), default=0))
        return [executor for turn in turns for executor in executors if turn < count[executor]]

    @property
    def may_begin(self) -> bool:
        """Whether they do the next work, or begin for it; not for a while after they have begun in vain."""
        return not self._is_closed and (self._connections is not None or time.monotonic() >= self._not_before)

    def end(self) -> None:
        """End the tasks, before a job needs their cores. Safe to repeat."""
        connections, self._connections = self._connections, None
        if connections is None:
            return
        connections.close()
        if connections.have_served:
            self._begun_in_vain = 0
            return
        self._begun_in_vain += 1
        pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 4 ** (self._begun_in_vain - 1))
        self._not_before = time.monotonic() + pause_s
        if self._begun_in_vain == _VAIN:
            logger.warning(
                "tasks on the executors have no connection with this driver, and Spark jobs do their work: open the "
                "ports of %s to the executors' hosts",
                self._address[0],
            )

    def close(self) -> None:
        """End them for good. Safe to repeat."""
        self._is_closed = True
        self.end()
        self._job_thread.close()

    def _at(self, places: Sequence[Executor]) -> tuple[Connections, list[int]]:
        """Tasks that are at these places, or begin there, and which one of them each payload is for."""
        old = self._connections
        if old is not None and not old.is_over.is_set():
            gone = old.gone
            numbers = _numbers(places, self._places, gone)
            # Spark runs the task of a lost executor again, on a core that is for other jobs.
            if numbers is not None and (not gone or self._are_there()):
                return old, numbers
        self.end()
        if not self.may_begin:
            raise TasksLostError("none begins now")
        # Once an executor needs several, all begin that may: the next window may need more of them.
        others = self.places if len(places) > len(set(places)) else self._executors.alive()
        self._places = sorted((Counter(places) | Counter(others)).elements())
        if len(self._places) > _MOST:
            raise TasksLostError("too many executors")
        self._connections = Connections(
            self._address, len(self._places), partial(self._run, self._places), self._job_thread
        )
        return self._connections, _numbers(places, self._places, set()) or []

    def _run(self, places: Sequence[Executor], function: Callable[[int], None]) -> None:
        located(self._context, range(len(places)), places).foreach(function)

    def _are_there(self) -> bool:
        return set(self._places) <= set(self._executors.alive())


def _numbers(places: Sequence[Executor], of_tasks: Sequence[Executor], gone: Container[int]) -> list[int] | None:
    """A task for each of these places, which are among those of all tasks. None: there are not so many. PURE."""
    free: dict[Executor, deque[int]] = {}
    for number, place in enumerate(of_tasks):
        if number not in gone:
            free.setdefault(place, deque()).append(number)
    if any(len(free.get(place, ())) < count for place, count in Counter(places).items()):
        return None
    return [free[place].popleft() for place in places]


def _connection(connected: socket.socket) -> Connection:
    """Both ends send small messages and wait for the answer; no packet waits for the acknowledgement of another."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    return Connection(connected.detach())


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


def _proven_by_task(connected: socket.socket, key: bytes) -> int:
    """The number of the task at the other end, which has the key, and has a proof that this end has it.

    Raises:
        ValueError: it has not.
    """
    connected.settimeout(_GREETING_S)
    nonce = secrets.token_bytes(_NONCE)
    connected.sendall(nonce)
    answer = _exactly(connected, _NONCE + _NUMBER + _PROOF)
    said, proof = answer[:-_PROOF], answer[-_PROOF:]
    if not hmac.compare_digest(proof, _proof(key, b"task", nonce + said)):
        raise ValueError("it does not have the key")
    connected.sendall(_proof(key, b"driver", nonce + said))
    return int.from_bytes(said[_NONCE:], "big")


def _prove_to_driver(connected: socket.socket, key: bytes, number: int) -> None:
    """The other side of `_proven_by_task`."""
    nonce = _exactly(connected, _NONCE)
    said = secrets.token_bytes(_NONCE) + number.to_bytes(_NUMBER, "big")
    connected.sendall(said + _proof(key, b"task", nonce + said))
    if not hmac.compare_digest(_exactly(connected, _PROOF), _proof(key, b"driver", nonce + said)):
        raise ValueError("it does not have the key")


def _exactly(connected: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connected.recv(count - len(found))
        if not part:
            raise ValueError("it has closed the connection")
        found += part
    return found
