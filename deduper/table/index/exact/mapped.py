"""Pieces mapped into memory. They never change, so a process may map each once and check each block once."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

from bucket_store.errors import CorruptionError
from bucket_store.pieces.piece import BucketEntries, PieceHeader, PieceRef, decode_bucket, decode_header
from deduper.table.columns import KeyColumns
from deduper.table.index.exact.slices import entries_between, overlaps

_MOST_KEPT = 512
"""Pieces of indexes other than the last one used; each has a file open."""


class MappedPiece:
    """A piece in memory. Its blocks are checked when they are first asked for. Threads may share it.

    Raises: CorruptionError, UnknownFormatError, FileNotFoundError, at any call.
    """

    def __init__(self, path: Path, ref: PieceRef) -> None:
        with path.open("rb") as file:
            self._stamp = _stamp(os.fstat(file.fileno()))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = memoryview(self._map)
        self._header: PieceHeader = decode_header(self._data, file=str(path), offset=0)
        self._path = path
        if (self._header.checksum, self._header.length) != (ref.checksum, len(self._data)):
            raise CorruptionError(
                "identity of an index's piece",
                file=str(path),
                offset=0,
                expected=(hex(ref.checksum), ref.length),
                found=(hex(self._header.checksum), len(self._data)),
            )
        self.ref = ref
        self.slice = ref.shard
        self._blocks: dict[int, BucketEntries] = {}
        self._checking = threading.Lock()

    @property
    def is_unchanged(self) -> bool:
        """Whether its file is as it was when it was mapped. A cut one must not be read."""
        return _stamp(self._path.stat()) == self._stamp

    @property
    def buckets(self) -> list[int]:
        """Their keys."""
        return [int(key) for key in self._header.buckets]

    def bucket(self, key: int) -> BucketEntries | None:
        """The entries of a bucket, None when it has none."""
        index = self._header.index_of(key)
        return None if index is None else self._block(index)

    def between(self, least: int, greatest: int) -> Iterator[BucketEntries]:
        """All buckets, of each the entries with `hi` in a range."""
        if not overlaps(self.slice, least, greatest):
            return
        for index in range(len(self._header.buckets)):
            yield entries_between(self._block(index), least, greatest)

    def _block(self, index: int) -> BucketEntries:
        with self._checking:
            if index not in self._blocks:
                start, length = self._header.block_range(index)
                block = self._data[start : start + length]
                # Else a page that is not in memory is read with its neighbours alone, 128 KiB at a time.
                at = start - start % mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, at, start + length - at)
                self._blocks[index] = decode_bucket(self._header, index, block, file=str(self._path), offset=0)
            return self._blocks[index]


class MappedPieces:
    """Mapped pieces, by the folder of their index. Threads may share them.

    A deleted piece frees its room when this process next asks its index, or ends.
    """

    def __init__(self) -> None:
        self._of_folder: OrderedDict[Path, dict[str, MappedPiece]] = OrderedDict()
        self._changing = threading.Lock()

    def piece(self, folder: Path, ref: PieceRef) -> MappedPiece:
        """A piece of an index.

        Raises: as `MappedPiece`.
        """
        with self._changing:
            mapped = self._of_folder.setdefault(folder, {})
            self._of_folder.move_to_end(folder)
            found = mapped.get(ref.file)
            if found is None or found.ref != ref or not found.is_unchanged:
                mapped.pop(ref.file, None)
                found = mapped[ref.file] = MappedPiece(folder / ref.file, ref)
            while len(self._of_folder) > 1 and sum(map(len, self._of_folder.values())) > _MOST_KEPT:
                self._of_folder.popitem(last=False)
            return found

    def keep(self, folder: Path, refs: Iterable[PieceRef]) -> None:
        """Leaves the other pieces of an index."""
        named = {ref.file for ref in refs}
        with self._changing:
            mapped = self._of_folder.get(folder, {})
            for file in mapped.keys() - named:
                del mapped[file]


_SHARED = MappedPieces()


def mapped_pieces(columns: KeyColumns) -> MappedPieces:
    """The pieces for an index that is opened: of the whole process if all its keys are in one bucket.

    Each question to such an index needs all of its pages. Of one by partitions it needs some, and those of earlier
    questions would only count as this process's memory.
    """
    return _SHARED if columns.bucket_column is None else MappedPieces()


def _stamp(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns
