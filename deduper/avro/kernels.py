"""Decodes Avro data by a program, a list of steps that `program` makes of a schema.

A step is a row of numbers: STEP, NODE, and two more, A and B.

    BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BYTES     one value of that kind
    MILLIS       a long, which becomes a time in µs
    WIDE         a float, which becomes a double
    FIXED        A bytes
    DECIMAL      A bytes, or with their length in front if it is -1; its absolute value is below POWERS[B]
    ENUM         a number below A
    PRESENT      nothing: a struct is there
    UNION        a number below B; the program continues at TARGETS[A + it]
    JUMP         nothing: the program continues at A
    ITEMS        blocks of items, or of entries of a map; the steps up to its NEXT read one; behind the last one the
                 program continues at A
    NEXT         the end of an item
    END          the end of the datum

Each node has a list of values: the ROW where one stands, its VALUE, and an EXTRA number. Rows are data, or the items of
a node, all in their order. A row that has no value is null. Floats are their bits; of bytes VALUE is their place and
EXTRA their length; of a decimal they are the lower and the upper half; of ITEMS VALUE is how many there are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from bucket_store.compiled import kernel
from deduper.text.kernels import is_utf8

BOOLEAN, INT, LONG, MILLIS, FLOAT, WIDE, DOUBLE, STRING, BYTES, FIXED, DECIMAL, ENUM = range(12)
PRESENT, UNION, JUMP, ITEMS, NEXT, END = range(12, 18)
STEP, NODE, A, B = range(4)
FIELDS: Final = 4
SOUND, MALFORMED, NOT_UTF8 = range(3)

_MOST_MILLIS: Final = (2**63 - 1) // 1000
_PC, _LEFT, _TOTAL, _ROW = range(4)
"""Of a list that is being read: its step, how many items of the block are left, how many were read, its own row."""

_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES_IN = types.Array(types.int64, 1, "C", readonly=True)
_TABLE_IN = types.Array(types.int64, 2, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C")


@kernel()
def _long(data: Any, at: Any, end: Any) -> Any:
    """(number, place behind it); the place is -1 where there is none of 64 bits."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@kernel()
def _word(data: Any, at: Any, size: Any) -> Any:
    """The bits of a number of so many bytes, the lowest first."""
    word = np.uint64(0)
    for place in range(size):
        word |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return np.int64(word)


@kernel()
def _decimal(data: Any, at: Any, size: Any, high_power: Any, low_power: Any) -> Any:
    """(fits, upper half, lower half) of a number of so many bytes, the highest first."""
    if size == 0:
        return False, np.int64(0), np.int64(0)
    sign = np.uint64(0)
    if data[at] >= 0x80:
        sign = ~sign
    high = low = sign
    for place in range(at, at + size):
        # A longer number may only repeat its sign in front.
        if at + size - place > 16 and np.uint64(data[place]) != sign & np.uint64(0xFF):
            return False, np.int64(0), np.int64(0)
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(data[place])
    if (high ^ sign) >> np.uint64(63) != np.uint64(0):
        return False, np.int64(0), np.int64(0)
    size_high, size_low = high, low
    if sign != np.uint64(0):
        size_high, size_low = ~high, ~low + np.uint64(1)
        if size_low == np.uint64(0):
            size_high += np.uint64(1)
    fits = size_high < high_power or (size_high == high_power and size_low < low_power)
    return fits, np.int64(high), np.int64(low)


