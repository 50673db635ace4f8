"""Looking at a real broker before a start: reach, login, TLS, rights, topics; and waiting for one that is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity
from deduper.errors import CheckFailedError
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.preflight.examine import examine, require
from deduper.preflight import first_records
from deduper.preflight.results import Start
from deduper.service.job import run
from deduper.window.policy import fixed_settings
from tests.services.kafka_broker import Broker
from tests.services.kafka_connection import Connection
from tests.services.kafka_jobs import KafkaJob, settings
from tests.services.kafka_traffic import Record, send

pytestmark = pytest.mark.services

NOBODY = "127.0.0.1:9"
_PATIENT_S = 60.0
"""For the answer of a broker that is up, however busy this machine is."""
_ACLS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}


@pytest.fixture
def job(broker: Broker, new_topic: Callable[..., str], tmp_path: Path) -> Callable[..., Config]:
    """Makes jobs from one topic to one on the shared broker, with changes to the source."""
    source, sink = new_topic("in", partitions=3), new_topic("out", max_message_bytes=2_000_000)

    def make(**more: Any) -> Config:
        return config(tmp_path, broker.plain(), source, sink, **more)

    return make


def config(directory: Path, connection: Connection, source: str, sink: str, **more: Any) -> Config:
    """A job from a topic to a topic by this connection."""
    options = {name: text for name, text in connection.spark().items() if name != "kafka.bootstrap.servers"}
    named: Any = connection  # no more of a broker is wanted than its address
    sections = settings(named, source, {"unique": sink})
    sections["source"] |= {"options": options, **more}
    sections["sinks"] |= {port: {"format": "none"} for port in ("duplicate", "expired", "error")}
    return KafkaJob(directory, None, sections).config


def wrong(found: list[Diagnostic]) -> list[str]:
    """What is worse than a note."""
    return [
        f"{diagnostic.severity} {diagnostic.check}: {diagnostic}"
        for diagnostic in found
        if diagnostic.severity != "note"
    ]


def test_a_broker_as_it_should_be(job: Callable[..., Config], broker: Broker) -> None:
    """Nothing is wrong; cluster and partitions are reported; no group is made."""
    admin = broker.admin()
    before = {group.group_id for group in admin.list_consumer_groups().result(10).valid}
    found = examine(job(), seconds=_PATIENT_S)
    assert wrong(found) == []
    reported = found[-1].what
    assert broker.cluster_id in reported
    assert "(3)" in reported
    assert {group.group_id for group in admin.list_consumer_groups().result(10).valid} == before


def test_everything_wrong_is_told_at_once(job: Callable[..., Config]) -> None:
    """One dead server of two and a topic that is missing; with the exit code of a failed check."""
    bad = job(bootstrap_servers=f"{NOBODY},{job().source.bootstrap_servers}", topics=["nope"])
    reported = wrong(examine(bad, seconds=_PATIENT_S))
    assert [text.split(":")[0] for text in reported] == ["warning brokers", "error topics"]
    assert NOBODY in reported[0]
    with pytest.raises(CheckFailedError, match="no topic nope; create it") as failure:
        require(bad)
    assert failure.value.exit_code == 3


def test_a_start_that_is_refused_disturbs_nobody(job: Callable[..., Config]) -> None:
    """No store is made, and no epoch claimed, by a job whose topic is missing."""
    sound = job()
    bad = sending(sound, "nope")

    def start() -> None:
        with pytest.raises(CheckFailedError, match="no topic nope"):
            run(bad, once=True, max_windows=None, take_over=True, on_progress=lambda _: None)

    start()
    assert not bad.store.path.exists()
    log = CommitLog.create(local_place(sound.store.path), fixed_settings(sound), wall_us=1)
    assert log.claim_epoch("owner", 1) == 1
    start()
    assert CommitLog.open(local_place(sound.store.path)).state.epoch == 1


def sending(job: Config, topic: str) -> Config:
    """The job with another topic for its unique rows."""
    unique = job.sinks.unique.model_copy(update={"topic": topic})
    return job.model_copy(update={"sinks": job.sinks.model_copy(update={"unique": unique})})


@pytest.mark.night
def test_a_broker_that_is_down_is_told_at_once_and_waited_for(
    job: Callable[..., Config], broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """`examine` answers; `require` waits, says so, goes on when the broker is back, and gives up at its deadline."""
    broker.kill()
    began = time.monotonic()
    assert [text.split(":")[0] for text in wrong(examine(job(), seconds=2 * _PATIENT_S))] == ["error brokers"]
    assert time.monotonic() - began < _PATIENT_S
    with pytest.raises(BrokerUnavailableError, match="Connection refused"):
        require(job(deadline="1s"))
    waiting = threading.Thread(target=require, args=(job(deadline="10min"),), daemon=True)
    waiting.start()
    until = time.monotonic() + 30
    while "retrying, gives up" not in caplog.text and time.monotonic() < until:
        time.sleep(0.05)
    assert waiting.is_alive()
    broker.start()
    waiting.join(300)
    assert not waiting.is_alive()
    assert "waiting for the brokers" in caplog.text


def test_a_broker_that_stands_still_is_no_hang(job: Callable[..., Config], broker: Broker) -> None:
    """It takes connections and answers nothing: told after the seconds that it has, long before its client would."""
    broker.freeze()
    began = time.monotonic()
    (reported,) = wrong(examine(job(), seconds=3))
    assert "no answer within" in reported
    assert time.monotonic() - began < 30


@pytest.mark.night
@pytest.mark.parametrize(
    ("connect", "check", "says"),
    [
        (lambda broker: broker.sasl("alice", "wrong"), "login", "Invalid username or password"),
        (lambda broker: Connection(broker.sasl("alice").bootstrap), "brokers", "requires a login"),
        (lambda broker: Connection(broker.tls().bootstrap), "brokers", "it speaks TLS there"),
        (lambda broker: broker.tls("stranger"), "brokers", "TLS failed"),
        (lambda broker: broker.tls(None), "brokers", "TLS failed"),
        (
            lambda broker: Connection(broker.bootstrap, broker.tls().authority, broker.tls().identity),
            "brokers",
            "TLS failed",
        ),
    ],
    ids=["password", "no login", "no TLS", "stranger", "no certificate", "TLS to plain"],
)
def test_who_is_not_let_in_learns_why(
    secure_broker: Broker, tmp_path: Path, connect: Callable[[Broker], Connection], check: str, says: str
) -> None:
    """With the reason, without a password in it, and in a start too, which does not wait for it."""
    job = config(tmp_path, connect(secure_broker), "in", "out")
    found = [diagnostic for diagnostic in examine(job, seconds=_PATIENT_S) if diagnostic.severity is Severity.ERROR]
    assert [diagnostic.check for diagnostic in found] == [check]
    assert says in found[0].what
    assert "wrong" not in str(found[0])
    with pytest.raises(CheckFailedError, match=says):
        require(job)


@pytest.mark.night
def test_every_missing_right_is_named(secure_broker: Broker, tmp_path: Path) -> None:
    """Granted one after another: each grant takes its complaint away, and in the end nothing is left."""
    source = secure_broker.create_topic("rights-in")
    sink = secure_broker.create_topic("rights-out", max_message_bytes=2_000_000)
    job = config(tmp_path, secure_broker.sasl("bob"), source, sink, group="lag")

    def left() -> set[str]:
        return {text.partition("; ")[0].partition(": ")[2] for text in wrong(examine(job, seconds=_PATIENT_S))}

    def wait_for(reported: set[str]) -> None:
        """ACLs take effect a moment after they are made."""
        until = time.monotonic() + 20
        while left() != reported:
            assert time.monotonic() < until, f"{left()} instead of {reported}"
            time.sleep(0.05)

    group, prefix = "no right Read on group lag: lag tools would see no offsets of the job", "test/"
    transactions = f"transactional ids that begin with {prefix} are refused: not authorized"
    offsets = f"no right Read on groups that begin with {prefix}"
    expected = {
        f"source.topics: topic {source} does not exist, or this user has no right Describe on it",
        f"sinks.unique.topic: topic {sink} does not exist, or this user has no right Describe on it",
        f"source.group: {group}",
        f"sinks.unique: {transactions}",
        f"sinks.unique: {offsets}",
    }
    wait_for(expected)
    for grant, gone, come in (
        (("topic", source, "DESCRIBE"), "source.topics", f"source.topics: no right Read on topic {source}"),
        (("topic", source, "READ"), "source.topics", None),
        (("topic", sink, "WRITE"), "sinks.unique.topic", f"sinks.unique.topic: no right Read on topic {sink}"),
        (("topic", sink, "READ"), "sinks.unique.topic", None),
        (("group", "lag", "READ"), "source.group", None),
        (("group", prefix, "READ"), f"sinks.unique: {offsets}", None),
        (("transactional id", prefix, "WRITE"), f"sinks.unique: {transactions}", None),
    ):
        allow(secure_broker, "bob", *grant)
        expected = {text for text in expected if not text.startswith(gone)} | ({come} if come else set())
        wait_for(expected)
    assert expected == set()
    require(job)


@pytest.mark.night(but=["read_committed"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_names_are_those_of_records_that_the_source_reads(
    job: Callable[..., Config], broker: Broker, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a transaction that was aborted are read by a source alone that reads all."""
    monkeypatch.setattr(first_records, "_ANSWER_S", 30.0)  # however busy this machine is
    reader = job(options={"kafka.isolation.level": isolation})
    topic = reader.source.topics[0]
    producer = Producer(broker.plain().confluent(**{"transactional.id": f"names-{isolation}"}))
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b'{"kk": "secret", "t": 1}', partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    expected = {
        "read_committed": [],
        "read_uncommitted": [
            f"source.value.schema: the last records of {topic} have no `k`, but `kk`; correct the schema: a column "
            "without a field of its name is null"
        ],
    }
    assert [str(found) for found in first_records.topic_columns(Start(reader))] == expected[isolation]


