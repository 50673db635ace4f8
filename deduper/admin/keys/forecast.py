"""The verdict that a copy of a key would get if it came next, from the functions that judge a window.

The copy is a window of one tuple after the newest committed one: clock, categories, look-up and verdict are those of
the job, and the look-up's answer comes from the entries that the store has of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bucket_store.log.state import LogState
from bucket_store.tables.matches import Matches
from deduper.as_json import AsJson
from deduper.config.expiry import CategoryExpiry
from deduper.config.model import Config
from deduper.core.categories import CategoryState, arrange
from deduper.core.clock import PartitionClock, batch_clock
from deduper.core.judge import ShardRows, judge_shard
from deduper.core.kernels import Expiries
from deduper.core.verdict import DUPLICATE_REASONS, Admission, TupleVerdict
from deduper.window.policy import category_state, clock_rules, judge_rules


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a key in a live piece. `expiry` and `origin` are None where the store keeps none."""

    window: int
    bucket: int
    piece: str
    expiry: int | float | None
    origin: int | None


@dataclass(frozen=True, slots=True)
class CopyForecast(AsJson):
    """A copy that may come next, with the payload of the first copy, and its verdict.

    `copy` is `same` (with the expiry key or category of an entry), `newest` (with the latest point, or a new category),
    `asked`, or `any` where copies do not differ. `expiry_key` is ready to print; None for `any` and a new category.
    """

    copy: str
    expiry_key: str | int | float | None
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Judges copies of one key against a committed state.

    `digest` is (hi, lo) of the key; `entries` are all that live pieces have of it. `wall_us`: the wall clock of the
    window that is to come.
    """

    config: Config
    state: LogState
    digest: tuple[int, int]
    entries: Sequence[StoredEntry]
    has_null: bool
    wall_us: int

    def verdict(self, expiry: int | float | str | None) -> tuple[TupleVerdict, str]:
        """The verdict and its reason of a copy with this expiry key (in stored steps) or category.

        None is a null where the key expires by a column, and else the only value.
        """
        config, state = self.config, self.state
        rules = judge_rules(config, state, self.wall_us)
        rules = replace(rules, has_fingerprint=False, refuses_conflicts=False, most_versions=0)
        order = np.zeros(1, np.int64)
        admission = np.full(1, self._parsed(expiry), np.uint8)
        keys, latest, has_latest, place = None, None, None, None
        if isinstance(config.expiry, CategoryExpiry):
            place, admission = _placed(config.expiry, category_state(state), expiry, order, admission)
        elif (clock := clock_rules(config, state, self.wall_us)) is not None:
            keys = np.array([0 if expiry is None else expiry], np.float64 if rules.float_domain else np.int64)
            if config.clock == "arrival":
                admission, latest, has_latest = PartitionClock(clock).run(order, keys, admission)
            else:
                admission = batch_clock(clock, keys, admission)
        digests = np.array([self.digest], np.uint64)
        rows = ShardRows(digests, order, admission, keys, latest, has_latest, place)
        outcome = judge_shard(rows, rules, state.next_window, self._find)
        verdict = TupleVerdict(int(outcome.verdict[0]))
        if verdict is TupleVerdict.DUPLICATE:
            return verdict, DUPLICATE_REASONS[int(outcome.copies[0])]
        return verdict, Admission(int(outcome.admission[0])).reason

    def _parsed(self, expiry: object) -> Admission:
        if self.has_null and self.config.null_keys == "error":
            return Admission.NULL_KEY
        return Admission.NULL_EXPIRY if expiry is None and self.config.expiry_column is not None else Admission.ADMITTED

    def _find(self, bucket: int, _: NDArray[np.uint64]) -> Matches:
        """The newest entry in the bucket or, with `lookup: all_live`, the one that dies last."""
        all_live = self.config.lookup == "all_live"
        found = [entry for entry in self.entries if all_live or entry.bucket == bucket]
        newest = max(found, key=lambda entry: (all_live and entry.expiry, entry.window), default=None)
        if newest is None:
            return Matches(np.zeros(1, np.bool_), None, None, None)
        kind = np.float64 if self.config.expiry_key_scale.is_float else np.int64
        expiry: Expiries = np.array([newest.expiry or 0], kind)
        return Matches(np.ones(1, np.bool_), expiry, None, None)


def _placed(
    expiry: CategoryExpiry,
    state: CategoryState,
    value: object,
    order: NDArray[np.int64],
    admission: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(place, admission) of the one tuple: a value that is not known takes the next place."""
    if admission[0] != Admission.ADMITTED:
        return np.full(1, -1, np.int64), admission
    ids = np.zeros(1, np.int32)
    _, places = arrange(
        state, [str(value)], order, lambda: (ids, order), expiry.live_categories, expiry.remember_dropped
    )
    return places.places(ids, order, admission)


def category_of(state: CategoryState, place: int) -> str | None:
    """The value that holds or held a place; None when it is no longer known as dropped.

    Values are dropped in the order of their places, so the newest dropped one held the place before the live ones.
    """
    live = next((value for value, held in state.live if held == place), None)
    behind = state.first_live_place - place
    return state.dropped[-behind] if live is None and 0 < behind <= len(state.dropped) else live


def new_category(state: CategoryState) -> str:
    """A value that is neither live nor known as dropped."""
    known = {value for value, _ in state.live} | set(state.dropped)
    return next(value for number in range(len(known) + 1) if (value := f"new-{number}") not in known)
