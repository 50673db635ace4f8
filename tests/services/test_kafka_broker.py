"""The broker that tests run on is a real one: both clients, transactions, kills, TLS, ACLs, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import kafka
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.processes import is_alive
from tests.services import kafka_traffic
from tests.services.kafka_broker import Broker, BrokerFailed
from tests.services.kafka_connection import Connection
from tests.services.kafka_traffic import Follower, Record, read, send

pytestmark = pytest.mark.services
ROOT = Path(__file__).parent.parent.parent


def wait_until(is_so: Callable[[], bool], deadline_s: float = 15.0) -> bool:
    """Whether it came true within the deadline."""
    until = time.monotonic() + deadline_s
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)
    return is_so()


@pytest.mark.night
def test_what_one_client_sends_the_other_reads(broker: Broker, new_topic: Callable[..., str]) -> None:
    """Key, value, headers, timestamp, tombstones and order survive, from confluent-kafka to kafka-python and back.

    A header without a value does from one confluent-kafka to another; kafka-python reads it, and refuses to send it.
    """
    topic = new_topic(partitions=2)
    records = [
        Record(None if n % 5 == 0 else b"v%d" % n, b"k%d" % n, (("h", b"\x00\xff"), ("h", b"")), 1000 + n, n % 2)
        for n in range(50)
    ]
    sent = send(broker.plain(), topic, records)
    reader = kafka.KafkaConsumer(
        topic, **broker.plain().kafka_python(auto_offset_reset="earliest", consumer_timeout_ms=5000)
    )
    seen = []
    for message in reader:
        place = (message.timestamp, message.partition, message.offset)
        seen.append(Record(message.value, message.key, tuple(message.headers), *place))
        if len(seen) == len(sent):
            break
    reader.close()
    assert sorted(seen, key=lambda r: (r.partition, r.offset)) == sorted(sent, key=lambda r: (r.partition, r.offset))

    writer = kafka.KafkaProducer(**broker.plain().kafka_python())
    for record in records:
        writer.send(
            topic,
            record.value,
            record.key,
            headers=list(record.headers),
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
        )
    writer.flush()
    writer.close()
    again = read(broker.plain(), topic)
    assert len(again) == 100
    for partition in (0, 1):
        got = [(r.value, r.key, r.headers, r.timestamp_ms) for r in again if r.partition == partition]
        put = [(r.value, r.key, r.headers, r.timestamp_ms) for r in records if r.partition == partition]
        assert got == put + put
    valueless = Record(b"v", None, (("none", None),))
    send(broker.plain(), topic, [valueless])
    assert any(record.headers == valueless.headers for record in read(broker.plain(), topic))


def test_only_committed_transactions_are_seen(broker: Broker, new_topic: Callable[..., str]) -> None:
    """read_committed hides an open transaction and all behind it, and an aborted one for good; both clients."""
    topic = new_topic()
    producer = Producer(broker.plain().confluent(transactional_id=topic))
    producer.init_transactions(30)
    writer = kafka.KafkaProducer(**broker.plain().kafka_python(transactional_id=f"{topic}-2"))
    writer.init_transactions()

    def values(committed: bool = True, marked_s: float = 10.0) -> list[bytes | None]:
        return [record.value for record in read(broker.plain(), topic, committed=committed, marked_s=marked_s)]

    with Follower(broker.plain(), topic) as follower:
        for admission, value in [("commit", b"1"), ("abort", b"2"), ("commit", b"3")]:
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.flush(30)
            hidden, shown = values(marked_s=0), values(committed=False)
            assert value not in hidden
            assert value in shown
            (producer.commit_transaction if admission == "commit" else producer.abort_transaction)(30)
        for admission, value in [("commit", b"4"), ("abort", b"5")]:
            writer.begin_transaction()
            writer.send(topic, value)
            writer.flush()
            assert value not in values(marked_s=0)
            (writer.commit_transaction if admission == "commit" else writer.abort_transaction)()
        send(broker.plain(), topic, [Record(b"6")])
        assert values() == [b"1", b"3", b"4", b"6"]
        follower.wait_for(4)
        assert [record.value for record in follower.records] == values()
    writer.close()
    # Ten records and markers, and the last.
    assert kafka_traffic.end_offsets(broker, topic) == {0: 11}


@pytest.mark.night
def test_a_second_producer_of_the_same_id_fences_the_first(broker: Broker, new_topic: Callable[..., str]) -> None:
    """init_transactions aborts what the first left open, and the first cannot commit any more."""
    topic = new_topic()
    first = Producer(broker.plain().confluent(transactional_id=topic))
    first.init_transactions(30)
    first.begin_transaction()
    first.produce(topic, b"of the zombie")
    first.flush(30)
    second = Producer(broker.plain().confluent(transactional_id=topic))
    second.init_transactions(30)
    second.begin_transaction()
    second.produce(topic, b"of the living")
    second.commit_transaction(30)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(30)
    assert refused.value.args[0].fatal()
    assert [record.value for record in read(broker.plain(), topic)] == [b"of the living"]


@pytest.mark.night
def test_a_killed_broker_comes_back_with_what_was_acknowledged(
    broker: Broker, new_topic: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9 within a transaction, from a thread that ends: same address, and clients go on by themselves."""
    topic = new_topic(partitions=3)
    sent = send(broker.plain(), topic, [Record(b"%d" % n, partition=n % 3) for n in range(300)])
    producer = Producer(broker.plain().confluent(transactional_id=topic))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"across the kill", partition=0)
    producer.flush(30)
    address, old = broker.bootstrap, broker.pid
    seconds: list[float] = []

    def kill_and_start() -> None:
        broker.kill()
        assert not broker.is_running
        assert not is_alive(old)
        seconds.append(broker.start())

    with Follower(broker.plain(), topic) as follower:
        follower.wait_for(300)
        thread = threading.Thread(target=kill_and_start)
        thread.start()
        thread.join()
        with capsys.disabled():
            print(f"\n[ready {seconds[0]:.1f} s after kill -9, load {os.getloadavg()[0]:.1f}]")
        assert broker.bootstrap == address
        assert [record.value for record in read(broker.plain(), topic, committed=False)].count(b"across the kill") == 1
        producer.commit_transaction(60)
        follower.wait_for(301)
    records = read(broker.plain(), topic)
    assert [r for r in records if r.value != b"across the kill"] == sorted(sent, key=lambda r: (r.partition, r.offset))
    # The thread that started it is long gone.
    assert broker.is_running


