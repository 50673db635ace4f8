"""Digests of dedup keys for whole Arrow columns: bit for bit what `digests` defines and Catalyst computes.

Both words of a fast digest are folded side by side, so that a text is gone through once while it is in the cache. A
secure digest takes a call of SHA-256 for each row; the texts that it covers are made column by column.

The kernels stand in one file because numba's cache looks at the time of the file a kernel is in, and not at the files
of the kernels it calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numba import types
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.columns import ColumnType
from deduper.core.digests import SEED, check_salt, java_hex

UInt64s = NDArray[np.uint64]

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_SEED: Final = np.uint64(SEED)

_INT32 = ("boolean", "tinyint", "smallint", "int", "date")
_BYTES = ("string", "binary")
_LONG_DIGITS = 18


def _read(word: Any) -> Any:
    """The type of an array that is only read: of Arrow's memory, or made here."""
    return types.Array(word, 1, "C", readonly=True)


_WORDS: Final = types.Array(types.uint64, 1, "C")
_VALID: Final = _read(types.boolean)


def array_digest(
    columns: Sequence[pa.Array], kinds: Sequence[ColumnType], salt: bytes, *, secure: bool = False
) -> tuple[UInt64s, UInt64s]:
    """(hi, lo) of every row, of columns of the Arrow types of the kinds, all scalar; at least one, all of one length.

    Raises:
        ValueError: the salt's length is wrong.
    """
    check_salt(salt)
    hi, lo = (_secure if secure else _fast)(columns, kinds, salt)
    lo[(hi | lo) == 0] = 1
    return hi, lo


def _fast(columns: Sequence[pa.Array], kinds: Sequence[ColumnType], salt: bytes) -> tuple[UInt64s, UInt64s]:
    rows = len(columns[0])
    hi, lo = (np.full(rows, xxhash.xxh64_intdigest(half, seed=SEED), np.uint64) for half in (salt[:8], salt[8:]))
    for column, kind in zip(columns, kinds, strict=True):
        valid = valid_of(column)
        if kind.name in _BYTES:
            _fold_bytes(*_bytes_of(column), valid, hi, lo)
        elif _is_wide(kind):
            _fold_bytes(*_shortest_bytes(column), valid, hi, lo)
        else:
            words = _words_of(column, kind)
            (_fold_words if words.itemsize == 8 else _fold_half_words)(words, valid, hi, lo)
    return hi, lo


