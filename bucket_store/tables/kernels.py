"""PURE. The loops over a resident table, compiled by numba; those over sorted digests alone are in `matching`.

A table is open addressing kept in order ("ordered linear probing"). `slots` is uint64[capacity + slack, 2], (0, 0) an
empty slot. A digest's home is the slot hi * capacity / 2^64; it stands there or behind, with no empty slot between, and
the digests of the whole table ascend. The slack behind the last home takes the digests pushed beyond it; nothing wraps
round. Where all digests of a table share their first bits (`shared` of them), the home is that of the bits behind:
(hi << shared) * capacity / 2^64. So a look-up stops at the first greater digest, sorted digests are found and applied
in one forward sweep, and a table moves to another capacity by one linear copy that leaves it in order. The loops are
fast for digests that spread evenly over hi, as salted hashes do; for others they are slow and still right.

Columns beside the slots are arrays of their length, or of length 0 when the table has none. Expiry keys are int64 in
order (see `ordered_expiry` for floats). Signatures are explicit, and their inputs read-only, so that arrays over mapped
files and over bytes take the same compiled code; all release the GIL. Digest arguments ascend by (hi, lo) unsigned.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from bucket_store.pieces.piece import ExpiryKeys

MAX_CAPACITY = (1 << 32) - 1
WORD = (1 << 64) - 1

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]

DIGESTS = types.Array(types.uint64, 2, "C", readonly=True)
_SLOTS = types.Array(types.uint64, 2, "C")
I64 = types.Array(types.int64, 1, "C")
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C")
_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_U32 = types.Array(types.uint32, 1, "C")
_U32_IN = types.Array(types.uint32, 1, "C", readonly=True)

_AHEAD = 24
"""A sweep prefetches the home of this many digests later, which hides most of the memory's latency."""


def _prefetch_code(_typing_context: Any, row: Any, *columns: Any) -> Any:
    """Prefetches a row of these arrays into the cache; never faults, whatever the address.

    Of an empty array it prefetches the beginning, so that a table without a column needs no branch. With it, 400,000
    new keys enter a table of 20 million in 30 to 36 ms, without it in 36 to 42 ms (all columns).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, i64, zero = ir.IntType(32), ir.IntType(64), ir.Constant(ir.IntType(64), 0)
        arrays = cgutils.unpack_tuple(builder, args[1])  # type: ignore[no-untyped-call]
        for kind, value in zip(signature.args[1], arrays, strict=True):
            array = context.make_array(kind)(context, builder, value)
            row_bytes = builder.extract_value(array.strides, 0)
            at = builder.select(builder.icmp_signed("==", array.nitems, zero), zero, args[0])
            start = builder.ptrtoint(array.data, i64)
            address = builder.inttoptr(builder.add(start, builder.mul(at, row_bytes)), ir.IntType(8).as_pointer())
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [address.type], ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
            )
            builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(row, types.StarArgTuple(columns)), generate  # type: ignore[no-untyped-call]


prefetch_row: Any = intrinsic(_prefetch_code)


@kernel(types.int64(types.uint64, types.uint64), inline="always")
def home_slot(hi: Any, capacity: int) -> Any:
    """floor(hi * capacity / 2^64), for a capacity below 2^32."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    return np.int64(((hi >> half) * capacity + (((hi & low) * capacity) >> half)) >> half)


@kernel(inline="always")
def _shift(column: Any, at: int, end: int) -> None:
    """Moves rows [at, end) of a column up by one, if the table has the column."""
    if column.size:
        for to in range(end, at, -1):
            column[to] = column[to - 1]


@kernel(types.void(DIGESTS, types.uint64, types.uint64, DIGESTS, I64))
def _find(slots: UInt64s, capacity: int, shared: Any, digests: UInt64s, found: Int64s) -> None:
    """See `find_sorted`. The cursor never moves back: the next digest is greater, so it stands no earlier."""
    count = digests.shape[0]
    cursor = 0
    for i in range(count):
        if i + _AHEAD < count:
            prefetch_row(home_slot(digests[i + _AHEAD, 0] << shared, capacity), slots)
        hi, lo = digests[i, 0], digests[i, 1]
        at = max(home_slot(hi << shared, capacity), cursor)
        while True:
            slot_hi, slot_lo = slots[at, 0], slots[at, 1]
            if slot_hi > hi or (slot_hi == hi and slot_lo >= lo):
                found[i] = at if slot_hi == hi and slot_lo == lo else -1
                break
            if slot_hi == 0 and slot_lo == 0:
                found[i] = -1
                break
            at += 1
        cursor = at


