"""Standing tasks without Spark: the tasks are threads or processes of this machine, and a job runs them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.threads import on_a_thread
from deduper.spark import standing_tasks
from deduper.spark.placing import Executor
from deduper.spark.standing_tasks import Connections, StandingTasks, TasksLostError, serve
from tests.deduper.spark.test_task_pool import DEADLINE_S, failing, squared

HERE = ("127.0.0.1", "127.0.0.1")


class Threads:
    """A job of this many tasks, which are threads; `is_over` when all have ended."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self.is_over = threading.Event()
        self.function: Callable[[int], None] = lambda _: None

    def __call__(self, function: Callable[[int], None]) -> None:
        self.function = function
        with ThreadPoolExecutor(self._tasks) as pool:
            assert list(pool.map(function, range(self._tasks))) == [None] * self._tasks
        self.is_over.set()


def connections(job: Callable[[Callable[[int], None]], object], tasks: int) -> closing[Connections]:
    return closing(Connections(HERE, tasks, job, on_a_thread))


def each(
    tasks: Connections, function: Callable[[Any], Any], payloads: Sequence[object], are_there: Callable[[], bool]
) -> list[Any]:
    """The results of the function, by one task for each payload."""
    results = tasks.map(function, dict(enumerate(payloads)), are_there)
    return [results[number] for number in range(len(payloads))]


def always() -> bool:
    """The executors are there."""
    return True


def ending(number: int) -> int:
    """Work that kills one of its processes."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def impatient(seconds: float) -> float:
    """Work that takes so long; after it tasks hardly wait for more."""
    time.sleep(seconds)
    standing_tasks._IDLE_S = 0.01
    return seconds


def then_patient(given: tuple[float, float]) -> None:
    """Work that takes some seconds; after it tasks wait for more for so long."""
    seconds, idle_s = given
    time.sleep(seconds)
    standing_tasks._IDLE_S = idle_s


def thread(_: object) -> int:
    """Who does it."""
    return threading.get_ident()


def test_each_task_gets_its_own_payload_again_and_again() -> None:
    """In order, small ones and large ones; the job has ended once the connections are closed."""
    job = Threads(3)
    with connections(job, 3) as three:
        where = each(three, thread, [None] * 3, always)
        assert len(set(where)) == 3
        for first in range(20):
            assert each(three, squared, range(first, first + 3), always) == [n * n for n in range(first, first + 3)]
        assert each(three, len, [b"x" * 1_000_000, b"", b"x"], always) == [1_000_000, 0, 1]
        assert len(each(three, partial(bytes.__mul__, b"x" * 1000), [1000] * 3, always)[2]) == 1_000_000
        assert each(three, thread, [None] * 3, always) == where
        assert three.map(thread, {2: None}, always) == {2: where[2]}
        assert three.map(thread, {}, always) == {}
        assert not three.is_over.is_set()
    assert job.is_over.wait(DEADLINE_S)


def test_a_failure_ends_the_tasks() -> None:
    """Its meaning is found by the job that does the work again."""
    job = Threads(2)
    with connections(job, 2) as two:
        assert each(two, failing, [1, 2], always) == [1, 2]
        with pytest.raises(TasksLostError, match="a task has ended"):
            each(two, failing, [2, 3], always)
    assert job.is_over.wait(DEADLINE_S)


def test_a_dead_process_is_noticed() -> None:
    """By the driver that waits for its result."""

    def job(function: Callable[[int], None]) -> None:
        pids = []
        for number in range(2):
            pids.append(os.fork())
            if not pids[-1]:
                os.closerange(3, 1024)
                function(number)
                os._exit(0)
        for pid in pids:
            os.waitpid(pid, 0)

    with connections(job, 2) as two:
        assert each(two, ending, [1, 2], always) == [1, 2]
        with pytest.raises(TasksLostError):
            each(two, ending, [3, 4], always)


def test_nobody_waits_for_a_job_that_ends_or_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended, it failed, its executor is gone, or Spark runs one of its tasks again."""
    monkeypatch.setattr(standing_tasks, "_LOOK_S", 0.01)

    def failed(_: object) -> None:
        raise OSError("the JVM has ended")

    for job in (failed, lambda _: None):
        with connections(job, 1) as one, pytest.raises(TasksLostError, match="ended"):
            each(one, squared, [1], always)
    waits = threading.Event()
    with connections(lambda _: waits.wait(DEADLINE_S), 1) as one:
        with pytest.raises(TasksLostError, match="executor"):
            each(one, squared, [1], lambda: False)
        monkeypatch.setattr(standing_tasks, "_BEGIN_S", 0.0)
        with pytest.raises(TasksLostError, match="do not begin"):
            each(one, squared, [1], always)
    waits.set()
    monkeypatch.setattr(standing_tasks, "_BEGIN_S", DEADLINE_S)
    job = Threads(1)
    with connections(job, 1) as one:
        assert each(one, squared, [2], always) == [4]
        on_a_thread(partial(job.function, 0))
        with pytest.raises(TasksLostError, match="again"):
            until_lost(one)


