"""How long a job waits until its consumer group has the judged offsets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deduper.kafka import cluster
from deduper.kafka.cluster import GroupOffsets
from deduper.kafka.offsets import OffsetRange, TopicPartition

RANGE = OffsetRange(TopicPartition("clicks", 0), "id", 0, 7)


class Coordinator:
    """A consumer and a clock: each commit is answered after some seconds of waiting, or never."""

    def __init__(self, answers_after_s: float) -> None:
        self.now_s = 0.0
        self.committed: list[int] = []
        self._answers_after_s = answers_after_s
        self._due: list[tuple[float, list[Any]]] = []
        self._told: Callable[[None, list[Any]], None] = lambda *_: None

    def __call__(self, options: dict[str, Any], **_: Any) -> Coordinator:
        """The consumer with these options."""
        self._told = options["on_commit"]
        return self

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        """A request."""
        assert asynchronous
        self._due.append((self.now_s + self._answers_after_s, offsets))

    def poll(self, seconds: float) -> None:
        """The answers that come meanwhile."""
        self.now_s += seconds
        while self._due and self._due[0][0] <= self.now_s:
            _, offsets = self._due.pop(0)
            self.committed += [one.offset for one in offsets]
            self._told(None, offsets)


@pytest.mark.parametrize(
    ("answers_after_s", "committed_s", "settled_s"), [(0.0, 0.01, 0.01), (1.0, 0.2, 1.0), (600.0, 0.2, 5.2)]
)
def test_the_end_of_a_run_waits_for_a_slow_coordinator(
    answers_after_s: float, committed_s: float, settled_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window waits a moment; a run ends with its offsets in the group, unless the coordinator is away."""
    coordinator = Coordinator(answers_after_s)
    monkeypatch.setattr(cluster, "Consumer", coordinator)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: coordinator.now_s))
    offsets = GroupOffsets({}, "lag")
    offsets.commit([RANGE])
    assert coordinator.now_s == pytest.approx(committed_s, abs=0.02)
    offsets.settle()
    assert coordinator.now_s == pytest.approx(settled_s, abs=0.02)
    assert coordinator.committed == ([] if answers_after_s > 5 else [7])
