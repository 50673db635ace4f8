"""PURE. Looks keys up among the windows before, bucket by bucket; and the rules by which they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bucket_store.tables.matches import Matches
from deduper.core.kernels import Bools, Expiries, Int64s, UInt64s
from deduper.core.verdict import FAR_BITS, FAR_QUOTIENT, ExpiryBy

Find = Callable[[int, UInt64s], Matches]
"""(bucket key, digests uint64[m, 2] strictly ascending) -> Matches, among the windows committed before this one."""
Load = Callable[[Sequence[int]], None]
"""Prepares the look-ups of some buckets, given by their keys; changes no answer."""


@dataclass(frozen=True, slots=True)
class JudgeRules:
    """The rules of a look-up, the same for every shard of a window.

    lookup_all_live: a key is looked for in the whole live period (always so for processing_time), not in its bucket.
    float_domain, period, span: of the expiry keys; unused by `never` and `category`.
    buckets: how many buckets `never` spreads its keys over.
    keep_first_seen: remember and give each duplicate's first copy.
    latest: the clock for all rows where they carry none of their own (`clock: batch`: the committed latest point;
        processing_time: the intent's wall clock); None while unset.
    is_time: expiry keys are µs, so the distances of duplicates are counted.
    takes_later: a tuple with a later expiry key than the entry of its key is unique and takes its place, whatever the
        clock: of rows that a unique port has written, the latest one of a key counts. Only with `lookup_all_live`,
        without versions.
    has_fingerprint: rows and entries have fingerprints, and copies are compared with their first copies.
    refuses_conflicts: a copy with another payload is an error, not a duplicate. Only with `has_fingerprint`.
    most_versions: a tuple with another payload than those of its key is unique, up to so many payloads, and then an
        error; 0: there are no versions. Only with `has_fingerprint`, without `refuses_conflicts`.
    """

    by: ExpiryBy
    lookup_all_live: bool
    float_domain: bool
    period: int | float
    span: int | float
    buckets: int
    keep_first_seen: bool
    latest: int | float | None
    is_time: bool = False
    takes_later: bool = False
    has_fingerprint: bool = False
    refuses_conflicts: bool = False
    most_versions: int = 0

    @property
    def spread(self) -> int:
        """How many buckets keys are hashed into: see `version_digests`."""
        return self.buckets if self.by == "never" else 1

    @property
    def has_expiry_key(self) -> bool:
        """Tuples have an expiry key that is a number."""
        return self.by not in ("never", "category")

    @property
    def keeps_expiry(self) -> bool:
        """Entries carry their expiry key."""
        return self.has_expiry_key and (self.lookup_all_live or self.keep_first_seen)


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """`Matches` of keys in any buckets: zeros for a column that the store does not keep."""

    found: Bools
    expiry: Expiries
    origin: Int64s
    window: NDArray[np.uint32]
    fingerprint: UInt64s

    @classmethod
    def joined(cls, parts: Sequence[KeyMatches]) -> KeyMatches:
        """Those of all parts, one after another."""
        return cls(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)))


def look_up(
    find: Find, load: Load | None, buckets: Int64s, digests: UInt64s, *, float_domain: bool, compares: bool
) -> KeyMatches:
    """The answers of `find` to digests that ascend in ascending buckets, bucket by bucket.

    Without `compares` there are no fingerprints.
    """
    count = buckets.size
    result = KeyMatches(
        found=np.zeros(count, np.bool_),
        expiry=np.zeros(count, np.float64 if float_domain else np.int64),
        origin=np.zeros(count, np.int64),
        window=np.zeros(count, np.uint32),
        fingerprint=np.zeros(count if compares else 0, np.uint64),
    )
    ends = [*(np.flatnonzero(buckets[1:] != buckets[:-1]) + 1).tolist(), count] if count else []
    if load is not None and len(ends) > 1:
        load([int(buckets[end - 1]) for end in ends])
    begin = 0
    for end in ends:
        part = slice(begin, end)
        matches = find(int(buckets[begin]), digests[part])
        result.found[part] = matches.found
        for column, values in (
            (result.expiry, matches.expiry),
            (result.origin, matches.origin),
            (result.window, matches.window),
            (result.fingerprint, matches.fingerprint if compares else None),
        ):
            if values is not None:
                column[part] = values
        begin = end
    return result


def expiry_buckets(expiry: Expiries, span: int | float) -> Int64s:
    """The bucket of each expiry key; see `verdict.bucket_key`."""
    if expiry.dtype != np.float64:
        bucket: Int64s = expiry // np.int64(span)
        return bucket
    # Rows that were not admitted may hold anything.
    with np.errstate(all="ignore"):
        quotient = np.floor(expiry / span)
        size = np.abs(quotient)
        far = np.sign(quotient).astype(np.int64) * (size.view(np.int64) - FAR_BITS)
        return np.where(size < FAR_QUOTIENT, quotient.astype(np.int64), far)
