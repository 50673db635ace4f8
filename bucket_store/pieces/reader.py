"""Ranged, checked reading of the pieces that a record names.

A header is read once a process: pieces never change, and a look-up beside the tables needs them all. Block
reads run ahead in a thread pool (reading and checksums release the GIL).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from bucket_store.errors import CorruptionError
from bucket_store.pieces.piece import BucketEntries, PieceHeader, PieceRef, decode_bucket, decode_header, header_length
from bucket_store.pieces.store import PieceStore

_FIRST_READ_BYTES = 4096
_HEADERS_KEPT = 4096
_HEADERS_TO_FORGET = 256
_READ_AHEAD = 4

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


@dataclass(frozen=True, slots=True)
class Part:
    """One bucket of one piece: directory row `index`."""

    ref: PieceRef
    header: PieceHeader
    index: int

    @property
    def count(self) -> int:
        return int(self.header.counts[self.index])


class PieceReader:
    """Reads pieces of one store. Safe for threads."""

    def __init__(self, pieces: PieceStore, store_id: str) -> None:
        self._pieces = pieces
        self._store_id = store_id

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
        data = self._pieces.read(ref, 0, min(_FIRST_READ_BYTES, ref.length))
        length = header_length(data, file=ref.file, offset=ref.offset)
        if length > len(data):
            data = self._pieces.read(ref, 0, min(length, ref.length))
        header = decode_header(data, file=ref.file, offset=ref.offset)
        self._compare(ref, header)
        with _headers_lock:
            _headers[ref] = header
            if len(_headers) > _HEADERS_KEPT:
                _headers.popitem(last=False)
        return header

    def parts(self, refs: Iterable[PieceRef], bucket: int) -> list[Part]:
        """The parts with a bucket's entries, in the order of the pieces."""
        parts = []
        for ref in refs:
            if ref.min_bucket <= bucket <= ref.max_bucket:
                header = self.header(ref)
                index = header.index_of(bucket)
                if index is not None:
                    parts.append(Part(ref, header, index))
        return parts

    def all_parts(self, refs: Iterable[PieceRef]) -> list[Part]:
        """Every bucket of every piece, in the order of the pieces."""
        headers = ((ref, self.header(ref)) for ref in refs)
        return [Part(ref, header, index) for ref, header in headers for index in range(len(header.buckets))]

    def read(self, part: Part) -> BucketEntries:
        """A part's entries, checked. Raises CorruptionError."""
        start, length = part.header.block_range(part.index)
        block = self._pieces.read(part.ref, start, length)
        return decode_bucket(part.header, part.index, block, file=part.ref.file, offset=part.ref.offset)

    def read_all(self, parts: Sequence[Part]) -> Iterator[tuple[Part, BucketEntries]]:
        """Every part with its entries, in order; threads read a few ahead while the caller works."""
        if len(parts) < 2:
            for part in parts:
                yield part, self.read(part)
            return
        with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="piece-reader") as pool:
            ahead: deque[tuple[Part, Future[BucketEntries]]] = deque()
            try:
                for part in parts:
                    ahead.append((part, pool.submit(self.read, part)))
                    if len(ahead) > _READ_AHEAD:
                        first, entries = ahead.popleft()
                        yield first, entries.result()
                while ahead:
                    first, entries = ahead.popleft()
                    yield first, entries.result()
            finally:
                for _, entries in ahead:
                    entries.cancel()

    def _compare(self, ref: PieceRef, header: PieceHeader) -> None:
        named = (self._store_id, hex(ref.checksum), ref.length, ref.shard)
        found = (header.store_id.hex(), hex(header.checksum), header.length, header.shard)
        if named != found:
            raise CorruptionError(
                f"identity of piece {ref.name}", file=ref.file, offset=ref.offset, expected=named, found=found
            )