def _secure(columns: Sequence[pa.Array], kinds: Sequence[ColumnType], salt: bytes) -> tuple[UInt64s, UInt64s]:
    texts = [_text_of(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    parts = [
        pc.binary_join_element_wise(
            pc.binary_length(text).cast(pa.string()).cast(pa.large_binary()), text, pa.scalar(b":", pa.large_binary())
        ).fill_null(b"-")
        for text in texts
    ]
    covered = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    salted = hashlib.sha256(salt)
    digests = bytearray()
    for part in covered.to_pylist():
        sha = salted.copy()
        sha.update(part)
        digests += sha.digest()[:16]
    words = np.frombuffer(digests, np.uint64).copy()
    _hash_words(words)
    return np.ascontiguousarray(words[::2]), np.ascontiguousarray(words[1::2])


def _text_of(column: pa.Array, kind: ColumnType) -> pa.Array:
    """The text of every value, as `digests` has it for secure digests, as large binary; null for null."""
    if kind.name in ("float", "double"):
        column = pa.array([None if value is None else java_hex(value) for value in column.to_pylist()], pa.string())
    elif kind.name in ("timestamp", "timestamp_ntz"):
        column = column.view(pa.int64())
    elif kind.name == "date":
        column = column.view(pa.int32())
    if kind.name not in _BYTES:
        column = column.cast(pa.string())
    return column.cast(pa.large_binary())


def _is_wide(kind: ColumnType) -> bool:
    return kind.name == "decimal" and (kind.precision or 0) > _LONG_DIGITS


def _shortest_bytes(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Unscaled values of decimals in two's complement, big endian, as few bytes as hold them, and where each begins."""
    rows = len(column)
    little = np.frombuffer(column.buffers()[1], np.uint8, 16 * rows, column.offset * 16).reshape(rows, 16)
    big = little[:, ::-1]
    sign = np.where(big[:, :1] & 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte is needed from the first one that differs from the sign on, or if the next one has another sign.
    differs = big != sign
    differs[:, :-1] |= ((big[:, 1:] ^ sign) & 0x80).astype(np.bool_)
    differs[:, -1] = True
    needed = np.logical_or.accumulate(differs, axis=1)
    begins = np.zeros(rows + 1, np.int32)
    np.cumsum(needed.sum(axis=1), out=begins[1:])
    return np.ascontiguousarray(big[needed]), begins


def _bytes_of(column: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The bytes of all values, and where each begins."""
    _, offsets, data = column.buffers()
    if not len(column) or offsets is None:
        return np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int32)
    begins = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), begins


def _words_of(column: pa.Array, kind: ColumnType) -> NDArray[Any]:
    """The words to hash of each value: uint32 or uint64; any value where there is none."""
    if kind.name == "decimal":
        return short_unscaled(column).view(np.uint64)
    if kind.name in ("float", "double"):
        with np.errstate(invalid="ignore"):  # said of NaNs of some kinds
            numbers: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint32 if kind.name == "float" else np.uint64)
    if kind.name in ("timestamp", "timestamp_ntz"):
        column = column.view(pa.int64())
    elif kind.name == "date":
        column = column.view(pa.int32())
    elif kind.name == "boolean":
        column = column.cast(pa.int32())
    values: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values.astype(np.int32).view(np.uint32) if kind.name in _INT32 else values.view(np.uint64)


def short_unscaled(column: pa.Array) -> NDArray[np.int64]:
    """Unscaled values of decimals of up to 18 digits; any value where there is none."""
    # The lower half of the 16 bytes.
    whole = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), column.offset * 16)
    return np.ascontiguousarray(whole[::2])


@kernel(inline="always")
def _rotated(word: Any, by: Any) -> Any:
    return (word << np.uint64(by)) | (word >> np.uint64(64 - by))


@kernel(inline="always")
def _round(running: Any, word: Any) -> Any:
    return _rotated(running + word * _P2, 31) * _P1


@kernel(inline="always")
def _avalanche(word: Any) -> Any:
    word ^= word >> np.uint64(33)
    word *= _P2
    word ^= word >> np.uint64(29)
    word *= _P3
    return word ^ (word >> np.uint64(32))


@kernel(inline="always")
def _with_word(seed: Any, word: Any) -> Any:
    return _rotated(seed ^ _round(np.uint64(0), word), 27) * _P1 + _P4


@kernel(inline="always")
def _with_half_word(seed: Any, half: Any) -> Any:
    return _rotated(seed ^ (half * _P1), 23) * _P2 + _P3


@kernel(inline="always")
def _hash_half_word(seed: Any, half: Any) -> Any:
    return _avalanche(_with_half_word(seed + _P5 + np.uint64(4), half))


@kernel(inline="always")
def _half_word_at(data: Any, at: Any) -> Any:
    # Unsigned, and without a loop: then it is one load, and no index is looked at for being negative.
    at = np.uint64(at)
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
    )


@kernel(inline="always")
def _word_at(data: Any, at: Any) -> Any:
    # One load too.
    at = np.uint64(at)
    return _half_word_at(data, at) | _half_word_at(data, at + np.uint64(4)) << np.uint64(32)


@kernel()
def _hash_bytes(data: Any, begin: Any, end: Any, seed: Any) -> Any:
    """xxhash64 of data[begin:end]."""
    at = begin
    if end - begin >= 32:
        first = seed + _P1 + _P2
        second = seed + _P2
        third = seed
        fourth = seed - _P1
        while end - at >= 32:
            first = _round(first, _word_at(data, at))
            second = _round(second, _word_at(data, at + 8))
            third = _round(third, _word_at(data, at + 16))
            fourth = _round(fourth, _word_at(data, at + 24))
            at += 32
        word = _rotated(first, 1) + _rotated(second, 7) + _rotated(third, 12) + _rotated(fourth, 18)
        for lane in (first, second, third, fourth):
            word = (word ^ _round(np.uint64(0), lane)) * _P1 + _P4
    else:
        word = seed + _P5
    word += np.uint64(end - begin)
    while end - at >= 8:
        word = _with_word(word, _word_at(data, at))
        at += 8
    if end - at >= 4:
        word = _with_half_word(word, _half_word_at(data, at))
        at += 4
    while at < end:
        word = _rotated(word ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _avalanche(word)


@kernel(types.void(_read(types.uint8), _read(types.int32), _VALID, _WORDS, _WORDS))
def _fold_bytes(data: Any, begins: Any, valid: Any, hi: Any, lo: Any) -> None:
    """Folds a column of texts into the words."""
    for row in range(hi.size):
        is_null = np.uint64(0 if valid[row] else 1)
        hi[row] = _hash_half_word(hi[row], is_null)
        lo[row] = _hash_half_word(lo[row], is_null)
        if valid[row]:
            begin, end = np.int64(begins[row]), np.int64(begins[row + 1])
            hi[row] = _hash_bytes(data, begin, end, hi[row])
            lo[row] = _hash_bytes(data, begin, end, lo[row])


@kernel(types.void(_read(types.uint64), _VALID, _WORDS, _WORDS))
def _fold_words(words: Any, valid: Any, hi: Any, lo: Any) -> None:
    """Folds a column of 8 bytes a value into the words."""
    for row in range(hi.size):
        is_null = np.uint64(0 if valid[row] else 1)
        hi[row] = _hash_half_word(hi[row], is_null)
        lo[row] = _hash_half_word(lo[row], is_null)
        if valid[row]:
            hi[row] = _avalanche(_with_word(hi[row] + _P5 + np.uint64(8), words[row]))
            lo[row] = _avalanche(_with_word(lo[row] + _P5 + np.uint64(8), words[row]))


@kernel(types.void(_read(types.uint32), _VALID, _WORDS, _WORDS))
def _fold_half_words(halves: Any, valid: Any, hi: Any, lo: Any) -> None:
    """Folds a column of 4 bytes a value into the words."""
    for row in range(hi.size):
        is_null = np.uint64(0 if valid[row] else 1)
        hi[row] = _hash_half_word(hi[row], is_null)
        lo[row] = _hash_half_word(lo[row], is_null)
        if valid[row]:
            hi[row] = _hash_half_word(hi[row], np.uint64(halves[row]))
            lo[row] = _hash_half_word(lo[row], np.uint64(halves[row]))


@kernel(types.void(_WORDS))
def _hash_words(words: Any) -> None:
    """Replaces every word by the xxhash64 of its 8 bytes, which is one to one."""
    for at in range(words.size):
        words[at] = _avalanche(_with_word(_SEED + _P5 + np.uint64(8), words[at]))


@kernel(types.void(_read(types.uint8), _read(types.int32), _VALID, _WORDS))
def _mix_bytes(data: Any, begins: Any, valid: Any, running: Any) -> None:
    """As `_fold_bytes`, of one word."""
    for row in range(running.size):
        running[row] = _hash_half_word(running[row], np.uint64(0 if valid[row] else 1))
        if valid[row]:
            running[row] = _hash_bytes(data, np.int64(begins[row]), np.int64(begins[row + 1]), running[row])


@kernel(types.void(_read(types.uint64), _VALID, _WORDS))
def _mix_words(words: Any, valid: Any, running: Any) -> None:
    """As `_fold_words`, of one word."""
    for row in range(running.size):
        running[row] = _hash_half_word(running[row], np.uint64(0 if valid[row] else 1))
        if valid[row]:
            running[row] = _hash_word(running[row], words[row])


@kernel(types.void(_read(types.uint32), _VALID, _WORDS))
def _mix_half_words(halves: Any, valid: Any, running: Any) -> None:
    """As `_fold_half_words`, of one word."""
    for row in range(running.size):
        running[row] = _hash_half_word(running[row], np.uint64(0 if valid[row] else 1))
        if valid[row]:
            running[row] = _hash_half_word(running[row], np.uint64(halves[row]))


@kernel(inline="always")
def _hash_word(seed: Any, word: Any) -> Any:
    return _avalanche(_with_word(seed + _P5 + np.uint64(8), word))


@kernel(types.void(_read(types.uint64), _read(types.int64), _VALID, _WORDS))
def fold_lists(hashes: UInt64s, begins: Any, valid: Any, running: UInt64s) -> None:
    """Folds lists into the words: the length of each, and its elements' hashes, hashes[begins[i]:begins[i + 1]]."""
    for row in range(running.size):
        running[row] = _hash_half_word(running[row], np.uint64(0 if valid[row] else 1))
        if valid[row]:
            running[row] = _hash_word(running[row], np.uint64(begins[row + 1] - begins[row]))
            for at in range(begins[row], begins[row + 1]):
                running[row] = _hash_word(running[row], hashes[at])


@kernel(types.void(_read(types.uint64), _read(types.int64), _VALID, _WORDS))
def fold_maps(hashes: UInt64s, begins: Any, valid: Any, running: UInt64s) -> None:
    """Folds maps into the words: the length of each, and the sum of the hashes of its entries, in any order."""
    for row in range(running.size):
        running[row] = _hash_half_word(running[row], np.uint64(0 if valid[row] else 1))
        if valid[row]:
            running[row] = _hash_word(running[row], np.uint64(begins[row + 1] - begins[row]))
            total = np.uint64(0)
            for at in range(begins[row], begins[row + 1]):
                total += hashes[at]
            running[row] = _hash_word(running[row], total)


OF_PAYLOADS: Final = (_mix_bytes, _mix_words, _mix_half_words, fold_lists, fold_maps)
"""Those that only fingerprints call."""


def valid_of(column: pa.Array) -> NDArray[np.bool_]:
    """bool[n]: the values that are not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def fold_column(column: pa.Array, kind: ColumnType, running: UInt64s) -> None:
    """Folds a column of scalars into one word a row, as a fast digest does into two."""
    valid = valid_of(column)
    if kind.name in _BYTES:
        if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.binary())
        _mix_bytes(*_bytes_of(column), valid, running)
    elif _is_wide(kind):
        _mix_bytes(*_shortest_bytes(column), valid, running)
    else:
        words = _words_of(column, kind)
        (_mix_words if words.itemsize == 8 else _mix_half_words)(words, valid, running)


def warm(*, secure: bool) -> None:
    """Compiles, or loads from the cache, the kernels of one kind of digests."""
    if secure:
        _hash_words(np.zeros(0, np.uint64))
        return
    valid, hi, lo = np.ones(0, np.bool_), np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    _fold_bytes(np.zeros(0, np.uint8), np.zeros(1, np.int32), valid, hi, lo)
    _fold_words(np.zeros(0, np.uint64), valid, hi, lo)
    _fold_half_words(np.zeros(0, np.uint32), valid, hi, lo)
