"""The age of a committed window that is resumed: it decides whether the cluster may have forgotten its publication."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.log.records import OutputFile
from deduper.sinks import topics
from deduper.sinks.names import TopicPlace
from deduper.sinks.publisher import Outcome, PortWork
from tests.deduper.kafka_configs import BASE, loaded

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a cluster here."""
    monkeypatch.setattr(topics.KafkaPorts, "compare_topics", lambda ports: None)


class Ages:
    """In place of the publisher; `found` are the ages that it was given. Nothing is sent."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def publish(self, works: Sequence[PortWork]) -> list[dict[int, Outcome]]:
        """See `Publisher`."""
        self.found += [work.window.age_s for work in works]
        return [{} for _ in works]

    def close(self) -> None:
        """Nothing to close."""


def ages(directory: Path, window: int, *file_days: float) -> list[float]:
    """The ages that the publisher is given for a window that has a staged file of each of these ages.

    Windows 0 to 4 are committed, 2 days apart, 4 just now.
    """
    files = []
    for number, days in enumerate(file_days):
        file = directory / f"{number}.parquet"
        file.touch()
        os.utime(file, (time.time() - days * DAY_S,) * 2)
        files.append(file)
    names = [*files, directory / "gone.parquet"]
    outputs = [OutputFile("unique", str(file), "", 0, number, 1) for number, file in enumerate(names)]
    log: Any = SimpleNamespace(
        state=SimpleNamespace(next_window=5, extra={}),
        manifest=SimpleNamespace(store_id="5a" * 16),
        last_commits=lambda count: [
            SimpleNamespace(window=number, wall_us=int((time.time() - (4 - number) * 2 * DAY_S) * 1e6))
            for number in range(max(1, 5 - count), 5)
        ],
    )
    found = Ages()
    ports = topics.KafkaPorts(loaded(BASE, directory).topic_ports, 60.0, log, found)
    ports.publish(window, [(output, TopicPlace("unique", (0,), "clicks")) for output in outputs])
    ports.close()
    return found.found


def test_staged_files_that_are_all_gone(tmp_path: Path) -> None:
    """However young the window is: it cannot be sent, and the operator is asked."""
    assert ages(tmp_path, 4) == [math.inf]


@pytest.mark.parametrize(
    ("window", "days"),
    [
        (4, 1),  # the files are older than the commit
        (2, 4),  # the commit is older than the files, which were copied
        (0, 6),  # its record is gone: at least as old as the oldest that is there
        (5, 1),  # committed by this owner
    ],
)
def test_the_older_of_files_and_commit(tmp_path: Path, window: int, days: int) -> None:
    """A copy of the folder that resets the times of the files does not make a window young."""
    assert ages(tmp_path, window, 1, 0.5) == [pytest.approx(days * DAY_S, abs=60)]
