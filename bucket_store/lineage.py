"""PURE. The history of a store's windows: the nonces of the claims that committed them."""

from __future__ import annotations

Lineage = tuple[tuple[int, bytes], ...]
"""The claims of a store, ascending: (next window at the claim, nonce of the claim's record).

The first entry is (-1, nonce) of a snapshot without lineage, as the one of the birth, or of a deletion that forgot
entries: a new history begins there.
"""


def history_at(lineage: Lineage, next_window: int) -> bytes:
    """The nonce of the claim that committed the last window below `next_window`: it names their history.

    Two stores of one id with equal nonces there hold the same windows below it. Empty where the lineage does not reach
    back so far.
    """
    return next((nonce for first, nonce in reversed(lineage) if first < next_window), b"")
