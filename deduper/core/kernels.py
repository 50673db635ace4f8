"""The compiled loops of judging: the clock, the sort by key, the walk over equal keys.

They stand in one file because numba's cache looks at the time of the file a kernel is in, and not at the files of the
kernels it calls: a rule in another module could change without its callers being compiled again.

Every kernel serves both domains of expiry keys, which differ in their ends: `lowest`, `highest` are the ends
of int64 or the infinities. All release the GIL and keep no state.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.core.verdict import (
    CONFLICT,
    CONFLICT_IN_WINDOW,
    UNKNOWN_COPY,
    Admission,
    TupleVerdict,
)

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Expiries = NDArray[Any]
"""Expiry keys: int64 or float64, one domain throughout a store."""

# Enum members are no constants to numba.
_ADMITTED: Final = int(Admission.ADMITTED)
_FIRST_ERROR: Final = int(Admission.MALFORMED)
_OLDER_THAN_PERIOD: Final = int(Admission.OLDER_THAN_PERIOD)
_CATEGORY_DROPPED: Final = int(Admission.CATEGORY_DROPPED)
_BAD_EXPIRY: Final = int(Admission.BAD_EXPIRY)
_AHEAD_OF_NOW: Final = int(Admission.AHEAD_OF_NOW)
_JUMP_TOO_FAR: Final = int(Admission.JUMP_TOO_FAR)
_NO_END: Final = 2**63 - 1
_UNIQUE: Final = int(TupleVerdict.UNIQUE)
_DUPLICATE: Final = int(TupleVerdict.DUPLICATE)
_ERROR: Final = int(TupleVerdict.ERROR)


@kernel()
def is_expired(expiry: Any, latest: Any, period: Any, lowest: Any) -> bool:
    """expiry <= latest - period: a tuple (or a remembered entry) exactly one period old is expired.

    No other place decides a verdict by it. The first half keeps the subtraction inside int64: where latest - period
    would lie below the domain nothing is expired. For floats it is always true.
    """
    return bool(latest >= lowest + period and expiry <= latest - period)


@kernel()
def is_beyond(expiry: Any, latest: Any, jump: Any, highest: Any) -> bool:
    """expiry > latest + jump, without leaving the domain."""
    return bool(latest <= highest - jump and expiry > latest + jump)


@kernel()
def run_clock(
    order: Int64s,
    expiry: Expiries,
    admission: UInt8s,
    latest_before: Expiries,
    has_latest: Bools,
    latest: Any,
    is_set: bool,
    moved: bool,
    last_order: int,
    period: Any,
    has_limit: bool,
    limit: Any,
    has_jump: bool,
    jump: Any,
    jump_limit: Any,
    lowest: Any,
    highest: Any,
) -> tuple[Any, bool, bool, int, int]:
    """One source partition's rows through its clock; `admission`, `latest_before`, `has_latest` are written.

    Until the clock has moved in this batch a jump may reach `jump_limit`, then `jump` beyond the latest point.
    Returns (latest, is_set, moved, last order, rows done): fewer rows done than given = the order went back there.
    """
    for row in range(order.size):
        if order[row] <= last_order:
            return latest, is_set, moved, last_order, row
        last_order = order[row]
        latest_before[row] = latest
        has_latest[row] = is_set
        if admission[row] != _ADMITTED:
            continue
        value = expiry[row]
        if not math.isfinite(value):
            admission[row] = _BAD_EXPIRY
        elif has_limit and value > limit:
            admission[row] = _AHEAD_OF_NOW
        elif not is_set:
            latest = value
            is_set = True
            moved = True
        elif has_jump and (is_beyond(value, latest, jump, highest) if moved else value > jump_limit):
            admission[row] = _JUMP_TOO_FAR
        elif is_expired(value, latest, period, lowest):
            admission[row] = _OLDER_THAN_PERIOD
        elif value > latest:
            latest = value
            moved = True
    return latest, is_set, moved, last_order, order.size


@kernel()
def hold_clock(
    expiry: Expiries,
    admission: UInt8s,
    latest: Any,
    is_set: bool,
    period: Any,
    has_limit: bool,
    limit: Any,
    has_jump: bool,
    jump_limit: Any,
    lowest: Any,
) -> None:
    """All rows against one latest point; `admission` is written."""
    for row in range(expiry.size):
        if admission[row] != _ADMITTED:
            continue
        value = expiry[row]
        if not math.isfinite(value):
            admission[row] = _BAD_EXPIRY
        elif has_limit and value > limit:
            admission[row] = _AHEAD_OF_NOW
        elif is_set:
            if has_jump and value > jump_limit:
                admission[row] = _JUMP_TOO_FAR
            elif is_expired(value, latest, period, lowest):
                admission[row] = _OLDER_THAN_PERIOD


@kernel()
def arrange_places(
    ids: NDArray[np.int32],
    order: Int64s,
    known: NDArray[np.int32],
    live: int,
    categories: int,
    in_batch: int,
    live_categories: int,
    remember_dropped: int,
) -> tuple[NDArray[np.int32], Int64s, Int64s, int, NDArray[np.int32], bool]:
    """(holder, begin, end, oldest live, dropped, is sound): the places after tuples in source order, and their spans.

    Place i, counted from the first live one, is held by category `holder[i]` for begin[i] <= order < end[i]. `known`
    has the `live` categories, then the dropped ones, both oldest first. The first tuple of each category of the batch
    is enough while none of them (the ids below `in_batch`) is forgotten: that is `is sound`.
    """
    most = ids.size + known.size
    holder = np.empty(most, np.int32)
    begin = np.zeros(most, np.int64)
    end = np.full(most, _NO_END, np.int64)
    dropped = np.empty(most, np.int32)
    is_known = np.zeros(categories, np.bool_)
    is_known[known] = True
    holder[:live] = known[:live]
    dropped[: known.size - live] = known[live:]
    oldest, newest, forgotten, last = 0, live, 0, known.size - live
    is_sound = True
    # Before the first tuple: a configuration that shrank drops and forgets then.
    for row in range(-1, ids.size):
        at = np.int64(0) if row < 0 else order[row]
        if row >= 0:
            if is_known[ids[row]]:
                continue
            is_known[ids[row]] = True
            holder[newest] = ids[row]
            begin[newest] = at
            newest += 1
        while newest - oldest > live_categories:
            end[oldest] = at
            dropped[last] = holder[oldest]
            oldest += 1
            last += 1
        while last - forgotten > remember_dropped:
            is_known[dropped[forgotten]] = False
            is_sound = is_sound and dropped[forgotten] >= in_batch
            forgotten += 1
    return holder[:newest], begin[:newest], end[:newest], oldest, dropped[forgotten:last], is_sound


@kernel()
def place_rows(
    starts: Int64s, begin: Int64s, end: Int64s, place: Int64s, ids: NDArray[np.int32], order: Int64s, admission: UInt8s
) -> Int64s:
    """Place of every row's category when the row arrived; -1, and CATEGORY_DROPPED in `admission`, where it had none.

    Category c holds place[i] for orders begin[i] <= order < end[i], i in starts[c]:starts[c + 1], ascending.
    """
    places = np.full(ids.size, -1, dtype=np.int64)
    for row in range(ids.size):
        if admission[row] != _ADMITTED:
            continue
        low = starts[ids[row]]
        first = low
        high = starts[ids[row] + 1]
        while low < high:
            middle = (low + high) // 2
            if begin[middle] <= order[row]:
                low = middle + 1
            else:
                high = middle
        if low > first and order[row] < end[low - 1]:
            places[row] = place[low - 1]
        else:
            admission[row] = _CATEGORY_DROPPED
    return places


@kernel()
def partition(words: UInt64s, order: Int64s, admission: UInt8s, shards: int) -> tuple[NDArray[np.int32], Int64s]:
    """Rows by shard, within each in their order, and where each shard's begin: int32[n], int64[shards + 1].

    A shard is a key's lo mod shards. Errors have no key: their place partitions them, so that no shard gets too many.
    """
    count = words.size
    starts = np.zeros(shards + 1, dtype=np.int64)
    shard_of = np.empty(count, dtype=np.uint16)
    divisor = np.uint64(shards)
    for row in range(count):
        word = words[row] if admission[row] < _FIRST_ERROR else np.uint64(order[row])
        shard = np.int64(word % divisor)
        shard_of[row] = shard
        starts[shard + 1] += 1
    for before in range(shards):
        starts[before + 1] += starts[before]
    nexts = starts[:-1].copy()
    partitioned = np.empty(count, dtype=np.int32)
    for row in range(count):
        slot = nexts[shard_of[row]]
        partitioned[slot] = row
        nexts[shard_of[row]] = slot + 1
    return partitioned, starts


@kernel()
def pack_keys(
    digests: UInt64s, buckets: Int64s, rows: Int64s, lowest: int, bucket_bits: int, index_bits: int
) -> UInt64s:
    """One sortable word a row: its bucket - lowest, as much of hi as there is room for, its index in `rows`."""
    packed = np.empty(rows.size, dtype=np.uint64)
    shift = np.uint64(bucket_bits + index_bits)
    index_shift = np.uint64(index_bits)
    for index in range(rows.size):
        row = rows[index]
        word = (digests[row, 0] >> shift) << index_shift | np.uint64(index)
        if bucket_bits:
            word |= np.uint64(buckets[row] - lowest) << np.uint64(64 - bucket_bits)
        packed[index] = word
    return packed


@kernel()
def unpack_groups(packed: UInt64s, digests: UInt64s, rows: Int64s, index_bits: int) -> tuple[Int64s, Int64s]:
    """Rows sorted by (bucket, hi, lo), equal ones as they stand in `rows`, and where each run of equal ones starts.

    `packed` is sorted, so only rows whose words agree up to the index are left to compare: those of one key, and now
    and then two keys with the same leading bits. Returns int64[n] rows and int64[groups + 1] starts, the last n.
    """
    count = packed.size
    mask = np.uint64((1 << index_bits) - 1)
    shift = np.uint64(index_bits)
    result = np.empty(count, dtype=np.int64)
    for index in range(count):
        result[index] = rows[np.int64(packed[index] & mask)]
    starts = np.empty(count + 1, dtype=np.int64)
    groups = 0
    begin = 0
    while begin < count:
        prefix = packed[begin] >> shift
        end = begin + 1
        is_one_key = True
        while end < count and packed[end] >> shift == prefix:
            is_one_key = is_one_key and _is_same(digests, result[end], result[begin])
            end += 1
        starts[groups] = begin
        groups += 1
        if not is_one_key:
            _merge_sort(result[begin:end], digests)
            for index in range(begin + 1, end):
                if not _is_same(digests, result[index], result[index - 1]):
                    starts[groups] = index
                    groups += 1
        begin = end
    starts[groups] = count
    return result, starts[: groups + 1].copy()


@kernel()
def _is_same(digests: UInt64s, left: int, right: int) -> bool:
    return bool(digests[left, 0] == digests[right, 0] and digests[left, 1] == digests[right, 1])


@kernel()
def _merge_sort(rows: Int64s, digests: UInt64s) -> None:
    """Sorts `rows` stably, in place, by (hi, lo): n log n whatever they hold."""
    count = rows.size
    source = rows.copy()
    target = np.empty_like(source)
    width = 1
    while width < count:
        for low in range(0, count, 2 * width):
            middle = min(low + width, count)
            high = min(low + 2 * width, count)
            left = low
            right = middle
            for slot in range(low, high):
                if left < middle and (right == high or not _comes_before(digests, source[right], source[left])):
                    target[slot] = source[left]
                    left += 1
                else:
                    target[slot] = source[right]
                    right += 1
        source, target = target, source
        width *= 2
    rows[:] = source


@kernel()
def _comes_before(digests: UInt64s, left: int, right: int) -> bool:
    if digests[left, 0] != digests[right, 0]:
        return bool(digests[left, 0] < digests[right, 0])
    return bool(digests[left, 1] < digests[right, 1])


@kernel()
def group_by_bucket(buckets: Int64s, lowest: int, width: int, rows: Int64s) -> Int64s:
    """`rows` stably sorted by the bucket of the rows they name, all in [lowest, lowest + width): a counting sort."""
    starts = np.zeros(width + 1, dtype=np.int64)
    for index in range(rows.size):
        starts[buckets[rows[index]] - lowest + 1] += 1
    for slot in range(width):
        starts[slot + 1] += starts[slot]
    result = np.empty(rows.size, dtype=np.int64)
    for index in range(rows.size):
        bucket = buckets[rows[index]] - lowest
        result[starts[bucket]] = rows[index]
        starts[bucket] += 1
    return result


@kernel()
def take_heads(starts: Int64s, rows: Int64s, buckets: Int64s, digests: UInt64s) -> tuple[Int64s, UInt64s]:
    """Bucket and digest of every group: those of its first row."""
    groups = starts.size - 1
    bucket = np.empty(groups, dtype=np.int64)
    digest = np.empty((groups, 2), dtype=np.uint64)
    for group in range(groups):
        row = rows[starts[group]]
        bucket[group] = buckets[row]
        digest[group, 0] = digests[row, 0]
        digest[group, 1] = digests[row, 1]
    return bucket, digest


@kernel()
def judge_groups(
    starts: Int64s, rows: Int64s, found: Bools, verdict: UInt8s, first_copy: Int64s, remembered: Int64s
) -> int:
    """The first row of a group is unique unless its key was found; all others are duplicates.

    Written: `verdict` of the rows; `first_copy` of the duplicates, the row that holds it, or -2 - group where it was
    found; `remembered`, the unique rows in the order of the groups. Returns how many those are.
    """
    count = 0
    for group in range(starts.size - 1):
        begin = starts[group]
        first = -2 - group
        if not found[group]:
            first = rows[begin]
            verdict[first] = _UNIQUE
            remembered[count] = first
            count += 1
            begin += 1
        for index in range(begin, starts[group + 1]):
            verdict[rows[index]] = _DUPLICATE
            first_copy[rows[index]] = first
    return count


@kernel()
def judge_groups_by_age(
    starts: Int64s,
    rows: Int64s,
    found: Bools,
    found_expiry: Expiries,
    expiry: Expiries,
    latest_before: Expiries,
    has_latest: Bools,
    period: Any,
    lowest: Any,
    verdict: UInt8s,
    first_copy: Int64s,
    remembered: Int64s,
) -> int:
    """As `judge_groups`, but a key's entry counts only until a tuple's clock has passed it.

    A tuple that finds only a dead entry is unique and takes its place, so `remembered` holds a key's last unique row.
    Entries only ever grow: a replaced one is at or before the expiry point, the tuple that replaces it beyond.
    """
    count = 0
    for group in range(starts.size - 1):
        has_entry = found[group]
        entry = found_expiry[group]
        first = -2 - group
        for index in range(starts[group], starts[group + 1]):
            row = rows[index]
            if has_entry and has_latest[row] and is_expired(entry, latest_before[row], period, lowest):
                has_entry = False
            if has_entry:
                verdict[row] = _DUPLICATE
                first_copy[row] = first
            else:
                verdict[row] = _UNIQUE
                has_entry = True
                entry = expiry[row]
                first = row
        if first >= 0:
            remembered[count] = first
            count += 1
    return count


@kernel()
def have_conflicts(
    starts: Int64s, rows: Int64s, found: Bools, fingerprint: UInt64s, match_fingerprint: UInt64s
) -> Bools:
    """Of each group: its key was found, with a known payload, and a row has another one."""
    have = np.zeros(found.size, np.bool_)
    for group in range(found.size):
        known = match_fingerprint[group]
        if found[group] and known != 0:
            for index in range(starts[group], starts[group + 1]):
                if fingerprint[rows[index]] != known:
                    have[group] = True
                    break
    return have


@kernel()
def judge_versions(
    starts: Int64s,
    rows: Int64s,
    found: Bools,
    following: Int64s,
    found_expiry: Expiries,
    found_fingerprint: UInt64s,
    expiry: Expiries,
    fingerprint: UInt64s,
    latest_before: Expiries,
    has_latest: Bools,
    period: Any,
    lowest: Any,
    most: int,
    by_expiry: bool,
    verdict: UInt8s,
    first_copy: Int64s,
    entries: Int64s,
    groups: Int64s,
    numbers: Int64s,
) -> int:
    """As `judge_groups` and `judge_groups_by_age`, but a row with another payload than all of its key's is a version.

    The entries of group g are match g and those that `following` leads to from there (-1: no more), up to one that was
    not found; at most `most` count. `by_expiry`: entries die one by one, and stand in the order of their expiry keys,
    the greatest first, so that those that are dead by a row's clock are the last. They stay, since by the clock of a
    row of another source partition they may be alive. A row that comes to a full list takes the place of a dead entry.

    Written: `verdict`; `first_copy` of duplicates, and of versions and of what is one too many that of the group's
    first entry; `entries`, `groups` and `numbers`: the row, or -2 - match, that is version n of a group from now on,
    where that is another one than before, of those that are alive by the greatest clock of the group. Returns how many
    those are. An entry only takes the place of one with a lesser expiry key, since the store takes no other one there.
    """
    refs, known = np.empty(most, np.int64), np.empty(most, np.int64)
    prints, ages = np.empty(most, np.uint64), np.empty(most, expiry.dtype)
    count = 0
    for group in range(starts.size - 1):
        live, at = 0, group
        while live < most and at >= 0 and found[at]:
            refs[live] = known[live] = -2 - at
            prints[live], ages[live] = found_fingerprint[at], found_expiry[at]
            live += 1
            at = following[at]
        stored, is_set, latest = live, False, lowest
        for index in range(starts[group], starts[group + 1]):
            row = rows[index]
            alive = live
            if by_expiry and has_latest[row]:
                if not is_set or latest_before[row] > latest:
                    is_set, latest = True, latest_before[row]
                while alive > 0 and is_expired(ages[alive - 1], latest_before[row], period, lowest):
                    alive -= 1
            same = -1
            for number in range(alive):
                # All of a key have fingerprints that count, or none has.
                if prints[number] == fingerprint[row] or prints[number] == 0:
                    same = number
                    break
            if same >= 0:
                verdict[row], first_copy[row] = _DUPLICATE, refs[same]
                continue
            if alive > 0:
                first_copy[row] = refs[0]
            if alive == most:
                verdict[row] = _ERROR
                continue
            verdict[row] = _UNIQUE
            ref, payload, age = row, fingerprint[row], expiry[row]
            for number in range(live):
                if by_expiry and age > ages[number]:
                    refs[number], ref = ref, refs[number]
                    prints[number], payload = payload, prints[number]
                    ages[number], age = age, ages[number]
            if live < most:
                refs[live], prints[live], ages[live] = ref, payload, age
                live += 1
        while is_set and live > 0 and is_expired(ages[live - 1], latest, period, lowest):
            live -= 1
        for number in range(live):
            if number >= stored or refs[number] != known[number]:
                entries[count], groups[count], numbers[count] = refs[number], group, number + 1
                count += 1
    return count


@kernel()
def name_first_copies(
    first_copy: Int64s,
    window: int,
    order: Int64s,
    expiry: Expiries,
    match_window: NDArray[np.uint32],
    match_origin: Int64s,
    match_expiry: Expiries,
    first_window: Int64s,
    first_origin: Int64s,
    first_expiry: Expiries,
) -> None:
    """Writes window, source order and expiry key of what `first_copy` points at; see `judge_groups`."""
    for row in range(first_copy.size):
        first = first_copy[row]
        if first >= 0:
            first_window[row] = window
            first_origin[row] = order[first]
            first_expiry[row] = expiry[first]
        elif first < -1:
            group = -2 - first
            first_window[row] = match_window[group]
            first_origin[row] = match_origin[group]
            first_expiry[row] = match_expiry[group]


@kernel()
def compare_payloads(
    first_copy: Int64s,
    fingerprint: UInt64s,
    match_fingerprint: UInt64s,
    copies: UInt8s,
    first_fingerprint: UInt64s,
) -> None:
    """Writes of each copy the fingerprint of its first copy, and where the two are not the same its reason.

    `copies` are places among `DUPLICATE_REASONS`: a copy with the same payload keeps the one that it has. `first_copy`:
    see `judge_groups`. A fingerprint of 0 is unknown.
    """
    for row in range(first_copy.size):
        first = first_copy[row]
        if first == -1:
            continue
        of_first = fingerprint[first] if first >= 0 else match_fingerprint[-2 - first]
        first_fingerprint[row] = of_first
        if of_first == 0:
            copies[row] = UNKNOWN_COPY
        elif of_first != fingerprint[row]:
            copies[row] = CONFLICT_IN_WINDOW if first >= 0 else CONFLICT


@kernel()
def _count(span: float, bounds: NDArray[np.float64], counts: Int64s) -> None:
    slot = 0
    while slot < bounds.size and span > bounds[slot]:
        slot += 1
    counts[slot] += 1


@kernel()
def count_lateness(
    expiry: Expiries,
    latest_before: Expiries,
    has_latest: Bools,
    admission: UInt8s,
    bounds: NDArray[np.float64],
    counts: Int64s,
) -> float:
    """Adds each row that is no error to its bucket of lateness in `counts`; returns their sum. See `statistics`.

    `latest_before`, `has_latest` of length 1 are those of all rows. Doubles: a difference of int64 may leave int64.
    """
    total = 0.0
    step = 0 if latest_before.size == 1 else 1
    for row in range(expiry.size):
        if admission[row] >= _FIRST_ERROR:
            continue
        late = 0.0
        if has_latest[row * step] and latest_before[row * step] > expiry[row]:
            late = float(latest_before[row * step]) - float(expiry[row])
        _count(late, bounds, counts)
        total += late
    return total


@kernel()
def count_distances(
    first_copy: Int64s,
    expiry: Expiries,
    match_expiry: Expiries,
    keeps_expiry: bool,
    bounds: NDArray[np.float64],
    counts: Int64s,
) -> float:
    """Adds each duplicate to its bucket of distance in `counts`; returns their sum.

    `first_copy`: see `judge_groups`.
    """
    total = 0.0
    for row in range(first_copy.size):
        first = first_copy[row]
        if first >= 0:
            distance = abs(float(expiry[row]) - float(expiry[first]))
        elif first < -1 and keeps_expiry:
            distance = abs(float(expiry[row]) - float(match_expiry[-2 - first]))
        else:
            continue
        _count(distance, bounds, counts)
        total += distance
    return total


@kernel()
def measure_misses(
    rows: Int64s,
    expiry: Expiries,
    verdict: UInt8s,
    latest: Any,
    has_latest: bool,
    period: Any,
    memory: Any,
    lowest: Any,
    weight: float,
    edges: NDArray[np.float64],
    seen: Bools,
    newest: Expiries,
    missed: NDArray[np.float64],
    sampled: Int64s,
    totals: NDArray[np.float64],
    squares: NDArray[np.float64],
    distances: NDArray[np.float64],
) -> None:
    """Count the sampled records of a window, which come in source order; see `deduper.leaks.meter`.

    `rows` are the places of the records' keys in `seen`, `newest` and `missed`; these and all behind them are changed.
    `missed` has the kinds of `leaks.meter.KINDS`, which are also the first ones of `sampled`, `totals` and `squares`.
    """
    for at in range(rows.size):
        row, key, judged = rows[at], expiry[at], verdict[at]
        # By the committed clock: the one of the sampled records would make an estimate depend on the rate.
        if seen[row] and has_latest and is_expired(newest[row], latest, memory, lowest):
            seen[row] = False
            missed[row, :] = 0.0
        if seen[row]:
            later, earlier = (key, newest[row]) if key >= newest[row] else (newest[row], key)
            if judged == _DUPLICATE:
                kind = 3
            elif judged != _UNIQUE:
                kind = 2
            elif is_expired(earlier, later, period, lowest):
                kind = 1
            else:
                kind = 0
            if kind < 3:
                squares[kind] += (missed[row, kind] + weight) ** 2 - missed[row, kind] ** 2
                missed[row, kind] += weight
            sampled[kind] += 1
            totals[kind] += weight
            distance = np.float64(later) - np.float64(earlier)
            distances[0 if kind == 3 else 1, np.searchsorted(edges, distance)] += weight
        if judged in (_UNIQUE, _DUPLICATE):
            if not seen[row] or key > newest[row]:
                newest[row] = key
            seen[row] = True
