"""Waiting with a deadline and a line of log, and calls that never come back."""

from __future__ import annotations

import logging
import threading

import pytest

from deduper.errors import StopRequested
from deduper.kafka.calls import HungError, bounded
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.retry import LOG_EVERY_S, RetryDeadline, ThrottledLog


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    """A clock of the test's own."""
    return Clock()


def retry(clock: Clock, deadline_s: float = 60.0, *, stops_at: float = float("inf")) -> RetryDeadline:
    """A deadline by this clock; a stop is requested at a time of it."""
    stop = threading.Event()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now >= stops_at:
            stop.set()

    sleep(0)
    return RetryDeadline(
        "slot 3",
        deadline_s,
        ThrottledLog(clock),
        stop=stop,
        clock=clock,
        sleep=sleep,
    )


def test_one_line_every_ten_seconds(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Each says who waits, for what, since when and until when; a second of waiting is not worth one."""
    waiting = retry(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            waiting.wait("the commit", "refused", 0.2)
        assert caplog.messages == []
        for _ in range(35):
            waiting.wait("the commit", "refused", 1.0)
    assert len(caplog.messages) == 4
    assert caplog.messages[0] == ("slot 3: waiting for the commit for 2 s (refused); retrying, gives up after 60 s")


def test_the_deadline(clock: Clock) -> None:
    """Passed: an error with what was waited for. A step forward restarts it."""
    waiting = retry(clock)
    for _ in range(3):
        for _ in range(59):
            waiting.wait("the commit", "refused", 1.0)
        waiting.progressed()
    for _ in range(60):
        waiting.wait("the commit", "refused", 1.0)
    with pytest.raises(BrokerUnavailableError, match=r"slot 3: waited 60 s for the commit: refused"):
        waiting.wait("the commit", "refused", 1.0)


def test_a_stop_ends_the_waiting(clock: Clock) -> None:
    """Of what was away for some seconds, reported as it is; after a passing fault the window is finished."""
    for waiting, steps in ((retry(clock, stops_at=clock.now + 20), 20), (retry(clock, stops_at=clock.now), 5)):
        for _ in range(steps):
            waiting.wait("the commit", "refused", 1.0)
        with pytest.raises(StopRequested, match=r"slot 3: stopped while waiting for the commit \(refused\)"):
            waiting.wait("the commit", "refused", 1.0)
    again = retry(clock, stops_at=clock.now)
    again.repeat("too bad")
    clock.sleep(5)
    with pytest.raises(StopRequested):
        again.repeat("too bad")


def test_beginning_again_is_no_step_forward(clock: Clock) -> None:
    """What always fails at the same place ends, though it goes forward in between each time."""
    waiting = retry(clock)
    for _ in range(6):
        waiting.progressed()
        waiting.repeat("too bad")
        clock.sleep(LOG_EVERY_S)
    with pytest.raises(BrokerUnavailableError, match="the transaction to succeed: too bad"):
        waiting.repeat("too bad")


def test_a_call_that_comes_back() -> None:
    """Its value, None included, or its error."""
    assert bounded(lambda: 5, 10, "five") == 5
    assert bounded(lambda: None, 10, "nothing") is None
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10, "an error")


def test_a_call_that_does_not() -> None:
    """Given up, and left behind in a thread that holds up nobody's end."""
    end = threading.Event()
    before = set(threading.enumerate())
    try:
        with pytest.raises(HungError, match="waiting for the end for 0 s"):
            bounded(end.wait, 0.05, "the end")
        left = [
            new
            for new in {*threading.enumerate()} - before
            if new.name == f"bounded in {threading.current_thread().name}"
        ]
        assert len(left) == 1
        assert left[0].daemon
    finally:
        end.set()
