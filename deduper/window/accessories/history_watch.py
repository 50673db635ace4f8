"""The history of a job: a sample of the store's numbers after every window; see `bucket_store.log.history`.

An accessory (`accessory`). The numbers are totals of the committed state, so samples that a crash has lost leave
no gap, only a coarser step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.history import History, Number, Sample
from bucket_store.log.state import LogState
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import TupleVerdict
from deduper.kafka.offsets import judged_ends
from deduper.leaks.figures import LeakFigures
from deduper.window import policy
from deduper.window.accessories.accessory import Accessory

MOST_PARTITIONS = 64
"""Partitions of topics that have numbers of their own: the first ones by name."""
SECONDS, FILES, LATEST, ENTRIES, PIECES, BYTES = "seconds", "files", "latest", "entries", "pieces", "bytes"
REASON, LEAK, JUDGED = "reason.", "leak.", "judged."
LATENESS, DISTANCE, AGE = "lateness.", "distance.", "age."


class HistoryWatch:
    """Samples of one owner; for the thread that judges."""

    def __init__(self, config: Config, log: CommitLog, seconds: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._log = log
        self._history: History | None = None
        self._accessory = Accessory("history", self._write, seconds)
        with self._accessory:
            next_window = log.state.next_window
            self._history = History(log.root, log.manifest.store_id, next_window=next_window)

    def add(
        self, before: LogState, wall_us: int, leaks: LeakFigures | None, *, seconds: float, partitions: int
    ) -> None:
        """Sample the state after a window: `before` is the state it followed, `seconds` its duration."""
        history = self._history
        if history is None or not self._accessory.is_on:
            return
        with self._accessory:
            newest, state = history.newest, self._log.state
            if newest is None:
                history.begin(Sample(wall_us, before.next_window, values_of(before)))
            last = {} if newest is None else newest.values
            values = values_of(state) | _of_leaks(leaks)
            values[SECONDS] = last.get(SECONDS, 0) + round(seconds, 3)
            if not isinstance(self._config.source, KafkaSource):
                values[FILES] = last.get(FILES, 0) + partitions
            history.add(Sample(wall_us, before.next_window + 1, values))
            self._accessory.changed()

    def close(self) -> None:
        """Write the samples, at the end of a run. Safe to repeat."""
        self._accessory.close()

    def _write(self) -> None:
        assert self._history is not None
        self._log.check_owner()
        self._history.write()


def values_of(state: LogState) -> dict[str, Number]:
    """The numbers of a committed state by name; those that are 0 and begin with a prefix are left out."""
    pieces = [piece for of_shard in state.pieces.values() for piece in of_shard]
    statistics = policy.statistics_of(state)
    values: dict[str, Number] = {verdict.port: state.totals.get(verdict.port, 0) for verdict in TupleVerdict}
    values |= {
        ENTRIES: sum(map(attrgetter("entries"), pieces)),
        PIECES: len(pieces),
        BYTES: sum(map(attrgetter("length"), pieces)),
    }
    if state.latest_point is not None:
        values[LATEST] = state.latest_point
    values |= {REASON + reason: count for reason, count in state.reason_totals.items() if count}
    for prefix, spans in ((LATENESS, statistics.lateness), (DISTANCE, statistics.distance), (AGE, statistics.age)):
        values |= {f"{prefix}{place}": count for place, count in enumerate(spans.counts) if count}
    ends = sorted(judged_ends(state).items(), key=lambda item: (item[0].topic, item[0].partition))
    values |= {f"{JUDGED}{place.topic}/{place.partition}": end.offset for place, end in ends[:MOST_PARTITIONS]}
    return values


def _of_leaks(leaks: LeakFigures | None) -> dict[str, Number]:
    if leaks is None:
        return {}
    return {
        f"{LEAK}{kind}{end}": round(getattr(estimate, of), 1)
        for kind, estimate in leaks.missed.items()
        for end, of in (("", "records"), (".low", "low"), (".high", "high"))
    }
