"""Decides, from the group's committed offset, whether a slot of a window was published. PURE.

A slot is one writer of one port. Its consumer group holds one committed offset, for partition 0 of the port's topic:

    offset     the greatest published window + 1
    metadata   "1 <window>:<checksum> <window>:<checksum> ..."

1. `1`: the version; any other is refused.
2. The last `REMEMBERED` windows this slot has published, newest first, each with the checksum of its commit record in
   16 hexadecimal digits. Windows in which the slot had no rows are left out.

Earlier windows are kept too, because they are checked in two cases. After a power cut several windows may lack their
mark, because marks are not synced. And a store that was restored from a backup gives the numbers of published windows
to other rows: to take these as published would lose them silently. 64 entries are at most 2 KB, half of the brokers'
limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from deduper.errors import IntegrityError

REMEMBERED = 64
_FORM = re.compile(r"1( \d+:[0-9a-f]{16})+")


class OnUnknown(Enum):
    """The operator's choice for a window whose publication the cluster has forgotten."""

    REFUSE = "refuse"
    PUBLISH = "publish"
    SKIP = "skip"


class PublishDecision(Enum):
    """The decision for a slot of a window: publish it, it is published, or ask the operator."""

    PUBLISH = "publish"
    PUBLISHED = "published"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Position:
    """A slot's published windows. `checksums` maps windows to checksums of their records; the newest is `last`."""

    last: int
    checksums: Mapping[int, int]

    @classmethod
    def of(cls, offset: int, metadata: str, where: str) -> Position:
        """The position in an offset and its metadata.

        Raises:
            IntegrityError: they were not written by a publisher of this or an earlier version.
        """
        found = _FORM.fullmatch(metadata)
        pairs = [entry.split(":") for entry in metadata.split()[1:]] if found else []
        checksums = {int(window): int(checksum, 16) for window, checksum in pairs}
        if not checksums or max(checksums) != offset - 1:
            raise IntegrityError(
                f"{where}: the committed offset {offset} with metadata {metadata[:80]!r} is not one that deduper of "
                "this version has written; another program commits to this group, or a later version did"
            )
        return cls(offset - 1, MappingProxyType(checksums))

    @property
    def offset(self) -> int:
        """The offset to commit to the group."""
        return self.last + 1

    @property
    def metadata(self) -> str:
        """The metadata to commit with the offset."""
        newest_first = sorted(self.checksums.items(), reverse=True)
        return " ".join(["1", *(f"{window}:{checksum:016x}" for window, checksum in newest_first)])


def after(position: Position | None, window: int, checksum: int) -> Position:
    """The position once a window is published as well; it never goes back."""
    known = {} if position is None else dict(position.checksums)
    known[window] = checksum
    kept = sorted(known, reverse=True)[:REMEMBERED]
    return Position(max(known), MappingProxyType({number: known[number] for number in kept}))


def decision(
    position: Position | None, window: int, checksum: int, *, may_be_forgotten: bool, where: str
) -> PublishDecision:
    """Whether a slot of a window is to be published.

    `may_be_forgotten`: the commit of the window is so old that its offset may have been written and have expired since;
    it matters only when there is no offset.

    Raises:
        IntegrityError: another record was published under this number, or later windows were and this one was not.
    """
    if position is None:
        return PublishDecision.UNKNOWN if may_be_forgotten else PublishDecision.PUBLISH
    if window > position.last:
        return PublishDecision.PUBLISH
    published = position.checksums.get(window)
    if published == checksum:
        return PublishDecision.PUBLISHED
    if published is not None:
        raise IntegrityError(
            f"{where}: window {window} was published from the record with checksum {published:016x}, the log has "
            f"{checksum:016x}: the store was restored or replaced under the same name; use another name for the job"
        )
    if window > min(position.checksums):
        raise IntegrityError(
            f"{where}: window {window} has rows for this slot, but it was passed over when window {position.last} was "
            "published: the store was restored or replaced under the same name; use another name for the job"
        )
    return PublishDecision.UNKNOWN
