"""Topics as the input of a replay: ranges of the offsets between where the source begins and where it ends now.

The offsets of a partition are divided at multiples of `RANGE_OFFSETS`, so the same offsets make the same ranges
whatever the brokers have deleted before them. What a window of a job does about brokers that are away, and about
offsets that are gone, is `KafkaBatches`' work here too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Event

from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry
from deduper.errors import SourceAwayError, UsageError
from deduper.kafka.cluster import KafkaCluster
from deduper.kafka.offsets import OffsetRange, Offsets, ends_to_wire
from deduper.replay.estimate import sampled_records
from deduper.replay.inputs import InputReading, LostOffsets, ReplayInput, ReplayRange
from deduper.replay.keys import KeyRange
from deduper.sources.kafka.batch import KafkaBatch, KafkaBatches
from deduper.sources.kafka.broker_watch import BrokerWatch

RANGE_OFFSETS = 500_000
_SAMPLED_RANGES = 24
_RECORD_BYTES = 300.0
"""The size of a record if none was read."""
_ALL = 1 << 62
_MOST_LOSSES = 3


class ReplayTopics:
    """See `ReplayInputs`. `reading` reads all columns: it measures the records."""

    noun = "range"

    def __init__(
        self,
        config: Config,
        source: KafkaSource,
        bounds: KeyRange,
        reading: InputReading,
        stop: Event | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = bounds.first if _is_by_time_stamp(config, source) else None
        self._source = source
        self._cluster = KafkaCluster(source, stop)
        self._reading = reading
        whole = source.model_copy(update={"max_offsets_per_batch": _ALL})
        self._watch = BrokerWatch(source, stop)
        self._batches = KafkaBatches(whole, self._cluster, None, self._watch)
        self._batch: KafkaBatch | None = None
        self._clock = clock
        self._begun_s = 0.0
        self._losses = 0
        self._first_listed: list[ReplayRange] = []
        self._first_wanted: dict[str, int] = {}
        self._listed: list[ReplayRange] = []

    @property
    def ends(self) -> str:
        """The end of every partition, also of those without records: JSON of `kafka.ends`."""
        assert self._batch is not None
        return json.dumps(ends_to_wire(self._batch.ends))

    def listed(self) -> list[ReplayInput]:
        """See `ReplayInputs`.

        Raises:
            UsageError: there is no record from the first offsets of the source on, or from the first time.
        """
        self._begun_s = self._clock()
        if self._batch is None:
            self._batches.begin(drain=True)
            self._batch = self._batches.next_batch()
        if self._batch is None or not self._batch.ranges:
            raise UsageError(_nothing(self._source))
        ranges = [replace(one, silence_s=self._batches.silence_s) for one in self._ranges(self._batch)]
        if not ranges:
            raise UsageError("nothing is to be replayed: no record of the topic is from --from on")
        self._first_listed, self._listed = self._first_listed or ranges, ranges
        size = record_bytes(self._reading, ranges)
        return [
            replace(one, number=number, size_bytes=round((one.end - one.start) * size))
            for number, one in enumerate(ranges)
        ]

    @property
    def lost(self) -> tuple[LostOffsets, ...]:
        """See `ReplayInputs`."""
        first = {(one.name, one.topic_id): self._first_wanted[one.name] for one in self._first_listed}
        left = {(one.name, one.topic_id): one.start for one in reversed(self._listed)}
        ends = {(one.name, one.topic_id): one.end for one in self._first_listed}
        lost = {place: (start, left.get(place, ends[place]) - start) for place, start in first.items()}
        return tuple(LostOffsets(name, start, count) for (name, _), (start, count) in sorted(lost.items()) if count > 0)

    def surveyed(self) -> None:
        """See `ReplayInputs`: the deadline begins again."""
        self._watch.progressed()

    def require_same(self) -> None:
        """See `ReplayInputs`: a range that could be read had all that the brokers held, if its topic is the same."""
        assert self._batch is not None
        ids = self._cluster.topic_ids({one.place.topic for one in self._batch.ranges})
        other = [one.place.topic for one in self._batch.ranges if ids.get(one.place.topic) != one.topic_id]
        if other:
            raise SourceAwayError(f"topic {other[0]} was deleted while it was read")

    def wait_for(self, failure: SourceAwayError) -> None:
        """See `ReplayInputs`. Offsets that are gone meanwhile are lost: `data_loss` decides.

        Raises:
            IntegrityError: offsets are gone, and `data_loss` is `fail`.
            UsageError: they are gone again and again: no plan is made before the brokers delete more.
        """
        if self._batch is None:
            raise failure
        if self._clock() - self._begun_s >= self._source.deadline / 1_000_000 + self._watch.silence_s:
            self._watch.progressed()  # it was read for so long
        begun = self._batch.ranges
        self._batch = self._batch.after_failure(failure)
        if self._batch.ranges == begun:
            return
        self._watch.progressed()
        self._losses += 1
        if self._losses == _MOST_LOSSES:
            raise UsageError(
                f"{self._source.place}: the brokers delete its oldest offsets faster than a plan reads them, which is "
                f"twice: {failure}. Begin later: `source.starting_offsets: {{time: ...}}`, by some hours behind the "
                "oldest record"
            )

    def _ranges(self, batch: KafkaBatch) -> Iterator[ReplayRange]:
        """The ranges that may have records from the first key on, without number and size."""
        needed: Offsets = {}
        if self._first is not None and self._first >= 1000:
            times_ms = {one.place: int(self._first) // 1000 for one in batch.ranges}
            needed = self._cluster.offsets_since(times_ms)
            # An index of times may lack some: a partition without an answer is left out if all its times are earlier.
            unsure = [one.place for one in batch.ranges if needed.get(one.place, 0) < 0]
            last_ms = self._cluster.greatest_times(unsure)
            needed |= {place: 0 for place in unsure if not 0 <= last_ms.get(place, -1) < times_ms[place]}
        for whole in batch.ranges:
            first = needed.get(whole.place, whole.start)
            self._first_wanted.setdefault(str(whole.place), max(first, whole.start))
            start = whole.start
            while start < whole.end and first >= 0:
                end = min(whole.end, (start // RANGE_OFFSETS + 1) * RANGE_OFFSETS)
                if first < end:
                    yield _range(whole, start, end, batch.cluster_id)
                start = end


def _range(whole: OffsetRange, start: int, end: int, cluster_id: str) -> ReplayRange:
    digest = replace(whole, start=start, end=end).digest(cluster_id)
    return ReplayRange(0, whole.place.topic, whole.place.partition, whole.topic_id, start, end, digest, 0)


def _is_by_time_stamp(config: Config, source: KafkaSource) -> bool:
    expiry = config.expiry
    return isinstance(expiry, EventTimeExpiry) and source.record.get(expiry.field) == "timestamp"


def _nothing(source: KafkaSource) -> str:
    remedy = ": add --set source.starting_offsets=earliest" if source.may_begin_at_ends else ""
    return f"{source.place}: nothing is there to be replayed from `source.starting_offsets` on{remedy}"


def record_bytes(reading: InputReading, ranges: Sequence[ReplayRange]) -> float:
    """The size of a record, decoded, by the first ones of some ranges."""
    rows = size = 0
    for one in ranges[:: max(1, len(ranges) // _SAMPLED_RANGES)]:
        for records in sampled_records(reading, one):
            rows, size = rows + records.num_rows, size + records.nbytes
    return size / rows if rows else _RECORD_BYTES
