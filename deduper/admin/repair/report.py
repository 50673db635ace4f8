"""The damage of a store and its repair: values, and their JSON. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bucket_store.log.sources_file import DIRECTORY as SOURCES
from bucket_store.pieces.piece import PieceRef
from deduper.as_json import AsJson


class Way(StrEnum):
    """How a piece is repaired."""

    REBUILD = "rebuild"
    """Rebuilt from the outputs, the same bytes."""
    DROP = "drop"
    """All its keys are expired: it leaves the store as it would have done anyway."""
    FORGET = "forget"
    """The caller has named it: it leaves the store, and its keys with it."""
    NONE = "none"
    """Nothing can be done without a decision."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A live piece that is not what its record names. `offset` counts from the beginning of `piece.file`."""

    piece: PieceRef
    what: str
    offset: int
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class PieceRepair:
    """A damaged piece, its repair, and the reason for it."""

    damage: Damage
    way: Way
    why: str

    @property
    def piece(self) -> PieceRef:
        """The piece that is damaged."""
        return self.damage.piece

    @property
    def label(self) -> str:
        """How `--forget` names it."""
        return f"{self.piece.first_window}/{self.piece.shard}"


@dataclass(frozen=True, slots=True)
class SourcesRepair:
    """A window's sources file that is missing or damaged, and whether it can be rebuilt."""

    window: int
    name: str
    error: str
    way: Way
    why: str


@dataclass(frozen=True, slots=True)
class RepairReport(AsJson):
    """The damage and its repair, planned or applied. `left_files` are those that move into the quarantine."""

    is_applied: bool
    pieces_read: int
    repairs: tuple[PieceRepair, ...]
    left_files: tuple[str, ...]
    copied: int
    unfinished: tuple[str, ...]
    consequence: str
    sources: tuple[SourcesRepair, ...]

    @property
    def waiting(self) -> tuple[PieceRepair, ...]:
        """Those that nothing is done for: without a way, or in one file with such a one."""
        return tuple(repair for repair in self.repairs if repair.piece.file not in self.left_files)

    @property
    def is_sound(self) -> bool:
        """Nothing is damaged, or nothing is any more."""
        if self.is_applied:
            return not self.waiting and all(item.way is Way.REBUILD for item in self.sources)
        return not self.repairs and not self.unfinished and not self.sources

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "sound": self.is_sound,
            "applied": self.is_applied,
            "pieces": self.pieces_read,
            "damaged": [
                {**damage_json(repair), "done": self.is_applied and repair not in self.waiting}
                for repair in self.repairs
            ],
            "left_files": list(self.left_files),
            "copied_pieces": self.copied,
            "unfinished": list(self.unfinished),
            "consequence": self.consequence,
            "sources": [
                {
                    "window": item.window,
                    "file": f"{SOURCES}/{item.name}",
                    "what": item.error,
                    "way": item.way.value,
                    "why": item.why,
                    "done": self.is_applied and item.way is Way.REBUILD,
                }
                for item in self.sources
            ],
        }


def damage_json(repair: PieceRepair) -> dict[str, Any]:
    """Stable keys for `--json` and for the notes."""
    piece, damage = repair.piece, repair.damage
    return {
        "piece": piece.name,
        "file": piece.file,
        "window": piece.first_window,
        "last_window": piece.last_window,
        "shard": piece.shard,
        "keys": piece.entries,
        "bytes": piece.length,
        "buckets": [piece.min_bucket, piece.max_bucket],
        "what": damage.what,
        "offset": damage.offset,
        "expected": damage.expected,
        "found": damage.found,
        "way": repair.way.value,
        "why": repair.why,
    }
