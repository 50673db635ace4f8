"""What is wrong between a job and a Kafka cluster, judged from descriptions made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity
from deduper.kafka.preflight.rules import Access, Cluster, Server, Topic, accesses, kafka_diagnostics, probe_id

ALL = frozenset(("READ", "WRITE", "DESCRIBE"))
DAY_MS = 86_400_000
SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * DAY_MS),
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
}


def config(**more: Any) -> Config:
    """A job from topic `in` to topic `out`."""
    source = {
        "format": "kafka",
        "bootstrap_servers": "a:9092,b:9092",
        "topics": ["in"],
        "value": {"format": "json", "schema": "k string"},
    }
    sinks: dict[str, Any] = {port: {"format": "none"} for port in ("duplicate", "expired", "error")}
    sections: dict[str, Any] = {
        "name": "clicks",
        "key": "k",
        "expiry": {"by": "never"},
        "store": {"url": "rocksdb:state", "shards": 2},
        "source": source | more.pop("source", {}),
        "sinks": sinks | {"unique": {"format": "kafka", "topic": "out"} | more.pop("unique", {})} | more,
    }
    if "topic_pattern" in sections["source"]:
        del sections["source"]["topics"]
    return Config.model_validate(sections, context={"base_dir": Path("/nowhere")})


def topic(name: str, **settings: str) -> Topic:
    """A topic as it should be, but for some settings."""
    reported = {key.replace("_", "."): value for key, value in settings.items()}
    return Topic(name, replicas=(3, 3), in_sync=(3, 3), rights=ALL, settings=SETTINGS | reported)


def cluster(*topics: Topic, **more: Any) -> Cluster:
    """A cluster as it should be, but for what is named."""
    known = {one.name: one for one in (topic("in"), topic("out", max_message_bytes="2000000"), *topics)}
    probe = probe_id("clicks", "unique")
    return Cluster(
        **{
            "servers": (Server("a:9092"), Server("b:9092")),
            "cluster_id": "one",
            "brokers": 3,
            "names": frozenset(known),
            "topics": known,
            "groups": {"clicks": ALL, probe: ALL},
            "settings": {"transaction.max.timeout.ms": "900000", "offsets.retention.minutes": "10080"},
            "transactions": {probe: None},
            **more,
        }
    )


def diagnostics(found: Cluster, job: Config | None = None) -> list[Diagnostic]:
    """What is said of the cluster."""
    job = config() if job is None else job
    return kafka_diagnostics(job, [(access, found) for access in accesses(job)])


def only(found: Cluster, job: Config | None = None) -> Diagnostic:
    """The one thing that is said of it."""
    (diagnostic,) = diagnostics(found, job)
    return diagnostic


def test_of_a_cluster_as_it_should_be_nothing_is_said() -> None:
    """No noise: a warning that is always there is read by nobody."""
    assert diagnostics(cluster()) == []


@pytest.mark.parametrize(
    ("found", "severity", "check", "says"),
    [
        (cluster(Topic("in", is_there=False)), "error", "topics", "no topic in"),
        (cluster(Topic("out", is_denied=True)), "error", "topics", "no right Describe"),
        (
            cluster(replace(topic("in"), rights=frozenset(("DESCRIBE",)))),
            "error",
            "rights",
            "no right Read on topic in",
        ),
        (
            cluster(replace(topic("out", max_message_bytes="2000000"), rights=frozenset(("WRITE", "DESCRIBE")))),
            "error",
            "rights",
            "no right Read on topic out",
        ),
        (
            cluster(groups={"clicks": ALL, "clicks/preflight/unique/0": frozenset(("DESCRIBE",))}),
            "error",
            "rights",
            "no right Read on groups that begin with clicks/",
        ),
        (
            cluster(groups={"clicks": frozenset(), "clicks/preflight/unique/0": ALL}),
            "warning",
            "rights",
            "no right Read on group clicks",
        ),
        (
            cluster(transactions={"clicks/preflight/unique/0": "not authorized"}),
            "error",
            "rights",
            "transactional ids that begin with clicks/ are refused",
        ),
        (
            cluster(settings={"transaction.max.timeout.ms": "599999"}),
            "error",
            "transactions",
            "a transaction may take 10m here",
        ),
        (cluster(settings={"offsets.retention.minutes": "60"}), "warning", "offsets", "forget offsets after 60 min"),
        (
            cluster(replace(topic("out", max_message_bytes="2000000", min_insync_replicas="3"), replicas=(3, 2))),
            "error",
            "replicas",
            "min.insync.replicas=3: no write can ever succeed",
        ),
        (
            cluster(replace(topic("out", max_message_bytes="2000000"), in_sync=(3, 1))),
            "warning",
            "replicas",
            "1 replicas in sync and needs 2",
        ),
        (cluster(replace(topic("in"), in_sync=(0, 3))), "warning", "replicas", "without a replica in sync"),
        (cluster(replace(topic("in"), replicas=(1, 1))), "warning", "replicas", "1 replica on a cluster of 3 brokers"),
        (
            cluster(topic("out", max_message_bytes="2000000", cleanup_policy="compact")),
            "warning",
            "cleanup.policy",
            "a record without a key is refused",
        ),
        (cluster(topic("in", cleanup_policy="compact,delete")), "warning", "cleanup.policy", "is never judged"),
        (
            cluster(topic("out", max_message_bytes="2000000", retention_ms=str(DAY_MS))),
            "warning",
            "retention",
            "deletes records 1d after their timestamp",
        ),
        (cluster(topic("in", retention_ms="-1")), "warning", "retention", "in keeps them for ever"),
        (
            cluster(topic("out", max_message_bytes="2000000", message_timestamp_before_max_ms=str(DAY_MS))),
            "warning",
            "timestamps",
            "refuses records older than 1d",
        ),
        (
            cluster(topic("in", message_timestamp_after_max_ms="9223372036854775807")),
            "warning",
            "timestamps",
            "more than 1h ahead of its clock",
        ),
        (cluster(topic("out", max_message_bytes="1020000")), "warning", "sizes", "the first larger one stops the job"),
        (
            cluster(topic("in", max_message_bytes="100000"), topic("out", max_message_bytes="500000")),
            "warning",
            "batches",
            "batches of up to 1000000",
        ),
        (cluster(topic("out")), "note", "sizes", "the headers that are added"),
        (
            cluster(replace(topic("out", max_message_bytes="2000000"), settings=None)),
            "note",
            "settings",
            "may not be read",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_thing_that_is_wrong_is_told_with_a_remedy(found: Cluster, severity: str, check: str, says: str) -> None:
    """One cause, one diagnostic, and what to do."""
    diagnostic = only(found)
    assert (diagnostic.severity, diagnostic.check) == (severity, check)
    assert says in diagnostic.what
    assert diagnostic.remedy


def test_a_batch_may_be_as_large_as_the_topic_takes() -> None:
    """By the port's own `batch.size` if it has one."""
    found = cluster(topic("in", max_message_bytes="100000"), topic("out", max_message_bytes="500000"))
    (said,) = diagnostics(found)
    assert "`kafka.batch.size: 500000` in sinks.unique.options" in (said.remedy or "")
    for unique in (
        {"options": {"kafka.batch.size": "500000"}},
        {"options": {"kafka.batch.size": "900000", "librdkafka.batch.size": "400000"}},
    ):
        assert diagnostics(found, config(unique=unique)) == []
    larger = config(unique={"options": {"kafka.batch.size": "500001"}})
    assert [diagnostic.check for diagnostic in diagnostics(found, larger)] == ["batches"]


