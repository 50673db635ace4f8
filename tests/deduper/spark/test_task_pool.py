"""A task pool without Spark: tasks are threads, or processes that die and freeze; a job runs them as Spark would."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from bucket_store.threads import on_a_thread
from deduper.spark.task_pool import TaskPool

DEADLINE_S = 60.0


def threads_of(function: Callable[[int], None], workers: int) -> None:
    """A job that fails with its first task."""
    pool = ThreadPoolExecutor(workers)
    tasks = [pool.submit(function, number) for number in range(workers)]
    done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
    pool.shutdown(wait=False)
    for task in done:
        task.result()


def forked(function: Callable[[int], None], number: int) -> int:
    """A process that runs a task."""
    pid = os.fork()
    if pid == 0:
        try:
            # A task of Spark's has none of the driver's sockets, whose other ends would never hear that it is gone.
            os.closerange(3, 1024)
            function(number)
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def exit_code(pid: int) -> int:
    """What a process has ended with; waits for it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Processes:
    """A job whose tasks are processes; one that dies is run again, so many times. `begun` has all, in order."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.begun: list[int] = []
        self.is_over = threading.Event()

    def __call__(self, function: Callable[[int], None], workers: int) -> None:
        try:
            threads_of(partial(self.task, function), workers)
        finally:
            self.is_over.set()

    def task(self, function: Callable[[int], None], number: int) -> None:
        """Runs until it ends well."""
        for _ in range(self._failures):
            pid = forked(function, number)
            self.begun.append(pid)
            if exit_code(pid) == 0:
                return
        raise RuntimeError(f"task {number} has failed")


@pytest.fixture
def task_pool(tmp_path: Path) -> Iterator[TaskPool]:
    with closing(TaskPool(tmp_path, threads_of, 2, on_a_thread)) as task_pool:
        yield task_pool


def squared(number: int) -> int:
    """What there is to do."""
    return number * number


def failing(number: int) -> int:
    """Of which one number fails."""
    if number == 3:
        raise ValueError("three")
    return number


def process_of(_: int) -> int:
    """Who does it."""
    return os.getpid()


def hit_once(marks: Path, sent: signal.Signals, number: int) -> int:
    """The first process that gets number 2 sends itself a signal, and says so if it goes on."""
    if number == 2:
        try:
            (marks / "hit").touch(exist_ok=False)
        except FileExistsError:
            return number
        os.kill(os.getpid(), sent)
        (marks / "went on").touch()
    return number


def test_answers_are_in_order_and_the_same_workers_stay(task_pool: TaskPool) -> None:
    """One job after another, of fewer and of more numbers than there are workers."""
    assert task_pool.map(squared, range(1)) == [0]
    assert task_pool.map(squared, range(100)) == [number * number for number in range(100)]
    assert task_pool.map(os.path.basename, ()) == []
    assert len(task_pool.map(partial(str.__mul__, "x" * 1_000_000), range(5))[4]) == 4_000_000
    assert task_pool.all_tasks_finished


def test_what_a_task_raises_is_what_the_driver_hears(task_pool: TaskPool) -> None:
    """As of any job."""
    assert task_pool.map(squared, range(3)) == [0, 1, 4]
    with pytest.raises(ValueError, match="three"):
        task_pool.map(failing, range(50))


def test_a_job_that_cannot_begin_is_told(tmp_path: Path) -> None:
    """No one waits for tasks that never come; and a job that ends for no reason is a fault too."""

    def not_at_all(function: Callable[[int], None], workers: int) -> None:
        raise OSError("the JVM has ended")

    with closing(TaskPool(tmp_path, not_at_all, 2, on_a_thread)) as task_pool, pytest.raises(OSError, match="JVM"):
        task_pool.map(squared, range(1))
    with (
        closing(TaskPool(tmp_path, lambda *_: None, 2, on_a_thread)) as task_pool,
        pytest.raises(RuntimeError, match="ended"),
    ):
        task_pool.map(squared, range(1))


def test_one_that_dies_is_replaced_and_what_it_was_at_is_done(tmp_path: Path) -> None:
    """Where Spark runs failed tasks again. Every number has one answer."""
    job = Processes(failures=3)
    with closing(TaskPool(tmp_path, job, 2, on_a_thread)) as task_pool:
        assert task_pool.map(partial(hit_once, tmp_path, signal.SIGKILL), range(6)) == list(range(6))
        assert (tmp_path / "hit").exists()
        assert task_pool.map(squared, range(4)) == [0, 1, 4, 9]
    assert not task_pool.all_tasks_finished
    assert job.is_over.wait(DEADLINE_S)
    assert len(job.begun) == 3


def test_one_that_dies_for_good_fails_the_window(tmp_path: Path) -> None:
    """Where Spark does not run it again; nobody waits for its answer."""
    with (
        closing(TaskPool(tmp_path, Processes(failures=1), 2, on_a_thread)) as task_pool,
        pytest.raises(RuntimeError, match="has failed"),
    ):
        task_pool.map(partial(hit_once, tmp_path, signal.SIGKILL), range(6))


def test_one_that_dies_between_two_jobs_is_replaced(tmp_path: Path) -> None:
    """It is noticed when something is given to it."""
    job = Processes(failures=3)
    with closing(TaskPool(tmp_path, job, 2, on_a_thread)) as task_pool:
        while len(set(task_pool.map(process_of, range(2)))) < 2:
            pass  # one has not joined yet
        os.kill(job.begun[0], signal.SIGKILL)
        assert task_pool.map(squared, range(10)) == [number * number for number in range(10)]
    assert job.is_over.wait(DEADLINE_S)
    assert len(job.begun) == 3


def test_what_a_frozen_one_was_at_goes_to_the_one_in_its_place(tmp_path: Path) -> None:
    """Spark has lost sight of a task and runs it again; the old one lives, and what it says later nobody hears."""
    frozen: list[int] = []

    class Impatient(Processes):
        def task(self, function: Callable[[int], None], number: int) -> None:
            pid = forked(function, number)
            if os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
                frozen.append(pid)
                super().task(function, number)

    with closing(TaskPool(tmp_path, Impatient(failures=1), 2, on_a_thread)) as task_pool:
        assert task_pool.map(partial(hit_once, tmp_path, signal.SIGSTOP), range(4)) == [0, 1, 2, 3]
        os.kill(frozen[0], signal.SIGCONT)
        assert exit_code(frozen[0]) == 0
        assert (tmp_path / "went on").exists()
        assert task_pool.map(squared, range(20)) == [number * number for number in range(20)]
    assert not task_pool.all_tasks_finished


@pytest.mark.parametrize("is_removed", [False, True])
def test_all_tasks_end_also_late_ones(tmp_path: Path, is_removed: bool) -> None:
    """A task that is begun when the window is over ends, with or without the window's folder."""
    folder = tmp_path / "window"
    folder.mkdir()
    begin, is_over = threading.Event(), threading.Event()
    home: list[int] = []

    def some_late(function: Callable[[int], None], workers: int) -> None:
        def later(number: int) -> None:
            if number:
                assert begin.wait(DEADLINE_S)
            function(number)
            home.append(number)

        try:
            threads_of(later, workers)
        finally:
            is_over.set()

    with closing(TaskPool(folder, some_late, 3, on_a_thread)) as task_pool:
        assert task_pool.map(squared, range(3)) == [0, 1, 4]
    if is_removed:
        shutil.rmtree(folder)
    begin.set()
    assert is_over.wait(DEADLINE_S)
    assert sorted(home) == [0, 1, 2]


def test_a_folder_may_have_a_long_path(tmp_path: Path) -> None:
    """Longer than a socket's address."""
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    with closing(TaskPool(folder, threads_of, 2, on_a_thread)) as task_pool:
        assert task_pool.map(squared, range(5)) == [0, 1, 4, 9, 16]
