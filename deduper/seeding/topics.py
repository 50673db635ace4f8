"""A topic as a seed's input: from a start that the operator names to the committed end of each partition at the start.

The first record of a seed keeps both, so a run that is interrupted ends where the first one would have ended, however
much has come since. Once the seed is over, the same input takes what has come, to the end of then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bucket_store.log.state import LogState
from deduper.config.kafka.options import connection_options
from deduper.config.kafka.sections import KafkaSource, KafkaValue
from deduper.config.kafka.values import Servers, Starting, Topics
from deduper.config.model import Config
from deduper.errors import DeduperError, UsageError
from deduper.kafka.cluster import KafkaCluster
from deduper.kafka.offsets import (
    End,
    Ends,
    Offsets,
    TopicPartition,
    by_topic,
    ends_from_wire,
    ends_to_wire,
)
from deduper.seeding.source import SeedInput
from deduper.sources.kafka.batch import KafkaBatch, KafkaBatches
from deduper.sources.kafka.broker_watch import BrokerWatch
from deduper.sources.kafka.reading import topic_reading
from deduper.sources.protocol import SourceBatch
from deduper.window.completeness import SEED_OPEN

_SETTING = "source.starting_offsets"
_PLAN_WAITS_US = 30_000_000
_START = 'write `earliest`, a time such as 2025-03-01T00:00:00Z, or offsets by partition, such as {"0": 12}'


@dataclass(frozen=True, slots=True)
class SeededOffsets:
    """How far a topic is judged, of a seed from `start` that ends at `until`."""

    start: str
    ends: Ends
    until: Offsets

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> SeededOffsets:
        """The value of a commit."""
        until = {
            TopicPartition(topic, int(partition)): offset
            for topic, partitions in wire["until"].items()
            for partition, offset in partitions.items()
        }
        return cls(wire["start"], ends_from_wire(wire["ends"]), until)

    def to_wire(self) -> dict[str, Any]:
        """The value for a commit."""
        return {"start": self.start, "ends": ends_to_wire(self.ends), "until": self.next_offsets}

    def after(self, batch: SourceBatch) -> SeededOffsets:
        """With the offsets of a batch."""
        assert isinstance(batch, KafkaBatch)
        return replace(self, ends=batch.ends)

    @property
    def next_offsets(self) -> dict[str, dict[str, int]]:
        """Where the seed ends, as a job on the topic writes it for `source.starting_offsets`."""
        return by_topic(self.until)

    @property
    def left(self) -> int:
        """How many offsets are not judged."""
        return sum(max(0, end - self.ends[place].offset) for place, end in self.until.items() if place in self.ends)


def topic_source(config: Config, given: SeedInput) -> KafkaSource:
    """The topic as a source, by the connection of the job's source, or else of its first port that is a topic.

    Only committed records are read, also by a job that reads others.

    Raises:
        UsageError: the topic, its start, its brokers or the format of its values cannot be such.
    """
    own = config.source
    topic = {
        "topics": _read(Topics, [given.place], given.option, "write the name of one topic"),
        "topic_pattern": None,
        "starting_offsets": _read(Starting, _start(given), f"--from {given.start}", _START),
    }
    brokers = given.brokers
    if brokers is not None:
        brokers = _read(Servers, brokers, f"--brokers {brokers}", "write HOST:PORT, several with commas")
    if isinstance(own, KafkaSource):
        value = own.value
        if given.record_format not in (None, value.format):
            value = _value(given, given.record_format, value.columns, value.delimiter)
        options = {name: text for name, text in own.options.items() if name != "kafka.isolation.level"}
        connection = {"bootstrap_servers": brokers or own.bootstrap_servers, "options": options}
        return own.model_copy(update={**topic, **connection, "value": value, "group": None})
    port = next(iter(config.topic_ports.values()), None)
    if brokers is None and port is None:
        raise UsageError(f"{given.option}: the job has no brokers, neither of a source nor of a port: add --brokers")
    return KafkaSource.model_validate(
        {
            **topic,
            "format": "kafka",
            "group": "off",
            "bootstrap_servers": brokers or (port.bootstrap_servers if port is not None else ""),
            "value": _value(given, given.record_format or own.file_format, own.columns, own.delimiter),
            "options": {} if port is None else connection_options(port.options),
        }
    )


def _start(given: SeedInput) -> object:
    if given.start == "earliest":
        return given.start
    try:
        offsets = json.loads(given.start)
    except ValueError:
        offsets = None
    return {given.place: offsets} if isinstance(offsets, dict) else {"time": given.start}


def _value(given: SeedInput, form: str | None, columns: str, delimiter: str) -> KafkaValue:
    if form == "parquet":
        raise UsageError(f"{given.option}: values of a topic are not Parquet: add --format json or csv")
    kind = {"format": form, "schema": columns, **({"delimiter": delimiter} if form == "csv" else {})}
    found: KafkaValue = _read(
        KafkaValue, kind, given.option, f"values in {form} cannot have the job's columns: add --format json or csv"
    )
    return found


def _read(kind: Any, value: object, option: str, advice: str) -> Any:
    try:
        return TypeAdapter[Any](kind).validate_python(value)
    except ValidationError:
        raise UsageError(f"{option}: {advice}") from None


def open_topic(
    config: Config,
    source: KafkaSource,
    given: SeedInput,
    seeds: Mapping[str, Any],
    state: LogState,
    salt: bytes,
    stop: Event,
) -> tuple[SeededOffsets, KafkaBatches]:
    """What was judged of the topic, and the rest of it. Raises as `judged_offsets`."""
    cluster = KafkaCluster(source, stop)
    judged = judged_offsets(cluster, source, given, seeds, state)
    reading = topic_reading(config, source, salt)
    return judged, KafkaBatches(source, cluster, judged.ends, BrokerWatch(source, stop), reading, until=judged.until)


def judged_offsets(
    cluster: KafkaCluster, source: KafkaSource, given: SeedInput, seeds: Mapping[str, Any], state: LogState
) -> SeededOffsets:
    """What was judged of the topic so far, and where this run ends; `seeds` as `source.seeds_of`.

    Raises:
        UsageError: there is no such topic, or nothing to read in it, or it was seeded from another start.
        BrokerUnavailableError, KafkaDeniedError: as the cluster.
    """
    held = cluster.held([given.place])
    if given.place not in held.topic_ids:
        raise UsageError(f"{given.option}: {source.bootstrap_servers} has no topic of this name")
    wire = seeds.get(given.name)
    topic_id = held.topic_ids[given.place]
    if wire is not None:
        judged = SeededOffsets.from_wire(wire)
        if judged.start != given.start:
            raise UsageError(
                f"--from {given.start}: topic {given.place} was seeded from {judged.start}: repeat it with that"
            )
        if state.extra.get(SEED_OPEN) == given.name:
            return judged
        added = {place: End(topic_id, first) for place, first in held.earliest.items() if place not in judged.ends}
        return replace(judged, ends=judged.ends | added, until=dict(held.latest))
    try:
        starts = cluster.configured_start(held)
    except DeduperError as error:
        if _SETTING not in str(error):
            raise
        raise UsageError(str(error).replace(_SETTING, f"--from {given.start}")) from error
    begun = SeededOffsets(
        given.start, {place: End(topic_id, offset) for place, offset in starts.items()}, dict(held.latest)
    )
    if not begun.left:
        raise UsageError(f"{given.option}: it has no record from {given.start} on")
    return begun


def planned_offsets(source: KafkaSource, given: SeedInput, seeds: Mapping[str, Any], state: LogState) -> SeededOffsets:
    """`judged_offsets` for a plan, which does not wait long for brokers."""
    cluster = KafkaCluster(source.model_copy(update={"deadline": min(source.deadline, _PLAN_WAITS_US)}))
    return judged_offsets(cluster, source, given, seeds, state)
