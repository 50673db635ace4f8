"""The ports of a real job on Kafka: mixed sinks, order, what topics refuse, what was left unpublished."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.errors import DeduperError, UsageError
from deduper.kafka.errors import PublicationUnknownError, RecordRefusedError
from deduper.service.job import run
from deduper.sinks import topics as kafka_ports
from deduper.sinks.names import STAGING
from deduper.sinks.publish_state import OnUnknown
from deduper.window import publishing
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, header, records, settings
from tests.services.kafka_traffic import Follower, Record, end_offsets, read, send
from tests.services.test_kafka_publisher import limit
from tests.spark.harness import PORTS

pytestmark = [pytest.mark.services, pytest.mark.spark]

GZIP, ZSTD = 1, 4  # in a batch's attributes
# Spark's clients give up in seconds instead of minutes.
IMPATIENT = {"kafka.default.api.timeout.ms": "1500", "kafka.request.timeout.ms": "1000"}
# Copies of a key come with a later expiry key.
COPIES = {"lookup": "all_live"}


class Interrupted(Exception):
    """Stands for a process that ends at this place."""


@pytest.fixture
def die(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    """Makes a function raise once instead of doing its work."""

    def arm(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def interrupted(*arguments: Any, **more: Any) -> Any:
            monkeypatch.setattr(owner, name, original)
            raise Interrupted(name)

        monkeypatch.setattr(owner, name, interrupted)

    return arm


def committed(broker: Broker, topic: str, count: int) -> list[Record]:
    """The records of a topic once there are so many: a commit returns a moment before they can be read."""
    with Follower(broker.plain(), topic) as reader:
        reader.wait_for(count)
    return read(broker.plain(), topic)


def numbers(found: Iterable[Record]) -> list[str]:
    """The numbers the records were sent with."""
    return [header(record, "n") or "" for record in found]


def test_mixed_sinks_judge_once(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """To a topic, Parquet, JSON and nowhere: each record by one port, and each port has what was counted."""
    source, unique = new_topic("in", partitions=2), new_topic("unique")
    sent = send(broker.plain(), source, records(600))
    sinks = {
        "unique": {"format": "kafka", "topic": unique},
        "duplicate": {"format": "parquet", "path": "out/duplicate"},
        "expired": {"format": "json", "path": "out/expired"},
        "error": {"format": "none"},
    }
    job = KafkaJob(tmp_path, session, settings(broker, source, {}, expiry=COPIES) | {"sinks": sinks})
    summary = job.run()
    assert min(summary.unique, summary.duplicate, summary.expired, summary.error) > 0
    assert summary.unique + summary.duplicate + summary.expired + summary.error == len(sent)
    places = [header(record, "dedup-origin") for record in committed(broker, unique, summary.unique)]
    for port, count in (("duplicate", summary.duplicate), ("expired", summary.expired)):
        rows = job.rows(port)
        assert len(rows) == count
        assert {row["_dedup"]["verdict"] for row in rows} == {port}
        places += [f"{row['_dedup']['source']}@{row['_dedup']['position']}" for row in rows]
    assert len(set(places)) == len(places) == len(sent) - summary.error
    assert not (tmp_path / "out" / "error").exists()
    assert not list(tmp_path.glob(f"**/{STAGING}/*"))


@pytest.mark.night
def test_clients_compress(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """Each port as its options say; records keep key, value, headers and timestamp."""
    source = new_topic("in", partitions=2)
    sent = {header(record, "n"): record for record in send(broker.plain(), source, records(300))}
    own = settings(broker, source, topics, expiry=COPIES)
    for port in ("unique", "error"):
        own["sinks"][port] |= {"options": {"kafka.compression.type": "zstd"}}
    own["sinks"]["duplicate"] |= {"options": {"kafka.compression.type": "gzip"}}
    summary = KafkaJob(tmp_path, session, own).run()
    counts = {port: getattr(summary, port) for port in PORTS}
    seen: Counter[str] = Counter()
    for port, topic in topics.items():
        found = committed(broker, topic, counts[port])
        assert len(found) == counts[port]
        seen.update(numbers(found))
        for record in found:
            original = sent[header(record, "n")]
            assert (record.key, record.value) == (original.key, original.value)
            assert record.headers[: len(original.headers)] == original.headers
            assert header(record, "dedup-verdict") == port
            assert record.timestamp_ms == original.timestamp_ms
    assert seen == Counter(dict.fromkeys(sent, 1))
    assert {port: codecs(broker, topic) for port, topic in topics.items() if port != "expired"} == {
        "unique": {ZSTD},
        "error": {ZSTD},
        "duplicate": {GZIP},
    }


@pytest.mark.night
def test_ports_choose_their_headers(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """Some, or none at all, also for records that have no headers of their own."""
    source = new_topic("in")
    send(broker.plain(), source, [Record(b'{"k": "%d", "t": 60}' % (number % 5)) for number in range(10)])
    own = settings(broker, source, topics, expiry=COPIES)
    own["sinks"]["unique"] |= {"dedup_headers": []}
    own["sinks"]["duplicate"] |= {"dedup_headers": []}
    for name in ("none", "some"):
        (tmp_path / name).mkdir()
    summary = KafkaJob(tmp_path / "none", session, own).run()
    assert (summary.unique, summary.duplicate) == (5, 5)
    assert [record.headers for record in committed(broker, topics["unique"], 5)] == [()] * 5
    assert [record.headers for record in committed(broker, topics["duplicate"], 5)] == [()] * 5
    some = {port: new_topic(f"some-{port}") for port in PORTS}
    own = settings(broker, source, some, expiry=COPIES)
    own["sinks"]["unique"] |= {"dedup_headers": ["origin"]}
    KafkaJob(tmp_path / "some", session, own).run()
    found = committed(broker, some["unique"], 5)
    assert [record.headers for record in found] == [(("dedup-origin", f"{source}-0@{n}".encode()),) for n in range(5)]


def codecs(broker: Broker, topic: str) -> set[int]:
    """How the batches of records in a topic's log are compressed; markers of transactions are left out."""
    found = set()
    for log in (broker.directory / "data").glob(f"{topic}-[0-9]/*.log"):
        data, place = log.read_bytes(), 0
        # Magic 2: base offset, length, epoch, magic, checksum, attributes.
        while place + 61 <= len(data) and (length := int.from_bytes(data[place + 8 : place + 12], "big")):
            attributes = int.from_bytes(data[place + 21 : place + 23], "big")
            if not attributes & 0x20:
                found.add(attributes & 7)
            place += 12 + length
    return found


