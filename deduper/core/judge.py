"""One shard's part of a window, judged as a whole: columns in, verdicts and the new keys out.

Equal keys of a window may come from several source partitions and reach a shard in any order, and the first *in source
order* is the unique one. So the admitted rows are sorted by (bucket, key, source order); each run of equal keys is a
group, looked up once among the committed windows and then walked in source order.

The look-up is a parameter, and judging changes nothing: judging the same rows again gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.piece import Entries
from bucket_store.tables.matches import Matches
from deduper.core import kernels
from deduper.core.categories import PlaceIntervals
from deduper.core.clock import POSITION_BITS, domain_ends, writable
from deduper.core.kernels import Bools, Expiries, Int64s, UInt8s, UInt64s
from deduper.core.lookups import Find, JudgeRules, KeyMatches, Load, expiry_buckets, look_up
from deduper.core.statistics import NO_SPANS, SpanCounts, distances
from deduper.core.verdict import (
    CONFLICT,
    CONFLICT_IN_WINDOW,
    DUPLICATE_REASONS,
    VERSION,
    VERSION_REASON,
    Admission,
    TupleVerdict,
)
from deduper.core.versions import Columns, Groups, NewEntries, judge_versions

_NO_COPY = -1
_VERDICT_OF_ADMISSION = np.full(256, TupleVerdict.ERROR, np.uint8)
for _admission in Admission:
    _VERDICT_OF_ADMISSION[_admission] = TupleVerdict.UNIQUE if _admission.verdict is None else _admission.verdict


@dataclass(frozen=True, slots=True)
class ShardRows:
    """n rows of one shard, in any order.

    digests uint64[n, 2], never (0, 0); read for ADMITTED rows only, like `expiry` and `category`.
    order int64[n]: the source order. admission uint8[n]: as the parser and the clock left it.
    expiry: None for `never` and `category`, and allowed to be for processing_time (it is `rules.latest`).
    latest_before, has_latest: the row's clock, from `PartitionClock.run`; None means `rules.latest` for all.
    category int[n]: the place of the row's value, from `PlaceIntervals.places`; None unless by category.
    place int64[n]: the source order that the row is named by, if it is judged in another order; None: `order`.
    fingerprint uint64[n], never 0: of the payload; None without `rules.has_fingerprint`.
    """

    digests: UInt64s
    order: Int64s
    admission: UInt8s
    expiry: Expiries | None
    latest_before: Expiries | None
    has_latest: Bools | None
    category: NDArray[np.integer[Any]] | None
    place: Int64s | None = None
    fingerprint: UInt64s | None = None


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """The verdicts of the rows, in their order, and the window's additions to the shard.

    verdict, admission uint8[n]; copies uint8[n]: of a duplicate its place among `DUPLICATE_REASONS`, of a version
        VERSION. A *copy* is a duplicate, a version, or an error because of its payload.
    first_window, first_origin int64[n], first_expiry [n]: the first copy of a copy, where first_window >= 0: for
        every copy with `keep_first_seen`, for none without. first_expiry is 0 where tuples have no expiry key.
    fingerprint, first_fingerprint uint64[n]: the rows', and the first copies' of copies; None without fingerprints.
    entries: the new keys; None when there are none.
    counts int64[4], by verdict. admissions: rows per admission other than ADMITTED.
    max_admitted: greatest expiry key of the unique and duplicate rows: the clock moves there. max_remembered: of the
        entries. Both None when there is none.
    rows_by_partition: rows per ordinal of the source partition. buckets: keys of the buckets with entries, ascending.
    distances: of the duplicates from their first copies, with `is_time`.
    """

    verdict: UInt8s
    admission: UInt8s
    copies: UInt8s
    first_window: Int64s
    first_origin: Int64s
    first_expiry: Expiries
    entries: Entries | None
    counts: Int64s
    admissions: dict[int, int]
    max_admitted: int | float | None
    max_remembered: int | float | None
    rows_by_partition: dict[int, int]
    buckets: list[int]
    distances: SpanCounts = NO_SPANS
    fingerprint: UInt64s | None = None
    first_fingerprint: UInt64s | None = None

    @property
    def is_conflict(self) -> Bools:
        """bool[n]: copies whose first copy has another payload."""
        return _conflicts(self.copies) | self.is_version

    @property
    def is_version(self) -> Bools:
        """bool[n]: unique tuples whose key is known with other payloads."""
        found: Bools = self.copies == VERSION
        return found

    def reasons(self) -> dict[str, int]:
        """Rows per reason, of all that have one: of unique rows versions alone."""
        counts = {Admission(admission).reason: count for admission, count in self.admissions.items()}
        if self.fingerprint is None:
            same = int(np.count_nonzero(self.copies))
            copies = [int(self.counts[TupleVerdict.DUPLICATE]) - same, same]
        else:
            copies = np.bincount(self.copies[self.verdict == TupleVerdict.DUPLICATE]).tolist()
            if versions := int(np.count_nonzero(self.is_version)):
                counts[VERSION_REASON] = versions
        return counts | {reason: count for reason, count in zip(DUPLICATE_REASONS, copies, strict=False) if count}


def judge_shard(rows: ShardRows, rules: JudgeRules, window: int, find: Find, load: Load | None = None) -> ShardOutcome:
    """The verdicts of `rows` in `window`, with the answers of `find` from the windows before it.

    Rows whose admission is not ADMITTED keep it, and it settles their verdict. `find` is called once for every bucket
    with admitted rows, in ascending order of buckets; with `lookup_all_live` for all live buckets at once, as bucket 0.
    It is called again, in that order, for the versions of keys with a conflict: of a bucket number by number. `load` is
    called once before, with those buckets, where there are several.
    """
    admission = rows.admission.astype(np.uint8)
    admitted = np.flatnonzero(admission == Admission.ADMITTED)
    digests = writable(rows.digests, np.uint64)
    order = writable(rows.order, np.int64)
    place = order if rows.place is None else writable(rows.place, np.int64)
    expiry = _expiry_keys(rows, rules)

    buckets = _bucket_keys(rows, rules, expiry, digests)
    look_up_in = np.zeros_like(buckets) if rules.lookup_all_live else buckets
    sorted_rows, starts = _grouped(digests, order, admitted, look_up_in)
    sought_in, sought = kernels.take_heads(starts, sorted_rows, look_up_in, digests)
    matches = look_up(find, load, sought_in, sought, float_domain=rules.float_domain, compares=rules.has_fingerprint)

    verdict = _VERDICT_OF_ADMISSION[admission]
    first_copy = np.full(admission.size, _NO_COPY, np.int64)
    fingerprint = _fingerprints(rows, rules)
    if rules.most_versions:
        assert fingerprint is not None
        columns = Columns(expiry, place, fingerprint)
        groups = Groups(starts, sorted_rows, sought_in, sought)
        clock = _clock_before(rows, rules, expiry)
        matches, new = judge_versions(rules, window, find, clock, groups, matches, columns, verdict, first_copy)
    elif rules.lookup_all_live:
        remembered = np.empty(sought_in.size, np.int64)
        latest_before, has_latest, period = _clock_before(rows, rules, expiry)
        lowest, _ = domain_ends(float_domain=rules.float_domain)
        count = kernels.judge_groups_by_age(
            starts,
            sorted_rows,
            matches.found,
            matches.expiry,
            expiry,
            latest_before,
            has_latest,
            period,
            lowest,
            verdict,
            first_copy,
            remembered,
        )
        remembered = _sorted_by_bucket(buckets, remembered[:count])
        new_in, new_keys = buckets[remembered], np.take(digests, remembered, axis=0)
        new = _remembered(rules, remembered, new_in, new_keys, place, expiry, fingerprint)
    else:
        remembered = np.empty(sought_in.size, np.int64)
        count = kernels.judge_groups(starts, sorted_rows, matches.found, verdict, first_copy, remembered)
        # The groups that were not found, and they are sorted as entries are.
        unknown = np.flatnonzero(~matches.found)
        new_in, new_keys = sought_in[unknown], np.take(sought, unknown, axis=0)
        new = _remembered(rules, remembered[:count], new_in, new_keys, place, expiry, fingerprint)

    first_window, first_origin, first_expiry = _first_copies(rules, window, matches, first_copy, place, expiry)
    copies = (first_copy > _NO_COPY).view(np.uint8)
    first_fingerprint = None
    if fingerprint is not None:
        first_fingerprint = np.zeros_like(fingerprint)
        kernels.compare_payloads(first_copy, fingerprint, matches.fingerprint, copies, first_fingerprint)
        _settle_conflicts(rules, copies, verdict, admission, first_copy)
    entries = _entries(rules, new)
    has_key = rules.has_expiry_key
    return ShardOutcome(
        verdict=verdict,
        admission=admission,
        copies=copies,
        first_window=first_window,
        first_origin=first_origin,
        first_expiry=first_expiry,
        entries=entries,
        counts=np.array([np.count_nonzero(verdict == each) for each in TupleVerdict], np.int64),
        admissions=_counted(admission[admission != Admission.ADMITTED]),
        max_admitted=_of(expiry, admitted).max().item() if has_key and admitted.size else None,
        max_remembered=new.expiry.max().item() if has_key and new.buckets.size else None,
        rows_by_partition=_counted(place >> POSITION_BITS),
        buckets=[] if entries is None else entries.bucket_keys.tolist(),
        distances=distances(first_copy, expiry, matches.expiry, keeps_expiry=rules.keeps_expiry)
        if rules.is_time
        else NO_SPANS,
        fingerprint=fingerprint,
        first_fingerprint=first_fingerprint,
    )


def _settle_conflicts(
    rules: JudgeRules, copies: UInt8s, verdict: UInt8s, admission: UInt8s, first_copy: Int64s
) -> None:
    """Conflicts that are errors or versions are copies of none: what counts distances passes over them."""
    if rules.refuses_conflicts:
        refused = _conflicts(copies)
        admission[refused], verdict[refused] = Admission.CONFLICT_REFUSED, TupleVerdict.ERROR
        first_copy[refused] = _NO_COPY
    elif rules.most_versions:
        refused = _conflicts(copies) & (verdict == TupleVerdict.ERROR)
        admission[refused] = Admission.TOO_MANY_VERSIONS
        versions = _conflicts(copies) & (verdict == TupleVerdict.UNIQUE)
        copies[versions] = VERSION
        first_copy[refused | versions] = _NO_COPY


def warm(*, float_domain: bool, lookup_all_live: bool, compares: bool = False, keeps_versions: bool = False) -> None:
    """Compiles, or loads from the cache, every kernel that a shard's task calls with such rules."""
    rules = JudgeRules("ordered", lookup_all_live, float_domain, 1, 1, 1, True, None)
    rules = replace(rules, has_fingerprint=compares)
    _judge_two_rows(rules)
    if keeps_versions:
        _judge_two_rows(replace(rules, most_versions=2))
    one = np.zeros(1, np.int64)
    PlaceIntervals(np.zeros(2, np.int64), one, one, one).places(one, one, np.zeros(1, np.uint8))