@kernel(
    types.UniTuple(types.int64, 2)(  # type: ignore[no-untyped-call]
        *(_SLOTS, I64, I64, _U32, _U64, types.uint64, types.uint64),
        *(DIGESTS, _I64_IN, _I64_IN, _U32_IN, _U64_IN, types.uint32, types.int64),
    ),
)
def _apply(
    slots: UInt64s,
    expiry: Int64s,
    origin: Int64s,
    window: UInt32s,
    fingerprint: UInt64s,
    capacity: int,
    shared: Any,
    digests: UInt64s,
    new_expiry: Int64s,
    new_origin: Int64s,
    new_window: UInt32s,
    new_fingerprint: UInt64s,
    only_window: int,
    start: int,
) -> tuple[int, int]:
    """See `apply_sorted`. One sweep: each digest is searched from its home or from the cursor, whichever is later.

    A new digest takes the slot of the first greater one; that one and its neighbours up to the first empty slot move up
    by one. So enters 25, whose home is the slot of 20:

        10  20  23  30  31   .    becomes    10  20  23  25  30  31
             ^       ^       ^                            ^
           home     at      end                        cursor

    The other columns move with the slots. The last slot stays empty, so every scan ends; an `end` there means that the
    slack has run out, and the sweep stops before that digest changes anything.
    """
    count = digests.shape[0]
    last = slots.shape[0] - 1  # stays empty: the scans need an end
    has_expiry, has_origin, has_window = bool(expiry.size), bool(origin.size), bool(window.size)
    has_fingerprint = bool(fingerprint.size)
    own_windows = bool(new_window.size)
    cursor = 0
    added = 0
    for i in range(start, count):
        if i + _AHEAD < count:
            home = home_slot(digests[i + _AHEAD, 0] << shared, capacity)
            prefetch_row(home, slots, expiry, origin, window, fingerprint)
        hi, lo = digests[i, 0], digests[i, 1]
        of_window = new_window[i] if own_windows else only_window
        at = max(home_slot(hi << shared, capacity), cursor)
        is_there = False
        while True:
            slot_hi, slot_lo = slots[at, 0], slots[at, 1]
            if slot_hi > hi or (slot_hi == hi and slot_lo >= lo):
                is_there = slot_hi == hi and slot_lo == lo
                break
            if slot_hi == 0 and slot_lo == 0:
                break
            at += 1
        cursor = at
        if is_there:
            if has_expiry:
                if new_expiry[i] <= expiry[at]:
                    continue
            elif not has_window or of_window <= window[at]:
                continue
        else:
            end = at
            while slots[end, 0] != 0 or slots[end, 1] != 0:
                end += 1
            if end >= last:
                return i, added
            for to in range(end, at, -1):
                slots[to, 0] = slots[to - 1, 0]
                slots[to, 1] = slots[to - 1, 1]
            _shift(expiry, at, end)
            _shift(origin, at, end)
            _shift(window, at, end)
            _shift(fingerprint, at, end)
            slots[at, 0] = hi
            slots[at, 1] = lo
            added += 1
        if has_expiry:
            expiry[at] = new_expiry[i]
        if has_origin:
            origin[at] = new_origin[i]
        if has_window:
            window[at] = of_window
        if has_fingerprint:
            fingerprint[at] = new_fingerprint[i]
    return count, added


@kernel(
    types.UniTuple(types.int64, 2)(  # type: ignore[no-untyped-call]
        *(DIGESTS, _I64_IN, _I64_IN, _U32_IN, _U64_IN),
        *(types.boolean, types.int64, types.int64, types.uint64, types.uint64),
        *(_SLOTS, I64, I64, _U32, _U64, types.uint64, types.uint64, types.int64),
    ),
)
def _copy_live(
    slots: UInt64s,
    expiry: Int64s,
    origin: Int64s,
    window: UInt32s,
    fingerprint: UInt64s,
    some_dead: bool,
    expiry_point: int,
    begin: int,
    first_hi: Any,
    last_hi: Any,
    new_slots: UInt64s,
    new_expiry: Int64s,
    new_origin: Int64s,
    new_window: UInt32s,
    new_fingerprint: UInt64s,
    capacity: int,
    shared: Any,
    free: int,
) -> tuple[int, int]:
    """See `copy_live`. Each key goes to its new home, or to the first slot behind the key before it."""
    last = new_slots.shape[0] - 1
    has_expiry, has_origin, has_window = bool(expiry.size), bool(origin.size), bool(window.size)
    has_fingerprint = bool(fingerprint.size)
    copied = 0
    for at in range(begin, slots.shape[0]):
        hi, lo = slots[at, 0], slots[at, 1]
        if (hi == 0 and lo == 0) or hi < first_hi:
            continue
        if hi > last_hi:
            break
        if has_expiry and some_dead and expiry[at] <= expiry_point:
            continue
        to = max(home_slot(hi << shared, capacity), free)
        if to >= last:
            return -1, free
        new_slots[to, 0] = hi
        new_slots[to, 1] = lo
        if has_expiry:
            new_expiry[to] = expiry[at]
        if has_origin:
            new_origin[to] = origin[at]
        if has_window:
            new_window[to] = window[at]
        if has_fingerprint:
            new_fingerprint[to] = fingerprint[at]
        free = to + 1
        copied += 1
    return copied, free


@kernel(types.int64(DIGESTS, _I64_IN, types.int64))
def _count_live(slots: UInt64s, expiry: Int64s, expiry_point: int) -> int:
    """See `count_live`."""
    live = 0
    for at in range(slots.shape[0]):
        if (slots[at, 0] != 0 or slots[at, 1] != 0) and expiry[at] > expiry_point:
            live += 1
    return live


