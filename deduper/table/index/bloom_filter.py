"""A bloom filter of the keys of one file: its bits, and the file that keeps them.

A framed file (`bucket_store.framing`: magic "BSTABFLT", version 1, xxh3_64 of all bytes at the end), numbers little
endian. Its body:

    0  index    16 bytes, the id of the index
   16  file     u32, the number of the data file
   20  keys     u64, the rows with a key
   28  blocks   u32, ceil(bits a key * rows / 256)
   32  words    8 u32 a block

A reader refuses a body of another length, and a filter of another index, file or number of keys than the state names
(CorruptionError). A cut or changed byte breaks the checksum.

Bits are those of a split block bloom filter, as Parquet's: the key's `hi` chooses block `((hi >> 32) * blocks) >> 32`,
and in each of its 8 words bit `(u32(hi) * SALT[word] mod 2^32) >> 27`. With 12 bits a key, 1 key in 185 that the file
does not have passes. Sorted digests touch a filter from its begin to its end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from math import exp, lgamma, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from deduper.table.index.keys import UInt64s

_MAGIC = b"BSTABFLT"
_VERSION = 1
_HEAD = struct.Struct("<16sIQI")
_WORDS = 8
_BLOCK_BITS = 256
_BITS = 32
"""Of a word."""
_MOST_KEYS = 600
"""More keys in a block are not worth counting, with 3 bits a key or more."""
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint64
)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TOP = np.uint64(27)


@dataclass(frozen=True, slots=True)
class FilterOwner:
    """Whose a filter is: the index's id in hex, the number of the file, and the number of its keys."""

    index_id: str
    number: int
    keys: int


@cache
def bits_for(fpp: float) -> int:
    """The fewest bits a key with which so many of the keys pass that a file does not have."""
    return next(bits for bits in range(1, 257) if _passing(bits) <= fpp)


def _passing(bits: int) -> float:
    """The share of the keys that pass: a block gets its keys by chance, so some blocks are fuller than others."""
    mean = _BLOCK_BITS / bits
    share = 0.0
    for keys in range(1, _MOST_KEYS):
        of_blocks = exp(keys * log(mean) - mean - lgamma(keys + 1))
        share += of_blocks * (1 - (1 - 1 / _BITS) ** keys) ** _WORDS
    return share


def empty_words(rows: int, bits: int) -> NDArray[np.uint32]:
    """The words of a filter without a key yet, with so many bits for each row of a file."""
    return np.zeros(_WORDS * -(-bits * rows // _BLOCK_BITS), np.uint32)


def add_keys(words: NDArray[np.uint32], hi: UInt64s) -> None:
    """Adds keys to a filter."""
    if len(hi):
        _add(words, np.ascontiguousarray(hi))


def may_have(words: NDArray[np.uint32], hi: UInt64s) -> NDArray[np.bool_]:
    """Whether each key may be one of the filter's; False is certain."""
    found = np.zeros(len(hi), np.bool_)
    if len(words):
        _test(words, np.ascontiguousarray(hi), found)
    return found


def encode_filter(owner: FilterOwner, words: NDArray[np.uint32]) -> bytes:
    """The bytes of a filter's file."""
    head = _HEAD.pack(bytes.fromhex(owner.index_id), owner.number, owner.keys, len(words) // _WORDS)
    return frame(_MAGIC, _VERSION, head + words.astype("<u4").tobytes())


def decode_filter(data: bytes, owner: FilterOwner, file: str) -> NDArray[np.uint32]:
    """The words of the filter in a file.

    Raises:
        CorruptionError, UnknownFormatError: it is not whole, or another's.
    """
    body = unframe(data, magic=_MAGIC, version=_VERSION, file=file)
    wanted = (bytes.fromhex(owner.index_id), owner.number, owner.keys)
    *found, blocks = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (0,)
    if tuple(found) != wanted or len(body) != _HEAD.size + 4 * _WORDS * blocks or (owner.keys and not blocks):
        raise CorruptionError(
            "head and length of a filter",
            file=file,
            offset=BODY_OFFSET,
            expected=(wanted, _HEAD.size + 4 * _WORDS * blocks),
            found=(tuple(found), len(body)),
        )
    return np.frombuffer(body, "<u4", offset=_HEAD.size)


def read_filter(path: Path, owner: FilterOwner) -> NDArray[np.uint32]:
    """The words of a filter's file.

    Raises:
        FileNotFoundError: it is not there.
        CorruptionError, UnknownFormatError: as `decode_filter`.
    """
    return decode_filter(path.read_bytes(), owner, str(path))


@kernel()
def _add(words: NDArray[np.uint32], hi: UInt64s) -> None:
    blocks = np.uint64(len(words) // 8)
    for row in range(len(hi)):
        at = np.int64(((hi[row] >> _HALF) * blocks) >> _HALF) * 8
        for word in range(8):
            bit = (((hi[row] & _LOW) * _SALT[word]) & _LOW) >> _TOP
            words[at + word] |= np.uint32(1) << np.uint32(bit)


@kernel()
def _test(words: NDArray[np.uint32], hi: UInt64s, found: NDArray[np.bool_]) -> None:
    blocks = np.uint64(len(words) // 8)
    for row in range(len(hi)):
        at = np.int64(((hi[row] >> _HALF) * blocks) >> _HALF) * 8
        has = True
        for word in range(8):
            bit = (((hi[row] & _LOW) * _SALT[word]) & _LOW) >> _TOP
            if not (words[at + word] >> np.uint32(bit)) & np.uint32(1):
                has = False
                break
        found[row] = has
