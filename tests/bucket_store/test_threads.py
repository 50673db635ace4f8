"""Actions on threads of their own."""

from __future__ import annotations

import threading
import time

import pytest

from bucket_store.threads import are_at_work, bounded, on_a_thread


def test_a_bounded_action_gives_what_it_gives() -> None:
    """Its result, None too, or its error."""
    assert bounded(lambda: 7, 60) == 7
    assert bounded(lambda: None, 60) is None
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 60)


def test_an_action_that_hangs_is_left_behind() -> None:
    """The caller goes on; the action may still take effect."""
    may_end, ended = threading.Event(), threading.Event()

    def hangs() -> None:
        may_end.wait()
        ended.set()

    with pytest.raises(TimeoutError, match="not over"):
        bounded(hangs, 0.01)
    assert not ended.is_set()
    assert are_at_work()
    may_end.set()
    assert ended.wait(60)


def test_an_action_is_at_work_while_somebody_waits_for_it() -> None:
    """That one may be a thread that an ending process does not wait for."""
    begun, may_end = threading.Event(), threading.Event()
    on_a_thread(lambda: bounded(lambda: (begun.set(), may_end.wait(60)), 60))
    assert begun.wait(60)
    assert are_at_work()
    may_end.set()
    deadline = time.monotonic() + 60
    while are_at_work():
        assert time.monotonic() < deadline
        time.sleep(0.01)
