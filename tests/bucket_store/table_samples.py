"""Entries, pieces and views for the tests of pieces and tables, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bucket_store.lineage import Lineage
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import PieceStore, append_piece
from bucket_store.tables.manager import TableLayout
from bucket_store.tables.view import ShardView

STORE_ID = "5a" * 16
FOLDER = f"{STORE_ID}-0000beef"
BORN: Lineage = ((-1, b"born"), (0, b"the first owner"))

Key = tuple[int, int]
Remembered = tuple[int | float, int, int]  # expiry, origin, window


def digests_of(keys: list[Key]) -> NDArray[np.uint64]:
    """uint64[n, 2] of keys as they come."""
    return np.array(keys, np.uint64).reshape(len(keys), 2)


def entries_of(rows: dict[tuple[int, Key], Remembered], layout: TableLayout, *, windows: bool = False) -> Entries:
    """Entries of {(bucket, key): (expiry, origin, window)}, sorted as pieces need them."""
    ordered = sorted(rows.items())
    buckets, starts = np.unique(np.array([bucket for (bucket, _), _ in ordered], np.int64), return_index=True)
    kind = np.float64 if layout.float_expiry else np.int64
    values = [value for _, value in ordered]
    return Entries(
        buckets,
        np.append(starts, len(ordered)).astype(np.int64),
        digests_of([key for (_, key), _ in ordered]),
        expiry=np.array([expiry for expiry, _, _ in values], kind) if layout.has_expiry else None,
        origin=np.array([origin for _, origin, _ in values], np.int64) if layout.has_origin else None,
        window=np.array([window for _, _, window in values], np.uint32) if windows else None,
    )


@dataclass
class Shard:
    """One shard's committed life: pieces in a backend, and the same as a dict model."""

    pieces: PieceStore
    layout: TableLayout
    shard: int = 0
    lineage: Lineage = BORN
    refs: list[PieceRef] = field(default_factory=list)
    next_window: int = 0
    model: dict[tuple[int, Key], Remembered] = field(default_factory=dict)

    def commit(self, rows: dict[tuple[int, Key], Remembered]) -> None:
        """The next window; its rows are in time buckets even where the layout has one table."""
        if rows:
            self.refs.append(self._append(rows, self.next_window, self.next_window))
        for (bucket, key), value in rows.items():
            self.model[0 if self.layout.one_table else bucket, key] = value
        self.next_window += 1

    def collate(self, count: int, rows: dict[tuple[int, Key], Remembered]) -> None:
        """Puts one merged piece of these rows in the place of the first `count` pieces."""
        merged, self.refs = self.refs[:count], self.refs[count:]
        self.refs.insert(0, self._append(rows, merged[0].first_window, merged[-1].last_window, windows=True))

    def view(self, *, live_from: int | None = None, expiry_point: int | float | None = None) -> ShardView:
        """What a task of the next window is given."""
        return ShardView(
            STORE_ID, FOLDER, self.lineage, self.shard, self.next_window, tuple(self.refs), live_from, expiry_point
        )

    def claim(self, nonce: bytes) -> None:
        """Another owner from here on."""
        self.lineage = (*self.lineage, (self.next_window, nonce))

    def copy(self) -> Shard:
        """The same committed life, to go on by itself; the pieces lie in the same backend."""
        return replace(self, refs=list(self.refs), model=dict(self.model))

    def _append(
        self, rows: dict[tuple[int, Key], Remembered], first: int, last: int, *, windows: bool = False
    ) -> PieceRef:
        return append_piece(
            self.pieces,
            entries_of(rows, self.layout, windows=windows),
            store_id=bytes.fromhex(STORE_ID),
            shard=self.shard,
            first_window=first,
            last_window=last,
            epoch=1,
            attempt=0,
        )


def random_keys(seed: int, count: int) -> list[Key]:
    """Keys as a salted hash gives them, ascending, each once."""
    rng = np.random.default_rng(seed)
    return sorted({(int(hi), int(lo)) for hi, lo in rng.integers(1, 1 << 64, (count, 2), dtype=np.uint64)})