def test_just_enough_replicas_are_enough() -> None:
    """As many as must be in sync; and one, where there is one broker."""
    out = replace(topic("out", max_message_bytes="2000000"), replicas=(2, 2), in_sync=(2, 2))
    assert diagnostics(cluster(out)) == []
    alone = [replace(topic(name, min_insync_replicas="1"), replicas=(1,), in_sync=(1,)) for name in ("in", "out")]
    found = diagnostics(cluster(*alone, brokers=1))
    assert [diagnostic.check for diagnostic in found if diagnostic.severity is not Severity.NOTE] == []


def test_a_topic_that_gives_records_its_own_time_deletes_none_early() -> None:
    """With LogAppendTime neither retention nor limits go by the source's timestamps."""
    out = topic(
        "out",
        max_message_bytes="2000000",
        message_timestamp_type="LogAppendTime",
        retention_ms="1000",
        message_timestamp_before_max_ms="1000",
    )
    assert diagnostics(cluster(out)) == []


def test_which_of_the_servers_is_down() -> None:
    """One of two: the job starts. All: it does not. Wrongly configured: an error though another would do."""
    up, down = Server("a:9092"), Server("b:9092", "nobody listens there")
    diagnostic = only(cluster(servers=(up, down)))
    assert (diagnostic.severity, "b:9092" in diagnostic.what) == (Severity.WARNING, True)
    both = diagnostics(Cluster((replace(down, address="a:9092"), down)))
    assert [diagnostic.severity for diagnostic in both] == [Severity.ERROR] * 2
    assert only(cluster(servers=(up, replace(down, lasts=True)))).severity is Severity.ERROR