def find_sorted(slots: UInt64s, capacity: int, digests: UInt64s, shared: int = 0) -> Int64s:
    """Slot of every digest, -1 where the table has none."""
    found = np.empty(len(digests), np.int64)
    _find(slots, capacity, np.uint64(shared), digests, found)
    return found


def apply_sorted(
    slots: UInt64s,
    expiry: Int64s,
    origin: Int64s,
    window: UInt32s,
    fingerprint: UInt64s,
    *,
    capacity: int,
    digests: UInt64s,
    new_expiry: Int64s,
    new_origin: Int64s,
    new_window: UInt32s,
    new_fingerprint: UInt64s,
    only_window: int,
    start: int,
    shared: int = 0,
) -> tuple[int, int]:
    """Enters digests [start, m) into a table in place; gives (first digest not entered, number of new keys).

    The first is m unless the slack ran out: then the table is whole and in order, and the rest goes into a larger one.
    A key in the table is replaced when the new expiry key is greater; in a table without expiry when the new window is
    later; in a table without either, never. `new_window` of length 0: all digests are of `only_window`. The other new
    columns have length m where the table has the column.
    """
    table: tuple[Any, ...] = (slots, expiry, origin, window, fingerprint, capacity, np.uint64(shared))
    new: tuple[Any, ...] = (digests, new_expiry, new_origin, new_window, new_fingerprint, only_window, start)
    entered, added = _apply(*table, *new)
    return int(entered), int(added)


def copy_live(
    slots: UInt64s,
    expiry: Int64s,
    origin: Int64s,
    window: UInt32s,
    fingerprint: UInt64s,
    *,
    expiry_point: int | None,
    new_slots: UInt64s,
    new_expiry: Int64s,
    new_origin: Int64s,
    new_window: UInt32s,
    new_fingerprint: UInt64s,
    capacity: int,
    shared: int = 0,
    begin: int = 0,
    first_hi: int = 0,
    last_hi: int = WORD,
    free: int = 0,
) -> tuple[int, int]:
    """Copies the keys with `first_hi` <= hi <= `last_hi`, all from slot `begin` on, into a table of another capacity.

    That table has nothing from slot `free` on. Gives the number of keys, and its first free slot then; -1 keys when its
    slack is too short, and then it is worthless. Entries whose expiry key is at or below `expiry_point` are left out
    (None: no entry is).
    """
    some_dead = expiry_point is not None
    point = expiry_point if expiry_point is not None else 0
    keys: tuple[Any, ...] = (some_dead, point, begin, np.uint64(first_hi), np.uint64(last_hi))
    to: tuple[Any, ...] = (new_slots, new_expiry, new_origin, new_window, new_fingerprint)
    new: tuple[Any, ...] = (*to, capacity, np.uint64(shared), free)
    copied, free = _copy_live(slots, expiry, origin, window, fingerprint, *keys, *new)
    return int(copied), int(free)


def count_live(slots: UInt64s, expiry: Int64s, expiry_point: int) -> int:
    """Number of keys whose expiry key is beyond `expiry_point`."""
    return int(_count_live(slots, expiry, expiry_point))


def ordered_expiry(expiry: ExpiryKeys) -> Int64s:
    """Expiry keys as int64 of the same order: ints as they are, floats by their bits (-0.0 equals 0.0; no NaN)."""
    if expiry.dtype == np.int64:
        return cast("Int64s", expiry)
    bits = (expiry + 0.0).view(np.int64)
    return np.where(bits >= 0, bits, bits ^ np.int64(0x7FFFFFFFFFFFFFFF))


def float_expiry(ordered: Int64s) -> NDArray[np.float64]:
    """The floats that `ordered_expiry` was given."""
    bits = np.where(ordered >= 0, ordered, ordered ^ np.int64(0x7FFFFFFFFFFFFFFF))
    return bits.view(np.float64)


def warm() -> None:
    """Loads and runs every kernel once: for a worker daemon, before it forks."""
    digests = np.array([[1, 1]], np.uint64)
    slots, other = np.zeros((8, 2), np.uint64), np.zeros((8, 2), np.uint64)
    none_i64, none_u32, none_u64 = np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint64)
    apply_sorted(
        slots,
        none_i64,
        none_i64,
        none_u32,
        none_u64,
        capacity=4,
        digests=digests,
        new_expiry=none_i64,
        new_origin=none_i64,
        new_window=none_u32,
        new_fingerprint=none_u64,
        only_window=0,
        start=0,
    )
    find_sorted(slots, 4, digests)
    count_live(slots, np.zeros(8, np.int64), 0)
    copy_live(
        slots,
        none_i64,
        none_i64,
        none_u32,
        none_u64,
        expiry_point=None,
        new_slots=other,
        new_expiry=none_i64,
        new_origin=none_i64,
        new_window=none_u32,
        new_fingerprint=none_u64,
        capacity=4,
    )
