"""The table files of one generation: finding, building, growing and dropping them within the budget.

A table is made under a name of its own and renamed when it is whole, so a table file that has its name holds what the
generation's header says. Tables go to memory first, moving others down to disk, then to disk, deleting others there.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bucket_store import failpoints
from bucket_store.budget import Tier
from bucket_store.errors import SpaceError
from bucket_store.generation import Generation
from bucket_store.kernels import ordered_expiry
from bucket_store.mapped_tables import empty_beside, keep_mapped, mapped_table
from bucket_store.matches import TableLayout
from bucket_store.piece import BucketEntries
from bucket_store.piece_reader import Part, PieceReader
from bucket_store.table_file import (
    LEAST_SLACK,
    TableFile,
    bucket_of,
    building_name,
    capacity_for,
    create_table,
    file_bytes,
    likely_capacity,
    table_name,
)

_MOST_AHEAD = 4
"""How many times the homes that it needs a table gets at most for what its bucket will probably hold."""
_WINDOWS_AHEAD = 8
"""How many windows like the one at hand a bucket is thought to have that outgrows the one before it."""


class TableShelf:
    """The tables of a locked generation. `build` may run in several threads; everything else in one.

    `expiry_point`: entries whose expiry key (in order, see `kernels.ordered_expiry`) is at or below it are left out of
    what is built or grown; None: none is. `filling` is the bucket that more keys will probably come for. `evicted`
    counts the tables deleted for room.
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
        """Removes what a dead holder left: half-made tables, and the copy of a table it was moving down."""
        seen: set[int] = set()
        for directory in self._directories:
            for path in _files(directory):
                bucket = bucket_of(path.name)
                if path.suffix == ".building" or bucket in seen:
                    path.unlink(missing_ok=True)
                elif bucket is not None:
                    seen.add(bucket)

    def resident(self) -> Iterator[tuple[int, int]]:
        """(bucket, bytes) of every table."""
        for directory in self._directories:
            for path in _files(directory):
                bucket = bucket_of(path.name)
                if bucket is not None:
                    yield bucket, path.stat().st_size

    def has(self, bucket: int) -> bool:
        """Whether the bucket's table is resident."""
        return any((directory / table_name(bucket)).exists() for directory in self._directories)

    def open(self, bucket: int) -> TableFile | None:
        """The bucket's table, from now on the most recently used; None when it is not resident."""
        table = self._mapped(bucket)
        if table is not None:
            now = time.time_ns()  # finer than the clock the kernel would take
            os.utime(table.path, ns=(now, now))
        return table

    def _mapped(self, bucket: int) -> TableFile | None:
        for directory in self._directories:
            path = directory / table_name(bucket)
            table = mapped_table(path, self._layout, self._generation.header.nonce, bucket)
            if table is not None:
                return table
        return None

    def drop(self, bucket: int) -> None:
        """Deletes the bucket's table, if it is there."""
        for directory in self._directories:
            (directory / table_name(bucket)).unlink(missing_ok=True)

    def let_die(self, bucket: int) -> None:
        """Takes the table of a dead bucket away; its memory is given back beside what the task goes on with."""
        for directory in self._directories:
            empty_beside(directory / table_name(bucket))

    def build(self, bucket: int, parts: Sequence[Part]) -> bool:
        """Makes the bucket's table from all its parts; False when it finds no room.

        Raises:
            CorruptionError: a part is damaged.
        """
        table: TableFile | None = None
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

    def enter(self, table: TableFile, entries: BucketEntries, only_window: int) -> TableFile:
        """Enters a part's entries; gives the table that holds them now, a larger one if it had to grow.

        Raises:
            SpaceError: no room to grow; the table holds some of the entries.
        """
        entries = self._live(entries)
        count = len(entries.digests)
        if not table.has_room(count):
            table = self._grow(table, count, LEAST_SLACK)
        start = table.apply(entries, only_window)
        while start < count:
            table = self._grow(table, count - start, 2 * table.slack)
            start = table.apply(entries, only_window, start)
        return table

    def _live(self, entries: BucketEntries) -> BucketEntries:
        if self._point is None or entries.expiry is None:
            return entries
        live = ordered_expiry(entries.expiry) > self._point
        if live.all():
            return entries
        return replace(
            entries,
            digests=np.ascontiguousarray(entries.digests[live]),
            expiry=entries.expiry[live],
            origin=None if entries.origin is None else entries.origin[live],
            window=None if entries.window is None else entries.window[live],
            fingerprint=None,
        )

    def _grow(self, table: TableFile, more: int, slack: int) -> TableFile:
        """A larger table with the live keys of `table`, in its place."""
        keys = table.live_keys(self._point) + more
        larger = self._create(table.bucket, keys, more, slack, keep=(table.path,))
        while not table.copy_into(larger, self._point):
            larger.path.unlink()
            slack *= 2
            larger = self._create(table.bucket, keys, more, slack, keep=(table.path,))
        if bucket_of(table.path.name) is not None:
            self._give_name(larger)
        if table.path != larger.path:
            table.path.unlink(missing_ok=True)
        return larger

    def _give_name(self, table: TableFile) -> None:
        named = table.path.with_name(table_name(table.bucket))
        table.path.rename(named)
        table.path = named
        keep_mapped(table)

    def _create(self, bucket: int, keys: int, coming: int, slack: int, *, keep: Collection[Path] = ()) -> TableFile:
        """An empty table with room for so many keys, `coming` of them new, in the first tier that takes it."""
        capacity = capacity_for(keys)
        # One at a time: two threads that count the same free bytes would both take them.
        with self._space:
            likely = self._likely_capacity(bucket, keys, coming)
            if likely > capacity and self._tiers[0].has_room(file_bytes(self._layout, likely + slack)):
                table = self._create_in(self._directories[0], bucket, likely, slack)
                if table is not None:
                    return table
            size = file_bytes(self._layout, capacity + slack)
            for tier, directory in zip(self._tiers, self._directories, strict=True):
                room = tier.make_room(size, own=self._own, keep=keep)
                self.evicted += room.evicted
                table = self._create_in(directory, bucket, capacity, slack) if room.fits else None
                if table is not None:
                    return table
        raise SpaceError(f"no tier has room for the table of bucket {bucket}, {size} bytes")

    def _likely_capacity(self, bucket: int, keys: int, coming: int) -> int:
        """Homes for what the newest bucket will probably hold: it has `keys` with the `coming` ones. 0 for others.

        As many as the one before it; where it has as many, those of some windows like this one, up to as many again.
        A bucket that fills over many windows would be copied into a larger table by most of them.
        """
        if bucket != self.filling:
            return 0
        others = [other for other, _ in self.resident() if other != bucket]
        if not others or max(others) > bucket:
            return 0
        before = self._mapped(max(others))
        if before is not None and before.keys > keys:
            return min(likely_capacity(before.keys), _MOST_AHEAD * capacity_for(keys))
        return likely_capacity(min(2 * keys, max(keys, _WINDOWS_AHEAD * coming)))

    def _create_in(self, directory: Path, bucket: int, capacity: int, slack: int) -> TableFile | None:
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
            )
        except OSError as error:
            if not is_no_room(error):
                raise
            return None


def is_no_room(error: OSError) -> bool:
    """Whether a disk, a quota or a file size limit is what failed."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _files(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory)]
    except FileNotFoundError:
        return []
