"""Exactly once into a real topic: kills, zombies, lost brokers, and what the cluster refuses or forgets.

The contract of both publishers: tests with `ways` run for threads of this process and, at night, for tasks of two
executors.

Every test reads the topic as its users do, read_committed, and holds each row against the staged one: none lost, none
twice, none changed, and in order inside a slot and partition.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.places.local import local_place
from deduper.config.kafka.options import KafkaOptionsError
from deduper.errors import IntegrityError
from deduper.kafka import calls
from deduper.kafka.cluster import offsets_retention_s
from deduper.kafka.errors import (
    BrokerUnavailableError,
    KafkaDeniedError,
    ProducerFencedError,
    PublicationUnknownError,
    RecordRefusedError,
    TopicMissingError,
    TransactionTooLongError,
)
from deduper.sinks import slot as kafka_slot
from deduper.sinks.publish_state import OnUnknown
from deduper.sinks.publisher import Publisher, ThreadPublisher
from tests.services.executors import ByTasks, executors
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Follower, committed_offsets, end_offsets, open_transactions, read
from tests.services.staged_windows import FIRST_TIME_MS, Job, problems, stage, write_staged
from tests.spark.cluster import Cluster
from tests.tiers import is_night, seed

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

DAY_S = 86_400.0

KILLS = [
    "kafka.initialised=kill",
    "kafka.sent=kill",
    "kafka.offsets=kill@3",
    "kafka.committed=kill",
]
if is_night():
    KILLS += [
        "kafka.begun=kill",
        "kafka.part=kill",
        "kafka.offsets=kill",
        "kafka.initialised=kill@2",
        "kafka.part=kill@5",
        "kafka.committed=kill@2",
        "kafka.sent=kill@2",
    ]


ways = pytest.mark.parametrize("publishers", ["threads", pytest.param("tasks", marks=pytest.mark.night)], indirect=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two executors."""
    with executors(tmp_path_factory.mktemp("executors")) as made:
        yield made


@pytest.fixture
def publishers(request: pytest.FixtureRequest) -> Callable[[], Publisher]:
    """Makes the publishers of the test's way; threads if it names none."""
    if getattr(request, "param", "threads") == "threads":
        return ThreadPublisher
    cluster: Cluster = request.getfixturevalue("cluster")
    return lambda: ByTasks(cluster)


@pytest.fixture
def new_job(
    broker: Broker, new_topic: Callable[..., str], tmp_path: Path, publishers: Callable[[], Publisher]
) -> Callable[..., Job]:
    """Makes jobs with a topic of three partitions and staged windows."""

    def make(windows: int = 2, slots: int = 2, rows: int = 200, **more: Any) -> Job:
        topic = new_topic("unique", partitions=3)
        staged = stage(tmp_path / topic, windows, slots, rows)
        return Job(staged, broker.bootstrap, topic, publishers=publishers, **more)

    return make


def check(broker: Broker, job: Job) -> None:
    """A reader of committed records has each row once, unchanged and in order."""
    wait_for_windows(broker, job, range(len(job.staged.files)))
    assert problems(job.staged, read(broker.plain(), job.topic)) == []


def wait_for_windows(broker: Broker, job: Job, windows: Iterable[int]) -> None:
    """Until the rows of these windows can be read: a commit returns a moment before its markers are in the log."""
    rows = sum(window in windows for window, _, _ in job.staged.rows)
    with Follower(broker.plain(), job.topic) as reader, contextlib.suppress(TimeoutError):
        reader.wait_for(rows, 20)


def ends(broker: Broker, job: Job, windows: Iterable[int]) -> dict[int, int]:
    """The ends of the log once these windows are there, markers and all."""
    wait_for_windows(broker, job, windows)
    return end_offsets(broker, job.topic)


def test_killed_at_each_failpoint(broker: Broker, new_job: Callable[..., Job]) -> None:
    """A publisher killed at every named point and started again: each row once, also for a reader meanwhile."""
    job = new_job(windows=20 if is_night() else 6, rows=400)
    with Follower(broker.plain(), job.topic) as reader:
        for armed in KILLS if is_night() else KILLS[::2]:
            assert job.start(armed).end() == "killed", armed
        assert job.start().end() == "done"
        check(broker, job)
        reader.wait_for(len(job.staged.rows))
        assert problems(job.staged, reader.records) == []
    tried = read(broker.plain(), job.topic, committed=False)
    assert len(tried) > len(job.staged.rows), "nothing was ever aborted: these kills have tested nothing"