def _judge_two_rows(rules: JudgeRules) -> None:
    rows = ShardRows(
        digests=np.ones((2, 2), np.uint64),
        order=np.arange(2, dtype=np.int64),
        admission=np.zeros(2, np.uint8),
        expiry=np.zeros(2, _dtype(rules)),
        latest_before=None,
        has_latest=None,
        category=None,
        fingerprint=np.ones(2, np.uint64) if rules.has_fingerprint else None,
    )
    judge_shard(rows, rules, 0, lambda _, digests: Matches(np.zeros(len(digests), np.bool_), None, None, None))


def _dtype(rules: JudgeRules) -> type[np.int64] | type[np.float64]:
    return np.float64 if rules.float_domain else np.int64


def _expiry_keys(rows: ShardRows, rules: JudgeRules) -> Expiries:
    if rows.expiry is not None and rules.has_expiry_key:
        return writable(rows.expiry, _dtype(rules))
    return _latest_of_all(rows, rules)


def _latest_of_all(rows: ShardRows, rules: JudgeRules) -> Expiries:
    """`rules.latest` for every row; while it is unset the values are not read."""
    return np.full(rows.order.size, 0 if rules.latest is None else rules.latest, _dtype(rules))


def _bucket_keys(rows: ShardRows, rules: JudgeRules, expiry: Expiries, digests: UInt64s) -> Int64s:
    """The bucket of every row; see `verdict.bucket_key`."""
    if rules.by == "never":
        in_bucket: Int64s = (digests[:, 0] % np.uint64(rules.buckets)).astype(np.int64)
        return in_bucket
    if rules.by == "category":
        if rows.category is None:
            raise ValueError("expiry by category needs the rows' places")
        return rows.category.astype(np.int64)
    return expiry_buckets(expiry, rules.span)


