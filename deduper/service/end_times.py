"""When the source grew: the age of the oldest record that no window has, without reading it. PURE.

The brokers report the end of a partition every few seconds. The record at an offset had come when an end beyond it was
first reported, so its age is known to within that interval; of records from before the first report it is that of the
report, a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from deduper.kafka.offsets import TopicPartition

_MOST = 720


class EndTimes:
    """The ends of partitions by the time of their report. For one thread at a time."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, list[tuple[float, int]]] = {}

    def add(self, at_s: float, latest: Mapping[TopicPartition, int], judged: Mapping[TopicPartition, int]) -> None:
        """The ends reported at `at_s`; reports that hold nothing beyond `judged` are forgotten.

        Of very many, every second one is forgotten, which makes the ages of old records coarser.
        """
        for place, end in latest.items():
            ends = [one for one in self._ends.get(place, ()) if judged.get(place, -1) < one[1] <= end]
            if end > judged.get(place, -1) and (not ends or end > ends[-1][1]):
                ends.append((at_s, end))
            self._ends[place] = ends if len(ends) <= _MOST else ends[::2]

    def waiting_since_s(self, place: TopicPartition, judged: int) -> float | None:
        """When the first record at or beyond the offset `judged` had come; None when there is none."""
        return next((at_s for at_s, end in self._ends.get(place, ()) if end > judged), None)
