"""kafka-python against confluent-kafka on a real broker: what sending, sending in transactions, and reading costs.

`python tests/bench/bench_kafka_clients.py [SECONDS]` starts a broker and prints for each way records a second of wall
time, and records a second of CPU time of the client's process (all its threads): other work on the machine shows less
in it. Values have 200 bytes, keys 16; `full` adds three headers of 12 bytes and a timestamp, as the service's sinks
send them. All ways wait for all acknowledgements, idempotent, 20 ms linger, no compression, one partition; transactions
hold 10,000 records.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.services import kafka_traffic
from tests.services.kafka_broker import Broker

VALUE = b"v" * 200
HEADERS = [("dedup-verdict", b"duplicate123"), ("dedup-window", b"000000000123"), ("dedup-origin", b"clicks-0-123")]
TIMESTAMP_MS = 1_700_000_000_000
CHUNK = 10_000
KEYS = [b"%016d" % number for number in range(CHUNK)]


def main(seconds: float) -> None:
    """Runs and prints every way; each goes on in chunks until the seconds are over."""
    print(
        f"kafka-python {kafka.__version__}, confluent-kafka {confluent_kafka.__version__} "
        f"(librdkafka {confluent_kafka.libversion()[0]}), {platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores, {seconds:.0f} s each"
    )
    print(f"{'':44}{'records':>10}{'wall/s':>10}{'CPU/s':>10}  load")
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory), heap="768m", fast_start=False) as broker:
        # The broker compiles its code while it is used.
        _run("(warming the broker)", _confluent(broker, broker.create_topic("warm"), full=True), seconds / 2)
        ways: dict[str, Callable[[str], Iterator[int]]] = {
            "send  kafka-python": lambda t: _kafka_python(broker, t, full=False),
            "send  kafka-python full": lambda t: _kafka_python(broker, t, full=True),
            "send  kafka-python full, transactions": lambda t: _kafka_python(broker, t, full=True, transactions=True),
            "send  confluent": lambda t: _confluent(broker, t, full=False),
            "send  confluent full": lambda t: _confluent(broker, t, full=True),
            "send  confluent full, transactions": lambda t: _confluent(broker, t, full=True, transactions=True),
            "send  confluent batch": lambda t: _confluent_batch(broker, t),
            "send  confluent batch, transactions": lambda t: _confluent_batch(broker, t, transactions=True),
        }
        full_topic = ""
        for number, (name, way) in enumerate(ways.items()):
            topic = broker.create_topic(f"t{number}")
            sent = _run(name, way(topic), seconds)
            markers = sent // CHUNK if "transactions" in name else 0
            assert kafka_traffic.end_offsets(broker, topic) == {0: sent + markers}, name
            if name == "send  confluent full":
                full_topic = topic
        _run("read  kafka-python", _read_by_kafka_python(broker, full_topic), seconds)
        _run("read  confluent poll()", _read_by_confluent(broker, full_topic, 1), seconds)
        _run("read  confluent consume(1000)", _read_by_confluent(broker, full_topic, 1000), seconds)
        _run(
            "read  confluent consume(1000) with headers",
            _read_by_confluent(broker, full_topic, 1000, headers=True),
            seconds,
        )


def _run(name: str, chunks: Iterator[int], seconds: float) -> int:
    """Takes chunks until the time is over or there are no more. Gives the number of records."""
    # The first chunk opens connections and fills caches.
    records = next(chunks)
    counted, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        chunk = next(chunks, None)
        if chunk is None:
            break
        counted += chunk
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    chunks.close()  # type: ignore[attr-defined]
    print(
        f"{name:44}{counted:>10,}{counted / wall:>10,.0f}{counted / cpu:>10,.0f}  {os.getloadavg()[0]:.1f}", flush=True
    )
    return records + counted


def _confluent(broker: Broker, topic: str, *, full: bool, transactions: bool = False) -> Iterator[int]:
    """`produce`, one record at a time."""
    producer = _confluent_producer(broker, topic if transactions else None)
    more: dict[str, Any] = {"headers": HEADERS, "timestamp": TIMESTAMP_MS} if full else {}
    produce = producer.produce
    while True:
        if transactions:
            producer.begin_transaction()
        for key in KEYS:
            produce(topic, VALUE, key, **more)
        if transactions:
            producer.commit_transaction(60)
        else:
            # Without transactions the next chunk is filled while this one is sent.
            while len(producer) > CHUNK:
                producer.poll(0.01)
        try:
            yield CHUNK
        except GeneratorExit:
            producer.flush(60)
            return


def _confluent_batch(broker: Broker, topic: str, *, transactions: bool = False) -> Iterator[int]:
    """`produce_batch`, which takes neither headers nor timestamps."""
    producer = _confluent_producer(broker, topic if transactions else None)
    while True:
        if transactions:
            producer.begin_transaction()
        messages = [{"value": VALUE, "key": key} for key in KEYS]
        assert producer.produce_batch(topic, messages, partition=0) == CHUNK
        if transactions:
            producer.commit_transaction(60)
        else:
            while len(producer) > CHUNK:
                producer.poll(0.01)
        try:
            yield CHUNK
        except GeneratorExit:
            producer.flush(60)
            return


def _confluent_producer(broker: Broker, transactional_id: str | None) -> confluent_kafka.Producer:
    more = {"transactional_id": transactional_id} if transactional_id else {}
    producer = confluent_kafka.Producer(
        broker.plain().confluent(
            enable_idempotence=True,
            linger_ms=20,
            batch_size=1_000_000,
            queue_buffering_max_messages=3 * CHUNK,
            **more,
        )
    )
    if transactional_id:
        producer.init_transactions(60)
    return producer


def _kafka_python(broker: Broker, topic: str, *, full: bool, transactions: bool = False) -> Iterator[int]:
    """`send`, one record at a time: there is no other way."""
    producer = kafka.KafkaProducer(
        **broker.plain().kafka_python(
            acks="all",
            enable_idempotence=True,
            linger_ms=20,
            batch_size=1_000_000,
            transactional_id=topic if transactions else None,
        )
    )
    more: dict[str, Any] = {"headers": HEADERS, "timestamp_ms": TIMESTAMP_MS} if full else {}
    if transactions:
        producer.init_transactions()
    while True:
        if transactions:
            producer.begin_transaction()
        for key in KEYS:
            producer.send(topic, VALUE, key, **more)
        producer.flush(60)
        if transactions:
            producer.commit_transaction()
        try:
            yield CHUNK
        except GeneratorExit:
            producer.close()
            return


def _read_by_kafka_python(broker: Broker, topic: str) -> Iterator[int]:
    consumer = kafka.KafkaConsumer(
        **broker.plain().kafka_python(
            auto_offset_reset="earliest", group_id=None, isolation_level="read_committed", max_poll_records=CHUNK
        )
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    end = consumer.end_offsets([kafka.TopicPartition(topic, 0)])[kafka.TopicPartition(topic, 0)]
    done = 0
    while done < end:
        chunk = sum(map(len, consumer.poll(timeout_ms=5000).values()))
        done += chunk
        yield chunk
    consumer.close()


def _read_by_confluent(broker: Broker, topic: str, at_once: int, *, headers: bool = False) -> Iterator[int]:
    consumer = confluent_kafka.Consumer(
        broker.plain().confluent(group_id="bench", isolation_level="read_committed", enable_auto_commit=False)
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
    done = 0
    while done < end:
        chunk = 0
        while chunk < CHUNK and done + chunk < end:
            messages = consumer.consume(at_once, timeout=5) if at_once > 1 else [consumer.poll(5)]
            for message in messages:
                assert message is not None
                assert message.error() is None
                message.key(), message.value(), message.timestamp()  # Taking them out is part of the cost.
                if headers:
                    message.headers()
            chunk += len(messages)
        done += chunk
        yield chunk
    consumer.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
