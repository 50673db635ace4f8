"""Lines of long steps: one before, and one every ten seconds."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deduper.service.current_step import CurrentStep
from deduper.service.stop import Stop
from deduper.service.windows import Reports, Windows
from deduper.window.progress import PROGRESS


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == PROGRESS.name]


@pytest.mark.slow
def test_a_step_that_lasts_is_said_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its text and how long it has lasted; a step that ends in time, and none at all, say nothing."""
    step = CurrentStep(line_s=0.1)
    with caplog.at_level(logging.INFO, PROGRESS.name), step.watched():
        with step.of("Spark is starting", "which takes some seconds"):
            time.sleep(0.35)
        with step.of("window 0"):
            pass
        time.sleep(0.15)
        step.begin("window 1")
        deadline = time.monotonic() + 10
        while "window 1: 0 s so far" not in lines(caplog) and time.monotonic() < deadline:
            time.sleep(0.01)
    first, *others, last = lines(caplog)
    assert (first, last) == ("Spark is starting, which takes some seconds", "window 1: 0 s so far")
    assert set(others) == {"Spark is starting: 0 s so far"}


def test_nothing_is_said_without_a_watch(caplog: pytest.LogCaptureFixture) -> None:
    """A test, or a command that shows nothing, pays no thread."""
    step = CurrentStep(line_s=0.01)
    with caplog.at_level(logging.INFO, PROGRESS.name), step.of("window 0"):
        time.sleep(0.05)
    assert lines(caplog) == []


@pytest.mark.parametrize("by_executors", [False, True])
def test_the_first_window_says_why_it_takes_longer(caplog: pytest.LogCaptureFixture, by_executors: bool) -> None:
    """The workers of executors compile in silence, where no cache has their kernels."""
    log = SimpleNamespace(state=SimpleNamespace(next_window=4))
    runner = SimpleNamespace(run=lambda given, ended: given.source)
    windows = Windows(
        cast(Any, log),
        cast(Any, runner),
        Reports(lambda _: None),
        Stop(),
        CurrentStep(),
        None,
        by_executors=by_executors,
    )
    with caplog.at_level(logging.INFO, PROGRESS.name):
        for number in range(2):
            windows.make(cast(Any, SimpleNamespace()), number, judged=lambda _: None)
    (line,) = lines(caplog)
    assert line.startswith("window 4, the first one")
    assert ("executors" in line and "compile the kernels" in line) == by_executors
