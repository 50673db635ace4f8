"""Pieces in plain files: many pieces appended to one segment file per shard and epoch.

Root layout: `pieces/<shard, 4 digits>/<epoch, 6 digits>-<serial, 4 digits>[-<8 random hex>].segment`. A segment has one
writer at a time, under an exclusive flock taken without waiting; a writer that does not get it starts a segment with a
random suffix. A segment over 128 MiB is followed by the next serial, so that a long epoch frees its space.

A segment is a sequence of frames, each directly followed by its piece. Integers little endian:

     0  magic        8 bytes  "BSFRAME1"
     8  state        8 bytes  "  live  " or "--dead--"; the only bytes of a segment that ever change
    16  shard        u32
    20  epoch        u32
    24  piece length u64
    32  name length  u32
    36  zero         u32
    40  name         UTF-8
        checksum     u64      xxh3_64 of magic and of everything from byte 16 to here

A record names a piece by its own offset, so frames serve only to list a segment. A writer that dies leaves a torn tail;
listing then searches the next frame whose checksum holds. A segment is deleted when all its frames are dead.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, FileHandle, FileSystem, listed, make_directories, read_at, write_at
from bucket_store.pieces.store import (
    Located,
    PieceLocation,
    PieceStore,
    StoredPiece,
    read_located,
    sync_names,
    write_error,
)

SEGMENT_BYTES = 128 << 20

_MAGIC = b"BSFRAME1"
_LIVE, _DEAD = b"  live  ", b"--dead--"
_FRAME = struct.Struct("<8s8sIIQII")
_CHECKSUM = struct.Struct("<Q")
_SEARCH_BYTES = 1 << 20
_NAME_BYTES = 4096
"""Longer than any name: ours have 44 bytes."""
_SUFFIX = ".segment"


@dataclass(frozen=True, slots=True)
class _Frame:
    at: int
    is_live: bool
    shard: int
    epoch: int
    name: str
    piece_at: int
    piece_length: int

    @property
    def end(self) -> int:
        return self.piece_at + self.piece_length


class FilePieces:
    """The `file:` backend. Holds nothing open between calls."""

    def __init__(self, root: str | os.PathLike[str], fs: FileSystem = LOCAL) -> None:
        self._root = Path(root)
        self._fs = fs

    def __reduce__(self) -> tuple[object, ...]:
        return FilePieces, (self._root, self._fs)

    @property
    def url(self) -> str:
        return f"file:{self._root}"

    @property
    def is_remote(self) -> bool:
        return False

    def append(
        self,
        *,
        shard: int,
        epoch: int,
        name: str,
        data: bytes | memoryview,
        stays_open: bool = False,  # noqa: ARG002  nothing is kept
    ) -> PieceLocation:
        frame = _encode_frame(shard, epoch, name, len(data))
        try:
            path, file = self._open_segment(shard, epoch)
            with file:
                # Taken after the lock: the file may have grown until then.
                at = file.size()
                half = len(data) // 2
                try:
                    write_at(file, frame + bytes(data[:half]), at)
                    failpoints.hit("piece.half")
                    write_at(file, data[half:], at + len(frame) + half)
                except OSError:
                    # A full disk leaves no torn tail behind.
                    file.truncate(at)
                    raise
                failpoints.hit("piece.entered")
                file.sync()
        except OSError as error:
            raise write_error(error, f"{self._root}: piece {name}") from error
        return PieceLocation(self._relative(path), name, at + len(frame), len(data))

    def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
        def read(at: int, wanted: int) -> bytes:
            with self._fs.open(self._root / piece.file) as file:
                # A reference may be wrong: bytes beyond the file are neither read nor allocated.
                return read_at(file, wanted, at) if 0 <= at <= at + wanted <= file.size() else b""

        return read_located(piece, start, length, read)

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        by_file: defaultdict[str, list[Located]] = defaultdict(list)
        for piece in pieces:
            by_file[piece.file].append(piece)
        held: list[Located] = []
        for path in self._segments():
            file = self._relative(path)
            dying = by_file.get(file, [])
            may_go = file not in keep and (writing_epoch is None or not self._may_grow(path, writing_epoch))
            # Locking a segment sends its writer to another one, so only segments that can change are locked.
            if not dying and (writing_epoch is not None or not may_go or not self._has_no_live_frame(path)):
                continue
            if not self._delete_in_segment(path, {piece.offset for piece in dying}, may_go=may_go):
                held += dying
        return tuple(held)

    def pieces(self) -> Iterator[StoredPiece]:
        for path in self._segments():
            try:
                file = self._fs.open(path)
            except FileNotFoundError:
                continue  # deleted since the listing
            with file:
                for frame in _frames(file):
                    if frame.is_live:
                        yield StoredPiece(
                            self._relative(path),
                            frame.name,
                            frame.shard,
                            frame.epoch,
                            frame.piece_at,
                            frame.piece_length,
                        )

    def close_writers(self) -> None:
        """Nothing is kept: opening a segment takes a tenth of a millisecond."""

    def close(self) -> None:
        """Nothing is held."""

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _segments(self) -> list[Path]:
        top = self._root / "pieces"
        return [top / shard / name for shard in listed(self._fs, top) for name in self._segments_of(top / shard)]

    def _segments_of(self, directory: Path) -> list[str]:
        try:
            return [name for name in listed(self._fs, directory) if name.endswith(_SUFFIX)]
        except NotADirectoryError:
            return []

    def _open_segment(self, shard: int, epoch: int) -> tuple[Path, FileHandle]:
        """A segment open for writing, locked, certainly in the directory, which is synced."""
        directory = self._root / "pieces" / f"{shard:04d}"
        if not self._fs.is_dir(directory):
            make_directories(self._fs, directory)
        of_epoch = [name for name in self._segments_of(directory) if name.startswith(f"{epoch:06d}-")]
        serial = max(map(_serial, of_epoch), default=0)
        suffix = ""
        while True:
            path = directory / f"{epoch:06d}-{serial:04d}{suffix}{_SUFFIX}"
            file = self._fs.open(path, create=True)
            try:
                if not file.try_lock():
                    suffix = f"-{secrets.token_hex(4)}"
                elif (size := file.size()) >= SEGMENT_BYTES:
                    serial, suffix = serial + 1, ""
                elif file.links() > 0:  # not deleted between opening and locking
                    if size == 0:
                        sync_names(self._fs, self._root, directory)
                    return path, file
            except BaseException:
                file.close()
                raise
            file.close()

    def _may_grow(self, path: Path, epoch: int) -> bool:
        """Whether a writer of this epoch, or of a later one, may append to a segment from now on."""
        if _epoch(path.name) != epoch:
            return _epoch(path.name) > epoch
        # One with a suffix gets the one piece that it was begun for; of the others only the last one is not full.
        of_epoch = [name for name in self._segments_of(path.parent) if _epoch(name) == epoch]
        return not _has_suffix(path.name) and _serial(path.name) == max(map(_serial, of_epoch), default=0)

    def _delete_in_segment(self, path: Path, offsets: set[int], *, may_go: bool) -> bool:
        """False: another process holds the segment."""
        try:
            file = self._fs.open(path, write=True)
        except FileNotFoundError:
            return True
        with file:
            if not file.try_lock():
                return False
            if file.links() == 0:
                return True  # deleted by another since it was opened; the name belongs to another segment now
            some_live = False
            for frame in _frames(file):
                if frame.piece_at in offsets:
                    write_at(file, _DEAD, frame.at + len(_MAGIC))
                    failpoints.hit("piece.deleted")
                elif frame.is_live:
                    some_live = True
            if may_go and not some_live:
                # Under the lock no writer is at work, so a torn tail has no owner.
                self._fs.remove(path)
                failpoints.hit("piece.file.gone")
        return True

    def _has_no_live_frame(self, path: Path) -> bool:
        """Whether a segment holds dead pieces only, or the torn one of a dead writer."""
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            return False
        with file:
            return not any(frame.is_live for frame in _frames(file))


def _epoch(segment: str) -> int:
    return int(segment.split(".")[0].split("-")[0])


def _serial(segment: str) -> int:
    return int(segment.split(".")[0].split("-")[1])


def _has_suffix(segment: str) -> bool:
    return segment.count("-") > 1


def _encode_frame(shard: int, epoch: int, name: str, length: int) -> bytes:
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES:
        raise ValueError(f"a piece's name has {_NAME_BYTES} bytes at most, not {len(encoded)}")
    frame = _FRAME.pack(_MAGIC, _LIVE, shard, epoch, length, len(encoded), 0) + encoded
    return frame + _CHECKSUM.pack(_frame_checksum(frame))


def _frame_checksum(frame: bytes) -> int:
    return xxhash.xxh3_64_intdigest(frame[: len(_MAGIC)] + frame[len(_MAGIC) + len(_LIVE) :])


def _frame_at(file: FileHandle, at: int) -> _Frame | None:
    head = read_at(file, _FRAME.size, at)
    if len(head) < _FRAME.size or not head.startswith(_MAGIC):
        return None
    _, state, shard, epoch, length, name_length, _ = _FRAME.unpack(head)
    if name_length > _NAME_BYTES:
        return None  # not yet covered by the checksum: a flipped bit must not allocate 2 GiB
    rest = read_at(file, name_length + _CHECKSUM.size, at + _FRAME.size)
    if len(rest) < name_length + _CHECKSUM.size:
        return None
    name = rest[:name_length]
    if _CHECKSUM.unpack(rest[name_length:])[0] != _frame_checksum(head + name):
        return None
    text = name.decode(errors="backslashreplace")
    return _Frame(at, state != _DEAD, shard, epoch, text, at + len(head) + len(rest), length)


def _frames(file: FileHandle) -> Iterator[_Frame]:
    """Every frame of a segment; after a torn piece it continues at the next valid frame."""
    size = file.size()
    at = 0
    while at < size:
        frame = _frame_at(file, at)
        if frame is None:
            following = _search(file, at, size)
            if following is None:
                return
            at = following
            continue
        yield frame
        # A writer that died inside this piece was followed by one that appended behind it.
        whole = frame.end == size or (frame.end < size and _frame_at(file, frame.end) is not None)
        at = frame.end if whole else frame.piece_at


def _search(file: FileHandle, start: int, size: int) -> int | None:
    """Offset of the next frame after a torn piece, None when there is none."""
    at = start
    while at < size:
        window = read_at(file, _SEARCH_BYTES, at)
        found = window.find(_MAGIC)
        while found >= 0:
            if _frame_at(file, at + found) is not None:
                return at + found
            found = window.find(_MAGIC, found + 1)
        if len(window) < _SEARCH_BYTES:
            return None
        at += len(window) - len(_MAGIC) + 1
    return None


def _keeps_the_protocol(pieces: FilePieces) -> PieceStore:
    return pieces  # checked by mypy
