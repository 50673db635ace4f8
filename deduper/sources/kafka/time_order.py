"""Keeps partitions together by the time stamps of their records, while a job has more before it than one window takes.

The *progress* of a partition is the greatest time stamp up to the next record that it gives. A window takes no record
behind the first one whose time stamp is `slack` or more beyond the least progress, so a partition that is so far ahead
is held back. The brokers know the first offset with a time stamp or a later one: if it is not behind the next record,
the progress is that time at least. So a progress is found by bisection, for all partitions at once, to a quarter of the
slack and never too great; no record is read for it.

A partition whose time stamps are ahead of the clock has no progress: it is not held back, and holds none. One that has
given all it has holds the others for `IDLE_S` at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from deduper.kafka.offsets import Offsets, TopicPartition
from deduper.units import counted, span

logger = logging.getLogger(__name__)

IDLE_S = 10.0

Times = Mapping[TopicPartition, int]
"""Time stamps in ms."""


@dataclass(slots=True)
class _Search:
    """The search for the progress of a partition that gives the offset `next`: from `low`, which it has, to `high`."""

    next: int
    low: int
    step: int
    high: int | None = None
    is_ahead: bool = False

    def probe(self, precision: int, now_ms: int) -> int | None:
        """The time to ask for; None when the progress is known."""
        if self.is_ahead or (self.high is not None and self.high - self.low <= precision):
            return None
        return min(self.low + self.step, now_ms) if self.high is None else (self.low + self.high) // 2

    def answered(self, time_ms: int, first: int, now_ms: int) -> None:
        """The first offset with this time stamp or a later one; negative for none."""
        if not 0 <= first <= self.next:
            self.high = time_ms
            return
        self.low, self.step = time_ms, 2 * self.step
        self.is_ahead = time_ms >= now_ms


class TimeOrder:
    """Bounds the windows of one source. For one thread.

    `first_offsets` asks the brokers for the first offset of each partition with a time stamp or a later one, negative
    for none; partitions that are gone are left out. `held_back`: by the last window.
    """

    def __init__(
        self,
        slack_us: int,
        first_offsets: Callable[[Times], Offsets],
        *,
        name: str = "source",
        wall_clock_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slack_ms = slack_us // 1000
        self._first_offsets = first_offsets
        self._name = name
        self._wall_clock_s = wall_clock_s
        self._monotonic_s = monotonic_s
        self._found: dict[TopicPartition, _Search] = {}
        self._idle_since: dict[TopicPartition, float] = {}
        self.held_back: tuple[TopicPartition, ...] = ()

    def rest(self) -> None:
        """Called when one window takes all that waits."""
        self._idle_since = {}
        self._hold(())

    def bounded(self, nexts: Offsets, latest: Offsets, idle: Iterable[TopicPartition] = ()) -> Offsets:
        """The ends of a window, `latest` at most. `nexts`: the next offset of each partition.

        `idle` are partitions without a record that waits, which may have one soon. Without them some partition is read.
        """
        waiting = [place for place in sorted(latest) if latest[place] > nexts.get(place, latest[place])]
        progress = self._progress({place: nexts[place] for place in (*waiting, *self._briefly(idle))})
        if not progress:
            self._hold(())
            return latest
        least = min(progress.values())
        firsts = self._first_offsets({place: least + self._slack_ms for place in waiting if place in progress})
        ends = {
            place: min(end, max(firsts[place], nexts[place])) if firsts.get(place, -1) >= 0 else end
            for place, end in latest.items()
        }
        held = tuple(place for place in waiting if ends[place] == nexts[place])
        self._hold(held, max((progress[place] - least for place in held), default=0) / 1000)
        return ends

    def _progress(self, nexts: Offsets) -> dict[TopicPartition, int]:
        now_ms, precision = int(self._wall_clock_s() * 1000), max(1, self._slack_ms // 4)
        searches = {}
        for place, following in nexts.items():
            known = self._found.get(place)
            if known is None or following < known.next:
                searches[place] = _Search(following, 0, now_ms)
            else:
                is_same = following == known.next
                searches[place] = known if is_same else _Search(following, known.low, precision)
        while True:
            probes = {place: one.probe(precision, now_ms) for place, one in searches.items()}
            times = {place: at for place, at in probes.items() if at is not None}
            if not times:
                break
            firsts = self._first_offsets(times)
            for place, at in times.items():
                if place in firsts:
                    searches[place].answered(at, firsts[place], now_ms)
                else:  # it is gone
                    del searches[place]
        self._found = searches
        return {place: one.low for place, one in searches.items() if not one.is_ahead}

    def _briefly(self, idle: Iterable[TopicPartition]) -> list[TopicPartition]:
        now = self._monotonic_s()
        self._idle_since = {place: self._idle_since.get(place, now) for place in idle}
        return [place for place, since in self._idle_since.items() if now - since < IDLE_S]

    def _hold(self, held: tuple[TopicPartition, ...], ahead_s: float = 0.0) -> None:
        if held and not self.held_back:
            logger.info(
                "%s.order: %s held back, up to %s ahead of the others",
                self._name,
                f"{held[0]} is" if len(held) == 1 else f"{counted(len(held), 'partition')} are",
                span(ahead_s),
            )
        elif self.held_back and not held:
            logger.info("%s.order: no partition is held back any more", self._name)
        self.held_back = held
