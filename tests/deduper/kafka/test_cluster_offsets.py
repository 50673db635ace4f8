"""What a cluster holds, asked for while its leaders move: on librdkafka's own mock of brokers."""

from __future__ import annotations

import pytest

from deduper.config.kafka.sections import KafkaSource
from deduper.kafka.cluster import ClusterOffsets
from deduper.kafka.errors import BrokerUnavailableError
from deduper.kafka.offsets import TopicPartition
from tests.deduper.kafka.mock_cluster import MockCluster

PLACES = [TopicPartition("t", number) for number in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("leader", [1, 2], ids=["the same broker again", "another broker"])
def test_offsets_are_given_after_a_leader_has_moved(leader: int) -> None:
    """The client's leaders are stale after a move: one answer may fail, the next one is right."""
    cluster = MockCluster(brokers=2)
    cluster.new_topic("t")
    cluster.move_leader("t", 0, 1)
    source = {"format": "kafka", "bootstrap_servers": cluster.bootstrap, "topics": ["t"], "value": {"format": "text"}}
    asking = ClusterOffsets(KafkaSource.model_validate(source))
    assert asking.latest_offsets(PLACES) == dict.fromkeys(PLACES, 0)
    for away in (3 - leader, leader):
        cluster.move_leader("t", 0, away)
    with pytest.raises(BrokerUnavailableError, match=r"epoch|leader"):
        asking.latest_offsets(PLACES)
    assert asking.latest_offsets(PLACES) == dict.fromkeys(PLACES, 0)
