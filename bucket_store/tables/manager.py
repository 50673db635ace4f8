"""The bucket manager: a shard's resident tables for the length of one batch.

Opening takes the shard's lock, checks its tables, and advances them to the view. Then the batch looks up bucket by
bucket. The bucket's table answers; a table that is not resident is built from the view's pieces; for one without room,
in memory or on disk, the pieces are merged. All three give the same answers.

Tables hold committed windows only, so nothing is ever undone: the keys of a batch go into a piece, and enter the tables
when a later view names it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.errors import SpaceError
from bucket_store.pieces.cache import PieceCache
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.reader import PieceBucket, PieceReader, forget_headers
from bucket_store.pieces.store import PieceStore
from bucket_store.tables.eviction import Tier
from bucket_store.tables.generation import Generation, ShardDirectories, open_generation
from bucket_store.tables.kernels import ordered_expiry
from bucket_store.tables.mapped import unmap_deleted
from bucket_store.tables.matches import Matches, TableLayout, no_matches
from bucket_store.tables.merge_lookup import find_in_parts
from bucket_store.tables.resident import ResidentTables, is_no_room
from bucket_store.tables.table_file import MappedTable
from bucket_store.tables.view import ShardView

__all__ = ["Matches", "ShardTables", "TableCounters", "TableLayout", "TableSettings"]

PIECES = "pieces"
"""The folder of copies of pieces, beside those of tables."""
_LOADERS = 2


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Directories and limits of the tables on this machine, for all shards and processes of a store.

    `disk_dir` also holds the locks, so it must be local. Equal directories make one tier, bounded by `disk_bytes`.
    After `lock_timeout_s` without the lock the next generation begins, and the holder keeps its own. A store elsewhere
    has copies of its pieces on this disk, up to `piece_cache_bytes`.
    """

    memory_dir: str
    disk_dir: str
    memory_bytes: int
    disk_bytes: int
    layout: TableLayout
    lock_timeout_s: float = 5.0
    piece_cache_bytes: int = 0

    def piece_cache(self, pieces: PieceStore, folder: str) -> PieceCache | None:
        """This host's copies of a store's pieces; `folder` as in `ShardView`. None for a store on this host."""
        if not pieces.is_remote or self.piece_cache_bytes == 0:
            return None
        return PieceCache(Path(self.disk_dir) / PIECES / folder, self.piece_cache_bytes)


@dataclass(slots=True)
class TableCounters:
    """Counts of one opening.

    `hits` are look-ups answered by a table that was resident, `misses` all others of live buckets that have entries:
    the first one of a table that `load` has built, too. `merged` are those misses that were answered without a table.
    `expired` tables were dropped because their bucket died, `evicted` ones for room. Of a store elsewhere `cache_hits`
    are reads that this host's copies of pieces answered, `cache_misses` those of `fetched_bytes` from the store.
    """

    resident_tables: int = 0
    resident_bytes: int = 0
    loaded: int = 0
    evicted: int = 0
    expired: int = 0
    hits: int = 0
    misses: int = 0
    merged: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0
    load_seconds: float = 0.0
    apply_seconds: float = 0.0