@pytest.mark.night
def test_killed_at_random_moments(broker: Broker, new_job: Callable[..., Job]) -> None:
    """Whenever it dies, as the run's seed draws it."""
    rng = random.Random(seed())
    job = new_job(windows=20, slots=3, rows=1000)
    killed = 0
    with Follower(broker.plain(), job.topic) as reader:
        for _ in range(6):
            process = job.start()
            assert process.said() == "ready"
            time.sleep(rng.random() * 0.5)
            killed += process.popen.poll() is None
            process.kill()
        assert job.start().end() == "done"
        check(broker, job)
        reader.wait_for(len(job.staged.rows))
        assert problems(job.staged, reader.records) == []
    assert killed


@pytest.mark.night(but=["kafka.sent-threads"])
@ways
@pytest.mark.parametrize("point", ["kafka.begun", "kafka.part", "kafka.sent", "kafka.offsets"])
def test_a_zombie_shows_nothing(broker: Broker, new_job: Callable[..., Job], point: str) -> None:
    """Frozen in its transaction, overtaken, woken: it is told that it was fenced, and nothing of it becomes visible."""
    # The first of the tasks starts the executors, which takes minutes on a busy machine: by then the broker would have
    # ended the transaction.
    job = new_job(transaction_timeout_s=600.0)
    zombie = job.start(f"{point}=freeze")
    zombie.wait_until_frozen()
    job.publish(job.publisher())
    check(broker, job)
    zombie.thaw()
    assert zombie.end() == "ProducerFencedError"
    check(broker, job)


@pytest.mark.night
def test_who_has_looked_cannot_be_overtaken(broker: Broker, new_job: Callable[..., Job]) -> None:
    """One stands between init and look, another commits the window then: it must not, or the window goes out twice."""
    job = new_job(slots=1)
    other = job.publisher()
    job.publish(other, [0])
    slow = job.start("kafka.initialised=freeze")
    slow.wait_until_frozen()
    with pytest.raises(ProducerFencedError):
        job.publish(other, [1])
    slow.thaw()
    assert slow.end() == "done"
    check(broker, job)
    # Who was fenced and has the highest epoch all the same calls again, and finds it published.
    job.publish(other)
    check(broker, job)


@pytest.mark.night
def test_two_at_once(broker: Broker, new_job: Callable[..., Job]) -> None:
    """Two that fence each other again and again, each believing to be the owner: still each row once."""
    # So many windows that neither is through before the other has begun.
    job = new_job(windows=30, rows=20)
    together = threading.Barrier(2)

    def insist(number: int) -> int:
        publisher, fenced, window = job.publisher(), 0, 0
        together.wait(60)
        while window < len(job.staged.files):
            try:
                job.publish(publisher, [window])
                window += 1
            except ProducerFencedError:
                fenced += 1
                time.sleep(0.05 * number)
        return fenced

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(insist, (1, 2))) > 0
    check(broker, job)


