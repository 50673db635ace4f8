"""The table files of one generation: finding, building, growing and dropping them within their limits.

A table is made under a temporary name and renamed when it is whole, so a table file under its final name matches the
generation's header. A table goes to memory, where others move down to disk for it, else to disk, where others are
deleted for it. Somebody may clear shared memory at any moment: a table that has gone is made again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from bucket_store import failpoints
from bucket_store.errors import SpaceError
from bucket_store.pieces.piece import BucketEntries
from bucket_store.pieces.reader import PieceBucket, PieceReader
from bucket_store.tables.eviction import Tier, taking_room
from bucket_store.tables.generation import Generation
from bucket_store.tables.kernels import ordered_expiry
from bucket_store.tables.mapped import empty_beside, keep_mapped, mapped_table
from bucket_store.tables.matches import TableLayout
from bucket_store.tables.table_file import (
    LEAST_SLACK,
    MappedTable,
    bucket_of,
    building_name,
    capacity_for,
    create_table,
    file_bytes,
    grown_capacity,
    held_bytes,
    likely_capacity,
    slice_bytes,
    table_name,
)

_MOST_AHEAD = 4
"""A table for the expected keys of its bucket gets at most this many times the homes it needs now."""
_WINDOWS_AHEAD = 8
"""A bucket that has outgrown its predecessor is sized for this many windows like the current one."""


class ResidentTables:
    """The tables of a locked generation. `build` may run in several threads; everything else in one.

    `expiry_point`: entries whose expiry key (in order, see `kernels.ordered_expiry`) is at or below it are left out of
    built or grown tables; None: no entry is. `filling` is the bucket that probably gets more keys. `evicted` counts the
    tables deleted for room.
    """

    def __init__(
        self,
        generation: Generation,
        tiers: Sequence[Tier],
        layout: TableLayout,
        expiry_point: int | None,
        reader: PieceReader,
    ) -> None:
        self._generation = generation
        self._tiers = tiers
        self._own = f"{generation.disk.parent.name}/{generation.number}"
        self._directories = [tier.root / self._own for tier in tiers]
        self._layout = layout
        self._point = expiry_point
        self._reader = reader
        self._space = threading.Lock()
        self.filling: int | None = None
        self.evicted = 0

    def tidy(self) -> None:
        """Removes orphans of a dead holder: half-made tables, and the copy of a table on its way down."""
        seen: set[int] = set()
        for directory in self._directories:
            for path in _files(directory):
                bucket = bucket_of(path.name)
                if path.suffix == ".building" or bucket in seen:
                    path.unlink(missing_ok=True)
                elif bucket is not None:
                    seen.add(bucket)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(bucket, bytes) of every table."""
        for directory in self._directories:
            for path in _files(directory):
                bucket = bucket_of(path.name)
                if bucket is not None:
                    with contextlib.suppress(FileNotFoundError):
                        yield bucket, held_bytes(path.stat())

    def has(self, bucket: int) -> bool:
        """Whether the bucket's table is resident."""
        return any((directory / table_name(bucket)).exists() for directory in self._directories)

    def open(self, bucket: int) -> MappedTable | None:
        """The bucket's table, now the most recently used; None when it is not resident."""
        table = self._mapped(bucket)
        if table is not None:
            now = time.time_ns()  # finer than the kernel's clock
            with contextlib.suppress(FileNotFoundError):
                os.utime(table.path, ns=(now, now))
        return table

    def _mapped(self, bucket: int) -> MappedTable | None:
        for directory in self._directories:
            path = directory / table_name(bucket)
            table = mapped_table(path, self._layout, self._generation.header.nonce, bucket)
            if table is not None:
                return table
        return None

    def drop(self, bucket: int) -> None:
        """Deletes the bucket's table, if any."""
        for directory in self._directories:
            (directory / table_name(bucket)).unlink(missing_ok=True)

    def drop_dead(self, bucket: int) -> None:
        """Deletes the table of a dead bucket; a thread frees its memory while the task goes on."""
        for directory in self._directories:
            empty_beside(directory / table_name(bucket))

    def fitting(self, wanted: Sequence[tuple[int, list[PieceBucket]]]) -> list[tuple[int, list[PieceBucket]]]:
        """The first of these tables to build, and as many more as fit into memory beside all that is there."""
        if len(wanted) < 2:
            return list(wanted)
        free = self._tiers[0].limit_bytes - self._tiers[0].used_bytes()
        for number, (_, parts) in enumerate(wanted):
            free -= file_bytes(self._layout, capacity_for(sum(part.count for part in parts)))
            if number and free < 0:
                return list(wanted[:number])
        return list(wanted)

    def build(self, bucket: int, parts: Sequence[PieceBucket]) -> bool:
        """Makes the bucket's table from all its parts; False when there is no room, or it was removed meanwhile.

        Raises:
            CorruptionError: a part is damaged.
        """
        table: MappedTable | None = None
        try:
            count = sum(part.count for part in parts)
            table = self._create(bucket, count, count, LEAST_SLACK)
            for part, entries in self._reader.read_all(parts):
                table = self.enter(table, entries, part.ref.first_window)
            failpoints.hit("tables.building")
            self._give_name(table)
        except SpaceError:
            if table is not None:
                table.path.unlink(missing_ok=True)
            return False
        except BaseException:
            if table is not None:
                table.path.unlink(missing_ok=True)
            raise
        return True

    def enter(self, table: MappedTable, entries: BucketEntries, only_window: int) -> MappedTable:
        """Enters a part's entries; gives the table that holds them now: another one if it was rebuilt.

        Raises:
            SpaceError: no room to grow, or what grew was removed; the table holds some of the entries.
        """
        entries, entered, in_vain = self._live(entries), 0, 0
        while entered < len(entries.digests):
            before = entered
            table, entered = self._enter(table, entries, only_window, entered)
            in_vain = in_vain + 1 if entered == before else 0
            if in_vain > 2:
                raise SpaceError(f"no tier has room for a larger slice of the table of bucket {table.bucket}")
        return table

    def _enter(
        self, table: MappedTable, entries: BucketEntries, only_window: int, entered: int
    ) -> tuple[MappedTable, int]:
        """Enters rows from `entered` on; gives the table and the first row that it has not, if it was rebuilt."""
        for number, first, end in table.rows_of(entries.digests[entered:]):
            first, end = first + entered, end + entered
            more, slack = 0 if table.has_room(number, end - first) else end - first, LEAST_SLACK
            while True:
                if more and not self._grow_slice(table, number, more, slack):
                    return self._grow(table, len(entries.digests) - first, slack), first
                first = table.apply(number, entries, only_window, first, end)
                if first == end:
                    break
                more, slack = end - first, 2 * table.slack(number)
        return table, len(entries.digests)

    def _live(self, entries: BucketEntries) -> BucketEntries:
        if self._point is None or entries.expiry is None:
            return entries
        live = ordered_expiry(entries.expiry) > self._point
        if live.all():
            return entries
        return entries.chosen(live)

    def _grow_slice(self, table: MappedTable, number: int, more: int, slack: int) -> bool:
        """Whether a slice of several has room for so many new keys now, where its table is."""
        if table.slices == 1:
            return False
        tier = self._tiers[self._directories.index(table.path.parent)]
        capacity = grown_capacity(number, table.live_keys(self._point, number) + more)
        while True:
            # The copy needs no lock: other shards take room meanwhile.
            with self._space, taking_room(self._tiers[0].locks):
                need = slice_bytes(self._layout, capacity + slack)
                room = tier.make_room(need, own=self._own, keep=(table.path,))
                self.evicted += room.evicted
                if not room.fits:
                    return False
                try:
                    begin = table.reserve(capacity + slack)
                except OSError as error:
                    if not is_no_room(error):
                        raise
                    return False
            if table.move(number, begin, capacity, slack, self._point):
                return True
            slack *= 2

    def _grow(self, table: MappedTable, more: int, slack: int) -> MappedTable:
        """A larger table with the live keys of `table`, in its place.

        Of one with slices: where they cannot grow, each has room to begin with.
        """
        keys, even = table.live_keys(self._point) + more, table.slices > 1
        larger = self._create(table.bucket, keys, more, slack, keep=(table.path,), even=even)
        while not table.copy_into(larger, self._point):
            larger.path.unlink(missing_ok=True)
            slack *= 2
            larger = self._create(table.bucket, keys, more, slack, keep=(table.path,), even=even)
        if bucket_of(table.path.name) is not None:
            self._give_name(larger)
        if table.path != larger.path:
            table.path.unlink(missing_ok=True)
        return larger

    def _give_name(self, table: MappedTable) -> None:
        named = table.path.with_name(table_name(table.bucket))
        with taking_room(self._tiers[0].locks):  # who counts now would miss a file that changes its name
            try:
                table.path.rename(named)
            except FileNotFoundError as error:
                raise SpaceError(f"{table.path} was removed while it was made") from error
        table.path = named
        keep_mapped(table)

    def _create(
        self, bucket: int, keys: int, coming: int, slack: int, *, keep: Collection[Path] = (), even: bool = False
    ) -> MappedTable:
        """An empty table with room for so many keys, `coming` of them new, in the first tier that takes it."""
        capacity = capacity_for(keys)
        # One thread and one process at a time: two that count the same free bytes would both take them.
        with self._space, taking_room(self._tiers[0].locks):
            likely = 0 if even else self._likely_capacity(bucket, keys, coming)
            if likely > capacity and self._tiers[0].has_room(file_bytes(self._layout, likely, slack)):
                table = self._create_in(self._directories[0], bucket, likely, slack)
                if table is not None:
                    return table
            size = file_bytes(self._layout, capacity, slack, even=even)
            for tier, directory in zip(self._tiers, self._directories, strict=True):
                room = tier.make_room(size, own=self._own, keep=keep)
                self.evicted += room.evicted
                table = self._create_in(directory, bucket, capacity, slack, even=even) if room.fits else None
                if table is not None:
                    return table
        raise SpaceError(f"no tier has room for the table of bucket {bucket}, {size} bytes")

    def _likely_capacity(self, bucket: int, keys: int, coming: int) -> int:
        """Homes for the expected keys of the newest bucket, which has `keys` with the `coming` ones; 0 for other
        buckets.

        As many keys as the bucket before it; if it has as many already, those of `_WINDOWS_AHEAD` windows like this
        one, at most twice its own. Otherwise most windows of a bucket that fills over many would copy it into a larger
        table.
        """
        if bucket != self.filling:
            return 0
        others = [other for other, _ in self.sizes() if other != bucket]
        if not others or max(others) > bucket:
            return 0
        before = self._mapped(max(others))
        if before is not None and before.keys > keys:
            return min(likely_capacity(before.keys), _MOST_AHEAD * capacity_for(keys))
        return likely_capacity(min(2 * keys, max(keys, _WINDOWS_AHEAD * coming)))

    def _create_in(
        self, directory: Path, bucket: int, capacity: int, slack: int, *, even: bool = False
    ) -> MappedTable | None:
        """An empty table; None when the file system has no room for it."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return create_table(
                directory / building_name(bucket),
                self._layout,
                self._generation.header.nonce,
                bucket,
                capacity=capacity,
                slack=slack,
                even=even,
            )
        except OSError as error:
            if not is_no_room(error):
                raise
            return None


def is_no_room(error: OSError) -> bool:
    """Whether the error is a full disk, a quota or a file size limit."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _files(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory)]
    except FileNotFoundError:
        return []
