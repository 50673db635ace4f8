"""All committed records of a topic up to its ends now, for commands; fetched as the job fetches its windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from deduper.errors import SourceAwayError
from deduper.kafka.commands import committed_ranges
from deduper.kafka.errors import BrokerUnavailableError
from deduper.sources.kafka import partition_queue as queue
from deduper.sources.kafka.fetching import RangePart, fetched


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic; its headers in their order. `timestamp_ms` is negative where it has none."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def header(self, name: str) -> str | None:
        """The last header of this name as text."""
        found = next((value for key, value in reversed(self.headers) if key == name), None)
        return None if found is None else found.decode("utf-8", "replace")


def whole_topic(
    client: Mapping[str, str], topic: str, starts: Mapping[int, int] | None = None
) -> Iterator[tuple[RangePart, pa.RecordBatch]]:
    """Batches of `partition_queue.SCHEMA`, each of one range, in the order of each partition.

    `starts` has the first offset of some partitions; the others begin with what the brokers still hold.

    Raises:
        BrokerUnavailableError: the records do not come as the brokers have promised them.
        TopicMissingError, KafkaDeniedError: as `committed_ranges`.
        IntegrityError: as `fetched`.
    """
    options = {**client, "isolation.level": "read_committed"}
    for number, (first, end) in committed_ranges(client, topic).items():
        start = max(first, (starts or {}).get(number, first))
        part = RangePart(topic, number, start, end, 0, 0)
        try:
            for batch in fetched(options, part, True):
                yield part, batch
        except SourceAwayError as exc:
            raise BrokerUnavailableError(f"topic {topic}: {exc}") from exc


def records_of(part: RangePart, batch: pa.RecordBatch) -> Iterator[TopicRecord]:
    """The records of a batch, one by one."""
    for row in batch.to_pylist():
        headers = tuple((name_of(one["name"]), one["value"]) for one in row[queue.HEADERS] or ())
        yield TopicRecord(
            part.partition, row[queue.OFFSET], row[queue.TIMESTAMP], row[queue.KEY], row[queue.VALUE], headers
        )


def name_of(header: bytes | None) -> str:
    """The name of a header, as Java has one that is no UTF-8."""
    return (header or b"").decode("utf-8", "replace")