@pytest.mark.night
def test_the_broker_dies_and_comes_back(
    broker: Broker, new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed and started again in the middle: the publisher goes on by itself, and has said what it waited for.

    In the middle of its transactions, not of their end: a single broker that dies between a commit and its markers may
    forget, back again, to write them (docs/kafka.md, *What breaks it*).
    """
    job = new_job(windows=10, rows=1500, deadline_s=300.0)  # a start takes a minute on a slow machine
    begun: list[str] = []
    sending, go_on = threading.Semaphore(0), threading.Event()
    slots = len(job.staged.files[0])
    assert all(len(files) == slots for files in job.staged.files[:3]), "a slot is absent from a window"

    def stand_still(point: str) -> None:
        if point == "kafka.begun":
            begun.append(point)
        if point == "kafka.part" and len(begun) > 2 * slots:
            sending.release()
            assert go_on.wait(100)

    monkeypatch.setattr(failpoints, "hit", stand_still)
    with ThreadPoolExecutor(1) as pool, Follower(broker.plain(), job.topic) as reader:
        publishing = pool.submit(job.publish, job.publisher())
        for _ in range(slots):
            assert sending.acquire(timeout=60)
        reader.wait_for(sum(window < 2 for window, _, _ in job.staged.rows))
        for slot in range(slots):
            assert committed_offsets(broker, job.group(slot), job.topic) == {0: 2}
        broker.kill()
        go_on.set()
        broker.start()  # which takes longer than what waits for it needs to notice
        publishing.result(120)
        reader.wait_for(len(job.staged.rows))
        assert problems(job.staged, reader.records) == []
    check(broker, job)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    # Which of the calls it was that waited is chance, and whether that one ended; each says the same.
    assert any("waiting for" in line and "gives up after 300 s" in line for line in lines), lines


@pytest.mark.night
def test_a_transaction_that_nobody_ends(
    broker: Broker, new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    """Open, it keeps the slot's offset undecided: the publisher waits, says why, and goes on when it has ended."""
    job = new_job(windows=1, slots=1)
    other_producer = Producer(broker.plain().confluent(**{"transactional.id": f"stranger-{job.topic}"}))
    other_producer.init_transactions(30)
    other_producer.begin_transaction()
    group = Consumer(broker.plain().confluent(group_id=job.group(0)))
    undecided = TopicPartition(job.topic, 0, 7)
    other_producer.send_offsets_to_transaction([undecided], group.consumer_group_metadata(), 30)
    group.close()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(job.publish, job.publisher())
        until = time.monotonic() + 50
        while "an open transaction is yet to decide this slot's offset" not in caplog.text:
            assert not publishing.done(), publishing.exception()
            assert time.monotonic() < until, caplog.text
            time.sleep(0.05)
        other_producer.abort_transaction(30)
        publishing.result(60)
    check(broker, job)


@pytest.mark.night
@ways
def test_a_broker_that_stays_away(broker: Broker, new_job: Callable[..., Job]) -> None:
    """After the deadline an error says what was waited for; with the broker back the same call succeeds."""
    job = new_job(deadline_s=3.0)
    publisher = job.publisher()
    job.publish(publisher, [0])
    broker.freeze()
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"topic unique.*, window 1, slot \d: waited \d+ s for "):
        job.publish(publisher, [1])
    assert time.monotonic() - began < 30
    broker.thaw()
    job.publish(publisher)
    check(broker, job)


@pytest.mark.night
def test_too_slow_for_its_transaction(broker: Broker, new_job: Callable[..., Job]) -> None:
    """The broker aborts a transaction that is open for too long; the publisher notices, and nothing shows twice."""
    job = new_job(windows=1, slots=1, transaction_timeout_s=4.0)
    slow = job.start("kafka.sent=freeze")
    slow.wait_until_frozen()
    until = time.monotonic() + 60
    while open_transactions(broker, job.topic):
        assert time.monotonic() < until, "the broker aborts nothing"
        time.sleep(0.1)
    slow.thaw()
    assert slow.end() == TransactionTooLongError.__name__
    # After a fence the publisher reads the epochs: the cluster does not say which of the two it was.
    assert issubclass(TransactionTooLongError, ProducerFencedError)
    in_time = replace(job, transaction_timeout_s=60.0)
    in_time.publish(in_time.publisher())
    check(broker, job)


@ways
def test_a_published_window_is_not_sent_again(broker: Broker, new_job: Callable[..., Job]) -> None:
    """Not by the one who published it, not by another: not one more record or marker in the log."""
    job = new_job(windows=3)
    publisher = job.publisher()
    job.publish(publisher)
    before = ends(broker, job, range(3))
    for one in (publisher, job.publisher()):
        for window in (0, 2, 1):
            result = one.publish(window, job.staged.checksum(window), job.staged.files[window])
            assert result == dict.fromkeys(sorted(job.staged.files[window]))
    assert end_offsets(broker, job.topic) == before


@ways
def test_another_record_for_a_published_window(broker: Broker, new_job: Callable[..., Job]) -> None:
    """A store that was put back and numbers its windows again is stopped, not taken for published."""
    job = new_job(windows=3, slots=1)
    publisher = job.publisher()
    job.publish(publisher)
    before = ends(broker, job, range(3))
    for one in (publisher, job.publisher()):
        for window in (2, 1, 0):
            with pytest.raises(IntegrityError, match=f"window {window} was published from the record with checksum"):
                one.publish(window, 7, job.staged.files[window])
    assert end_offsets(broker, job.topic) == before


@ways
def test_a_window_that_was_passed_over(new_job: Callable[..., Job]) -> None:
    """A later window was published and this one was not: its record cannot be the one of that time."""
    job = new_job(windows=3, slots=1)
    publisher = job.publisher()
    job.publish(publisher, [0, 2])
    with pytest.raises(IntegrityError, match="passed over"):
        job.publish(publisher, [1])


@pytest.mark.night
@ways
def test_forgotten_offsets(broker: Broker, new_job: Callable[..., Job]) -> None:
    """No offset and a window older than offsets are kept: refused until the operator answers. A young one is sent."""
    job = new_job(windows=2, slots=1)
    job.publish(job.publisher(), [0])
    broker.admin().delete_consumer_groups([job.group(0)])[job.group(0)].result(20)
    before = ends(broker, job, [0])
    window_0 = (0, job.staged.checksum(0), job.staged.files[0])
    with pytest.raises(PublicationUnknownError, match=r"8\.0 days ago"):
        job.publisher().publish(*window_0, age_s=8 * DAY_S)
    assert job.publisher().publish(*window_0, age_s=8 * DAY_S, unknown=OnUnknown.SKIP) == {0: None}
    assert end_offsets(broker, job.topic) == before
    # The next one is young: there is nothing to forget.
    job.publish(job.publisher(), [1])
    check(broker, job)
    # The group knows again, but not of window 0.
    with pytest.raises(PublicationUnknownError, match="only windows from 1 on"):
        job.publisher().publish(*window_0)


@pytest.mark.night
@ways
def test_how_long_the_cluster_remembers(broker: Broker, new_job: Callable[..., Job]) -> None:
    """The brokers' own setting counts; an answer to publish again is obeyed, once."""
    assert offsets_retention_s({"bootstrap.servers": broker.bootstrap}) == 7 * DAY_S
    job = new_job(windows=1, slots=1)
    window_0 = (0, job.staged.checksum(0), job.staged.files[0])
    assert job.publisher().publish(*window_0, age_s=8 * DAY_S, unknown=OnUnknown.PUBLISH)[0] is not None
    assert job.publisher().publish(*window_0, age_s=8 * DAY_S, unknown=OnUnknown.PUBLISH) == {0: None}
    check(broker, job)


@ways
def test_a_record_that_is_too_large(broker: Broker, new_job: Callable[..., Job]) -> None:
    """The topic's limit is named; nothing of the window shows; with the limit raised the same call succeeds."""
    job = new_job(windows=1)
    limit(broker, job.topic, "200")
    publisher = job.publisher()
    with pytest.raises(RecordRefusedError, match=r"max\.message\.bytes"):
        job.publish(publisher)
    assert read(broker.plain(), job.topic) == []
    limit(broker, job.topic, "1000000")
    job.publish(publisher)
    check(broker, job)


