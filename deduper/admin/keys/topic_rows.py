"""Records in topics, found by the job's own reading of its source: those of one key in a port, or some of the source.

Of a port's topic all records that the brokers still hold are fetched, and only the key's columns of them are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from deduper.config.kafka.options import connection_options, librdkafka_options
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.model import Config
from deduper.errors import DeduperError
from deduper.kafka.client import consumer_options
from deduper.kafka.commands import committed_ranges
from deduper.sinks.published import SoughtKey, has_key
from deduper.sources.kafka import partition_queue as queue
from deduper.sources.kafka.fetching import RangePart, fetched, name_of, whole_topic
from deduper.sources.kafka.reading import topic_reading
from deduper.sources.kafka.topic_reading import TopicReading

_NEEDED = ("reason", "window", "origin")
_PLACE = ("topic", "partition", "offset")
"""Parts of a record that are others in the port's topic."""
_GAP = 5000
"""Between two offsets that one request still finds: a fetch gives some thousands of records anyway."""


class UnreadTopicError(DeduperError):
    """The records of a topic cannot be told by key; the text says why. The operator: nothing, the rest is answered."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A record with the key: its place in the port's topic, its headers by name, and its other columns."""

    place: str
    headers: dict[str, str]
    record: dict[str, Any]


def find_in_topic(config: Config, salt: bytes, sink: KafkaSink, key: SoughtKey) -> tuple[int, list[TopicRow]]:
    """(records of the topic, those with the key).

    Raises:
        UnreadTopicError: the text says why.
        KafkaSinkError: the brokers do not answer, or refuse.
    """
    reading = _reading(config, salt, sink, key)
    columns = reading.declared.columns
    numbers = {column.name: number for number, column in enumerate(columns)}
    sought = [numbers[column.name] for column in key.columns]
    client = librdkafka_options(sink.bootstrap_servers, connection_options(sink.options))
    count, found = 0, list[TopicRow]()
    for part, given in whole_topic(client, sink.topic):
        count += given.num_rows
        of_key = reading.columns(part, given, sought)
        table = pa.table({columns[number].name: of_key[number] for number in sought})
        rows = np.flatnonzero(has_key(table, key))
        if rows.size:
            some = given.take(pa.array(rows))
            others = [number for number in range(len(columns)) if number not in sought]
            values = reading.columns(part, some, others)
            records = (
                pa.table({columns[number].name: values[number] for number in others}).to_pylist() if others else []
            )
            for row, offset in enumerate(some.column(queue.OFFSET).to_pylist()):
                headers = _texts(some.column(queue.HEADERS)[row].as_py())
                record = records[row] if others else {}
                found.append(TopicRow(f"{sink.topic}-{part.partition}@{offset}", headers, record))
    return count, found


def source_records(
    config: Config, salt: bytes, wanted: Mapping[str, Set[int]]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Records of the job's source by source partition and offset, as many of those wanted as the brokers still hold.

    `wanted`: offsets by source partition, `topic-number`. A topic that was made again has other records there.

    Raises:
        DeduperError: the topics cannot be read now.
    """
    source = config.source
    assert isinstance(source, KafkaSource)
    reading, client = topic_reading(config, source, salt), consumer_options(source)
    names, found = [column.name for column in reading.declared.columns], dict[tuple[str, int], dict[str, Any]]()
    ranges = {topic: committed_ranges(client, topic) for topic in {name.rpartition("-")[0] for name in wanted}}
    for name, offsets in wanted.items():
        topic, _, number = name.rpartition("-")
        first, end = ranges[topic].get(int(number), (0, 0))
        held = np.array(sorted(offset for offset in offsets if first <= offset < end), np.int64)
        for start, last in _near_ones(held):
            part = RangePart(topic, int(number), start, last + 1, 0, 0)
            for batch in fetched(client, part, True):
                some = batch.filter(pa.array(np.isin(batch.column(queue.OFFSET).to_numpy(), held)))
                values = reading.columns(part, some, list(range(len(names))))
                records = pa.table({names[number]: column for number, column in values.items()}).to_pylist()
                found |= {
                    (name, at): one for at, one in zip(some.column(queue.OFFSET).to_pylist(), records, strict=True)
                }
    return found


def _near_ones(offsets: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[tuple[int, int]]:
    """First and last of those that one request finds."""
    for some in np.split(offsets, np.flatnonzero(np.diff(offsets) > _GAP) + 1) if offsets.size else ():
        yield int(some[0]), int(some[-1])


def _reading(config: Config, salt: bytes, sink: KafkaSink, key: SoughtKey) -> TopicReading:
    source = config.source
    if not isinstance(source, KafkaSource):
        raise UnreadTopicError("the source is no topic")
    missing = [name for name in _NEEDED if name not in sink.dedup_headers]
    if missing:
        raise UnreadTopicError(f"its records have no header `dedup-{missing[0]}` (`dedup_headers`)")
    parts = {column.name: part for column, part in source.record_columns}
    wrong = [column.name for column in key.columns if parts.get(column.name) in _PLACE]
    if wrong:
        raise UnreadTopicError(f"key column {wrong[0]} is a record's place, which is another one there")
    return topic_reading(config, source, salt)


def _texts(headers: list[dict[str, bytes | None]] | None) -> dict[str, str]:
    """The last header of each name; ours are the last ones."""
    return {name_of(one["name"]): (one["value"] or b"").decode("utf-8", "replace") for one in headers or ()}
