"""Records of topics: what Spark's connector and expressions give, which no job uses; and ranges that do not come.

Both ways read the same ranges for the same job on a real broker.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from pyspark.sql import SparkSession

from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.errors import SourceAwayError
from deduper.kafka.offsets import OffsetRange, TopicPartition
from deduper.sources.kafka import fetching
from deduper.sources.kafka.fetching import RangePart
from deduper.sources.kafka.partition_queue import Event, PartitionQueue
from deduper.sources.kafka.reading import topic_reading
from deduper.sources.kafka.topic_reading import TopicReading
from deduper.tasks import layout
from deduper.tasks.kafka_rows import headers_of
from deduper.tasks.layout import ADMISSION, ORDER, PARTITION, RAW, TOPIC
from tests.deduper.digest_cases import SALT
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob
from tests.services.kafka_traffic import Record, end_offsets, forget_before, send
from tests.spark.spark_reader import REC
from tests.spark.topic_oracle import RECORD, kafka_range_frame, kafka_records
from tests.tiers import is_night

pytestmark = [pytest.mark.services, pytest.mark.spark]

Topics = Callable[..., str]
_OF_VALUES = (Admission.MALFORMED, Admission.INVALID_UTF8, Admission.TOMBSTONE)
_NOW_US = 1_740_800_000_000_000
_SCHEMA = "k string, t long, d double, at timestamp, b binary, n decimal(10,2)"
_RECORD = {
    "user": "key",
    "bytes": "key_binary",
    "trace": "header:trace",
    "arrived": "timestamp",
    "topic": "topic",
    "p": "partition",
    "o": "offset",
}
_FILES = {"format": "parquet", "path": "out"}
_TOPICS = {"format": "kafka", "topic": "nowhere"}
_PORTS = ("unique", "duplicate", "expired", "error")
_EXPIRIES = {
    "never": {"by": "never"},
    "event_time": {"by": "event_time", "field": "at", "period": "1h", "span": "10m"},
    "event_unit": {"by": "event_time", "field": "t", "unit": "s", "period": "1h", "span": "10m"},
    "arrival": {"by": "event_time", "field": "arrived", "period": "1h", "span": "10m"},
    "ordered": {"by": "ordered", "field": "d", "period": 50, "span": 10},
    "category": {"by": "category", "field": "k", "live_categories": 4},
}


def job_of(broker: Broker, directory: Path, topic: str, port: dict[str, str], **sections: Any) -> KafkaJob:
    """A job from this topic to four ports of a kind."""
    sinks = {one: {**port, **({"path": f"out/{one}"} if "path" in port else {})} for one in _PORTS}
    source = {
        "format": "kafka",
        "bootstrap_servers": broker.bootstrap,
        "topics": [topic],
        "value": {"format": "json", "schema": _SCHEMA},
        "record": _RECORD,
        **sections.pop("source", {}),
    }
    directory.mkdir(exist_ok=True)
    return KafkaJob(directory, None, {"source": source, "sinks": sinks, **sections})


def ranges_of(broker: Broker, topic: str) -> list[OffsetRange]:
    """All of a topic."""
    ends = end_offsets(broker, topic)
    return [OffsetRange(TopicPartition(topic, number), "id", 0, end) for number, end in sorted(ends.items()) if end]


def parts_of(ranges: Sequence[OffsetRange]) -> list[RangePart]:
    """The same for our reader."""
    return [
        RangePart(one.place.topic, one.place.partition, one.start, one.end, ordinal, 0)
        for ordinal, one in enumerate(ranges)
    ]


def compare(session: SparkSession, job: KafkaJob, ranges: Sequence[OffsetRange]) -> set[Admission]:
    """Both ways give the same records, but values of records that are errors, which are null here; their admissions."""
    source: Any = job.config.source
    ours = read_by_us(job, ranges)
    rows = kafka_records(kafka_range_frame(session, source, ranges), source)
    theirs = rows.sort(TOPIC, PARTITION, ORDER).toArrow().to_pylist()
    assert len(ours) == len(theirs)
    columns, value_columns = source.parsed_columns, len(source.value.parsed_columns)
    for our, their in zip(ours, theirs, strict=True):
        admission = Admission(their[ADMISSION])
        if admission is not Admission.ADMITTED:
            assert our[ADMISSION] == admission, (our, their)
            assert our[RAW] == their[RAW], (our, their)
        assert our[ADMISSION] == admission or Admission(our[ADMISSION]) not in _OF_VALUES, (our, their)
        is_null = admission in (Admission.MALFORMED, Admission.INVALID_UTF8)
        for number, column in enumerate(columns):
            if layout.parsed(number) in our:
                value = None if is_null and number < value_columns else their[REC][column.name]
                if admission is not Admission.INVALID_UTF8 or our[layout.parsed(number)] is not None:
                    value = their[REC][column.name] if admission is Admission.INVALID_UTF8 else value
                    assert repr(our[layout.parsed(number)]) == repr(value), (column.name, our, their)
        if layout.KEY in our:
            sent = their[RECORD]
            assert (our[layout.KEY], our[layout.VALUE]) == (sent["key"], sent["value"])
            assert our[layout.TIMESTAMP] == sent["timestamp"]
            (headers,) = headers_of(pa.array([our[layout.HEADERS]], pa.string())).to_pylist()
            assert headers == (sent["headers"] or None)
    return {Admission(one[ADMISSION]) for one in ours}


def read_by_us(job: KafkaJob, ranges: Sequence[OffsetRange]) -> list[dict[str, Any]]:
    """The records as reading tasks take them, in source order."""
    reading = topic_reading(job.config, job.config.source, SALT)  # type: ignore[arg-type]  # a source of topics
    clock = None
    if job.config.expiry.by in ("event_time", "ordered"):
        ahead = 60_000_000 if job.config.expiry.by == "event_time" else None
        clock = ClockRules(job.config.expiry_key_scale.is_float, 50, ahead, None, _NOW_US, None, 0)
    return [row for part in parts_of(ranges) for batch in reading.records(part, clock) for row in batch.to_pylist()]


def some_records(seed: int, count: int, partitions: int) -> Iterator[Record]:
    """Records of all kinds: keys, headers and values that are none, empty, no UTF-8; values of odd JSON."""
    rnd = random.Random(seed)
    odd = [
        None,
        b"",
        b"\xff",
        b" ",
        b"{}",
        b"[]",
        b"{torn",
        b'{"k":"a"} x',
        b'{"k":"a"}\n',
        b'\n{"k":\n"a"}\r\n',
        b'\xef\xbb\xbf{"k":"a"}',
        b'{"k":"\xff"}',
        b'{"k":"\\ud83d\\ude00"}',
        b'{"k":null}',
        b'{"k":1.50,"t":2}',
        b'{"t":"1"}',
        b'{"k":{"a":[1, 2]}}',
        b'{"k":"x","k":"y","extra":[{}]}',
        b'{"d":1e400,"k":"inf"}',
        b'{"n":1.005,"k":"half"}',
        b'{"n":123456789.5,"k":"long"}',
        b'{"at":"2025-03-01 00:00:00","k":"no zone"}',
        b'{"at":"no time","k":"z"}',
        b'{"b":"AQI=","k":"bytes"}',
        b'{"k":"' + b"\xc3\xa4" * 5_000 + b'"}',
        b"null",
    ]
    keys = (None, b"", b"a", b"\xff", "\u00e4\U0001f600".encode(), b"k1", b"k2")
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
        (),
        (),
        (("trace", b"1"),),
        (("trace", b"1"), ("other", b"\x00\xff"), ("trace", b"2")),
        (("trace", None),),
        (("trace", b"\xff"),),
        (("\u00e4", b""),),
    )
    for number in range(count):
        record = {
            "k": f"k{rnd.randrange(50)}",
            "t": rnd.choice([None, number, -number, 1_740_800_000 + rnd.randrange(100_000), 2**62]),
            "d": rnd.choice([None, number / 7, float(number)]),
            "at": f"2025-03-01T0{rnd.randrange(10)}:00:00.{rnd.randrange(1000):03d}Z",
            "n": rnd.choice([None, 1.25, 7]),
        }
        value = rnd.choice(odd) if rnd.random() < 0.4 else json.dumps(record).encode()
        yield Record(
            value,
            rnd.choice(keys),
            rnd.choice(headers),
            1_740_787_200_000 + rnd.randrange(10**8),
            rnd.randrange(partitions),
        )


@pytest.mark.night
@pytest.mark.parametrize("port", [_FILES, _TOPICS], ids=["files", "topics"])
@pytest.mark.parametrize("expiry", _EXPIRIES.values(), ids=_EXPIRIES)
def test_both_ways_give_the_same(
    broker: Broker,
    session: SparkSession,
    new_topic: Topics,
    tmp_path: Path,
    port: dict[str, str],
    expiry: dict[str, Any],
) -> None:
    """Whatever a record is made of, for each expiry key, with files and topics as ports."""
    topic = new_topic("odd", partitions=3)
    send(broker.plain(), topic, some_records(len(expiry), 3_000, 3))
    job = job_of(broker, tmp_path / "job", topic, port, expiry=expiry, key=["k", "user"])
    assert compare(session, job, ranges_of(broker, topic)) >= {
        *(Admission.ADMITTED, Admission.MALFORMED, Admission.INVALID_UTF8, Admission.TOMBSTONE, Admission.NULL_KEY),
    }


@pytest.mark.night
def test_values_that_are_lines_of_logs(broker: Broker, new_topic: Topics, tmp_path: Path) -> None:
    """Of logfmt; columns come from the rest of the record too, and a value that is none is an error with its text."""
    topic = new_topic("logs", partitions=1)
    values = [b"k=a t=1 at=2025-03-01T00:00:00Z msg=x", b't=2 k="b c"', b'k="', b"k=\xff", None]
    send(broker.plain(), topic, [Record(value, b"u", (), 1_740_787_200_000, 0) for value in values])
    source = {"value": {"format": "logfmt", "schema": _SCHEMA}}
    job = job_of(broker, tmp_path / "job", topic, _FILES, source=source, key=["k", "user"], expiry={"by": "never"})
    found = read_by_us(job, ranges_of(broker, topic))
    assert [Admission(one[ADMISSION]) for one in found] == [
        *(Admission.ADMITTED, Admission.ADMITTED, Admission.MALFORMED, Admission.INVALID_UTF8, Admission.TOMBSTONE)
    ]
    assert [(one[layout.parsed(0)], one[layout.parsed(1)]) for one in found[:2]] == [("a", 1), ("b c", 2)]
    assert found[2][RAW] == 'k="'


@pytest.mark.night
@pytest.mark.parametrize("value", ["json", "csv", "text"])
def test_a_record_without_value_is_judged_by_the_rest_of_it(
    broker: Broker, session: SparkSession, new_topic: Topics, tmp_path: Path, value: str
) -> None:
    """With `tombstones: judge`, and with values of plain text; a null is a key with `null_keys: allow`."""
    topic = new_topic("tombs", partitions=2)
    send(broker.plain(), topic, some_records(7, 2_000, 2))
    schema = {} if value == "text" else {"schema": _SCHEMA}
    source = {"tombstones": "judge", "value": {"format": value, **schema}}
    for port in (_FILES, _TOPICS):
        job = job_of(
            broker, tmp_path / port["format"], topic, port, source=source, key=["bytes", "trace"], null_keys="allow"
        )
        found = compare(session, job, ranges_of(broker, topic))
        assert Admission.ADMITTED in found
        assert Admission.TOMBSTONE not in found


@pytest.mark.night(but=["read_committed"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_read_as_the_source_says(
    broker: Broker, session: SparkSession, new_topic: Topics, tmp_path: Path, isolation: str
) -> None:
    """Committed, aborted, open; a range may end in marks, with nothing behind them, or with more."""
    topic = new_topic("marks", partitions=1)
    rnd = random.Random(5)
    for number in range(12):
        in_transaction(broker, topic, [f'{{"k":"{number}-{one}"}}' for one in range(rnd.randrange(1, 200))], number % 3)
    source = {"options": {"kafka.isolation.level": isolation}}
    job = job_of(broker, tmp_path / "job", topic, _FILES, source=source, key="k")
    (whole,) = ranges_of(broker, topic)
    parts = ((0, whole.end - 1), (5, whole.end), (0, whole.end), (5, whole.end - 1), (whole.end - 1, whole.end))
    for start, end in parts if is_night() else parts[:2]:
        some = [dataclasses.replace(whole, start=start, end=end)]
        compare(session, job, some)


def in_transaction(broker: Broker, topic: str, values: Sequence[str], how: int) -> None:
    """Sends values; 0 commits them, 1 aborts them, 2 sends them without a transaction."""
    more = {} if how == 2 else {"transactional_id": f"{topic}-{how}"}
    producer = Producer(broker.plain().confluent(**more))
    if more:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode())
    producer.flush(30)
    if how == 0:
        producer.commit_transaction(30)
    elif how == 1:
        producer.abort_transaction(30)


@pytest.mark.night(but=["lz4"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_give_no_record_before_the_range(
    broker: Broker, new_topic: Topics, tmp_path: Path, codec: str
) -> None:
    """A range that begins, and ends, inside of a batch, of many chunks."""
    topic = new_topic("packed", partitions=1)
    producer = Producer(broker.plain().confluent(compression_type=codec, linger_ms=200))
    for number in range(60_000):
        producer.produce(topic, f'{{"k":"{number}"}}'.encode())
    producer.flush(30)
    reading = reading_of(broker, tmp_path, topic)
    for start, end in ((0, 60_000), (17, 59_983), (59_999, 60_000), (30_000, 30_001)):
        part = RangePart(topic, 0, start, end, 3, 0)
        batches = list(reading.records(part))
        order = [value for batch in batches for value in batch.column(layout.ORDER).to_pylist()]
        assert order == [(3 << POSITION_BITS) + offset - start for offset in range(start, end)]
        assert [text for batch in batches for text in batch.column("_0").to_pylist()] == [
            str(offset) for offset in range(start, end)
        ]


def reading_of(broker: Broker, directory: Path, topic: str, **more: Any) -> TopicReading:
    """Our reader of a topic of one column."""
    source = {"value": {"format": "json", "schema": "k string"}, "record": {}, **more}
    config = job_of(broker, directory / "job", topic, _FILES, source=source, key="k").config
    return topic_reading(config, config.source, SALT)  # type: ignore[arg-type]  # a source of topics


def test_ranges_that_are_expected_are_fetched_together(broker: Broker, new_topic: Topics, tmp_path: Path) -> None:
    """Each range has its own records, and its own error; those that nobody has read leave nothing to the next ones."""
    topic = new_topic("several", partitions=3)
    for number in range(3):
        send(broker.plain(), topic, [Record(f'{{"k":"{number}-{at}"}}'.encode(), partition=number) for at in range(50)])
    reading = reading_of(broker, tmp_path, topic)

    def keys(part: RangePart) -> list[str]:
        return [key for batch in reading.records(part) for key in batch.column("_0").to_pylist()]

    def expected(part: RangePart) -> list[str]:
        return [f"{part.partition}-{at}" for at in range(part.start, part.end)]

    parts = [RangePart(topic, number, number, 50 - number, number, 0) for number in range(3)]
    reading.expect([*parts, RangePart(topic, 0, 7, 7, 3, 0)])
    assert [keys(part) for part in parts] == [expected(part) for part in parts]
    reading.expect(parts)
    assert keys(parts[0]) == expected(parts[0])
    reading.expect([parts[1], parts[2]])
    assert keys(RangePart(topic, 0, 3, 9, 0, 0)) == [f"0-{at}" for at in range(3, 9)]
    assert keys(parts[2]) == expected(parts[2])
    gone = RangePart(topic, 1, 60, 70, 1, 0)
    reading.expect([parts[0], gone, parts[2]])
    assert keys(parts[0]) == expected(parts[0])
    with pytest.raises(SourceAwayError, match="offsets 60 to 69"):
        keys(gone)
    assert keys(parts[2]) == expected(parts[2])


@pytest.mark.night
def test_what_is_not_there_is_looked_for_again(broker: Broker, new_topic: Topics, tmp_path: Path) -> None:
    """Offsets that are gone, or never were; a topic that is gone; the consumer is a new one afterwards."""
    topic = new_topic("short", partitions=2)
    send(broker.plain(), topic, [Record(b'{"k":"a"}', partition=0)] * 10)
    forget_before(broker, topic, {0: 4})
    reading = reading_of(broker, tmp_path, topic)
    with pytest.raises(SourceAwayError, match="offsets 0 to 9"):
        list(reading.records(RangePart(topic, 0, 0, 10, 0, 0)))
    with pytest.raises(SourceAwayError, match="offsets 50 to 59"):
        list(reading.records(RangePart(topic, 0, 50, 60, 0, 0)))
    with pytest.raises(SourceAwayError):
        list(reading.records(RangePart("no-such-topic", 0, 0, 10, 0, 0)))
    (batch,) = list(reading.records(RangePart(topic, 0, 4, 10, 0, 0)))
    assert batch.num_rows == 6


@pytest.mark.night
def test_read_on_the_topic_is_right_enough(secure_broker: Broker, tmp_path: Path) -> None:
    """The client asks for the coordinator of a group that it never joins, and is refused."""
    topic = secure_broker.create_topic("for-bob", 1)
    send(secure_broker.plain(), topic, [Record(b'{"k":"a"}')] * 10)
    kinds = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:bob", "*")
    right = AclBinding(*kinds, AclOperation.READ, AclPermissionType.ALLOW)
    secure_broker.admin().create_acls([right])[right].result(20)
    bob = secure_broker.sasl_tls("bob")
    options = {key: value for key, value in bob.spark().items() if key != "kafka.bootstrap.servers"}
    source = {"bootstrap_servers": bob.bootstrap, "options": options, "group": "off"}
    reading = reading_of(secure_broker, tmp_path, topic, **source)
    assert sum(batch.num_rows for batch in reading.records(RangePart(topic, 0, 0, 10, 0, 0))) == 10


def test_silence_ends_a_fetch(
    broker: Broker, new_topic: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range whose end does not come, and a broker that stands still: after a while, with the reason."""
    topic = new_topic("silent")
    send(broker.plain(), topic, [Record(b'{"k":"a"}')] * 10)
    there, given = 10, 0
    take = PartitionQueue.take

    def counted(queue: PartitionQueue, most: int, wait_ms: int) -> tuple[pa.RecordBatch, list[Event]]:
        nonlocal given
        batch, events = take(queue, most, wait_ms)
        given += batch.num_rows
        return batch, events

    # A busy broker takes its time for what is there: the clock goes on when all of that is read.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() if given >= there else 0.0)
    monkeypatch.setattr(PartitionQueue, "take", counted)
    monkeypatch.setattr(fetching, "time", clock)
    reading = reading_of(broker, tmp_path, topic)
    with pytest.raises(SourceAwayError, match=r"offsets 0 to 10: no record in 1 s, at 10"):
        list(reading.records(RangePart(topic, 0, 0, 11, 0, 0, silence_s=1.0)))
    broker.freeze()
    try:
        with pytest.raises(SourceAwayError, match="no record in 1 s, at 0"):
            list(reading.records(RangePart(topic, 0, 0, 10, 0, 0, silence_s=1.0)))
    finally:
        broker.thaw()
    there = 20
    assert sum(batch.num_rows for batch in reading.records(RangePart(topic, 0, 0, 10, 0, 0))) == 10