def _grouped(digests: UInt64s, order: Int64s, admitted: Int64s, buckets: Int64s) -> tuple[Int64s, Int64s]:
    """The admitted rows sorted by (bucket, hi, lo, order) and the starts of their groups; see `unpack_groups`.

    Rows are put in source order first (cheap: they come as one ascending run a source partition). Then one vectorised
    sort of words that hold bucket, leading bits of hi and that position leaves each group together and in source
    order, however often a key is repeated; keys with equal words are sorted afterwards.
    """
    if not admitted.size:
        return admitted, np.zeros(1, np.int64)
    used = _of(buckets, admitted)
    if not _lie_close(used):
        # Their ranks serve as well.
        used = np.unique(used, return_inverse=True)[1]
        buckets = np.empty_like(buckets)
        buckets[admitted] = used
    lowest = int(used.min())
    bucket_bits = (int(used.max()) - lowest).bit_length()
    in_order = _of(order, admitted)
    if np.any(in_order[1:] < in_order[:-1]):
        admitted = admitted[np.argsort(in_order, kind="stable")]
    index_bits = int(admitted.size).bit_length()
    packed = kernels.pack_keys(digests, buckets, admitted, lowest, bucket_bits, index_bits)
    packed.sort()
    return kernels.unpack_groups(packed, digests, admitted, index_bits)


