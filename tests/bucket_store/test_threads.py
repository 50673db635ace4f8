"""Actions on threads of their own."""

from __future__ import annotations

import threading

import pytest

from bucket_store.threads import are_left, bounded


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
    assert are_left()
    may_end.set()
    assert ended.wait(60)
