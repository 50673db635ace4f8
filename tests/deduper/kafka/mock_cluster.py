"""librdkafka's own mock of a cluster, in this process: real clients talk to it by TCP, without a broker."""

from __future__ import annotations

import ctypes
from typing import Any

from confluent_kafka import Producer, cimpl

from deduper.kafka import librdkafka
from deduper.kafka.client import QUIET


class MockCluster:
    """Brokers, one unless more are asked for; topics are made when they are first used, with a number of partitions."""

    def __init__(self, partitions: int = 3, brokers: int = 1) -> None:
        self._library = ctypes.CDLL(cimpl.__file__)
        options = {"test.mock.num.brokers": brokers, "bootstrap.servers": "mock"}
        self._owner = Producer(options, logger=QUIET)  # type: ignore[call-overload]  # it takes any dict
        cluster_of = self._function("rd_kafka_handle_mock_cluster", ctypes.c_void_p)
        self._cluster = cluster_of(librdkafka.handle_of(self._owner))
        self._partitions = partitions
        bootstraps = self._function("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p)
        self.bootstrap: str = bootstraps(self._cluster).decode()

    def new_topic(self, name: str) -> str:
        """A topic."""
        create = self._function("rd_kafka_mock_topic_create", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
        assert create(self._cluster, name.encode(), self._partitions, 1) == 0
        return name

    def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make this broker lead the partition, in a new epoch even if it led before."""
        move = self._function(
            "rd_kafka_mock_partition_set_leader", ctypes.c_int, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32
        )
        assert move(self._cluster, topic.encode(), partition, broker) == 0

    def _function(self, name: str, result: Any, *more: Any) -> Any:
        found = self._library[name]
        found.restype, found.argtypes = result, (ctypes.c_void_p, *more)
        return found
