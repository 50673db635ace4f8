"""PURE. What a Kafka cluster said of itself: `kafka_preflight` asks for it, and `kafka_findings` judges it.

What could not be asked for is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OFFSET_FETCH, ADD_PARTITIONS = 9, 24
"""Requests by whose highest version the age of a broker can be told."""

_AGES = (("2.5", OFFSET_FETCH, 7), ("3.6", ADD_PARTITIONS, 4), ("3.8", ADD_PARTITIONS, 5))


@dataclass(frozen=True, slots=True)
class Server:
    """What came of knocking at one bootstrap server. `versions`: the highest version of each request it takes.

    `lasts`: no waiting mends the error.
    """

    address: str
    error: str = ""
    lasts: bool = False
    versions: Mapping[int, int] | None = None

    @property
    def age(self) -> str | None:
        """The release that it is at least of: one of 2.5, 3.6, 3.8, or empty when older; None when it did not say."""
        if self.versions is None:
            return None
        reached = [release for release, request, version in _AGES if self.versions.get(request, -1) >= version]
        return reached[-1] if reached else ""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that was asked for. `rights` and `settings` are None when the cluster would not tell them."""

    name: str
    is_there: bool = True
    is_denied: bool = False
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    rights: frozenset[str] | None = None
    settings: Mapping[str, str] | None = None

    @property
    def partitions(self) -> int:
        """How many."""
        return len(self.replicas)

    def number(self, name: str) -> int | None:
        """A setting that is a number; None when it is not known."""
        value = None if self.settings is None else self.settings.get(name)
        try:
            return None if value is None else int(value)
        except ValueError:
            return None

    def text(self, name: str) -> str | None:
        """A setting; None when it is not known."""
        return None if self.settings is None else self.settings.get(name)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What was found by one way of connecting.

    `refusal` says why nobody was let in; `silence` why nothing could be asked, which may pass; `unseen` why nobody but
    Spark can ask. `groups` has the rights
    on each group that was asked for, `transactions` what refused a transactional id: None for none.
    """

    servers: tuple[Server, ...] = ()
    refusal: str = ""
    silence: str = ""
    unseen: str = ""
    cluster_id: str | None = None
    brokers: int = 0
    names: frozenset[str] = frozenset()
    topics: Mapping[str, Topic] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None
    transactions: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Whether one of the servers answers."""
        return any(not server.error for server in self.servers)

    def number(self, name: str) -> int | None:
        """A broker's setting that is a number; None when it is not known."""
        value = None if self.settings is None else self.settings.get(name)
        return int(value) if value is not None and value.lstrip("-").isdecimal() else None
