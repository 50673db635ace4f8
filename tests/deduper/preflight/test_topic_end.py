"""A start and `check` compare the last records of topics with the schema: on librdkafka's own mock of brokers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.kafka import commands
from deduper.preflight import checks, first_records
from deduper.preflight.results import Start
from tests.deduper.kafka.mock_cluster import MockCluster

NULL = "; correct the schema: a column without a field of its name is null"
CANARY = "canary-of-a-value"
GOOD = {"user": CANARY, "id": 1, "ts": "2026-06-01T11:00:00Z", "page": "/"}


def renamed(**names: str) -> dict[str, Any]:
    """A record whose fields have other names; one without any is left out."""
    return {names.get(name, name): value for name, value in GOOD.items() if names.get(name, name)}


# The records of a partition, in order, and what is found.
LEAVE = "source.value.schema: {} of the {} last records of {{}} would leave by the error port "
NO_OBJECTS = LEAVE.format(5, 5) + "(malformed: the line is no object); correct the settings, or the producer"

CASES: dict[str, tuple[Sequence[object], list[str]]] = {
    "as declared": ([GOOD] * 3, []),
    "no record": ([], []),
    "a typo in the key": (
        [renamed(user="usr")] * 3,
        ["source.value.schema: the last records of {} have no `user`, but `usr`" + NULL],
    ),
    "another case": (
        [renamed(ts="TS")],
        ["source.value.schema: the last records of {} have no `ts`, but `TS`" + NULL],
    ),
    "a key without a name that is near": (
        [renamed(user="who")],
        ["source.value.schema: the last records of {} have no `user`" + NULL],
    ),
    "a column that is not needed": ([renamed(page="")], []),
    "a typo in one that is not needed": (
        [renamed(page="pages")],
        ["source.value.schema: the last records of {} have no `page`, but `pages`" + NULL],
    ),
    "one good record among others": (
        [renamed(user="usr")] * 5 + [GOOD],
        [LEAVE.format(5, 6) + "(null_key: user: no such field); they lack `user`, but have `usr`"],
    ),
    "one bad record among others": ([renamed(user="usr")] + [GOOD] * 20, []),
    "a near name in one record alone": (
        [renamed(user="usr"), renamed(user=""), renamed(user="")],
        ["source.value.schema: the last records of {} have no `user`" + NULL],
    ),
    "records before the last": ([renamed(user="usr")] * 3 + [GOOD] * 20, []),
    "values that are no objects": ([b"\xff", b"[1]", b"7", b"", None, b"[" * 100_000], [NO_OBJECTS]),
    "some that are none": (
        [b"\xff", renamed(user="usr")],
        ["source.value.schema: the last records of {} have no `user`, but `usr`" + NULL],
    ),
}


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    """Topics of two partitions."""
    return MockCluster(partitions=2)


def topic(cluster: MockCluster, name: str, records: Sequence[object], partition: int = 1) -> str:
    """A new topic with records in one of its partitions."""
    cluster.new_topic(name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for record in records:
        value = record if record is None or isinstance(record, bytes) else json.dumps(record).encode()
        producer.produce(name, value, partition=partition)
    assert producer.flush(10) == 0
    return name


def job(folder: Path, bootstrap: str, topics: Sequence[str], value: Mapping[str, str] | None = None) -> Config:
    """A job that reads these topics."""
    value = value or {"format": "json", "schema": "user string, id long, ts timestamp, page string"}
    settings = {
        "name": "clicks",
        "source": {
            "format": "kafka",
            "bootstrap_servers": bootstrap,
            "topics": list(topics),
            "value": dict(value),
            "record": {"arrived": "timestamp"},
        },
        "key": ["user"] if "schema" in value else ["value"],
        "expiry": {"by": "event_time", "field": "ts" if "schema" in value else "arrived", "period": "24h"},
        "store": {"url": "file:state", "shards": 2},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")
    return load_config(file, environment={})


@pytest.fixture(autouse=True)
def answers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is: a start gives the brokers little time, and says nothing without an answer."""
    monkeypatch.setattr(first_records, "_ANSWER_S", 30.0)


def found(config: Config) -> list[str]:
    """What the check finds."""
    return [str(one) for one in first_records.topic_columns(Start(config))]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_last_records_of_a_topic(cluster: MockCluster, tmp_path: Path, case: str) -> None:
    """The nearest name is shown, and nothing else of a record."""
    records, expected = CASES[case]
    name = topic(cluster, case.replace(" ", "-"), records)
    texts = found(job(tmp_path, cluster.bootstrap, [name]))
    assert texts == [text.format(name) for text in expected]
    assert CANARY not in str(texts)


def test_each_topic_has_its_own_records(cluster: MockCluster, tmp_path: Path) -> None:
    """One topic of three is of another producer."""
    names = [
        topic(cluster, name, [record]) for name, record in {"a": GOOD, "b": renamed(user="uzer"), "c": GOOD}.items()
    ]
    (text,) = found(job(tmp_path, cluster.bootstrap, names))
    assert "the last records of b have no `user`, but `uzer`" in text


def test_only_names_of_json_are_compared(cluster: MockCluster, tmp_path: Path) -> None:
    """Plain text has no names."""
    name = topic(cluster, "text", [renamed(user="usr")])
    assert found(job(tmp_path, cluster.bootstrap, [name], {"format": "text"})) == []


def test_large_records_are_few(cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more bytes are taken than the bound and one record."""
    monkeypatch.setattr(commands, "_BYTES", 250_000)
    name = topic(cluster, "large", [{**GOOD, "page": "x" * 100_000}] * 8)
    config = job(tmp_path, cluster.bootstrap, [name])
    values = commands.last_values(config.source, seconds=30.0)  # type: ignore[arg-type]
    assert len(values[name]) == 3


def test_brokers_that_do_not_answer_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another check reports them."""
    monkeypatch.setattr(first_records, "_ANSWER_S", 0.2)
    began = time.monotonic()
    assert found(job(tmp_path, "127.0.0.1:9", ["clicks"])) == []
    assert time.monotonic() - began < 20


def test_a_start_logs_the_warning(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on."""
    config = job(tmp_path, cluster.bootstrap, [topic(cluster, "logged", [renamed(user="usr")])])
    monkeypatch.setattr(
        checks, "CHECKS", [check for check in checks.CHECKS if check.find is first_records.topic_columns]
    )
    with caplog.at_level(logging.WARNING):
        checks.require(Start(config, waits=True))
    assert [record.getMessage() for record in caplog.records] == [
        "source.value.schema: the last records of logged have no `user`, but `usr`" + NULL
    ]
