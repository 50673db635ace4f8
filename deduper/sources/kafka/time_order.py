"""Keeps partitions together by the time stamps of their records, while a job has more before it than one window takes.

The *progress* of a partition is the greatest time stamp up to the next record that it gives. A window takes no record
behind the first one whose time stamp is `slack` or more beyond the least progress, so a partition that is so far ahead
is held back. The brokers know the first offset with a time stamp or a later one: if it is not behind the next record,
the progress is that time at least. So a progress is found by bisection, for all partitions at once, to a quarter of the
slack and never too great; no record is read for it.

A partition whose time stamps are ahead of the clock has no progress: it is not held back, and holds none. One of which
each window takes all that it has holds the others for `IDLE_S` at most, whether that is nothing or a few records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from deduper.kafka.offsets import Offsets, TopicPartition
from deduper.units import counted, format_time, span

logger = logging.getLogger(__name__)

IDLE_S = 10.0
LONG_S = 600.0
"""A partition that is held back for so long is worth a warning."""

Times = Mapping[TopicPartition, int]
"""Time stamps in ms."""


@dataclass(slots=True)
class _Search:
    """The search for the progress of a partition that gives the offset `next`: from `low`, which it has, to `high`.

    `has_next`: there is a record at `next`. Without one the progress may grow while `next` stays.
    """

    next: int
    has_next: bool
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
        self._latest: Offsets = {}
        self._all_taken_since: dict[TopicPartition, float] = {}
        self._holds_since: float | None = None
        self._has_warned = False
        self.held_back: tuple[TopicPartition, ...] = ()

    def rest(self, latest: Offsets) -> None:
        """Called when one window takes all that waits. A partition that gets no record stays as idle as it is."""
        now, known = self._monotonic_s(), self._all_taken_since
        self._all_taken_since = {
            place: known.get(place, now) if end == self._latest.get(place) else now for place, end in latest.items()
        }
        self._latest = dict(latest)
        self._hold(())

    def bounded(self, nexts: Offsets, latest: Offsets, small: Collection[TopicPartition] = ()) -> Offsets:
        """The ends of a window, `latest` at most. `nexts`: the next offset of each partition.

        `small` are partitions of which the window takes all up to these ends, also those that have nothing now and may
        have a record soon. Without the latter some partition is read.
        """
        now = self._monotonic_s()
        all_taken = {place: self._all_taken_since.get(place, now) for place in small}
        idle = {place for place, since in all_taken.items() if now - since >= IDLE_S}
        waiting = [place for place in sorted(latest) if latest[place] > nexts.get(place, latest[place])]
        asked = {place: nexts[place] for place in {*waiting, *(all_taken.keys() - idle)}}
        progress = self._progress(asked, {*waiting})
        ends = dict(latest)
        holding = {place: at for place, at in progress.items() if place not in idle}
        if holding:
            last = min(sorted(holding), key=holding.__getitem__)
            least = holding[last]
            firsts = self._first_offsets({place: least + self._slack_ms for place in waiting if place in progress})
            for place, first in firsts.items():
                if first >= 0:
                    ends[place] = min(latest[place], max(first, nexts[place]))
            held = {place: (progress[place] - least) / 1000 for place in waiting if ends[place] == nexts[place]}
            self._hold(
                tuple(held),
                f"up to {span(max(held.values(), default=0))} ahead of {last} at {format_time(1000 * least)}",
            )
        else:
            self._hold(())
        self._all_taken_since = {place: since for place, since in all_taken.items() if ends[place] == latest[place]}
        self._latest = dict(latest)
        return ends

    def _progress(self, nexts: Offsets, waiting: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        now_ms, precision = int(self._wall_clock_s() * 1000), max(1, self._slack_ms // 4)
        searches = {}
        for place, following in nexts.items():
            known, has_next = self._found.get(place), place in waiting
            if known is None or following < known.next:
                searches[place] = _Search(following, has_next, 0, now_ms)
            elif following == known.next and has_next == known.has_next:
                searches[place] = known
            else:
                searches[place] = _Search(following, has_next, known.low, precision)
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
                    self._found.pop(place, None)
        self._found |= searches
        return {place: one.low for place, one in searches.items() if not one.is_ahead}

    def _hold(self, held: tuple[TopicPartition, ...], ahead: str = "") -> None:
        now = self._monotonic_s()
        if held:
            who = f"{held[0]} is" if len(held) == 1 else f"{counted(len(held), 'partition')} are"
            if self._holds_since is None:
                self._holds_since = now
                logger.info("%s.order: %s held back, %s", self._name, who, ahead)
            elif now - self._holds_since >= LONG_S and not self._has_warned:
                self._has_warned = True
                waited = span(now - self._holds_since)
                logger.warning("%s.order: %s held back for %s already, %s", self._name, who, waited, ahead)
        elif self._holds_since is not None:
            self._holds_since, self._has_warned = None, False
            logger.info("%s.order: no partition is held back any more", self._name)
        self.held_back = held
