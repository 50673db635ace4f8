"""Two executors that publish: a Spark of several processes beside the tests', and failpoints in its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bucket_store import failpoints
from deduper.sinks.publisher import Outcome, PortWork
from deduper.sinks.task_publisher import TaskPublisher
from tests.spark.cluster import Cluster, cluster_of

MASTER = "local-cluster[2,1,1024]"


class ByTasks:
    """A `Publisher`: that of tasks, in the process of a cluster's driver."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def publish(self, works: Sequence[PortWork]) -> list[dict[int, Outcome]]:
        """See `Publisher`."""
        return self._cluster.call(_publish, list(works))

    def close(self) -> None:
        """Nothing to close."""


def _publish(session: SparkSession, works: Sequence[PortWork]) -> list[dict[int, Outcome]]:
    return TaskPublisher(lambda: session).publish(works)


@contextmanager
def executors(directory: Path, armed: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster whose workers do the action of a failpoint whenever `directory/<failpoint>` exists: once for a file."""
    setting = [f"{name}={action}:on={directory / name}" for name, action in (armed or {}).items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(failpoints.ENVIRONMENT, ",".join(setting))
        with cluster_of(MASTER, directory / "cluster") as cluster:
            yield cluster