def test_a_task_that_hears_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a job that needs its core is not kept waiting."""
    monkeypatch.setattr(standing_tasks, "_IDLE_S", DEADLINE_S)
    job = Threads(2)
    with connections(job, 2) as two:
        each(two, squared, [1, 2], always)
        assert not two.gone
        # The first ends while the second is at work, which does no harm.
        assert each(two, impatient, [0.01, 0.5], always) == [0.01, 0.5]
        assert two.gone >= {0}
        assert job.is_over.wait(DEADLINE_S)
        assert two.is_over.wait(DEADLINE_S)
        with pytest.raises(TasksLostError):
            each(two, squared, [1, 2], always)


def until_lost(tasks: Connections) -> None:
    """Give work to one task as long as it is done."""
    while True:
        each(tasks, squared, [2], always)


class Hostile:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


def test_a_peer_without_the_key_gets_nothing(tmp_path: Path) -> None:
    """Neither side unpickles what it sends; the tasks go on."""
    mark = tmp_path / "mark"
    sent = pickle.dumps(Hostile(mark))

    def intrude(function: Callable[[int], None]) -> None:
        _, port, key = function.args  # type: ignore[attr-defined]
        for said in (b"", b"x" * 200, len(sent).to_bytes(4, "big") + sent + bytes(200)):
            with suppress(OSError), socket.create_connection((HERE[0], port)) as peer:  # it may be closed already
                peer.sendall(said)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1000):
                    pass
        serve(HERE[0], port, bytes(32), 0)
        serve(HERE[0], port, key, 0)

    with connections(intrude, 1) as one:
        assert each(one, squared, [3], always) == [9]
    with socket.create_server((*HERE[:1], 0)) as other:

        def answer() -> None:
            peer, _ = other.accept()
            with peer:
                peer.sendall(bytes(32))
                peer.recv(1000)
                peer.sendall(bytes(32) + len(sent).to_bytes(4, "big") + sent)

        on_a_thread(answer)
        serve(HERE[0], other.getsockname()[1], bytes(32), 0)
    assert not mark.exists()


class Trial:
    """`StandingTasks` on executors that are threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.executors = [Executor(name, "here") for name in names]
        self.jobs: list[list[Executor]] = []
        self.can_connect = True
        conf = {"spark.driver.host": "127.0.0.1"}
        context: Any = SimpleNamespace(getConf=lambda: conf)
        monkeypatch.setattr(standing_tasks, "located", self._located)
        self.cores: dict[str, int] = {}
        executors: Any = SimpleNamespace(
            alive=lambda: self.executors, cores=lambda executor: self.cores.get(executor.number, 1)
        )
        self.standing = StandingTasks(context, executors)

    def _located(self, _: object, payloads: range, places: list[Executor]) -> Any:
        self.jobs.append(places)

        def foreach(function: Callable[[int], None]) -> None:
            if self.can_connect:
                Threads(len(payloads))(function)

        return SimpleNamespace(foreach=foreach)

    def map(self, *numbers: int) -> list[int]:
        """The squares, by all executors."""
        return self.standing.map(squared, numbers, self.executors)


