"""How far a store is behind its topics, for `status`: judged ends from the log, the topics' ends from the brokers.

The brokers are given a moment. When they do not answer, how far the store has come is shown all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deduper import kafka_extra
from deduper.config_kafka import KafkaSource
from deduper.errors import DeduperError
from deduper.kafka_offsets import judged_ends
from deduper.open_store import OpenStore

_ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One topic partition: up to where it was judged, where it ends, and the offsets in between.

    `judged` is None before its first window; then its lag is all that the brokers keep. `end` is None when nobody told;
    `lag` then too, and when the topic ends before what was judged: it was made anew.
    """

    topic: str
    partition: int
    judged: int | None
    end: int | None
    lag: int | None

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "judged": self.judged,
            "end": self.end,
            "lag": self.lag,
        }


@dataclass(frozen=True, slots=True)
class SourceLag:
    """All partitions, in source order. `error` says why the brokers told nothing."""

    partitions: tuple[PartitionLag, ...]
    error: str = ""

    @property
    def total(self) -> int | None:
        """Offsets over all partitions; None when one is not known."""
        lags = [one.lag for one in self.partitions if one.lag is not None]
        return sum(lags) if len(lags) == len(self.partitions) and not self.error else None

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "total": self.total,
            "error": self.error or None,
            "partitions": [one.to_json() for one in self.partitions],
        }


def source_lag(store: OpenStore) -> SourceLag | None:
    """The lag of a store that was named by its config and reads Kafka; None for any other. Never fails."""
    if store.config is None or not isinstance(store.config.source, KafkaSource):
        return None
    judged = judged_ends(store.log.state)
    firsts, ends, error = {}, {}, ""
    if not kafka_extra.is_client_installed():
        error = f"{kafka_extra.MISSING}: {kafka_extra.REMEDY}"
    else:
        from deduper.kafka_lag import LatestOffsets

        try:
            brokers = LatestOffsets(store.config.source, answer_s=_ANSWER_S)
            places = brokers.places()
            ends = brokers.ask({*places, *judged})
            firsts = brokers.ask_first(place for place in places if place not in judged)
        except DeduperError as exc:
            error = str(exc)
    found = []
    for place in sorted({*judged, *ends}):
        begin = judged[place].offset if place in judged else None
        end = ends.get(place)
        since = firsts.get(place, 0) if begin is None else begin
        lag = None if end is None or end < since else end - since
        found.append(PartitionLag(place.topic, place.partition, begin, end, lag))
    return SourceLag(tuple(found), error)