@pytest.mark.night
def test_names_are_read_by_the_login_of_the_source(secure_broker: Broker, tmp_path: Path) -> None:
    """With the rights on the topic alone, none on a group. Without them nothing is said here."""
    topic = secure_broker.create_topic("names")
    send(secure_broker.plain(), topic, [Record(b'{"kk": "secret", "t": 1}')])
    job = config(tmp_path, secure_broker.sasl_tls("alice"), topic, "elsewhere")
    assert list(first_records.topic_columns(Start(job))) == []
    for right in ("DESCRIBE", "READ"):
        allow(secure_broker, "alice", "topic", topic, right)
    until = time.monotonic() + 20  # ACLs take effect a moment after they are made
    while not (found := [str(one) for one in first_records.topic_columns(Start(job))]):
        assert time.monotonic() < until
    assert f"the last records of {topic} have no `k`, but `kk`" in found[0]
    assert "secret" not in found[0]


def allow(broker: Broker, user: str, kind: str, name: str, right: str) -> None:
    """Grant a right; names that end with a slash are prefixes."""
    pattern = ResourcePatternType.PREFIXED if name.endswith("/") else ResourcePatternType.LITERAL
    operation = AclOperation[right]
    binding = AclBinding(_ACLS[kind], name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    broker.admin().create_acls([binding])[binding].result(20)


def test_what_a_real_topic_says_of_itself(job: Callable[..., Config], new_topic: Callable[..., str]) -> None:
    """Retention, compaction and sizes are read from the broker."""
    odd = new_topic("odd", cleanup_policy="compact,delete", retention_ms=60_000, max_message_bytes=1000)
    assert [text.split(":")[0] for text in wrong(examine(sending(job(), odd), seconds=_PATIENT_S))] == [
        "warning cleanup.policy",
        "warning batches",
        "warning retention",
        "warning sizes",
    ]