def test_tasks_begin_again_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a job needed their cores, on other executors, and after they ended; not while they stay."""
    trial = Trial(monkeypatch, "0", "1")
    with closing(trial.standing):
        assert trial.map(2, 3) == [4, 9]
        trial.executors.reverse()
        assert trial.map(2, 3) == [4, 9]
        assert trial.standing.may_begin
        assert trial.standing.map(squared, [5], trial.executors[:1]) == [25]
        assert len(trial.jobs) == 1
        trial.standing.end()
        assert trial.map(2, 3) == [4, 9]
        assert len(trial.jobs) == 2
        trial.executors.append(Executor("2", "there"))
        assert trial.map(2, 3, 4) == [4, 9, 16]
        assert [len(places) for places in trial.jobs] == [2, 2, 3]
        with pytest.raises(TasksLostError):
            trial.standing.map(failing, [1, 2, 3], trial.executors)
        assert trial.map(2, 3, 4) == [4, 9, 16]
        assert len(trial.jobs) == 4
        monkeypatch.setattr(standing_tasks, "_IDLE_S", DEADLINE_S)
        assert trial.standing.map(impatient, [0.0, 0.0, 0.5], trial.executors) == [0.0, 0.0, 0.5]
        assert trial.standing._connections is not None
        while len(trial.standing._connections.gone) < 2:
            time.sleep(0.01)  # a busy machine lets them end late
        monkeypatch.setattr(standing_tasks, "_IDLE_S", DEADLINE_S)
        assert trial.map(2, 3, 4) == [4, 9, 16]
        assert len(trial.jobs) == 5
    with pytest.raises(TasksLostError):
        trial.map(2, 3, 4)


def test_an_executor_has_a_task_for_each_core_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns of the executors, as many as the driver has files for; all begin once one needs several."""
    trial = Trial(monkeypatch, "0", "1")
    zero, one = trial.executors
    trial.cores = {"0": 4, "1": 2}
    with closing(trial.standing):
        assert trial.standing.places == [zero, one, zero, zero]
        assert trial.map(2, 3) == [4, 9]
        assert [len(places) for places in trial.jobs] == [2]
        where = trial.standing.map(thread, [None] * 2, [zero, zero])
        assert len(set(where)) == 2
        assert trial.jobs[1:] == [[zero, zero, zero, one]]
        assert trial.standing.map(thread, [None] * 3, [zero, one, zero])[::2] == where
        assert len(set(trial.standing.map(thread, [None] * 4, trial.standing.places))) == 4
        assert trial.standing.map(thread, [None], [zero]) == where[:1]
        assert len(trial.jobs) == 2
        trial.cores = {"0": 1, "1": 0}
        assert trial.standing.places == [zero, one]
        monkeypatch.setattr(standing_tasks, "_MOST", 6)
        trial.cores = {"0": 90, "1": 90}
        assert trial.standing.places == [zero, one] * 3


def test_tasks_that_have_no_work_end_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until more are needed than are left, or the executor of one is gone: Spark runs that task elsewhere."""
    monkeypatch.setattr(standing_tasks, "_IDLE_S", DEADLINE_S)
    trial = Trial(monkeypatch, "0", "1")
    zero, one = trial.executors
    trial.cores = {"0": 4, "1": 2}

    def let_end(places: list[Executor]) -> None:
        """Let the tasks at these places end, but the first."""
        ended = len(places) - 1
        trial.standing.map(then_patient, [(0.5, DEADLINE_S), *[(0.0, 0.01)] * ended], places)
        while trial.standing._connections is not None and len(trial.standing._connections.gone) < ended:
            time.sleep(0.01)  # they end when they see that nothing comes

    with closing(trial.standing):
        assert len(trial.standing.map(squared, [1] * 4, trial.standing.places)) == 4
        let_end([zero] * 3)
        assert trial.map(2, 3) == [4, 9]
        assert trial.jobs == [[zero, zero, zero, one]]
        assert trial.standing.map(squared, [2, 3], [zero, zero]) == [4, 9]
        assert len(trial.jobs) == 2
        let_end([zero, one])
        assert trial.map(2, 3) == [4, 9]
        assert len(trial.jobs) == 3
        let_end([zero, one])
        trial.executors.remove(one)
        assert trial.map(2) == [4]
        assert trial.jobs[3:] == [[zero]]


def test_a_driver_has_not_files_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large cluster; jobs do the work there."""
    trial = Trial(monkeypatch, "0", "1", "2")
    monkeypatch.setattr(standing_tasks, "_MOST", 2)
    with closing(trial.standing):
        assert trial.standing.places == []
        with pytest.raises(TasksLostError, match="too many"):
            trial.map(1, 2, 3)
    assert not trial.jobs


def test_tasks_that_cannot_connect_begin_again_ever_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs do their work meanwhile, and the log says so once."""
    now = 0.0
    monkeypatch.setattr(standing_tasks, "time", SimpleNamespace(monotonic=lambda: now))
    trial = Trial(monkeypatch, "0")
    began = []
    with closing(trial.standing):
        assert trial.map(2) == [4]
        trial.standing.end()
        trial.can_connect = False
        assert trial.standing.may_begin
        for second in range(7_000):
            now = float(second)
            with pytest.raises(TasksLostError):
                trial.map(2)
            if len(trial.jobs) > 1 + len(began):
                began.append(second)
            assert not trial.standing.may_begin
        assert began == [0, 2, 10, 42, 170, 682, 2730, 6330]
        trial.can_connect = True
        now += 3600
        assert trial.map(2) == [4]
        trial.standing.end()
        assert trial.map(2) == [4]
    assert caplog.text.count("to the executors' hosts") == 1
