"""PURE. The result of a look-up, and the columns of a shard's tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.piece import ExpiryKeys


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a store's tables beside the digests; fixed by its settings.

    `one_table`: all buckets of a shard share one table, under bucket key 0 (`lookup: all_live`). Needs `has_expiry`.
    `fingerprints_since`: tables have the fingerprints of entries from this window on, and 0 for all others; with None
    they have no such column.
    """

    has_expiry: bool
    float_expiry: bool
    has_origin: bool
    one_table: bool
    fingerprints_since: int | None = None

    @property
    def has_fingerprint(self) -> bool:
        """Whether tables have a column of fingerprints."""
        return self.fingerprints_since is not None


@dataclass(frozen=True, slots=True)
class Matches:
    """The digests that a bucket remembers, of m looked up, in their order.

    `found` bool[m]; the columns have length m and are valid where found, None when the layout has no such column. A
    fingerprint of 0 is unknown.
    """

    found: NDArray[np.bool_]
    expiry: ExpiryKeys | None
    origin: NDArray[np.int64] | None
    window: NDArray[np.uint32] | None
    fingerprint: NDArray[np.uint64] | None = None


def no_matches(count: int, layout: TableLayout) -> Matches:
    """No match, with the layout's columns zero."""
    expiry: ExpiryKeys | None = None
    if layout.has_expiry:
        expiry = np.zeros(count, np.float64) if layout.float_expiry else np.zeros(count, np.int64)
    return Matches(
        np.zeros(count, np.bool_),
        expiry,
        np.zeros(count, np.int64) if layout.has_origin else None,
        np.zeros(count, np.uint32) if layout.has_origin else None,
        np.zeros(count, np.uint64) if layout.has_fingerprint else None,
    )
