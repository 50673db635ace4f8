"""Records pass between Arrow and librdkafka as they are: held against confluent-kafka's own way, on a mock cluster."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deduper.kafka import librdkafka
from deduper.kafka.client import QUIET
from deduper.kafka.errors import ClientUnfitError
from deduper.sinks.row_sender import sending
from deduper.sources.kafka.fetching import RangePart, close, fetched
from deduper.sources.kafka.partition_queue import PartitionQueue
from tests.deduper.kafka.mock_cluster import MockCluster
from tests.tiers import examples

STAGED = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_ms", pa.int64()),
    ]
)
KEYLESS = 2
_numbers = itertools.count()

BYTES = st.none() | st.binary(max_size=9)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
HEADERS = st.none() | st.lists(st.fixed_dictionaries({"key": NAMES, "value": BYTES}), max_size=3)
ROW = st.fixed_dictionaries({"key": BYTES, "value": BYTES, "headers": HEADERS, "timestamp_ms": st.integers(1, 1 << 45)})
Row = dict[str, Any]
Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    """One for all."""
    yield MockCluster()
    close()


@pytest.fixture(scope="module")
def producer(cluster: MockCluster) -> Producer:
    """A producer with the partitioner of the service's."""
    return new_producer(cluster)


def new_producer(cluster: MockCluster, **options: Any) -> Producer:
    """A producer; `options` with underscores."""
    given = {"bootstrap.servers": cluster.bootstrap, "partitioner": "murmur2_random", "linger.ms": 0}
    return Producer(given | {name.replace("_", "."): value for name, value in options.items()}, logger=QUIET)


def topic_of(cluster: MockCluster) -> str:
    """A new one, of three partitions."""
    return cluster.new_topic(f"topic-{next(_numbers)}")


def send(producer: Producer, topic: str, batch: pa.RecordBatch) -> None:
    """All rows, by the kernel."""
    assert sending(producer, topic, batch, KEYLESS)(0) == batch.num_rows
    assert producer.flush(20) == 0


def fetch(
    cluster: MockCluster, topic: str, counts: dict[int, int], *, with_headers: bool = True
) -> dict[int, list[Row]]:
    """Records by partition, by the kernel."""
    client = {"bootstrap.servers": cluster.bootstrap}
    return {
        partition: [
            row
            for batch in fetched(client, RangePart(topic, partition, 0, count, 0, 0), with_headers)
            for row in batch.to_pylist()
        ]
        for partition, count in counts.items()
    }


def seen_by_confluent(cluster: MockCluster, topic: str, count: int) -> dict[int, list[Sent]]:
    """Records by partition, by confluent-kafka's Python."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"}, logger=QUIET)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    found: dict[int, list[Sent]] = {}
    until = time.monotonic() + 20
    while count and time.monotonic() < until:
        for message in consumer.consume(count, 0.2):
            assert message.error() is None
            sent = (message.key(), message.value(), message.headers() or [], message.timestamp()[1])
            found.setdefault(message.partition() or 0, []).append(sent)
            count -= 1
    consumer.close()
    return found


def sent(rows: list[Row], name: str = "key") -> list[Sent]:
    """Rows as confluent-kafka gives them; `name` is what a header's name is called."""
    return [
        (
            *(row["key"], row["value"]),
            [(_text(header[name]), header["value"]) for header in row["headers"] or ()],
            row["timestamp_ms"],
        )
        for row in rows
    ]


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