class ShardTables:
    """One shard's tables, locked and at the view's position. A context manager; not thread-safe."""

    def __init__(
        self, settings: TableSettings, pieces: PieceStore, view: ShardView, generation: Generation | None
    ) -> None:
        """Use `open`. Without a generation every look-up merges pieces."""
        self._counters = TableCounters()
        self._layout = settings.layout
        self._view = view
        self._reader = PieceReader(pieces, view.store_id, settings.piece_cache(pieces, view.folder))
        self._generation = generation
        self._point = _ordered_point(view, settings.layout)
        self._pinned: MappedTable | None = None
        self._loaded_ahead: set[int] = set()
        self._resident: ResidentTables | None = None
        if generation is not None:
            self._resident = ResidentTables(
                generation, _tiers(settings, view.folder), settings.layout, self._point, self._reader
            )

    @classmethod
    def open(cls, settings: TableSettings, pieces: PieceStore, view: ShardView) -> ShardTables:
        """The shard's tables, locked, sound, and holding exactly the windows below `view.next_window`.

        Raises:
            StaleViewError: the owner that handed out the view has brought the tables beyond it; nothing was touched.
            CorruptionError: a piece that the view names is damaged.
        """
        unmap_deleted()
        forget_headers(view.shard, view.pieces)
        cache = settings.piece_cache(pieces, view.folder)
        if cache is not None:
            cache.keep_live(view.shard, view.pieces)
        directories = ShardDirectories.of(settings.memory_dir, settings.disk_dir, view.folder, view.shard)
        try:
            generation = open_generation(directories, view, settings.layout, lock_timeout_s=settings.lock_timeout_s)
        except OSError as error:
            if not is_no_room(error):
                raise
            return cls(settings, pieces, view, None)
        tables = cls(settings, pieces, view, generation)
        try:
            assert tables._resident is not None
            tables._advance(generation, tables._resident)
        except BaseException:
            tables.close()
            raise
        return tables

    def __enter__(self) -> ShardTables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock; the tables stay. Safe to repeat."""
        self._pinned = None
        unmap_deleted()
        if self._generation is not None:
            self._generation.close()

    @property
    def counters(self) -> TableCounters:
        """The counts until now. Counts the resident tables again; call it before `close`."""
        read = self._reader.counts
        self._counters.cache_hits, self._counters.cache_misses = read.cache_hits, read.cache_misses
        self._counters.fetched_bytes = read.fetched_bytes
        if self._resident is not None:
            sizes = [size for _, size in self._resident.sizes()]
            self._counters.resident_tables = len(sizes)
            self._counters.resident_bytes = sum(sizes)
            self._counters.evicted = self._resident.evicted
        return self._counters

    def find(self, bucket: int, digests: NDArray[np.uint64]) -> Matches:
        """The digests (uint64[m, 2], ascending) that the bucket remembers from windows below the view's next.

        Dead buckets and dead entries give no match. With `one_table` the bucket key is taken as 0.

        Raises:
            CorruptionError: a piece had to be read and is damaged.
        """
        bucket = 0 if self._layout.one_table else bucket
        digests = np.ascontiguousarray(digests)
        if len(digests) == 0 or self._is_dead(bucket):
            return no_matches(len(digests), self._layout)
        table = self._pin(bucket)
        if table is not None:
            if bucket in self._loaded_ahead:
                self._loaded_ahead.remove(bucket)
                self._counters.misses += 1
            else:
                self._counters.hits += 1
            return table.find(digests, self._point)
        self._loaded_ahead.discard(bucket)
        parts = self._parts(bucket)
        if not parts:
            return no_matches(len(digests), self._layout)
        self._counters.misses += 1
        if self._build([(bucket, parts)]):
            table = self._pin(bucket)
            if table is not None:
                return table.find(digests, self._point)
        self._counters.merged += 1
        return find_in_parts(self._reader, parts, digests, self._layout, self._point)

    def load(self, buckets: Iterable[int]) -> None:
        """Builds the tables of those buckets that are not resident, in parallel: before a batch's look-ups.

        Never needed for the answers. Builds the first one, and as many more as fit into memory beside all that is
        there: `find` builds the others one at a time.

        Raises:
            CorruptionError: a piece is damaged.
        """
        if self._resident is None:
            return
        wanted = {0 if self._layout.one_table else bucket for bucket in buckets}
        missing = [bucket for bucket in sorted(wanted) if not self._is_dead(bucket) and not self._resident.has(bucket)]
        found = [(bucket, parts) for bucket in missing if (parts := self._parts(bucket))]
        self._loaded_ahead |= self._build(self._resident.fitting(found))

    def _advance(self, generation: Generation, resident: ResidentTables) -> None:
        """Brings the resident tables from the header's position to the view's.

        1 half-made and dead tables are deleted; 2 the header is marked dirty: a later holder that finds it so deletes
        the tables; 3 every piece with a window at or beyond the position enters the resident tables whole, and makes
        the tables of buckets that no earlier piece can have; 4 the header takes the view's position, clean.
        """
        resident.tidy()
        for bucket, _ in list(resident.sizes()):
            if self._is_dead(bucket):
                resident.drop_dead(bucket)
                self._counters.expired += 1
        position = generation.header.next_window
        if position == self._view.next_window and generation.header.expiry_point == self._view.expiry_point:
            return
        began = time.perf_counter()
        generation.mark_dirty()
        new = [ref for ref in self._view.pieces if ref.last_window >= position]
        by_bucket: defaultdict[int, list[PieceBucket]] = defaultdict(list)
        for part in self._live(self._reader.all_parts(new)):
            by_bucket[0 if self._layout.one_table else int(part.header.buckets[part.index])].append(part)
        old = [ref for ref in self._view.pieces if ref.last_window < position]
        resident.filling = max(by_bucket, default=None)
        for bucket, parts in sorted(by_bucket.items()):
            failpoints.hit("tables.applying")
            table = resident.open(bucket)
            if table is not None:
                self._apply(resident, table, parts)
            elif not any(self._may_hold(ref, bucket) for ref in old):
                resident.build(bucket, parts)
        failpoints.hit("tables.applied")
        generation.mark_at(self._view)
        self._counters.apply_seconds += time.perf_counter() - began

    def _apply(self, resident: ResidentTables, table: MappedTable, parts: list[PieceBucket]) -> None:
        try:
            for part, entries in self._reader.read_all(parts):
                table = resident.enter(table, entries, part.ref.first_window)
        except SpaceError:
            resident.drop(table.bucket)
            resident.evicted += 1

    def _pin(self, bucket: int) -> MappedTable | None:
        """The bucket's table, pinned until another one is."""
        if self._resident is None:
            return None
        if self._pinned is None or self._pinned.bucket != bucket:
            self._pinned = None
            self._pinned = self._resident.open(bucket)
        return self._pinned

    def _build(self, wanted: list[tuple[int, list[PieceBucket]]]) -> set[int]:
        """Builds tables that are not resident; gives the buckets that found room."""
        if self._resident is None or not wanted:
            return set()
        began = time.perf_counter()
        buckets, parts = zip(*wanted, strict=True)
        if len(wanted) == 1:
            is_built = [self._resident.build(buckets[0], parts[0])]
        else:
            with ThreadPoolExecutor(_LOADERS, thread_name_prefix="table-loader") as pool:
                is_built = list(pool.map(self._resident.build, buckets, parts))
        built = {bucket for bucket, found_room in zip(buckets, is_built, strict=True) if found_room}
        self._counters.loaded += len(built)
        self._counters.load_seconds += time.perf_counter() - began
        return built

    def _parts(self, bucket: int) -> list[PieceBucket]:
        """The live parts of a bucket, in the order of their pieces."""
        if self._layout.one_table:
            return self._live(self._reader.all_parts(self._view.pieces))
        return self._reader.parts(self._view.pieces, bucket)

    def _live(self, parts: list[PieceBucket]) -> list[PieceBucket]:
        point = self._view.expiry_point
        if self._layout.one_table:
            return [
                part
                for part in parts
                if point is None or part.header.max_expiry is None or part.header.max_expiry[part.index] > point
            ]
        return [part for part in parts if not self._is_dead(int(part.header.buckets[part.index]))]

    def _may_hold(self, ref: PieceRef, bucket: int) -> bool:
        return self._layout.one_table or ref.min_bucket <= bucket <= ref.max_bucket

    def _is_dead(self, bucket: int) -> bool:
        live_from = self._view.live_from_bucket
        return not self._layout.one_table and live_from is not None and bucket < live_from


def _ordered_point(view: ShardView, layout: TableLayout) -> int | None:
    """The expiry point in the order of the tables' expiry keys; None unless single entries die."""
    point = view.expiry_point
    if point is None or not layout.one_table:
        return None
    if layout.float_expiry:
        return int(ordered_expiry(np.array([point], np.float64))[0])
    # A period longer than all time before the latest point: no entry is that old.
    return int(point) if point >= np.iinfo(np.int64).min else None


def _tiers(settings: TableSettings, folder: str) -> list[Tier]:
    disk_root = Path(settings.disk_dir) / folder
    memory_root = Path(settings.memory_dir) / folder
    disk = Tier(disk_root, disk_root, settings.disk_bytes)
    if memory_root == disk_root:
        return [disk]
    return [Tier(memory_root, disk_root, settings.memory_bytes, below=disk), disk]
