"""PURE. From which expiry key on a store has every key: so whether its `unique` is final, or unique so far.

A key that a store has never seen may have come before the store began. It can matter only while such a copy would still
be remembered: so a verdict `unique` is final once the expiry point has passed the first expiry key of which the store
has all keys. Wire form, in the `extra` of a commit (bucket_store/FORMAT.md): [version, point or nil, period or nil].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_VERSION = 1

Point = int | float


@dataclass(frozen=True, slots=True)
class CompleteSince:
    """The store has every key with an expiry key from `point` on; None: every key that there ever was.

    `period` is the one that its windows were judged by: what it has let expire is not known any more. None where keys
    do not expire by a point.
    """

    point: Point | None
    period: Point | None

    @classmethod
    def from_wire(cls, wire: Any) -> CompleteSince | None:
        """The value of a commit; None without one, or one of another version."""
        if not isinstance(wire, list | tuple) or len(wire) != 3 or wire[0] != _VERSION:
            return None
        return cls(wire[1], wire[2])

    def to_wire(self) -> list[Any]:
        """The value for a commit."""
        return [_VERSION, self.point, self.period]

    def covers(self, latest: Point | None, period: Point | None) -> bool:
        """Whether no key from before `point` would still be remembered, now that the latest point is here."""
        since = self._by(latest, period).point
        if since is None:
            return True
        return latest is not None and period is not None and since <= latest - period

    def after(self, before: Point | None, period: Point | None) -> CompleteSince:
        """The same after a window that is judged by `period`; `before` is the latest point before it."""
        return self._by(before, period)

    def _by(self, latest: Point | None, period: Point | None) -> CompleteSince:
        """By a longer period than so far, the store lacks what it let expire by the shorter one."""
        if self.period is None or period is None or latest is None or period <= self.period:
            return CompleteSince(self.point, period)
        forgotten = latest - self.period
        return CompleteSince(forgotten if self.point is None else max(forgotten, self.point), period)
