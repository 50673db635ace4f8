"""The exactly-once sink of one port: its topic, the connection, and the publisher's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Times and sizes of a publisher; the published rows do not depend on them.

    `transaction_timeout_s` must cover the sending of one slot of the largest window. Longer is not better: if a driver
    dies and is not replaced, readers of the topic get nothing for so long.
    """

    deadline_s: float = 300.0
    transaction_timeout_s: float = 600.0
    queue_bytes: int = 64 << 20
    offsets_retention_s: float | None = None


@dataclass(frozen=True, slots=True)
class TransactionalSink:
    """One port's topic and the connection to it; `client` has librdkafka's options.

    `keep_order`: rows without a key go to the same partition as long as their slot is the same, so that they too stay
    in order; otherwise to another one each window, which spreads them. Rows with a key go where Kafka's Java client
    sends them (murmur2), whatever the slot.
    """

    job: str
    store_id: str
    port: str
    topic: str
    client: Mapping[str, str]
    keep_order: bool = False
    settings: PublisherSettings = PublisherSettings()
    stop: Event | None = None

    def transactional_id(self, slot: int) -> str:
        """The name of a slot's producer and of its consumer group."""
        return f"{self.job}/{self.store_id}/{self.port}/{slot}"

    def producer_options(self, name: str) -> dict[str, Any]:
        """The options of a producer: the user's go first, except where the protocol needs one."""
        defaults = {
            "linger.ms": 20,
            "queue.buffering.max.kbytes": max(1, self.settings.queue_bytes >> 10),
            "queue.buffering.max.messages": 100_000,
            # The topic's own limit decides, and its error names the topic.
            "message.max.bytes": min(self.settings.queue_bytes, 64 << 20),
            # A record waits as long as its transaction may: the deadline is ours.
            "message.timeout.ms": self.transaction_timeout_ms,
        }
        fixed = {
            "transactional.id": name,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
        }
        return {**defaults, **self.client, **fixed}

    @property
    def transaction_timeout_ms(self) -> int:
        """After how long the broker aborts an open transaction."""
        return int(self.client.get("transaction.timeout.ms", self.settings.transaction_timeout_s * 1000))
