"""Which levels are merged, by their numbers of rows alone. PURE.

A new level is the last one. While the last one has at least 1/`ratio` of the rows of the one before, the two are
merged. So each level has more than `ratio` times the rows of the next, and a row is moved a few times a level.
"""

from __future__ import annotations

from collections.abc import Sequence


def merged_from(rows: Sequence[int], ratio: int, most: int | None = None) -> int:
    """The number of the first level that is merged with all later ones; `rows` are those of each level, oldest first.

    Levels do not grow beyond `most` rows by this.
    """
    first = max(0, len(rows) - 1)
    total = sum(rows[first:])
    while first and rows[first - 1] < ratio * total and (most is None or rows[first - 1] + total <= most):
        first -= 1
        total += rows[first]
    return first
