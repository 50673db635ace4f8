"""Topics in this process: what their brokers hold, and how a job and its replay read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from deduper.admin.status import SourceLag
from deduper.config.model import Config
from deduper.errors import SourceAwayError
from deduper.kafka.offsets import Ends, Held, Offsets, TopicPartition
from deduper.sources.kafka.fetching import RangePart
from deduper.sources.kafka.partition_queue import SCHEMA
from tests.spark.harness import Job

_RECORDS_A_BATCH = 7


@dataclass
class Topics:
    """Values by partition and offset, with their time stamps; an offset without a record is a hole.

    `earliest` are the offsets before which all is deleted. `away`: so many of the next fetches fail. `fetches` are
    those that were made.
    """

    records: dict[TopicPartition, list[tuple[int, bytes | None] | None]] = field(default_factory=dict)
    earliest: Offsets = field(default_factory=dict)
    away: list[bool] = field(default_factory=list)
    fetches: list[RangePart] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    without_times: set[TopicPartition] = field(default_factory=set)
    cluster_id: str = "cluster"

    def add(self, partition: int, value: bytes | None, time_ms: int = 0, topic: str = "in") -> None:
        """One record more."""
        self.records.setdefault(TopicPartition(topic, partition), []).append((time_ms, value))

    def topic_ids(self, topics: Any) -> dict[str, str]:
        """By name."""
        return {topic: self.ids.get(topic, "id") for topic in topics}

    def topics(self, judged: Ends) -> list[str]:
        """Those that are there."""
        del judged
        return sorted({place.topic for place in self.records})

    def held(self, topics: Any) -> Held:
        """All of it."""
        places = [place for place in self.records if place.topic in topics]
        first = {place: self.earliest.get(place, 0) for place in places}
        return Held(self.topic_ids(topics), first, self.latest_offsets(places))

    def earliest_offsets(self, places: Any) -> Offsets:
        """Of those that are there."""
        return {place: self.earliest.get(place, 0) for place in places}

    def latest_offsets(self, places: Any, **_: Any) -> Offsets:
        """Of those that are there."""
        return {place: len(self.records[place]) for place in places}

    def configured_start(self, held: Held) -> Offsets:
        """The earliest offsets."""
        return dict(held.earliest)

    def offsets_since(self, times_ms: Mapping[TopicPartition, int]) -> Offsets:
        """As the brokers find them."""
        return {
            place: -1
            if place in self.without_times
            else next((n for n, one in enumerate(self.records[place]) if one and one[0] >= time_ms), -1)
            for place, time_ms in times_ms.items()
        }

    def greatest_times(self, places: Any) -> dict[TopicPartition, int]:
        """As the brokers find them."""
        return {place: max((one[0] for one in self.records[place] if one), default=-1) for place in places}

    def commit_offsets(self, ranges: Any) -> None:
        """For tools that show lag."""

    def settle_offsets(self) -> None:
        """The run ends."""

    def fetched(self, client: Any, part: RangePart, with_headers: bool) -> Iterator[pa.RecordBatch]:
        """In place of `fetching.fetched`."""
        del client, with_headers
        self.fetches.append(part)
        place = TopicPartition(part.topic, part.partition)
        if self.away and self.away.pop(0):
            raise SourceAwayError(f"{part.name}: no record in 10 s")
        if part.start < self.earliest.get(place, 0):
            raise SourceAwayError(f"{part.name}: offset out of range")
        rows = [
            {"offset": offset, "timestamp_ms": one[0], "value": one[1], "key": None, "headers": None}
            for offset, one in enumerate(self.records[place][part.start : part.end], part.start)
            if one is not None
        ]
        for begin in range(0, len(rows), _RECORDS_A_BATCH):
            yield pa.RecordBatch.from_pylist(rows[begin : begin + _RECORDS_A_BATCH], SCHEMA)

    def lag(self, store: Any) -> SourceLag | None:
        """In place of `source_lag`, of brokers that do not answer."""
        del store
        return SourceLag((), "no answer")


class Watch:
    """Of brokers that answer."""

    silence_s = 1.0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def progressed(self) -> None:
        """A window was judged."""

    def wait_for(self, failure: Exception) -> None:
        """Not at all."""
        if not isinstance(failure, SourceAwayError):
            raise failure


class TopicJob(Job):
    """A job whose source is a topic; `settings` may have more of its source."""

    @property
    def config(self) -> Config:
        """The configuration, checked again."""
        source: Mapping[str, Any] = {
            "format": "kafka",
            "bootstrap_servers": "nowhere:1",
            "topics": ["in"],
            "group": "off",
            "value": {"format": "json", "schema": "k string, t long"},
            **self.settings.get("source", {}),
        }
        sections: dict[str, Any] = {
            "name": "test",
            "key": "k",
            "store": {"url": "file:state", "shards": 2},
            "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in ("unique", "duplicate")}
            | {port: {"format": "json", "path": f"out/{port}"} for port in ("expired", "error")},
            **self.settings,
            "source": source,
        }
        return Config.model_validate(sections, context={"base_dir": self.directory})


def stand_in(monkeypatch: pytest.MonkeyPatch, *, are_fetched_here: bool = True) -> Topics:
    """From here on jobs and replays of this process plan by these topics; `are_fetched_here`: and read them."""
    made = Topics()
    for module in ("kafka.cluster", "replay.topics"):
        monkeypatch.setattr(f"deduper.{module}.KafkaCluster", lambda *_, **__: made)
    for module in ("sources.kafka.broker_watch", "replay.topics"):
        monkeypatch.setattr(f"deduper.{module}.BrokerWatch", Watch)
    if are_fetched_here:
        monkeypatch.setattr("deduper.sources.kafka.topic_reading.fetched", made.fetched)
    monkeypatch.setattr("deduper.replay.run.source_lag", made.lag)
    monkeypatch.setattr("deduper.service.job.require", lambda _: None)
    monkeypatch.setattr("deduper.service.job._source_watch", lambda *_: contextlib.nullcontext())
    return made