@pytest.mark.slow
@settings(max_examples=examples(200) // 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROW, min_size=1, max_size=30), st.integers(0, 5))
def test_records_come_as_they_were_staged(
    cluster: MockCluster, producer: Producer, rows: list[Row], behind: int
) -> None:
    """Nulls, empty values, headers of any kind; from slices; both directions agree with confluent-kafka."""
    topic = topic_of(cluster)
    send(producer, topic, pa.RecordBatch.from_pylist(rows[:behind] + rows, STAGED).slice(min(behind, len(rows))))
    expected = seen_by_confluent(cluster, topic, len(rows))
    everything = [record for partition in sorted(expected) for record in expected[partition]]
    assert sorted(everything, key=repr) == sorted(sent(rows), key=repr)
    keyless = [record for record in sent(rows) if record[0] is None]
    assert [record for record in expected.get(KEYLESS, []) if record[0] is None] == keyless
    counts = {partition: len(found) for partition, found in expected.items()}
    got = fetch(cluster, topic, counts)
    assert {partition: sent(found, "name") for partition, found in got.items()} == expected
    assert all([row["offset"] for row in found] == list(range(len(found))) for found in got.values())


@pytest.mark.slow
def test_keys_go_where_confluents_own_way_sends_them(cluster: MockCluster, producer: Producer) -> None:
    """Each key to the partition of Kafka's Java client, an empty key too."""
    keys = [b"", *(b"%d" % number for number in range(50))]
    rows = [{"key": key, "value": b"v", "headers": None, "timestamp_ms": 1} for key in keys]
    ours, theirs = topic_of(cluster), topic_of(cluster)
    send(producer, ours, pa.RecordBatch.from_pylist(rows, STAGED))
    for key in keys:
        producer.produce(theirs, b"v", key, timestamp=1)
    assert producer.flush(20) == 0
    found = seen_by_confluent(cluster, ours, len(keys))
    assert len(found) == 3
    expected = seen_by_confluent(cluster, theirs, len(keys))
    assert {number: [record[0] for record in some] for number, some in found.items()} == {
        number: [record[0] for record in some] for number, some in expected.items()
    }


@pytest.mark.slow
def test_headers_that_are_not_asked_for(cluster: MockCluster, producer: Producer) -> None:
    """Null in all rows, whatever the records have."""
    topic = topic_of(cluster)
    rows = [{"key": None, "value": b"v", "headers": [{"key": "a", "value": b"1"}], "timestamp_ms": 1}] * 3
    send(producer, topic, pa.RecordBatch.from_pylist(rows, STAGED))
    found = fetch(cluster, topic, {KEYLESS: 3}, with_headers=False)
    assert [row["headers"] for row in found[KEYLESS]] == [None] * 3


@pytest.mark.slow
def test_a_timestamp_of_zero_is_the_time_of_sending(cluster: MockCluster, producer: Producer) -> None:
    """As `staged_records` promises."""
    topic, before = topic_of(cluster), time.time() * 1000 - 1
    send(producer, topic, pa.RecordBatch.from_pylist([{"value": b"v", "timestamp_ms": 0}], STAGED))
    (row,) = fetch(cluster, topic, {KEYLESS: 1})[KEYLESS]
    assert before <= row["timestamp_ms"] <= time.time() * 1000


@pytest.mark.slow
def test_a_full_queue_gives_the_row_to_go_on_with(cluster: MockCluster) -> None:
    """Each row is sent once, however often the queue was full."""
    producer, topic = new_producer(cluster, queue_buffering_max_messages=7), topic_of(cluster)
    rows = [{"key": None, "value": b"%d" % number, "headers": None, "timestamp_ms": 1} for number in range(100)]
    send, row, stops = sending(producer, topic, pa.RecordBatch.from_pylist(rows, STAGED), 0), 0, []
    while row < 100:
        row = send(row)
        stops.append(row)
        assert producer.flush(20) == 0
    assert len(stops) > 5
    assert [record[1] for record in seen_by_confluent(cluster, topic, 100)[0]] == [row["value"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("headers", [None, [{"key": "a", "value": b"1"}]])
def test_a_refused_record_is_an_error_with_its_code(cluster: MockCluster, headers: Any) -> None:
    """The client's own refusals: too large; and outside of a transaction."""
    row = {"key": None, "value": bytes(3_000_000), "headers": headers, "timestamp_ms": 1}
    large = pa.RecordBatch.from_pylist([row], STAGED)
    with pytest.raises(KafkaException) as raised:
        sending(new_producer(cluster), topic_of(cluster), large, 0)(0)
    assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    transactional = new_producer(cluster, transactional_id="t")
    transactional.init_transactions(20)
    with pytest.raises(KafkaException) as raised:
        sending(transactional, topic_of(cluster), large, 0)(0)
    assert raised.value.args[0].code() == KafkaError._STATE


@pytest.mark.slow
def test_the_end_of_a_partition_is_an_event(cluster: MockCluster, producer: Producer) -> None:
    """With its offset, in the partition's own queue; the consumer has nothing to report."""
    topic = topic_of(cluster)
    rows = [{"key": None, "value": b"v", "headers": None, "timestamp_ms": 1}] * 4
    send(producer, topic, pa.RecordBatch.from_pylist(rows, STAGED))
    options = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer(options, logger=QUIET)
    queue = PartitionQueue(consumer, topic, KEYLESS, with_headers=True)
    consumer.assign([TopicPartition(topic, KEYLESS, 1)])
    count, events, until = 0, [], time.monotonic() + 20
    while not events and time.monotonic() < until:
        given, events = queue.take(2, 50)
        count += given.num_rows
        assert given.num_rows <= 2
        assert consumer.poll(0) is None
    assert (count, [(one.error.code(), one.offset) for one in events]) == (3, [(KafkaError._PARTITION_EOF, 4)])
    queue.close()
    consumer.close()


def test_only_clients_of_the_known_kind_have_a_handle(cluster: MockCluster, producer: Producer) -> None:
    """An object whose first field is something else, or nothing, is refused."""
    assert librdkafka.handle_of(producer)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"}, logger=QUIET)
    consumer.close()
    with pytest.raises(ClientUnfitError, match="laid out in another way"):
        librdkafka.handle_of(consumer)