@kernel(
    types.void(
        _BYTES_IN, _PLACES_IN, _PLACES_IN, _TABLE_IN, _PLACES_IN, types.Array(types.uint64, 2, "C", readonly=True),
        types.Array(types.uint8, 1, "C"), _PLACES, _PLACES_IN, _PLACES, _PLACES, _PLACES, types.boolean,
    )
)  # fmt: skip
def decode(
    data: Any,
    starts: Any,
    ends: Any,
    program: Any,
    targets: Any,
    powers: Any,
    status: Any,
    used: Any,
    first: Any,
    rows: Any,
    values: Any,
    extras: Any,
    counts: Any,
) -> None:
    """Counts the values of the data data[starts[i]:ends[i]] by node, with their states; then writes those of the sound.

    `used` becomes the number of values of each node. If it only counts, that of values up to a mistake is in it too,
    and nothing is written; otherwise the list of a node begins at `first`.
    """
    frames = np.zeros((len(program), 4), np.int64)
    items = np.zeros(len(used), np.int64)
    used[:] = 0
    float_bits = np.zeros(1, np.uint32)
    float_value = float_bits.view(np.float32)
    double_value = np.zeros(1, np.float64)
    double_bits = double_value.view(np.int64)
    for datum in range(len(starts)):
        if not counts and status[datum] != SOUND:
            continue
        at, end, row = starts[datum], ends[datum], np.int64(datum)
        pc, depth, state = 0, 0, SOUND
        while program[pc, STEP] != END:
            step, node = program[pc, STEP], program[pc, NODE]
            value, extra = np.int64(0), np.int64(0)
            if step == UNION:
                value, at = _long(data, at, end)
                if at < 0 or value < 0 or value >= program[pc, B]:
                    state = MALFORMED
                    break
                pc = targets[program[pc, A] + value]
                continue
            if step == JUMP:
                pc = program[pc, A]
                continue
            if step in (ITEMS, NEXT):
                if step == ITEMS:
                    frames[depth, _PC], frames[depth, _LEFT], frames[depth, _TOTAL] = pc, 0, 0
                    frames[depth, _ROW] = row
                    depth += 1
                frame = depth - 1
                begin = frames[frame, _PC]
                node = program[begin, NODE]
                if frames[frame, _LEFT] == 0:
                    value, at = _long(data, at, end)
                    if at >= 0 and value < 0:
                        # The size of the block follows, of which nobody who reads all of it has need.
                        _, at = _long(data, at, end)
                        value = -value
                    # Every item takes a byte at least.
                    if at < 0 or value < 0 or value > end - at:
                        state = MALFORMED
                        break
                    frames[frame, _LEFT] = value
                if frames[frame, _LEFT] > 0:
                    frames[frame, _LEFT] -= 1
                    frames[frame, _TOTAL] += 1
                    row = items[node]
                    items[node] += 1
                    pc = begin + 1
                    continue
                depth -= 1
                row, value = frames[frame, _ROW], frames[frame, _TOTAL]
                pc = program[begin, A] - 1
            elif step == BOOLEAN:
                if at >= end or data[at] > 1:
                    state = MALFORMED
                    break
                value = np.int64(data[at])
                at += 1
            elif step in (INT, LONG, MILLIS, ENUM):
                value, at = _long(data, at, end)
                fits = at >= 0
                if step == INT:
                    fits = fits and -(2**31) <= value < 2**31
                elif step == MILLIS:
                    fits = fits and -_MOST_MILLIS <= value <= _MOST_MILLIS
                    value *= 1000
                elif step == ENUM:
                    fits = fits and 0 <= value < program[pc, A]
                if not fits:
                    state = MALFORMED
                    break
            elif step in (FLOAT, WIDE, DOUBLE):
                size = 8 if step == DOUBLE else 4
                if end - at < size:
                    state = MALFORMED
                    break
                value = _word(data, at, size)
                at += size
                if step == WIDE:
                    float_bits[0] = np.uint32(value)
                    double_value[0] = np.float64(float_value[0])
                    value = double_bits[0]
            elif step != PRESENT:
                size = program[pc, A]
                if step in (STRING, BYTES) or size < 0:
                    size, at = _long(data, at, end)
                if at < 0 or size < 0 or size > end - at:
                    state = MALFORMED
                    break
                value, extra = np.int64(at), size
                if step == STRING and not is_utf8(data, at, at + size):
                    state = NOT_UTF8  # unless it is no whole datum
                elif step == DECIMAL:
                    power = program[pc, B]
                    fits, extra, value = _decimal(data, at, size, powers[power, 0], powers[power, 1])
                    if not fits:
                        state = MALFORMED
                        break
                at += size
            if not counts:
                place = first[node] + used[node]
                rows[place], values[place], extras[place] = row, value, extra
            used[node] += 1
            pc += 1
        if counts:
            status[datum] = state if at == end else MALFORMED


@kernel(types.void(_BYTES_IN, _PLACES_IN, _PLACES_IN, _PLACES_IN, types.Array(types.uint8, 1, "C")))
def gather(data: Any, places: Any, lengths: Any, to: Any, gathered: Any) -> None:
    """Copies data[places[i]:places[i] + lengths[i]] to the place to[i]."""
    for number in range(len(places)):
        for byte in range(lengths[number]):
            gathered[to[number] + byte] = data[places[number] + byte]
