"""Collection is off while any thread has put it off, and then as it was."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest

from deduper.gc_pause import paused


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_it_is_as_it_was_after_the_last(is_on: bool) -> None:
    """Also when one is left by an error."""
    (gc.enable if is_on else gc.disable)()
    with contextlib.suppress(KeyError), paused():
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() is is_on


def test_other_threads_keep_it_off() -> None:
    """The first to leave turns nothing on."""
    gc.enable()
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with paused():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=other)
    with paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    go_on.set()
    thread.join(10)
    assert gc.isenabled()
