"""The sources of many windows in one file: for windows that were judged long ago and may still be an origin.

Layout of `folded/<last window, 12 digits>-<epoch, 6>-<8 hex>.archive` (framed, magic `BSARCHIV`, version 1). Integers
are little endian:

    0  magic     8 bytes
    8  version   u16
   10  first     u64   first window
   18  last      u64   last window
   26  length    u32   of the packed sources
   30  packed    zlib: msgpack, one array a window, ascending: [window, [[digest, name, version, start, end, rows] ...]]
   -8  checksum  u64   xxh3_64 of all bytes before it

It is placed durably before the record that names it (`SourcesFoldRecord`); one that no record names belongs to a fold
cut short. A damaged file is a CorruptionError.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePosixPath

import msgspec

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from bucket_store.log.records import ArchiveRef, JudgedRef, LogState, SourcesRef
from bucket_store.log.sources_file import DIRECTORY as SOURCES_DIRECTORY
from bucket_store.log.sources_file import FOLDED_DIRECTORY, SourcePartition, read_named, read_sources, stated_checksum
from bucket_store.places.place import Place

MAGIC = b"BSARCHIV"
VERSION = 1

_HEAD = struct.Struct("<QQI")
_WINDOWS = msgspec.msgpack.Decoder(list[tuple[int, list[tuple[bytes, str, str | int, int, int, int]]]])


def files_of(state: LogState) -> Iterator[PurePosixPath]:
    """The files that hold sources, as the state names them, below the store's root."""
    return (path_of(ref) for ref in refs_of(state))


def refs_of(state: LogState) -> Iterator[SourcesRef | ArchiveRef | JudgedRef]:
    """The references to the files that hold sources: each has its file's length and checksum, see `path_of`."""
    yield from state.archives
    yield from (source for source in state.sources.values() if not source.inline)
    if state.judged is not None:
        yield state.judged


def left_files(before: LogState, after: LogState) -> list[PurePosixPath]:
    """The files that hold sources that an earlier state names and a later one does not, below the store's root.

    Windows leave in their order, so only those that have left are visited.
    """
    left = list(takewhile(lambda ref: ref not in after.archives, before.archives))
    paths = [path_of(ref) for ref in left]
    paths += [
        path_of(before.sources[window])
        for window in takewhile(lambda window: window not in after.sources, before.sources)
        if not before.sources[window].inline
    ]
    if before.judged is not None and before.judged != after.judged:
        paths.append(path_of(before.judged))
    return paths


def remove_left(root: Place, paths: Iterable[PurePosixPath]) -> None:
    """Remove files that no record names any more. For the owner, once the record is durable; safe to repeat."""
    for path in paths:
        (root / path).remove()
        failpoints.hit("sources.forgotten")


def folded_name(through_window: int, epoch: int, kind: str) -> str:
    """A name for a file of a fold, drawn once."""
    return f"{through_window:012d}-{epoch:06d}-{secrets.token_hex(4)}.{kind}"


def encode_archive(windows: Mapping[int, Sequence[SourcePartition]]) -> bytes:
    """The bytes of an archive of these windows, one at least."""
    numbers = sorted(windows)
    packed = msgspec.msgpack.encode(
        [
            (window, [(p.digest, p.name, p.version, p.start, p.end, p.rows) for p in windows[window]])
            for window in numbers
        ]
    )
    return frame(MAGIC, VERSION, _HEAD.pack(numbers[0], numbers[-1], len(packed)) + zlib.compress(packed, 6))


def archive_ref(name: str, windows: Mapping[int, object], data: bytes) -> ArchiveRef:
    """A record's reference to an archive of these windows, encoded as `data`."""
    return ArchiveRef(name, min(windows), max(windows), stated_checksum(data), len(data))


def decode_archive(data: bytes, *, file: str) -> dict[int, tuple[SourcePartition, ...]]:
    """The source partitions of the archive's windows.

    Raises:
        CorruptionError: not what was written.
        UnknownFormatError: of a later release.
    """
    body = unframe(data, magic=MAGIC, version=VERSION, file=file)
    try:
        first, last, length = _HEAD.unpack_from(body)
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(body[_HEAD.size :], length)
        if not unpacking.eof or len(packed) != length or unpacking.unused_data:
            raise ValueError(f"packed sources of {length} bytes")
        windows = {
            window: tuple(SourcePartition(*found[1:], digest=found[0]) for found in partitions)
            for window, partitions in _WINDOWS.decode(packed)
        }
        if not windows or [*windows] != sorted(windows) or (min(windows), max(windows)) != (first, last):
            raise ValueError(f"windows {first} to {last}, ascending")
    except (ValueError, struct.error, zlib.error) as exc:
        raise CorruptionError(
            "archive of sources",
            file=file,
            offset=BODY_OFFSET,
            expected="windows with their source partitions",
            found=str(exc),
        ) from exc
    return windows


class SourcesReader:
    """Reads windows' sources from the files that a state names, and keeps the archive read last.

    For one state; with windows in their order each file is read once.
    """

    def __init__(self, root: Place, state: LogState) -> None:
        self._root = root
        self._state = state
        self._kept: tuple[ArchiveRef, dict[int, tuple[SourcePartition, ...]]] | None = None

    def archived(self, ref: ArchiveRef) -> list[int]:
        """The windows of an archive. Raises as `of`."""
        return [*self._archive(ref)]

    def of(self, window: int) -> tuple[SourcePartition, ...] | None:
        """The source partitions of a window; None when they are forgotten.

        Raises:
            CorruptionError: the file is missing, damaged, or not the one that the record names.
            UnknownFormatError: of a later release.
        """
        ref = self._state.sources_of(window)
        if isinstance(ref, SourcesRef):
            return read_sources(self._root, window, ref)
        return None if ref is None else self._archive(ref).get(window)

    def file(self, window: int) -> Place:
        """The file that holds a window's sources, for messages."""
        ref = self._state.sources_of(window)
        return self._root / (SOURCES_DIRECTORY if ref is None else path_of(ref))

    def _archive(self, ref: ArchiveRef) -> dict[int, tuple[SourcePartition, ...]]:
        if self._kept is None or self._kept[0] != ref:
            self._kept = ref, read_archive(self._root, ref)
        return self._kept[1]


def read_archive(root: Place, ref: ArchiveRef) -> dict[int, tuple[SourcePartition, ...]]:
    """The sources of the windows of an archive. Raises as `SourcesReader.of`."""
    path = root / path_of(ref)
    return decode_archive(read_named(path, ref.length, ref.checksum), file=str(path))


def path_of(ref: SourcesRef | ArchiveRef | JudgedRef) -> PurePosixPath:
    """The path of a file of sources, below the store's root; the log's where no file holds them."""
    if isinstance(ref, SourcesRef) and ref.inline:
        return PurePosixPath("log")
    return PurePosixPath(SOURCES_DIRECTORY if isinstance(ref, SourcesRef) else FOLDED_DIRECTORY, ref.name)
