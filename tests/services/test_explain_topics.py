"""`explain` of a job on topics: every copy with its verdict and place, from the records that the brokers hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from deduper.cli.main import app
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, config_file, header, records, settings
from tests.services.kafka_traffic import Record, forget_before, read, recreate_topic, send

pytestmark = [pytest.mark.services, pytest.mark.spark]
PORTS = ("unique", "duplicate", "expired")


def explained(file: Path, key: str) -> Any:
    """`explain`."""
    done = CliRunner().invoke(app, ["explain", str(file), key, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


@pytest.mark.night
def test_every_copy_is_found_in_the_topics(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """For three keys, just the copies that the topics have, in two windows; the key of no record has none."""
    source = new_topic("in", partitions=2)
    store = {"url": "file:state", "shards": 2, "first_seen": True}
    job = KafkaJob(tmp_path, session, settings(broker, source, topics, store=store))
    file = config_file(tmp_path, job.settings)
    for first in (0, 300):
        send(broker.plain(), source, records(300, first=first))
        assert job.run().rows == 300
    ports = {port: read(broker.plain(), topics[port]) for port in PORTS}
    for key in ("k1", "k7", "k29"):
        there = sorted(
            (port, header(record, "dedup-origin"), int(header(record, "dedup-window") or -1))
            for port, sent in ports.items()
            for record in sent
            if json.loads(record.value or b"{}").get("k") == key
        )
        found = explained(file, key)
        of_topics = [copy for copy in found["copies"] if copy["known_by"] == "output"]
        assert sorted((copy["verdict"], copy["place"], copy["window"]) for copy in of_topics) == there
        assert len({copy["window"] for copy in of_topics}) == 2
        duplicate = next(copy for copy in of_topics if copy["verdict"] == "duplicate")
        assert duplicate["first"]["place"].startswith(f"{source}-")
        assert duplicate["record"]["t"] is not None
        assert duplicate["output"].startswith(topics["duplicate"])
    assert explained(file, "nobody")["copies"] == []


@pytest.mark.night
def test_what_cannot_be_read_is_said(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """A port without headers; a topic that is gone; the store answers all the same."""
    source = new_topic("in", partitions=1)
    job = KafkaJob(tmp_path, session, settings(broker, source, topics, store={"url": "file:state", "shards": 2}))
    job.settings["sinks"]["duplicate"] = {**job.settings["sinks"]["duplicate"], "dedup_headers": []}
    send(broker.plain(), source, records(100))
    job.run()
    job.settings["sinks"]["expired"] = {**job.settings["sinks"]["expired"], "topic": "never-made"}
    found = explained(config_file(tmp_path, job.settings), "k1")
    said = " ".join(found["unread"])
    assert "duplicate: topic" in said
    assert "no header `dedup-reason`" in said
    assert "expired: topic never-made was not read: the cluster has no topic never-made" in said
    assert {copy["verdict"] for copy in found["copies"]} == {"unique"}


def test_conflicts_name_their_columns_by_the_records_of_the_source(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """Though `unique` is a topic; a first copy is left out that is deleted, or whose topic was made anew."""
    source = new_topic("in", partitions=1)
    sections = settings(broker, source, topics, fingerprint="all")
    sections["source"]["value"] = {"format": "json", "schema": "k string, t long, page string"}
    sections["expiry"] = {"by": "never"}
    sections["sinks"]["duplicate"] = {"format": "parquet", "path": "out/duplicate"}
    job = KafkaJob(tmp_path, session, sections)
    for page in ("/", "/again"):
        values = [json.dumps({"k": f"k{key}", "t": 1, "page": page}).encode() for key in range(40)]
        send(broker.plain(), source, [Record(value) for value in values])
        assert job.run().rows == 40

    def conflicts() -> Any:
        found = CliRunner().invoke(app, ["status", str(config_file(tmp_path, sections)), "--conflicts", "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    found = conflicts()
    assert (found["total"], found["compared"], found["columns"], found["unread"]) == (40, 40, {"page": 40}, [])
    forget_before(broker, source, {0: 10})
    assert conflicts()["columns"] == {"page": 30}
    recreate_topic(broker, source)
    send(broker.plain(), source, [Record(value) for value in reversed(values)])
    assert conflicts()["compared"] == 0
    broker.delete_topic(source)
    assert f"first copies: the source was not read: the cluster has no topic {source}" in conflicts()["unread"][0]
