"""`check` sees that a topic no longer holds what comes next: on librdkafka's own mock of brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.kafka.cluster import ClusterOffsets
from deduper.kafka.offsets import ENDS, End, TopicPartition, ends_to_wire
from deduper.preflight import connections
from deduper.preflight.results import Start
from tests.deduper.kafka.mock_cluster import MockCluster
from tests.deduper.store_samples import Window, make_store

FIRST = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    """A topic `t` whose first partition holds three records."""
    cluster = MockCluster()
    cluster.new_topic("t")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(3):
        producer.produce("t", b"{}", partition=0)
    assert producer.flush(10) == 0
    return cluster


def job(folder: Path, bootstrap: str, offset: int, topic_id: str = "id of t", data_loss: str = "fail") -> Config:
    """A job whose store has judged partition 0 of the topic with this id up to this offset."""
    schema = "user string, id long, ts timestamp"
    settings = {
        "name": "clicks",
        "source": {
            "format": "kafka",
            "bootstrap_servers": bootstrap,
            "topics": ["t"],
            "data_loss": data_loss,
            "value": {"format": "json", "schema": schema},
        },
        "key": "user",
        "expiry": {"by": "event_time", "field": "ts", "period": "24h", "span": "1h"},
        "store": {"url": "file:state", "shards": 2},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")
    return make_store(file, [Window(extra={ENDS: ends_to_wire({FIRST: End(topic_id, offset)})})])


@pytest.fixture(autouse=True)
def ids(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The ids of topics, which the mock does not give. It answers in time, however busy this machine is."""
    monkeypatch.setattr(connections, "_ANSWER_S", 30.0)
    known = {"t": "id of t"}
    monkeypatch.setattr(
        ClusterOffsets, "topic_ids", lambda _, topics: {name: known[name] for name in topics if name in known}
    )
    return known


def found(config: Config, *, waits: bool = False) -> list[str]:
    """What the check finds."""
    return [f"{one.severity}: {one}" for one in connections.offsets(Start(config, waits=waits))]


def test_a_topic_that_goes_on(cluster: MockCluster, tmp_path: Path) -> None:
    """It ends at the judged offset, or beyond it."""
    assert found(job(tmp_path, cluster.bootstrap, 3)) == []


@pytest.mark.parametrize(("data_loss", "severity"), [("fail", "error"), ("continue", "warning")])
def test_a_topic_that_ends_before_the_judged_offset(
    data_loss: str, severity: str, cluster: MockCluster, tmp_path: Path
) -> None:
    """An error if the job may lose nothing; a start looks itself, after its claim."""
    config = job(tmp_path, cluster.bootstrap, 5, data_loss=data_loss)
    (text,) = found(config)
    assert text.startswith(
        f"{severity}: source: offsets are gone that were not judged: t-0: 2 offsets, from 3 to 4: the broker has lost "
        "what it had acknowledged; "
    )
    assert found(config, waits=True) == []


def test_an_added_partition_that_has_lost_its_first_records(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a start sees it: the job has not judged the partition yet, and its offsets begin at 0."""
    added = TopicPartition("t", 1)
    for name, offset in (("earliest_offsets", 50), ("latest_offsets", 60)):
        real = getattr(ClusterOffsets, name)

        def of_added(
            self: ClusterOffsets, places: set[TopicPartition], *, real: Any = real, offset: int = offset, **more: Any
        ) -> dict[TopicPartition, int]:
            return {**real(self, places - {added}, **more), **dict.fromkeys(places & {added}, offset)}

        monkeypatch.setattr(ClusterOffsets, name, of_added)
    monkeypatch.setattr(ClusterOffsets, "places", lambda _: [FIRST, added])
    (text,) = found(job(tmp_path, cluster.bootstrap, 3))
    assert "t-1: 50 offsets, from 0 to 49: older than what the broker still keeps" in text


def test_a_topic_that_was_recreated(cluster: MockCluster, tmp_path: Path) -> None:
    """Its id is another one, whatever it holds."""
    (text,) = found(job(tmp_path, cluster.bootstrap, 2, topic_id="another"))
    assert "t-0, from offset 2 on: the topic was deleted and recreated" in text


def test_a_topic_that_is_gone(cluster: MockCluster, ids: dict[str, str], tmp_path: Path) -> None:
    """The cluster has no id of it."""
    ids.clear()
    (text,) = found(job(tmp_path, cluster.bootstrap, 2))
    assert "t-0, from offset 2 on: the topic is gone" in text


def test_brokers_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another check reports them; a store that has judged nothing asks nobody."""
    monkeypatch.setattr(connections, "_ANSWER_S", 0.1)
    assert found(job(tmp_path, "127.0.0.1:9", 2, topic_id="another")) == []
    (tmp_path / "new").mkdir()
    (tmp_path / "job.yaml").rename(tmp_path / "new/job.yaml")
    assert found(load_config(tmp_path / "new/job.yaml", environment={})) == []
