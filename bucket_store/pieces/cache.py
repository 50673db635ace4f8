"""A host's copies of pieces that lie elsewhere: in HDFS or in an object store.

    <directory>/<folder of the store's tables>/<shard, 4 digits>/<checksum>-<hash of file and offset>

both 16 hex digits. A copy is the bytes of a whole piece and nothing else, so its checksums are the piece's own: the
reader compares them with the record's at every use (`pieces.reader`), drops a copy that is torn or damaged, and reads
the piece anew. A writer leaves a copy of what it has appended, so a window never reads its own last piece over the
network; a reader leaves one of what it has read whole.

Any number of processes of a host use one directory: a copy gets its name when it is whole, and is never changed.
Nothing here is synced, and nothing is truth: without room, or after an error, there is no copy.

Removed are: copies of pieces that are no longer live (`keep_live`); the least recently used ones beyond the limit; and
the folders of stores that no process has used for a week.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from bucket_store.pieces.piece import PieceRef

_COUNTED_A_LIMIT = 16
"""A process counts the bytes of all copies when it has added one `_COUNTED_A_LIMIT`th of the limit."""
_LARGEST_A_LIMIT = 8
_YOUNG_S = 600.0
"""A copy that no view names may be of a window that is not committed yet."""
_UNUSED_S = 7 * 86_400.0

# Bytes added by this process since it counted, by folder. A fork begins with its parent's.
_added: dict[Path, int] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class PieceCache:
    """The copies of one store's pieces on this host, at most `limit_bytes` of them, beside the folders of other stores.

    Between two counts each process may add a 16th of the limit. Safe for threads and processes.
    """

    folder: Path
    limit_bytes: int

    def read(self, ref: PieceRef, start: int, length: int) -> bytes | None:
        """These bytes of the piece, unchecked; None without a copy of its length."""
        path = self._path(ref)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != ref.length:
                    self.drop(ref)
                    return None
                data = os.pread(file.fileno(), length, start)
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:
            self.drop(ref)
            return None
        return data if len(data) == length else None

    def add(self, ref: PieceRef, data: bytes | memoryview) -> None:
        """Keep a copy of a piece, if there is room."""
        if not 0 < len(data) <= self.limit_bytes // _LARGEST_A_LIMIT:
            return
        path = self._path(ref)
        making = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._make_room(len(data))
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(making, "xb", opener=_private) as file:
                file.write(data)
            making.rename(path)
        except OSError:
            # A full disk, or another process removed the folder: the piece itself is where it was.
            with contextlib.suppress(OSError):
                making.unlink()

    def drop(self, ref: PieceRef) -> None:
        """Remove the copy of a piece, if any."""
        with contextlib.suppress(OSError):
            self._path(ref).unlink()

    def keep_live(self, shard: int, live: Iterable[PieceRef]) -> None:
        """Remove copies of a shard's other pieces, once they are old enough for a committed window."""
        names = {self._path(ref).name for ref in live}
        young = time.time() - _YOUNG_S
        for entry in _entries(self.folder / f"{shard:04d}"):
            with contextlib.suppress(OSError):
                if entry.name not in names and entry.stat().st_mtime < young:
                    Path(entry.path).unlink()

    def _path(self, ref: PieceRef) -> Path:
        where = xxhash.xxh3_64_intdigest(f"{ref.file}\n{ref.offset}".encode())
        return self.folder / f"{ref.shard:04d}" / f"{ref.checksum:016x}-{where:016x}"

    def _make_room(self, size: int) -> None:
        with _lock:
            added = _added.get(self.folder)
            if added is not None and added + size <= self.limit_bytes // _COUNTED_A_LIMIT:
                _added[self.folder] = added + size
                return
            _added[self.folder] = size
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(self.folder)
        self._remove_unused()
        copies = [(status.st_mtime_ns, status.st_size, path) for path, status in self._copies()]
        used = sum(size for _, size, _ in copies)
        # Never the last half of a disk that others fill too.
        limit = min(self.limit_bytes, used + shutil.disk_usage(self.folder).free // 2)
        excess = used + size - (limit - limit // _COUNTED_A_LIMIT)
        for _, freed, path in sorted(copies):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            excess -= freed

    def _copies(self) -> Iterator[tuple[Path, os.stat_result]]:
        for shard in _entries(self.folder):
            for entry in _entries(Path(shard.path)):
                with contextlib.suppress(OSError):  # another process removes it now
                    yield Path(entry.path), entry.stat()

    def _remove_unused(self) -> None:
        """Remove what stores have left that no process of this host has used for long."""
        old = time.time() - _UNUSED_S
        for entry in _entries(self.folder.parent):
            with contextlib.suppress(OSError):
                if entry.name != self.folder.name and entry.stat().st_mtime < old:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