def limit(broker: Broker, topic: str, size_bytes: str) -> None:
    """Set the largest batch that a topic takes."""
    entry = ConfigEntry("max.message.bytes", size_bytes, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    broker.admin().incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.night
@ways
def test_a_record_that_does_not_fit_into_the_queue(broker: Broker, new_job: Callable[..., Job]) -> None:
    """However long one waits: refused, and nothing of the window shows."""
    job = new_job(windows=1, slots=1)
    file = job.staged.files[0][0][0].local
    (row, *_) = parquet.read_table(file).to_pylist()
    write_staged(file, [row | {"value": bytes(2 << 20)}])
    publisher = job.publisher(options={"kafka.buffer.memory": str(1 << 20)})
    with pytest.raises(RecordRefusedError, match=r"2,097,152 bytes does not fit .* raise kafka\.buffer\.memory"):
        job.publish(publisher)
    assert read(broker.plain(), job.topic) == []


@ways
def test_no_such_topic(broker: Broker, new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Said within seconds; made by the publisher never."""
    monkeypatch.setattr(kafka_slot, "_TOPIC_GRACE_S", 1.0)
    job = new_job(windows=1)
    with pytest.raises(TopicMissingError, match=r"create it, or correct sinks\.unique\.topic"):
        job.publish(job.publisher(topic="nowhere"))
    assert "nowhere" not in broker.admin().list_topics(timeout=10).topics


@pytest.mark.night
def test_a_topic_that_is_deleted_is_named(
    broker: Broker, new_job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    """Within 30 s, while its records wait; with the topic made again the same call succeeds."""
    job = new_job(windows=2, deadline_s=30.0)
    publisher = job.publisher()
    job.publish(publisher, [0])
    broker.delete_topic(job.topic)
    with pytest.raises(BrokerUnavailableError, match=f"no topic {job.topic}: it was deleted; create it again"):
        job.publish(publisher, [1])
    assert f"no topic {job.topic}" in caplog.text


@ways
def test_the_topic_is_deleted_and_recreated(broker: Broker, new_job: Callable[..., Job]) -> None:
    """The offsets went with it: what is not marked is sent to the new one, what goes on goes on."""
    job = new_job(windows=2)
    publisher = job.publisher()
    job.publish(publisher, [0])
    broker.delete_topic(job.topic)
    broker.create_topic(job.topic, 3)
    job.publish(job.publisher())
    check(broker, job)


@pytest.mark.night
@ways
def test_the_topic_is_recreated_with_fewer_partitions(broker: Broker, new_job: Callable[..., Job]) -> None:
    """Under a producer that goes on: rows without a key go where there are partitions now."""
    job = new_job(windows=2, slots=3)
    publisher = job.publisher()
    job.publish(publisher, [0])
    broker.delete_topic(job.topic)
    broker.create_topic(job.topic, 1)
    job.publish(publisher, [1])
    wanted = sum(window == 1 for window, _, _ in job.staged.rows)
    with Follower(broker.plain(), job.topic) as reader:
        reader.wait_for(wanted, 20)
    assert len(read(broker.plain(), job.topic)) == wanted


@pytest.mark.night
@ways
def test_staged_files_that_are_gone(broker: Broker, new_job: Callable[..., Job]) -> None:
    """Lost when nobody has published them: an error. Published by another, who removed them: fenced."""
    job = new_job(windows=1, slots=1)
    waiting = job.start("kafka.initialised=freeze")
    waiting.wait_until_frozen()
    file = job.staged.files[0][0][1].local
    file.rename(file.with_suffix(".away"))
    with pytest.raises(IntegrityError, match="staged files are gone"):
        job.publish(job.publisher())
    assert read(broker.plain(), job.topic) == []
    file.with_suffix(".away").rename(file)
    waiting.kill()
    job.publish(job.publisher())
    check(broker, job)


@ways
def test_the_broker_refuses_the_transaction_timeout(new_job: Callable[..., Job]) -> None:
    """Longer than the brokers allow: both settings are named."""
    job = new_job(windows=1, transaction_timeout_s=3600)
    with pytest.raises(KafkaOptionsError, match=r"transaction\.max\.timeout\.ms"):
        job.publish(job.publisher())


@ways
def test_records_go_out_as_they_are(
    broker: Broker, new_topic: Callable[..., str], tmp_path: Path, publishers: Callable[[], Publisher]
) -> None:
    """Null and empty keys and values, headers in order and repeated, timestamps; partitions as Java chooses them."""
    topic = new_topic("plain", partitions=13)
    keys = [None, b"", b"21", b"foobar", b"a-little-bit-long-string", "Zürich".encode(), b"\x00\xff", b"k" * 1000]
    values = [b"v", None, b"", b"x" * 5000]
    headers = [[], [("a", b"1"), ("a", None), ("b", b"")], [("Grüße", b"\xff")]]
    rows = [
        {
            "key": keys[number % len(keys)],
            "value": values[number % len(values)],
            "headers": [{"key": name, "value": value} for name, value in headers[number % len(headers)]],
            "timestamp_ms": FIRST_TIME_MS + number,
            "slot": 7 if number % 2 else 2,
        }
        for number in range(480)
    ]
    rows[0]["timestamp_ms"], rows[1]["timestamp_ms"], rows[2]["timestamp_ms"] = 0, -1, None
    file = write_staged(tmp_path / "rows.parquet", rows)
    now_ms = time.time() * 1000
    publisher = Job(None, broker.bootstrap, topic, publishers=publishers).publisher()  # type: ignore[arg-type]
    assert publisher.publish(0, 1, {2: [local_place(file)], 7: [local_place(file)]}) == {2: 240, 7: 240}
    with Follower(broker.plain(), topic) as reader:
        reader.wait_for(len(rows))
        records = reader.records
    for slot in (2, 7):
        for partition in range(13):
            sent = [row for row in rows if row["slot"] == slot and java_partition(row["key"], slot, 13) == partition]
            got = [
                (one.key, one.value, list(one.headers), one.timestamp_ms)
                for one in records
                if one.partition == partition and is_of_slot(one, rows, slot, now_ms)
            ]
            assert [one[:3] for one in got] == [
                (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]]) for row in sent
            ]
            for row, one in zip(sent, got, strict=True):
                wanted = row["timestamp_ms"]
                if wanted is None or wanted < 0:
                    assert abs(one[3] - now_ms) < 60_000
                else:
                    assert one[3] == max(wanted, 1)


def is_of_slot(record: object, rows: list[dict[str, object]], slot: int, now_ms: float) -> bool:
    """Whether a record was sent by a slot: its timestamp is its row's number, but for the first three."""
    stamp = record.timestamp_ms  # type: ignore[attr-defined]
    if stamp == 1:
        number = 0
    elif stamp - FIRST_TIME_MS < len(rows):
        number = stamp - FIRST_TIME_MS
    else:
        number = 1 if record.value is None else 2  # type: ignore[attr-defined]
    return rows[number]["slot"] == slot


def java_partition(key: bytes | None, slot: int, partitions: int) -> int:
    """Where Kafka's Java client sends a key; one without goes to its slot's partition."""
    return slot % partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, written down from its definition; unsigned."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for place in range(0, whole, 4):
        k = int.from_bytes(data[place : place + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_murmur2_is_kafkas() -> None:
    """The known answers of Kafka's own tests (UtilsTest.testMurmur2)."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in known} == {key: value & 0xFFFFFFFF for key, value in known.items()}


def grant(broker: Broker, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    """Let a user do something with what begins with a name."""
    bindings = [
        AclBinding(kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for done in broker.admin().create_acls(bindings).values():
        done.result(20)


@pytest.mark.night
@ways
def test_rights(
    secure_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publishers: Callable[[], Publisher]
) -> None:
    """Each missing right is named; with those of docs/kafka.md and no more it works, by SASL as by TLS."""
    monkeypatch.setattr(calls, "_LOGIN_GRACE_S", 1.0)
    topic = secure_broker.create_topic("by-threads" if publishers is ThreadPublisher else "by-tasks")
    staged = stage(tmp_path / "staged", 2, 1, 50)
    job = Job(staged, secure_broker.bootstrap, topic, name=topic, deadline_s=90.0, publishers=publishers)
    alice, wrong = secure_broker.sasl("alice"), secure_broker.sasl("alice", "a guess")
    with pytest.raises(KafkaDeniedError, match="login"):
        job.publish(job.publisher(bootstrap_servers=wrong.bootstrap, options=wrong.spark()))
    publisher = job.publisher(bootstrap_servers=alice.bootstrap, options=alice.spark())
    steps = [
        ("transactional id", ResourceType.TRANSACTIONAL_ID, f"{job.name}/"),
        ("topic", ResourceType.TOPIC, topic),
        ("group", ResourceType.GROUP, f"{job.name}/"),
    ]
    for what, kind, name in steps:
        with pytest.raises(KafkaDeniedError, match=f"on the {what}"):
            job.publish(publisher, [0])
        for user in ("alice", "deduper"):
            if kind is not ResourceType.GROUP:
                grant(secure_broker, user, kind, name, AclOperation.WRITE, AclOperation.DESCRIBE)
            if kind is not ResourceType.TRANSACTIONAL_ID:
                grant(secure_broker, user, kind, name, AclOperation.READ)
    job.publish(publisher, [0])
    tls = secure_broker.tls()
    job.publish(job.publisher(bootstrap_servers=tls.bootstrap, options=tls.spark()))
    check(secure_broker, job)
