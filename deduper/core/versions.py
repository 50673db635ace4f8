"""PURE. Versions of a key: records with other payloads than its first copy's, unique and remembered beside it.

Version n of a key, from 2 on, is an entry of its own under a digest made of the key's and n (`version_digests`), in the
key's shard and bucket. So the versions of a key are found one after another, up to the first number that nothing is
stored under, and only for keys with a conflict. See `kernels.judge_versions` for the order among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deduper.core import kernels
from deduper.core.clock import domain_ends
from deduper.core.kernels import Bools, Expiries, Int64s, UInt8s, UInt64s
from deduper.core.lookups import Find, JudgeRules, KeyMatches, expiry_buckets, look_up
from deduper.payload import MOST_VERSIONS


def version_digests(digests: UInt64s, numbers: Int64s | int, spread: int) -> UInt64s:
    """The digests of versions of keys, for numbers from 1 (the key's own) to `MOST_VERSIONS`.

    Those of a key differ in hi alone, by steps over its whole range that keep it modulo `spread`: the number of buckets
    that keys are hashed into, else 1. So they lie in the key's shard, which lo decides, in its bucket, and evenly in
    tables.
    """
    turns = min(2**64 // spread, 2**64 - 1)
    step, size = np.uint64(turns // (MOST_VERSIONS + 1)), np.uint64(spread)
    hi = digests[:, 0]
    turn = hi // size % np.uint64(turns)
    further = (np.asarray(numbers) - 1).astype(np.uint64) * step
    back = np.uint64(turns) - further
    turned = np.where(turn >= back, turn - back, turn + further)
    of_version = np.maximum(turned, np.uint64(1)) * size + hi % size  # never 0, as no digest is
    return np.stack([np.where(np.asarray(numbers) == 1, hi, of_version), digests[:, 1]], axis=1)


@dataclass(frozen=True, slots=True)
class Groups:
    """The admitted rows by key: group g has rows[starts[g]:starts[g + 1]], and is looked up in a bucket by a digest."""

    starts: Int64s
    rows: Int64s
    buckets: Int64s
    digests: UInt64s


@dataclass(frozen=True, slots=True)
class Columns:
    """What an entry keeps of a row."""

    expiry: Expiries
    place: Int64s
    fingerprint: UInt64s


@dataclass(frozen=True, slots=True)
class NewEntries:
    """The entries of a window, sorted by (bucket, key); `window`: None where all are of this one.

    `expiry` is empty where tuples have no expiry key; `place` is None where none is kept.
    """

    buckets: Int64s
    digests: UInt64s
    expiry: Expiries
    place: Int64s | None
    window: NDArray[np.uint32] | None
    fingerprint: UInt64s | None


def judge_versions(
    rules: JudgeRules,
    window: int,
    find: Find,
    clock: tuple[Expiries, Bools, Any],
    groups: Groups,
    matches: KeyMatches,
    columns: Columns,
    verdict: UInt8s,
    first_copy: Int64s,
) -> tuple[KeyMatches, NewEntries]:
    """The matches of keys and of their versions, and the entries; `clock` is that before each row, and the period.

    `kernels.judge_versions` says what is written to `verdict` and `first_copy`.
    """
    have = kernels.have_conflicts(groups.starts, groups.rows, matches.found, columns.fingerprint, matches.fingerprint)
    matches, following = _look_up_versions(rules, find, groups, matches, np.flatnonzero(have))
    most = groups.rows.size + matches.found.size
    entry_of, group_of, number_of = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    latest_before, has_latest, period = clock
    lowest, _ = domain_ends(float_domain=rules.float_domain)
    count = kernels.judge_versions(
        groups.starts,
        groups.rows,
        matches.found,
        following,
        matches.expiry,
        matches.fingerprint,
        columns.expiry,
        columns.fingerprint,
        latest_before,
        has_latest,
        period,
        lowest,
        rules.most_versions,
        rules.lookup_all_live,
        verdict,
        first_copy,
        entry_of,
        group_of,
        number_of,
    )
    return matches, _entries(
        rules, window, groups, matches, columns, entry_of[:count], group_of[:count], number_of[:count]
    )


def _look_up_versions(
    rules: JudgeRules, find: Find, groups: Groups, keys: KeyMatches, wanted: Int64s
) -> tuple[KeyMatches, Int64s]:
    """The matches of all keys, and behind them those of versions of the wanted ones.

    Also, for each of all these, the place of the key's next version among them; -1 where none was looked up.
    """
    parts, following = [keys], [np.full(keys.found.size, -1, np.int64)]
    behind = keys.found.size
    # Bucket by bucket, since a bucket without room in memory is read again whenever another one comes between.
    for of_bucket in np.split(wanted, np.flatnonzero(np.diff(groups.buckets[wanted])) + 1):
        left, above, before = of_bucket, following[0], of_bucket
        for number in range(2, rules.most_versions + 1):
            if not left.size:
                break
            sought = version_digests(groups.digests[left], number, rules.spread)
            order = np.lexsort((sought[:, 1], sought[:, 0]))
            sought_in = groups.buckets[left]
            found = look_up(find, None, sought_in, sought[order], float_domain=rules.float_domain, compares=True)
            above[before[order]] = behind + np.arange(order.size)
            above = np.full(order.size, -1, np.int64)
            parts.append(found)
            following.append(above)
            behind += order.size
            before = np.flatnonzero(found.found)
            left = left[order[before]]
    return KeyMatches.joined(parts), np.concatenate(following)


def _entries(
    rules: JudgeRules,
    window: int,
    groups: Groups,
    matches: KeyMatches,
    columns: Columns,
    entry: Int64s,
    group: Int64s,
    number: Int64s,
) -> NewEntries:
    """New entries, and those that are another version now; these keep all that they have."""
    is_row = entry >= 0
    row, match = entry[is_row], -2 - entry[~is_row]

    def of(column: NDArray[Any], stored: NDArray[Any]) -> NDArray[Any]:
        values = np.empty(entry.size, column.dtype)
        values[is_row], values[~is_row] = column[row], stored[match]
        return values

    digests, expiry = version_digests(groups.digests[group], number, rules.spread), of(columns.expiry, matches.expiry)
    buckets = expiry_buckets(expiry, rules.span) if rules.lookup_all_live else groups.buckets[group]
    order = _order(buckets, digests)
    windows = None
    if rules.keep_first_seen and match.size:
        windows = of(np.full(columns.place.size, window, np.uint32), matches.window)[order]
    return NewEntries(
        buckets[order],
        digests[order],
        expiry[order],
        of(columns.place, matches.origin)[order] if rules.keep_first_seen else None,
        windows,
        of(columns.fingerprint, matches.fingerprint)[order],
    )


def _order(buckets: Int64s, digests: UInt64s) -> Int64s | slice:
    """What sorts entries by (bucket, key): with `own_bucket` they are in order already where no key has versions."""
    is_behind = np.ones(max(0, buckets.size - 1), np.bool_)
    for column in (digests[:, 1], digests[:, 0], buckets):
        is_behind = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & is_behind)
    return slice(None) if is_behind.all() else np.lexsort((digests[:, 1], digests[:, 0], buckets))
