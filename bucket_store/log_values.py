"""PURE. What the commit log says, as values: the five kinds of record, their envelope, and the state they fold to.

The bytes are in `log_record`, the folding in `log_state`, the files in `commit_log`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bucket_store.piece import PieceRef

ExpiryKey = int | float
"""An expiry key: µs or an unscaled integer, or a double, as the store's domain says."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One staged file of one port, and the name it is to be published under."""

    port: str
    staged: str
    final: str
    size_bytes: int
    checksum: int
    rows: int


@dataclass(frozen=True, slots=True)
class SourcesRef:
    """A window's sources file: its name under `sources/`, number of source partitions, checksum and length in bytes.

    `is_kept`: for ever, as nothing else says what was judged; else until no piece can hold an origin of its window.
    """

    name: str
    count: int
    checksum: int
    length: int
    # Not shown: what the files of version 1 say is written down once and for all.
    is_kept: bool = field(default=True, repr=False)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """An owner takes the store: from this record on nobody of a lower epoch may place one. `owner` is for people."""

    epoch: int
    owner: str
    wall_us: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One window becomes part of the store.

    `latest_point` is the one after the window, `latest_moved_us` the wall clock when it last moved. `buckets` is
    *window to buckets*: the bucket keys the window's pieces touch, ascending. `timestamp` is *window to timestamp*: the
    greatest expiry key the window remembers. `extra` belongs to the upper package: anything msgpack writes, keyed by
    strings; tuples come back as lists.
    """

    window: int
    epoch: int
    attempt: int
    query_id: str
    batch_id: int
    wall_us: int
    settings_hash: str
    latest_point: ExpiryKey | None
    latest_moved_us: int | None
    counts: dict[str, int]
    reasons: dict[str, int]
    pieces: tuple[PieceRef, ...]
    outputs: tuple[OutputFile, ...]
    buckets: tuple[int, ...]
    timestamp: ExpiryKey | None
    sources: SourcesRef | None
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeletionRecord:
    """These pieces are wholly dead and leave the store; their bytes are deleted later.

    `through_window` is the last window of which any of them is.
    """

    pieces: tuple[PieceRef, ...]
    wall_us: int
    through_window: int


@dataclass(frozen=True, slots=True)
class CollationRecord:
    """The pieces `merged` leave the store and `added` take their place, with the same live entries."""

    merged: tuple[PieceRef, ...]
    added: tuple[PieceRef, ...]
    wall_us: int


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """What stays known of a window while a piece of it alone is live."""

    buckets: tuple[int, ...]
    timestamp: ExpiryKey | None
    counts: dict[str, int]
    wall_us: int


@dataclass(frozen=True, slots=True)
class RetiredPiece:
    """A piece that left the store in record `at_number`, at `wall_us`; its bytes may still be there."""

    ref: PieceRef
    at_number: int
    wall_us: int


@dataclass(frozen=True, slots=True)
class LogState:
    """All that the records below `next_number` say together; the defaults are a store's birth.

    `pieces` holds the live ones of each shard, ascending by first window, and no empty tuples. `windows` holds the
    windows of which a piece of that window alone is live (a merged piece says itself what it spans). `outputs`
    holds the staged files of every window beyond `published_through`, `retired` the pieces that left in a record beyond
    `purged_through`. `totals` and `reason_totals` are sums over all windows. `extra` is the newest commit's. The dicts
    are never changed: a new state gets new ones.
    """

    next_number: int = 0
    epoch: int = 0
    next_window: int = 0
    latest_point: ExpiryKey | None = None
    latest_moved_us: int | None = None
    last_wall_us: int = 0
    published_through: int = -1
    purged_through: int = -1
    totals: dict[str, int] = field(default_factory=dict)
    reason_totals: dict[str, int] = field(default_factory=dict)
    pieces: dict[int, tuple[PieceRef, ...]] = field(default_factory=dict)
    windows: dict[int, WindowInfo] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    outputs: dict[int, tuple[OutputFile, ...]] = field(default_factory=dict)
    sources: dict[int, SourcesRef] = field(default_factory=dict)
    retired: tuple[RetiredPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that all records below this one's number fold to."""

    state: LogState


Body = ClaimRecord | CommitRecord | DeletionRecord | CollationRecord | Snapshot


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record with its envelope.

    `nonce` is 16 random bytes: a writer that is not told what became of its record knows it by them.
    `published_through` and `purged_through` are what the writer knew of things that need no record of their own: every
    window up to the first is published, and the bytes of every piece that left in a record up to the second are gone.
    -1: none.
    """

    number: int
    epoch: int
    nonce: bytes
    published_through: int
    purged_through: int
    body: Body