def test_source_order_is_kept(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """With `preserve_order`, over several windows: what leaves by a port does so in its source partition's order."""
    source, unique = new_topic("in", partitions=3), new_topic("unique")
    made = [
        Record(json.dumps({"k": f"k{number * 7919 % 1500}", "t": 1}).encode(), headers=(("n", b"%d" % number),))
        for number in range(2400)
    ]
    send(broker.plain(), source, [Record(r.value, b"k", r.headers, partition=n % 3) for n, r in enumerate(made)])
    own = settings(broker, source, topics | {"unique": unique})
    own["source"]["max_offsets_per_batch"] = 900
    own["sinks"]["unique"]["preserve_order"] = True
    summary = KafkaJob(tmp_path, session, own).run()
    assert summary.windows == 3
    found = committed(broker, unique, summary.unique)
    assert len(found) == 1500
    for partition in range(3):
        places = [(header(record, "dedup-origin") or "").rpartition("@") for record in found]
        order = [int(offset) for place, _, offset in places if place == f"{source}-{partition}"]
        assert len(order) > 100
        assert order == sorted(order)


def test_a_record_that_the_topic_refuses(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
) -> None:
    """Too large for the topic: the error says what to raise; after that the window goes out, whole and once."""
    source = new_topic("in")
    value = json.dumps({"k": os.urandom(100_000).hex(), "t": 1}).encode()
    send(broker.plain(), source, [Record(value, headers=(("n", b"0"),)), *records(20, first=1)])
    own = settings(broker, source, topics)
    limit(broker, topics["unique"], "100000")
    job = KafkaJob(tmp_path, session, own)
    with pytest.raises(RecordRefusedError, match=r"port unique, topic unique-.*max\.message\.bytes"):
        job.run()
    limit(broker, topics["unique"], "1000000")
    assert job.run().rows == 0
    state = CommitLog.open(local_place(job.config.store.path)).state
    found = committed(broker, topics["unique"], state.totals["unique"])
    assert len(found) == state.totals["unique"]
    assert "0" in numbers(found)


@pytest.mark.night
def test_what_is_unpublished_goes_where_its_record_says(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    die: Callable[[Any, str], None],
) -> None:
    """A window published and not marked; then the job, a topic and the store's folder are renamed: nothing twice."""
    source = new_topic("in", partitions=2)
    send(broker.plain(), source, records(200))
    own = settings(broker, source, topics)
    (tmp_path / "old").mkdir()
    job = KafkaJob(tmp_path / "old", session, own)
    die(publishing, "mark_published")
    with pytest.raises(Interrupted):
        job.run()
    totals = CommitLog.open(local_place(job.config.store.path)).state.totals
    before = {port: numbers(committed(broker, topic, totals[port])) for port, topic in topics.items()}
    assert sum(map(len, before.values())) == 200
    ends = {port: end_offsets(broker, topic) for port, topic in topics.items()}

    (tmp_path / "old").rename(tmp_path / "new")
    elsewhere = new_topic("elsewhere")
    renamed = settings(broker, source, topics | {"unique": elsewhere}, name="renamed")
    moved = KafkaJob(tmp_path / "new", session, renamed)
    # A sink that is no topic any more cannot take what is left over.
    without = settings(broker, source, topics) | {"sinks": renamed["sinks"] | {"unique": {"format": "none"}}}
    with pytest.raises(UsageError, match=f"port unique to go to topic {topics['unique']}"):
        KafkaJob(tmp_path / "new", session, without).run()
    assert moved.run().rows == 0
    assert {port: end_offsets(broker, topic) for port, topic in topics.items()} == ends
    assert end_offsets(broker, elsewhere) == {0: 0}
    # From now on the new names count.
    send(broker.plain(), source, [Record(b'{"k": "new", "t": 60}', headers=(("n", b"200"),))])
    assert moved.run().unique == 1
    assert numbers(committed(broker, elsewhere, 1)) == ["200"]


@pytest.mark.night
def test_a_topic_that_was_made_again_while_no_job_ran_is_named(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the next start alone, with the windows that it may lack; the other topics are none."""
    source = new_topic("in", partitions=2)
    send(broker.plain(), source, records(200))
    job = KafkaJob(tmp_path, session, settings(broker, source, topics))
    job.run()
    windows = CommitLog.open(local_place(job.config.store.path)).state.next_window
    job.run()
    assert "made again:" not in caplog.text
    broker.delete_topic(topics["unique"])
    broker.create_topic(topics["unique"], 1)
    send(broker.plain(), source, [Record(b'{"k": "new", "t": 60}', headers=(("n", b"200"),))])
    assert job.run().unique == 1
    job.run()
    named = [message for message in caplog.messages if "was deleted and made again:" in message]
    assert len(named) == 1
    assert named[0].startswith(
        f"port unique: topic {topics['unique']} was deleted and made again: of the windows 0 to "
    )
    assert f" to {windows - 1} those that were published before are not in it" in named[0]


@pytest.mark.night
def test_a_store_that_moved_before_it_published(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    die: Callable[[Any, str], None],
) -> None:
    """Committed, not published, moved: its staged rows are found in the new place. One too old is asked about first."""
    source = new_topic("in")
    send(broker.plain(), source, records(100))
    (tmp_path / "old").mkdir()
    job = KafkaJob(tmp_path / "old", session, settings(broker, source, topics))
    die(kafka_ports.KafkaPorts, "publish")
    with pytest.raises(Interrupted):
        job.run()
    assert all(end_offsets(broker, topic) == {0: 0, 1: 0} for topic in topics.values())
    (tmp_path / "old").rename(tmp_path / "new")
    moved = KafkaJob(tmp_path / "new", session, settings(broker, source, topics))
    staged = list((moved.config.store.path / STAGING).rglob("*.parquet"))
    assert staged
    for file in staged:
        os.utime(file, (time.time() - 8 * 86400,) * 2)
    with pytest.raises(PublicationUnknownError, match="--unpublished publish or --unpublished skip"):
        moved.run()
    summary = run(
        moved.config,
        once=True,
        max_windows=None,
        take_over=False,
        on_progress=moved.progress.append,
        session=session,
        unpublished=OnUnknown.PUBLISH,
    )
    assert summary.rows == 0
    totals = CommitLog.open(local_place(moved.config.store.path)).state.totals
    seen = [number for port, topic in topics.items() for number in numbers(committed(broker, topic, totals[port]))]
    assert sorted(seen, key=int) == [str(number) for number in range(100)]
    assert not list((moved.config.store.path / STAGING).glob("*"))


@pytest.mark.night
def test_brokers_that_are_away_while_offsets_are_asked_for(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The job repeats its questions, says what it waits for, and goes on where it was."""
    source = new_topic("in")
    send(broker.plain(), source, records(100))
    own = settings(broker, source, topics, trigger="200ms")
    own["source"] |= {"options": IMPATIENT, "deadline": "120s"}
    job = KafkaJob(tmp_path, session, own)
    failures: list[BaseException] = []

    def said(text: str) -> None:
        end = time.monotonic() + 100
        while not any(text in record.getMessage() for record in caplog.records):
            assert time.monotonic() < end, f"never said: {text}"
            time.sleep(0.05)

    def torment() -> None:
        try:
            end = time.monotonic() + 100
            while not job.progress:
                assert time.monotonic() < end, "no window"
                time.sleep(0.05)
            for port, topic in topics.items():
                # A single broker that dies between a commit and its markers may forget these (docs/kafka.md).
                committed(broker, topic, getattr(job.progress[0], port))
            broker.kill()
            said("source: waiting for ")
            broker.start()
            send(broker.plain(), source, records(50, first=100))
        except BaseException as exc:  # noqa: BLE001  told below
            failures.append(exc)

    thread = threading.Thread(target=torment, daemon=True)
    thread.start()
    try:
        summary = job.run(once=False, max_windows=2)
    finally:
        thread.join(150)
    assert not failures, failures
    assert summary.rows == 150
    found = [n for port, topic in topics.items() for n in numbers(committed(broker, topic, getattr(summary, port)))]
    assert sorted(found, key=int) == [str(number) for number in range(150)]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("retrying, gives up after 120 s" in line for line in lines), lines


@pytest.mark.night
def test_a_deadline_for_brokers_that_stay_away(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """The job ends with what it waited for; nothing is lost."""
    source = new_topic("in")
    send(broker.plain(), source, records(50))
    own = settings(broker, source, topics, trigger="200ms")
    own["source"] |= {"options": IMPATIENT, "deadline": "4s"}
    job = KafkaJob(tmp_path, session, own)

    def kill() -> None:
        end = time.monotonic() + 100
        while not job.progress and time.monotonic() < end:
            time.sleep(0.05)
        broker.kill()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with pytest.raises(DeduperError, match=r"waited \d+ s for .*; nothing is lost: bring the brokers back"):
        job.run(once=False)
    thread.join(10)
    broker.start()
    assert job.run().rows == 0


@pytest.mark.night
def test_a_stop_while_brokers_stay_away(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SIGTERM ends a publication that waits, long before its deadline; the next start publishes what is committed."""
    source = new_topic("in")
    send(broker.plain(), source, records(50))
    own = settings(broker, source, topics, trigger="200ms")
    own["source"]["deadline"] = "200s"
    job = KafkaJob(tmp_path, session, own)
    publish = kafka_ports.KafkaPorts.publish
    signals = iter([signal.SIGTERM])  # another one would end the tests, if it came after the run
    stopped: list[float] = []

    def without_broker(ports: kafka_ports.KafkaPorts, window: int, outputs: Any) -> None:
        broker.kill()
        for number in signals:
            stopped.append(time.monotonic())
            os.kill(os.getpid(), number)
        publish(ports, window, outputs)

    with monkeypatch.context() as patch:
        patch.setattr(kafka_ports.KafkaPorts, "publish", without_broker)
        assert job.run(once=False).stopped_by == "signal"
        assert time.monotonic() - stopped[0] < 100  # of the 200 s that it would wait
    # The source, which looks for more meanwhile, may have been stopped too.
    said = [record.getMessage() for record in caplog.records if "stopped while waiting" in record.getMessage()]
    assert [text for text in said if "the next start publishes what is missing" in text]
    broker.start()
    assert job.run().rows == 0
    found = [n for topic in topics.values() for n in numbers(committed(broker, topic, 1))]
    assert sorted(found, key=int) == [str(number) for number in range(50)]
