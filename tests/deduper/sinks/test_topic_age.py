"""The age of a committed window that is resumed: it decides whether the cluster may have forgotten its publication."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.log.records import OutputFile
from deduper.sinks import topics
from deduper.sinks.names import TopicPlace
from tests.deduper.kafka_configs import BASE, loaded

DAY_S = 86_400.0


class Ages:
    """In place of the publisher; `found` are the ages that it was given."""

    found: list[float]

    def __init__(self, *_: object) -> None:
        """Nothing to open."""

    def begin(self, *_: object, age_s: float, **__: object) -> dict[int, Future[int | None]]:
        """Nothing is sent."""
        Ages.found.append(age_s)
        return {}

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def ages(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The ages that are given to the publisher."""
    Ages.found = []
    monkeypatch.setattr(topics, "KafkaPublisher", Ages)
    return Ages.found


def publish(directory: Path, window: int, *file_days: float) -> None:
    """Publish a window that has a staged file of each age; windows 0 to 4 are committed, 2 days apart, 4 just now."""
    files = []
    for number, days in enumerate(file_days):
        file = directory / f"{number}.parquet"
        file.touch()
        os.utime(file, (time.time() - days * DAY_S,) * 2)
        files.append(file)
    names = [*files, directory / "gone.parquet"]
    outputs = [OutputFile("unique", str(file), "", 0, number, 1) for number, file in enumerate(names)]
    log: Any = SimpleNamespace(
        state=SimpleNamespace(next_window=5),
        manifest=SimpleNamespace(store_id="5a" * 16),
        last_commits=lambda count: [
            SimpleNamespace(window=number, wall_us=int((time.time() - (4 - number) * 2 * DAY_S) * 1e6))
            for number in range(max(1, 5 - count), 5)
        ],
    )
    ports = topics.KafkaPorts(loaded(BASE, directory), log, lambda: pytest.fail("no Spark is needed"))
    ports.publish(window, [(output, TopicPlace("unique", (0,), "clicks")) for output in outputs])
    ports.close()


def test_staged_files_that_are_all_gone(tmp_path: Path, ages: list[float]) -> None:
    """However young the window is: it cannot be sent, and the operator is asked."""
    publish(tmp_path, 4)
    assert ages == [math.inf]


@pytest.mark.parametrize(
    ("window", "days"),
    [
        (4, 1),  # the files are older than the commit
        (2, 4),  # the commit is older than the files, which were copied
        (0, 6),  # its record is gone: at least as old as the oldest that is there
        (5, 1),  # committed by this owner
    ],
)
def test_the_older_of_files_and_commit(tmp_path: Path, ages: list[float], window: int, days: int) -> None:
    """A copy of the folder that resets the times of the files does not make a window young."""
    publish(tmp_path, window, 1, 0.5)
    assert ages == [pytest.approx(days * DAY_S, abs=60)]