@pytest.mark.night
def test_a_frozen_broker_answers_when_it_goes_on(broker: Broker, new_topic: Callable[..., str]) -> None:
    """A record sent to a broker that stands still is acknowledged only after it goes on, once."""
    topic = new_topic()
    acknowledged: list[object] = []
    producer = Producer(broker.plain().confluent(enable_idempotence=True))
    producer.produce(topic, b"before")
    producer.flush(30)
    broker.freeze()
    producer.produce(topic, b"while frozen", on_delivery=lambda error, _: acknowledged.append(error))
    assert producer.flush(0.5) == 1
    broker.thaw()
    producer.flush(30)
    assert acknowledged == [None]
    assert [record.value for record in read(broker.plain(), topic)] == [b"before", b"while frozen"]


@pytest.mark.night
def test_topics_change_under_a_reader(broker: Broker, new_topic: Callable[..., str]) -> None:
    """Records age out, partitions are added, a topic made again has another id: what a source must notice."""
    topic = new_topic()
    send(broker.plain(), topic, [Record(b"%d" % n) for n in range(10)])
    kafka_traffic.forget_before(broker, topic, {0: 4})
    assert kafka_traffic.start_offsets(broker, topic) == {0: 4}
    assert [record.offset for record in read(broker.plain(), topic)] == list(range(4, 10))
    broker.add_partitions(topic, 3)
    assert kafka_traffic.end_offsets(broker, topic) == {0: 10, 1: 0, 2: 0}
    before = kafka_traffic.topic_id(broker, topic)
    kafka_traffic.recreate_topic(broker, topic)
    assert kafka_traffic.topic_id(broker, topic) != before
    assert kafka_traffic.end_offsets(broker, topic) == {0: 0}