def _of(column: Expiries, rows: Int64s) -> Expiries:
    """A column's values of ascending rows: the column itself where they are all."""
    return column if rows.size == column.size else column[rows]


def _sorted_by_bucket(buckets: Int64s, rows: Int64s) -> Int64s:
    """`rows` stably sorted by bucket: by counting where the buckets lie close together."""
    used = buckets[rows]
    if rows.size and _lie_close(used):
        lowest = int(used.min())
        return kernels.group_by_bucket(buckets, lowest, int(used.max()) - lowest + 1, rows)
    return rows[np.argsort(used, kind="stable")]


def _lie_close(values: Int64s) -> bool:
    """Whether a place for every number from the least to the greatest costs about as much as the values do."""
    return int(values.max()) - int(values.min()) < 4 * values.size


def _clock_before(rows: ShardRows, rules: JudgeRules, expiry: Expiries) -> tuple[Expiries, Bools, Any]:
    """The clock of each row, and the age at which an entry is dead by it."""
    dtype = _dtype(rules)
    if rules.takes_later:
        lowest, _ = domain_ends(float_domain=rules.float_domain)
        return _just_before(expiry), expiry > lowest, dtype(0)  # nothing is before the least of all
    latest, has_latest = _own_clock(rows, rules)
    return latest, has_latest, dtype(rules.period)


def _just_before(expiry: Expiries) -> Expiries:
    """The greatest expiry key below each; the least of all stays."""
    if expiry.dtype == np.float64:
        return np.nextafter(expiry, -np.inf)
    return np.maximum(expiry, np.iinfo(np.int64).min + 1) - 1


def _own_clock(rows: ShardRows, rules: JudgeRules) -> tuple[Expiries, Bools]:
    if rows.latest_before is not None and rows.has_latest is not None:
        return writable(rows.latest_before, _dtype(rules)), writable(rows.has_latest, np.bool_)
    return _latest_of_all(rows, rules), np.full(rows.order.size, rules.latest is not None, np.bool_)


def _first_copies(
    rules: JudgeRules, window: int, matches: KeyMatches, first_copy: Int64s, place: Int64s, expiry: Expiries
) -> tuple[Int64s, Int64s, Expiries]:
    """Window, place and expiry key of every duplicate's first copy."""
    first_window = np.full(place.size, -1, np.int64)
    first_origin = np.zeros(place.size, np.int64)
    first_expiry: Expiries = np.zeros(place.size, _dtype(rules))
    if rules.keep_first_seen:
        kernels.name_first_copies(
            first_copy,
            window,
            place,
            expiry,
            matches.window,
            matches.origin,
            matches.expiry,
            first_window,
            first_origin,
            first_expiry,
        )
        if not rules.has_expiry_key:
            first_expiry[:] = 0
    return first_window, first_origin, first_expiry


def _conflicts(copies: UInt8s) -> Bools:
    found: Bools = (copies == CONFLICT) | (copies == CONFLICT_IN_WINDOW)
    return found


def _fingerprints(rows: ShardRows, rules: JudgeRules) -> UInt64s | None:
    if not rules.has_fingerprint:
        return None
    if rows.fingerprint is None:
        raise ValueError("rows have no fingerprint")
    return writable(rows.fingerprint, np.uint64)


def _remembered(
    rules: JudgeRules,
    rows: Int64s,
    buckets: Int64s,
    digests: UInt64s,
    place: Int64s,
    expiry: Expiries,
    fingerprint: UInt64s | None,
) -> NewEntries:
    """Those of rows sorted by (bucket, key), with their buckets and digests in that order."""
    return NewEntries(
        buckets,
        digests,
        expiry[rows] if rules.has_expiry_key else expiry[:0],
        place[rows] if rules.keep_first_seen else None,
        None,
        None if fingerprint is None else fingerprint[rows],
    )


def _entries(rules: JudgeRules, new: NewEntries) -> Entries | None:
    if not new.buckets.size:
        return None
    starts = np.concatenate(([0], np.flatnonzero(new.buckets[1:] != new.buckets[:-1]) + 1))
    return Entries(
        bucket_keys=new.buckets[starts],
        bucket_starts=np.append(starts, new.buckets.size).astype(np.int64),
        digests=new.digests,
        expiry=new.expiry if rules.keeps_expiry else None,
        origin=new.place,
        window=new.window,
        fingerprint=new.fingerprint,
    )


def _counted(values: NDArray[np.integer[Any]]) -> dict[int, int]:
    """How often each value occurs: admissions and ordinals, small numbers."""
    counts = np.bincount(values)
    found = np.flatnonzero(counts)
    return dict(zip(found.tolist(), counts[found].tolist(), strict=True))
