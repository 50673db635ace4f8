"""PURE. The expiry keys of records as a replay orders them: where a record has none, and which are in its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.verdict import Admission
from deduper.tasks import exchange, layout

Key: TypeAlias = int | float
Keys: TypeAlias = NDArray[Any]
"""int64 or float64, by the domain of the expiry keys."""
Bools: TypeAlias = NDArray[np.bool_]

_KEYED = np.zeros(256, np.bool_)
_KEYED[[one for one in Admission if one.has_expiry_key]] = True


@dataclass(frozen=True, slots=True)
class KeyRange:
    """What a replay takes: expiry keys from `first` to before `end`, None without a bound; pickled into tasks.

    Keys beyond `limit` are refused by a guard at the time of the survey, None without one.
    """

    first: Key | None = None
    end: Key | None = None
    limit: Key | None = None

    @property
    def is_whole(self) -> bool:
        """Every record is in it."""
        return self.first is None and self.end is None

    @property
    def some_key(self) -> Key:
        """A key in the range."""
        if self.first is not None:
            return self.first
        return 0 if self.end is None else min(0, self.end - 1)

    def within(self, keys: Keys) -> Bools:
        """Which keys are in the range."""
        inside = np.ones(keys.size, np.bool_)
        if self.first is not None:
            inside &= keys >= self.first
        if self.end is not None:
            inside &= keys < self.end
        return inside

    def beyond(self, keys: Keys) -> Bools:
        """Which keys a guard refuses."""
        return np.zeros(keys.size, np.bool_) if self.limit is None else keys > self.limit


def stated_keys(records: pa.RecordBatch) -> tuple[Keys, Bools]:
    """The expiry keys of records of `tasks.layout`, and which of them have one."""
    admission = exchange.numbers(records.column(layout.ADMISSION)).astype(np.uint8)
    expiry = records.column(layout.EXPIRY)
    return exchange.numbers(expiry), _KEYED[admission] & expiry.is_valid().to_numpy(zero_copy_only=False)


def placed_keys(keys: Keys, has_key: Bools, before: Key) -> Keys:
    """The keys by which records are placed: one without a key has that of the record before it, at first `before`."""
    if has_key.all():
        return keys
    last = np.maximum.accumulate(np.where(has_key, np.arange(keys.size), -1))
    return np.where(last < 0, np.array(before, keys.dtype), keys[last])


def greatest_admitted(records: pa.RecordBatch) -> Key | None:
    """The greatest expiry key of the admitted records, None without one: their clock moves there."""
    admitted = exchange.numbers(records.column(layout.ADMISSION)) == int(Admission.ADMITTED)
    keys = exchange.numbers(records.column(layout.EXPIRY))[admitted]
    return keys.max().item() if keys.size else None


def later(one: Key | None, other: Key | None) -> Key | None:
    """The later of two latest points, which may be unset."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
