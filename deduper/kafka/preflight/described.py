"""PURE. A Kafka cluster as its brokers describe it: `examine` asks, `rules` judges.

An answer that is missing is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Server:
    """The result of probing one bootstrap server. `lasts`: no waiting mends the error."""

    address: str
    error: str = ""
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the job. `rights` and `settings` are None when the cluster does not report them."""

    name: str
    is_there: bool = True
    is_denied: bool = False
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    rights: frozenset[str] | None = None
    settings: Mapping[str, str] | None = None

    @property
    def partitions(self) -> int:
        """The number of partitions."""
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
    """The cluster as one access found it.

    `refusal`: why the login was refused. `silence`: why no question was answered, which may pass. `unseen`: why only
    Spark can ask. `groups` has the rights on each group of the job, `transactions` why a transactional id
    was refused: None if it was not.
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