def test_nothing_is_made_up_of_a_cluster_that_lets_nobody_in() -> None:
    """What could not be asked is not reported as missing."""
    up = (Server("a:9092"),)
    assert [diagnostic.check for diagnostic in diagnostics(Cluster(up, refusal="wrong password"))] == ["login"]
    assert [diagnostic.check for diagnostic in diagnostics(Cluster(up, silence="timed out"))] == ["brokers"]
    of_before = cluster(Topic("in", is_there=False), refusal="wrong password")
    assert only(of_before).check == "login", "what was seen before a refusal is no finding"
    assert [diagnostic.severity for diagnostic in diagnostics(Cluster(unseen="a JKS store"))] == [Severity.NOTE]


def test_a_pattern_that_matches_nothing_is_a_warning() -> None:
    """The topics may come later."""
    job = config(source={"topic_pattern": "other-.*"})
    found = cluster()
    diagnostic = only(replace(found, topics={"out": found.topics["out"]}), job)
    assert (diagnostic.severity, diagnostic.place) == (Severity.WARNING, "source.topic_pattern")


def test_a_loop_by_another_name_of_the_same_brokers() -> None:
    """The configuration knows names, only the cluster its id."""
    job = config(unique={"topic": "in", "bootstrap_servers": "c:9092"})
    found = cluster(topic("in", max_message_bytes="2000000"))
    assert [diagnostic.check for diagnostic in diagnostics(found, job) if diagnostic.severity is Severity.ERROR] == [
        "loop"
    ]


def test_a_port_elsewhere_with_a_topic_of_the_same_name_is_no_loop() -> None:
    """Two clusters may both have it."""
    job = config(unique={"topic": "in", "bootstrap_servers": "c:9092"})
    here, there = accesses(job)
    found = kafka_diagnostics(job, [(here, cluster()), (there, replace(cluster(), cluster_id="two"))])
    assert [diagnostic.check for diagnostic in found if diagnostic.severity is not Severity.NOTE] == []


def test_two_ports_with_one_topic_are_told() -> None:
    """Only a header would tell their rows apart."""
    diagnostic = only(cluster(), config(duplicate={"format": "kafka", "topic": "out"}))
    assert (diagnostic.check, diagnostic.place) == ("ports", "sinks.duplicate.topic")


def test_ports_that_connect_alike_are_asked_for_together() -> None:
    """One client for the source and its ports; another for a port with brokers or a login of its own."""
    job = config(
        unique={"options": {"kafka.compression.type": "zstd"}},
        duplicate={"format": "kafka", "topic": "dup", "options": {"kafka.client.id": "other"}},
        expired={"format": "kafka", "topic": "old", "bootstrap_servers": "c:9092"},
    )
    found = accesses(job)
    assert [list(access.ports) for access in found] == [["unique"], ["duplicate"], ["expired"]]
    assert [access.place for access in found] == ["source", "sinks.duplicate", "sinks.expired"]
    assert isinstance(found[0], Access)
