"""The finished parts of an interrupted re-shard, in `<store>/moving/<plan>/`, so that it continues where it ended.

    <part, 6 digits>      framed, magic `BSMOVING`, version 1: msgpack of a `MovedPart`
    epoch-<6 digits>      empty: a run of this plan has claimed that epoch

A plan's name is a hash of the live pieces, the new number of shards and the size of a part. Pieces
that an earlier run has written are named by no record, so every later owner may delete them. They count only if no
other owner has claimed the store since: the newest epoch of the log is that of the plan's last run.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from bucket_store.errors import StoreError
from bucket_store.framing import frame, unframe
from bucket_store.log.records import LogState
from bucket_store.pieces.piece import PieceRef
from bucket_store.places.new_file import create_own
from bucket_store.places.place import Place
from bucket_store.wire import decode, encode

DIRECTORY = "moving"
_MAGIC = b"BSMOVING"
_VERSION = 1
_EPOCH = re.compile(r"epoch-(\d{6,})")


@dataclass(frozen=True, slots=True)
class MovedPart:
    """One part: its new pieces; count and checksum of the entries that were read, and of those that were kept."""

    added: tuple[PieceRef, ...]
    read_count: int
    read_checksum: int
    kept_count: int
    kept_checksum: int


class Progress:
    """The parts of one plan. For one process, which has claimed the store."""

    def __init__(self, root: Place, state: LogState, *settings: int) -> None:
        """`settings` are the plan's: under others the parts differ."""
        names = sorted(ref.name for refs in state.pieces.values() for ref in refs)
        plan = hashlib.blake2b("\n".join([str(settings), *names]).encode(), digest_size=8).hexdigest()
        self._all = root / DIRECTORY
        self._place = self._all / plan

    def finished(self, last_epoch: int) -> int:
        """The parts that still count for a claim after `last_epoch`; reads names alone."""
        names = [entry.name for entry in self._place.entries()]
        epochs = [int(found[1]) for name in names if (found := _EPOCH.fullmatch(name))]
        return sum(name.isdigit() for name in names) if last_epoch in epochs else 0

    def begin(self, last_epoch: int, epoch: int) -> None:
        """Begins a run of this epoch, the one that was claimed after `last_epoch`; drops parts that do not count."""
        if not self.finished(last_epoch):
            self.remove()
        self._place.make_directories()
        create_own(self._place / f"epoch-{epoch:06d}", b"")

    def part(self, number: int) -> MovedPart | None:
        """A finished part; None when it is to be done."""
        place = self._place / f"{number:06d}"
        try:
            return decode(MovedPart, unframe(place.read(), magic=_MAGIC, version=_VERSION, file=str(place)))
        except (FileNotFoundError, StoreError, ValueError):
            return None

    def add(self, number: int, part: MovedPart) -> None:
        """A part is finished: its pieces are durable."""
        place = self._place / f"{number:06d}"
        place.remove()  # one that could not be read
        create_own(place, frame(_MAGIC, _VERSION, encode(part)))

    def remove(self) -> None:
        """Removes what every plan has left."""
        self._all.remove_tree()
