"""Ranged, checked reading of the pieces that a record names.

A header is read once a process: pieces never change, and a look-up beside the tables needs them all. Block
reads run ahead in a thread pool (reading and checksums release the GIL).

Of a store elsewhere each read is a journey, so a small piece is read whole, once; more reads run ahead; headers are
read side by side; and what was read whole stays in the cache of the host. Its bytes are trusted no more than those of
the store: if their checksums are wrong, the copy is dropped and the store read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.pieces.cache import PieceCache
from bucket_store.pieces.piece import (
    BucketEntries,
    PieceHeader,
    PieceRef,
    decode_bucket,
    decode_header,
    decode_piece,
    header_length,
)
from bucket_store.pieces.store import PieceStore

_FIRST_READ_BYTES = 4096
_HEADERS_KEPT = 4096
_HEADERS_TO_FORGET = 256
_READ_AHEAD, _REMOTE_READ_AHEAD = 4, 16
_AHEAD_BYTES = 64 << 20
"""Of the blocks that are read ahead: those of compacted pieces have up to 32 MiB each."""
_WHOLE_BYTES = 1 << 20
"""A piece elsewhere of at most this size is read whole: the journey takes longer than the bytes."""
_HELD_BYTES = 64 << 20
"""Of small pieces that are read whole, while a reader is at work."""

_T = TypeVar("_T")
_Read = Callable[[int, int], bytes]

# Headers of this process by piece, least recently used first. They are immutable, so a fork may keep them.
_headers: OrderedDict[PieceRef, PieceHeader] = OrderedDict()
_headers_lock = threading.Lock()


def forget_headers(shard: int, live: Sequence[PieceRef]) -> None:
    """Drops the headers of a shard's dead pieces, older than all live ones, once there are many.

    `live` ascends by first window. With its reference a header takes 3 to 4 KB, and a worker reads one in every window.
    """
    with _headers_lock:
        if len(_headers) <= _HEADERS_TO_FORGET:
            return
        dead = [ref for ref in _headers if ref.shard == shard and (not live or ref.last_window < live[0].first_window)]
        for ref in dead:
            del _headers[ref]


def decode_named(ref: PieceRef, data: bytes, store_id: str) -> list[BucketEntries]:
    """The buckets of a piece that was read whole, all checked.

    Raises:
        CorruptionError: damaged, of another store, or not the piece that the record names.
    """
    header, buckets = decode_piece(data, file=ref.file, offset=ref.offset)
    _compare(ref, header, store_id)
    return list(buckets)


def _compare(ref: PieceRef, header: PieceHeader, store_id: str) -> None:
    named = (store_id, hex(ref.checksum), ref.length, ref.shard)
    found = (header.store_id.hex(), hex(header.checksum), header.length, header.shard)
    if named != found:
        raise CorruptionError(
            f"identity of piece {ref.name}", file=ref.file, offset=ref.offset, expected=named, found=found
        )


@dataclass(frozen=True, slots=True)
class PieceBucket:
    """One bucket of one piece: directory row `index`."""

    ref: PieceRef
    header: PieceHeader
    index: int

    @property
    def count(self) -> int:
        return int(self.header.counts[self.index])

    @property
    def size_bytes(self) -> int:
        return self.header.block_range(self.index)[1]


@dataclass(slots=True)
class ReadCounts:
    """What a reader has read of a store that has a cache on this host."""

    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0


class PieceReader:
    """Reads pieces of one store. Safe for threads."""

    def __init__(self, pieces: PieceStore, store_id: str, cache: PieceCache | None = None) -> None:
        self._pieces = pieces
        self._store_id = store_id
        self._cache = cache
        self._ahead = _REMOTE_READ_AHEAD if pieces.is_remote else _READ_AHEAD
        self._lock = threading.Lock()
        self._held: OrderedDict[PieceRef, bytes] = OrderedDict()
        self._held_bytes = 0
        self.counts = ReadCounts()

    def header(self, ref: PieceRef) -> PieceHeader:
        """The piece's header.

        Raises:
            CorruptionError: not there, damaged, of another store, or not the piece that the record names.
        """
        with _headers_lock:
            header = _headers.get(ref)
            if header is not None:
                _headers.move_to_end(ref)
                return header
        header = self._checked(ref, lambda read: self._header(ref, read))
        with _headers_lock:
            _headers[ref] = header
            if len(_headers) > _HEADERS_KEPT:
                _headers.popitem(last=False)
        return header

    def parts(self, refs: Iterable[PieceRef], bucket: int) -> list[PieceBucket]:
        """The parts with a bucket's entries, in the order of the pieces."""
        parts = []
        for ref, header in self._headers([ref for ref in refs if ref.min_bucket <= bucket <= ref.max_bucket]):
            index = header.index_of(bucket)
            if index is not None:
                parts.append(PieceBucket(ref, header, index))
        return parts

    def all_parts(self, refs: Iterable[PieceRef]) -> list[PieceBucket]:
        """Every bucket of every piece, in the order of the pieces."""
        headers = self._headers(list(refs))
        return [PieceBucket(ref, header, index) for ref, header in headers for index in range(len(header.buckets))]

    def read(self, part: PieceBucket) -> BucketEntries:
        """A part's entries, checked. Raises CorruptionError."""
        start, length = part.header.block_range(part.index)
        header, index, ref = part.header, part.index, part.ref
        return self._checked(
            ref, lambda read: decode_bucket(header, index, read(start, length), file=ref.file, offset=ref.offset)
        )

    def read_all(self, parts: Sequence[PieceBucket]) -> Iterator[tuple[PieceBucket, BucketEntries]]:
        """Every part with its entries, in order; threads read a few ahead while the caller works."""
        if len(parts) < 2:
            for part in parts:
                yield part, self.read(part)
            return
        with ThreadPoolExecutor(self._ahead, thread_name_prefix="piece-reader") as pool:
            ahead: deque[tuple[PieceBucket, Future[BucketEntries]]] = deque()
            size = 0
            try:
                for part in parts:
                    ahead.append((part, pool.submit(self.read, part)))
                    size += part.size_bytes
                    while len(ahead) > self._ahead or (size > _AHEAD_BYTES and len(ahead) > 1):
                        first, entries = ahead.popleft()
                        size -= first.size_bytes
                        yield first, entries.result()
                while ahead:
                    first, entries = ahead.popleft()
                    yield first, entries.result()
            finally:
                for _, entries in ahead:
                    entries.cancel()

    def _headers(self, refs: Sequence[PieceRef]) -> Iterator[tuple[PieceRef, PieceHeader]]:
        """Each piece with its header, in order; of a store elsewhere those not yet read are read side by side."""
        with _headers_lock:
            unread = [ref for ref in refs if ref not in _headers]
        if self._pieces.is_remote and len(unread) > 1:
            with ThreadPoolExecutor(self._ahead, thread_name_prefix="header-reader") as pool:
                read = dict(zip(unread, pool.map(self.header, unread), strict=True))
        else:
            read = {}
        return ((ref, read.get(ref) or self.header(ref)) for ref in refs)

    def _header(self, ref: PieceRef, read: _Read) -> PieceHeader:
        data = read(0, min(_FIRST_READ_BYTES, ref.length))
        length = header_length(data, file=ref.file, offset=ref.offset)
        if length > len(data):
            data = read(0, min(length, ref.length))
        header = decode_header(data, file=ref.file, offset=ref.offset)
        _compare(ref, header, self._store_id)
        return header

    def _checked(self, ref: PieceRef, decode: Callable[[_Read], _T]) -> _T:
        """What `decode` makes of the piece's bytes; if a copy of this host is wrong, of the store's."""
        try:
            return decode(lambda start, length: self._read(ref, start, length))
        except (CorruptionError, UnknownFormatError):
            if self._cache is None:
                raise
            self._cache.drop(ref)
            self._release(ref)
        return decode(lambda start, length: self._pieces.read(ref, start, length))

    def _read(self, ref: PieceRef, start: int, length: int) -> bytes:
        """Bytes of the piece: from memory, this host's cache, or the store."""
        if not self._pieces.is_remote:
            return self._pieces.read(ref, start, length)
        with self._lock:
            held = self._held.get(ref)
        if held is not None:
            return held[start : start + length]
        cached = None if self._cache is None else self._cache.read(ref, start, length)
        if cached is not None:
            with self._lock:
                self.counts.cache_hits += 1
            return cached
        is_small = ref.length <= _WHOLE_BYTES
        if not is_small and 2 * length < ref.length:
            data = self._pieces.read(ref, start, length)
            self._count_miss(length)
            return data
        data = self._pieces.read(ref)
        self._count_miss(len(data))
        if self._cache is not None:
            self._cache.add(ref, data)
        if is_small:
            self._hold(ref, data)
        return data[start : start + length]

    def _count_miss(self, size: int) -> None:
        with self._lock:
            self.counts.cache_misses += 1
            self.counts.fetched_bytes += size

    def _hold(self, ref: PieceRef, data: bytes) -> None:
        with self._lock:
            if ref not in self._held:
                self._held[ref] = data
                self._held_bytes += len(data)
            while self._held_bytes > _HELD_BYTES:
                self._held_bytes -= len(self._held.popitem(last=False)[1])

    def _release(self, ref: PieceRef) -> None:
        with self._lock:
            self._held_bytes -= len(self._held.pop(ref, b""))
