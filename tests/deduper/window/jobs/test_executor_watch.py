"""The log says that a session has no executor, and when the first one has come."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest
from py4j.protocol import Py4JNetworkError

from deduper.window.jobs.executor_watch import ExecutorWatch

WANTED = "an executor of 4g from spark://h:7077"


def watch(alive: Callable[[], Sequence[object]], patience_s: float = 0.05) -> ExecutorWatch:
    """One that looks all the time."""
    found = ExecutorWatch(alive, WANTED, look_every_s=0.001, patience_s=patience_s, again_s=0.05)
    found.start()
    return found


def told(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """The lines of the log, once there are so many."""
    deadline = time.monotonic() + 10
    while len(caplog.messages) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    return caplog.messages[:count]


def look_again(looks: list[int], times: int) -> None:
    """Wait until the watch has looked so many times more."""
    wanted, deadline = len(looks) + times, time.monotonic() + 10
    while len(looks) < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(looks) >= wanted


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "deduper.window.jobs.executor_watch"):
        yield


def test_no_executor_is_a_warning_again_and_again_until_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    """With what Spark waits for."""
    executors: list[str] = []
    looks = []

    def alive() -> list[str]:
        looks.append(len(executors))
        return executors

    with closing(watch(alive)):
        warnings = told(caplog, 2)
        assert all(re.match(r"no executor for \d+ s", line) and WANTED in line for line in warnings)
        executors.append("0")
        deadline = time.monotonic() + 10
        while not caplog.messages[-1].startswith("executors: 1") and time.monotonic() < deadline:
            time.sleep(0.001)
        count = len(caplog.messages)
        assert re.match(r"executors: 1, after \d+ s", caplog.messages[-1])
        look_again(looks, 50)
        assert len(caplog.messages) == count
        executors.clear()
        assert told(caplog, count + 1)[-1].startswith("no executor")


def test_executors_that_come_in_time_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """Those of a cluster take some seconds."""
    looks: list[int] = []

    def alive() -> list[str]:
        looks.append(0)
        return ["0"] if len(looks) > 5 else []

    with closing(watch(alive, patience_s=600.0)):
        look_again(looks, 50)
    assert caplog.messages == []


def test_a_jvm_that_has_ended_ends_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The job says what has happened."""

    def alive() -> list[str]:
        raise Py4JNetworkError

    thread = watch(alive)
    thread.join(10)
    assert not thread.is_alive()
    assert caplog.messages == []
