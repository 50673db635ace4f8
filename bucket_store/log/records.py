"""PURE. The commit log as values: the seven kinds of record, their envelope, and the state they fold to.

The bytes are in `log.codec`, the folding in `log.state`, the files in `log.commit_log`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from bucket_store.lineage import Lineage
from bucket_store.pieces.piece import PieceRef
from bucket_store.wire import LATER, OF_3, OF_4

ExpiryKey = int | float
"""An expiry key: µs or an unscaled integer, or a double, by the store's domain."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One staged file of one port, and its name once published."""

    port: str
    staged: str
    final: str
    size_bytes: int
    checksum: int
    rows: int


@dataclass(frozen=True, slots=True)
class SourcesRef:
    """A window's source partitions: name of their file under `sources/`, their number, checksum and length in bytes.

    `inline` are the bytes of the file, if the record holds them and there is no file.

    `is_kept`: kept until a fold of sources takes its window, as nothing else says what was judged; otherwise until no
    piece can hold an origin of its window.
    """

    name: str
    count: int
    checksum: int
    length: int
    # Not in the repr: texts recorded for files of version 1 stay as they are.
    is_kept: bool = field(default=True, repr=False, metadata=LATER)
    inline: bytes = field(default=b"", repr=False, metadata=OF_4)


@dataclass(frozen=True, slots=True)
class ArchiveRef:
    """The sources of the windows from `first_window` to `last_window` in one file: its name, checksum and length."""

    name: str
    first_window: int
    last_window: int
    checksum: int
    length: int


@dataclass(frozen=True, slots=True)
class JudgedRef:
    """The table of files judged through a window: its name, number of files, checksum and length in bytes."""

    name: str
    through_window: int
    count: int
    checksum: int
    length: int


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """An owner takes the store: from this record on no lower epoch may place one. `owner` is for people.

    `root` is the store's path as the owner sees it; empty in a record of version 1.
    """

    epoch: int
    owner: str
    wall_us: int
    # Not in the repr: texts recorded for files of version 1 stay as they are. So in all fields of version 2.
    root: str = field(default="", repr=False, metadata=LATER)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One window becomes part of the store.

    `latest_point` is the one after the window, `latest_moved_us` the wall clock when it last moved. `buckets` is
    *window to buckets*: the bucket keys the window's pieces touch, ascending. `timestamp` is *window to timestamp*: the
    greatest expiry key the window remembers. `extra` belongs to the upper package: any msgpack values, keyed by
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
class CompactionRecord:
    """The pieces `merged` leave the store and `added` take their place, with the same live entries."""

    merged: tuple[PieceRef, ...]
    added: tuple[PieceRef, ...]
    wall_us: int


@dataclass(frozen=True, slots=True)
class SourcesFoldRecord:
    """The sources files of all windows up to `through_window` leave the store.

    `archive` holds the sources of those that can still be an origin (None: of none). `judged` says what was judged
    through the window (None: the source counts, and the commits' `extra` says it).
    """

    through_window: int
    archive: ArchiveRef | None
    judged: JudgedRef | None
    wall_us: int


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """The facts kept of a window while a piece of it alone is live."""

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
    """The state that all records below `next_number` fold to; the defaults are a store's birth.

    `pieces` holds the live ones of each shard, ascending by first window, and no empty tuples. `windows` holds the
    windows of which a piece of that window alone is live (a merged piece names its own span). `outputs`
    holds the staged files of every window beyond `published_through`, `retired` the pieces that left in a record beyond
    `purged_through`. `sources` and `archives` ascend by window; `judged` is the newest fold's. `totals` and
    `reason_totals` are sums over all windows. `extra` is the newest commit's. `lineage` leaves out some older claims:
    see `log.state`. `root` is the newest claim's. `shards` is 0 until a rebase changes the number of shards that the
    manifest has; `notes` are what the newest rebases say of themselves. The dicts are never changed: a new state gets
    new ones.
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
    lineage: Lineage = field(default=(), repr=False, metadata=LATER)
    root: str = field(default="", repr=False, metadata=LATER)
    archives: tuple[ArchiveRef, ...] = field(default=(), repr=False, metadata=LATER)
    judged: JudgedRef | None = field(default=None, repr=False, metadata=LATER)
    shards: int = field(default=0, repr=False, metadata=OF_3)
    notes: tuple[dict[str, Any], ...] = field(default=(), repr=False, metadata=OF_3)

    def sources_of(self, window: int) -> SourcesRef | ArchiveRef | None:
        """The file of the window's sources; None when they are forgotten."""
        found = self.sources.get(window)
        if found is not None:
            return found
        at = bisect_right(self.archives, window, key=lambda archive: archive.first_window) - 1
        return self.archives[at] if at >= 0 and window <= self.archives[at].last_window else None


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The state that all records below this one's number fold to."""

    state: LogState


@dataclass(frozen=True, slots=True)
class RebaseRecord:
    """From this record on `state` counts: an operator has moved the keys, taken some away, or gone back to a window.

    Of `state` only these do not count, since no rebase changes them: epoch, lineage, root, last wall clock and retired
    pieces. Live pieces that it does not name are retired.
    """

    state: LogState
    wall_us: int


OwnersBody = CommitRecord | DeletionRecord | CompactionRecord | SourcesFoldRecord | RebaseRecord
"""What an owner places after its claim."""
Body = ClaimRecord | CommitRecord | DeletionRecord | CompactionRecord | SourcesFoldRecord | RebaseRecord | LogSnapshot


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record with its envelope.

    `nonce` is 16 random bytes: by them a writer without an answer recognises its record. `published_through` and
    `purged_through` are as of the writing and need no record of their own: every window up to the first is published,
    and the bytes of every piece that left in a record up to the second are gone. -1: none.
    """

    number: int
    epoch: int
    nonce: bytes
    published_through: int
    purged_through: int
    body: Body
