"""Three brokers of one cluster, each with a vote and every partition: any one may be killed or frozen."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

from tests.services.jars import broker_jars
from tests.services.kafka_broker import READY_DEADLINE_S, Broker, new_cluster_id
from tests.services.kafka_connection import Connection

NODES = 3
_REPLICATED: dict[str, str | int] = {
    "default.replication.factor": NODES,
    "min.insync.replicas": NODES - 1,
    "offsets.topic.replication.factor": NODES,
    "transaction.state.log.replication.factor": NODES,
    "transaction.state.log.min.isr": NODES - 1,
    "share.coordinator.state.topic.replication.factor": NODES,
    "share.coordinator.state.topic.min.isr": NODES - 1,
    # Who stands still is out soon, and leads again soon after it is back; no sooner than FAST says of a lone broker.
    "replica.lag.time.max.ms": 6000,
    "leader.imbalance.check.interval.seconds": 5,
}


class Cluster:
    """As one `Broker` to those who use it. `nodes` are for those who ill-treat it."""

    def __init__(self, directory: Path) -> None:
        cluster_id = new_cluster_id()
        self.nodes = [
            Broker(directory / f"node-{number}", settings=_REPLICATED, node=number, cluster_id=cluster_id)
            for number in range(1, NODES + 1)
        ]
        for node in self.nodes:
            node.quorum = self.nodes

    @property
    def bootstrap(self) -> str:
        """All of them, separated by commas."""
        return ",".join(node.bootstrap for node in self.nodes)

    def plain(self) -> Connection:
        """Their PLAINTEXT listeners."""
        return Connection(self.bootstrap)

    def create_topic(self, name: str, partitions: int = 1, **settings: str | int) -> str:
        """See `Broker.create_topic`; every broker has each partition."""
        return self.nodes[0].create_topic(name, partitions, **settings)

    def __enter__(self) -> Cluster:
        jars = os.pathsep.join(map(str, broker_jars()))
        # Each must know all controllers, and none is ready before most are there.
        for node in self.nodes:
            node.choose_ports()
        until = time.monotonic() + READY_DEADLINE_S
        for node in self.nodes:
            node.launch(jars)
        for node in self.nodes:
            node.wait_until_ready(until)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()