@pytest.mark.night
def test_tls_asks_for_a_certificate(secure_broker: Broker) -> None:
    """With the right certificate both clients come in; with none or a stranger's neither does."""
    secure_broker.admin().create_acls([_allow("deduper", "tls")])[_allow("deduper", "tls")].result(20)
    topic = secure_broker.create_topic("tls")
    good = secure_broker.tls()
    assert send(good, topic, [Record(b"by confluent-kafka")])
    writer = kafka.KafkaProducer(**good.kafka_python())
    writer.send(topic, b"by kafka-python").get(20)
    writer.close()
    assert [record.value for record in read(good, topic)] == [b"by confluent-kafka", b"by kafka-python"]
    for identity in (None, "stranger"):
        refused = secure_broker.tls(identity)
        with pytest.raises(KafkaException):
            Producer(refused.confluent()).list_topics(timeout=2)
        with pytest.raises(kafka.errors.KafkaError):
            kafka.KafkaProducer(**refused.kafka_python(bootstrap_timeout_ms=1500, max_block_ms=1500)).send(topic)
    plain_words = Connection(good.bootstrap)
    with pytest.raises(KafkaException):
        Producer(plain_words.confluent()).list_topics(timeout=2)


@pytest.mark.night
def test_acls_are_obeyed(secure_broker: Broker) -> None:
    """A user may do what an ACL allows and nothing else; a wrong password gets nowhere."""
    topic = secure_broker.create_topic("acl")
    binding = _allow("alice", topic)
    secure_broker.admin().create_acls([binding])[binding].result(20)
    assert send(secure_broker.sasl("alice"), topic, [Record(b"hers")])
    assert [record.value for record in read(secure_broker.sasl("alice"), topic)] == [b"hers"]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        send(secure_broker.sasl("bob"), topic, [Record(b"his")], deadline_s=10)
    with pytest.raises(KafkaException):
        Producer(secure_broker.sasl("alice", "wrong").confluent()).list_topics(timeout=2)
    assert len(read(secure_broker.plain(), topic)) == 1


def _allow(user: str, topic: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )


def test_nothing_outlives_who_started_it(tmp_path: Path) -> None:
    """A test run that is killed, or whose leash is killed, leaves no process behind."""
    leash = ROOT / "tests" / "services" / "leash.py"
    starter = f"""\
import os, subprocess, sys, time
leash = subprocess.Popen([sys.executable, "-I", "-S", {str(leash)!r}, str(os.getpid()), "sleep", "600"],
                         stdout=subprocess.PIPE)
print(leash.pid, int(leash.stdout.readline()), flush=True)
time.sleep(600)
"""
    for victim in ("starter", "leash"):
        with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            leash_pid, command_pid = map(int, run.stdout.readline().split())
            try:
                assert is_alive(command_pid)
                os.kill(run.pid if victim == "starter" else leash_pid, signal.SIGKILL)
                assert wait_until(lambda pid=command_pid: not is_alive(pid)), f"{victim} killed, its command lives"
            finally:
                run.kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command_pid, signal.SIGKILL)


def test_a_taken_port_is_told(broker: Broker, tmp_path: Path) -> None:
    """Who asks for a port that is not free is told so, and no process is started."""
    with pytest.raises(BrokerFailed, match=broker.bootstrap.split(":")[1]):
        Broker(tmp_path, port=int(broker.bootstrap.split(":")[1])).start()
    assert not (tmp_path / "data").exists()


@pytest.mark.night
def test_make_kafka_runs_one_for_a_person(tmp_path: Path) -> None:
    """It says where it is, has the topics asked for, and stops at SIGTERM without a trace of a process."""
    command = [sys.executable, "-m", "tests.services.kafka_broker", "--directory", str(tmp_path), "--port", "0"]
    with subprocess.Popen([*command, "clicks:3"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            said = ""
            while "stops it" not in said:
                line = run.stdout.readline()
                assert line, said
                said += line
            bootstrap = said.split("bootstrap")[1].split()[0]
            topics = Producer({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
            assert len(topics["clicks"].partitions) == 3
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 0
        finally:
            run.kill()
    assert not Path("/proc").joinpath(str(run.pid)).exists()
    holders = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(tmp_path).encode() in _command_line(entry)
    ]
    assert holders == []


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
