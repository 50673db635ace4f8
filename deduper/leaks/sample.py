"""The sampled records of a shard's part of a window: those whose key is in the sample. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from deduper.core.judge import ShardOutcome, ShardRows
from deduper.core.kernels import Bools, Expiries, Int64s, UInt8s, UInt64s
from deduper.core.lookups import JudgeRules
from deduper.core.verdict import TupleVerdict


@dataclass(frozen=True, slots=True, eq=False)
class SampledRecords:
    """n records of sampled keys that were judged, in any order; errors and versions are none of them.

    words uint64[n]: the second half of the keys' digests. order int64[n]: the source order. verdict uint8[n].
    """

    words: UInt64s
    expiry: Expiries
    order: Int64s
    verdict: UInt8s

    @classmethod
    def joined(cls, parts: Sequence[Self], *, float_domain: bool) -> SampledRecords:
        """Those of all shards, in source order."""
        if not parts:
            expiry = np.empty(0, np.float64 if float_domain else np.int64)
            return SampledRecords(np.empty(0, np.uint64), expiry, np.empty(0, np.int64), np.empty(0, np.uint8))
        columns = [
            np.concatenate([getattr(part, name) for part in parts]) for name in ("words", "expiry", "order", "verdict")
        ]
        in_order = np.argsort(columns[2], kind="stable")
        return SampledRecords(*(column[in_order] for column in columns))

    def of_sample(self, bits: int) -> SampledRecords:
        """Those whose keys are in a sample of so many bits."""
        kept = in_sample(self.words, bits)
        return SampledRecords(self.words[kept], self.expiry[kept], self.order[kept], self.verdict[kept])


def in_sample(words: UInt64s, bits: int) -> Bools:
    """Whether keys are in the sample of one key in 2**bits: the highest bits of the second half of their digest are 0.

    Shards are made of that half modulo their number, buckets and slots of the first half.
    """
    if bits == 0:
        return np.ones(words.size, np.bool_)
    sampled: Bools = words >> np.uint64(64 - bits) == 0
    return sampled


def sampled_records(rows: ShardRows, outcome: ShardOutcome, rules: JudgeRules, bits: int) -> SampledRecords:
    """The sampled ones of a shard's judged rows. Tuples have an expiry key (`rules.has_expiry_key`)."""
    words = rows.digests[:, 1]
    kept = np.flatnonzero(in_sample(words, bits) & (outcome.verdict != TupleVerdict.ERROR) & ~outcome.is_version)
    dtype = np.float64 if rules.float_domain else np.int64
    if rows.expiry is None:
        expiry = np.full(kept.size, 0 if rules.latest is None else rules.latest, dtype)
    else:
        expiry = rows.expiry[kept].astype(dtype)
    return SampledRecords(words[kept], expiry, rows.order[kept], outcome.verdict[kept])
