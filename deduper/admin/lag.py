"""How far a store is behind its topics, for `status`: judged ends from the log, the topics' ends from the brokers.

The brokers have three seconds to answer. Without an answer the judged offsets are shown all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.kafka.sections import KafkaSource
from deduper.errors import DeduperError
from deduper.kafka.errors import CLIENT_MISSING, INSTALL_CLIENT, is_client_installed
from deduper.kafka.offsets import HELD_BACK, judged_ends

_ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class PartitionLag(AsJson):
    """One topic partition: up to where it was judged, where it ends, and the offsets in between.

    `judged` is None before its first window; then its lag counts all that the brokers keep. `end` is None when it is
    unknown; `lag` then too, and when the topic ends before the judged offset: it was recreated. `is_held_back`: the
    last window took nothing of it, since its records are too far ahead of the other partitions' (`source.order`).
    """

    topic: str
    partition: int
    judged: int | None
    end: int | None
    lag: int | None
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class SourceLag(AsJson):
    """All partitions, in source order. `error` says why the brokers gave no answer."""

    json_names = ("total", "error", "partitions")

    partitions: tuple[PartitionLag, ...]
    error: str | None = None

    @property
    def total(self) -> int | None:
        """Offsets over all partitions; None when one is not known."""
        lags = [one.lag for one in self.partitions if one.lag is not None]
        return sum(lags) if len(lags) == len(self.partitions) and not self.error else None


def source_lag(store: OpenStore) -> SourceLag | None:
    """The lag of a store that was named by its config and reads Kafka; None for any other. Never fails."""
    if store.config is None or not isinstance(store.config.source, KafkaSource):
        return None
    source = store.config.source
    judged = judged_ends(store.log.state, source.reads)
    held_back = [list(one) for one in store.log.state.extra.get(HELD_BACK, ())]
    firsts, ends, error = {}, {}, ""
    if not is_client_installed():
        error = f"{CLIENT_MISSING}: {INSTALL_CLIENT}"
    else:
        from deduper.kafka.cluster import ClusterOffsets

        try:
            brokers = ClusterOffsets(source, answer_s=_ANSWER_S)
            places = brokers.places()
            ends = brokers.latest_offsets({*places, *judged})
            firsts = brokers.earliest_offsets(place for place in places if place not in judged)
        except DeduperError as exc:
            error = str(exc)
    found = []
    for place in sorted({*judged, *ends}):
        begin = judged[place].offset if place in judged else None
        end = ends.get(place)
        since = firsts.get(place, 0) if begin is None else begin
        lag = None if end is None or end < since else end - since
        is_held = [place.topic, place.partition] in held_back
        found.append(PartitionLag(place.topic, place.partition, begin, end, lag, is_held))
    return SourceLag(tuple(found), error or None)
