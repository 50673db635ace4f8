"""Looks digests up in the pieces themselves: slower than a table, without room, with the same answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.reader import PieceBucket, PieceReader
from bucket_store.tables.kernels import float_expiry, ordered_expiry
from bucket_store.tables.matches import Matches, TableLayout, no_matches
from bucket_store.tables.matching import match_sorted


def find_in_parts(
    reader: PieceReader,
    parts: Sequence[PieceBucket],
    digests: NDArray[np.uint64],
    layout: TableLayout,
    expiry_point: int | None,
) -> Matches:
    """The matches of ascending digests in the parts together, by the rules of a table (see `kernels.apply_sorted`).

    Of two entries for a key the one with the greater expiry key counts, without expiry the one of the later window.
    """
    answer = no_matches(len(digests), layout)
    found, origin, window, fingerprint = answer.found, answer.origin, answer.window, answer.fingerprint
    expiry = np.zeros(len(digests), np.int64)
    for part, entries in reader.read_all(parts):
        rows = match_sorted(entries.digests, digests)
        at = np.flatnonzero(rows >= 0)
        rows = rows[at]
        if layout.has_expiry and entries.expiry is not None:
            new_expiry = ordered_expiry(entries.expiry[rows])
            better = ~found[at] | (new_expiry > expiry[at])
            if expiry_point is not None:
                better &= new_expiry > expiry_point
            at, rows = at[better], rows[better]
            expiry[at] = new_expiry[better]
        elif window is not None:
            of_part = part.ref.first_window if entries.window is None else entries.window[rows]
            better = ~found[at] | (of_part > window[at])
            at, rows = at[better], rows[better]
        found[at] = True
        if origin is not None and window is not None and entries.origin is not None:
            origin[at] = entries.origin[rows]
            window[at] = part.ref.first_window if entries.window is None else entries.window[rows]
        if fingerprint is not None and layout.fingerprints_since is not None:
            known = entries.fingerprints_since(layout.fingerprints_since, part.ref.first_window)
            fingerprint[at] = known[rows]
    if not layout.has_expiry:
        return answer
    return Matches(found, float_expiry(expiry) if layout.float_expiry else expiry, origin, window, fingerprint)
