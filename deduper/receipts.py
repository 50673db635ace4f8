"""What a shard's task reports to the driver when its piece is durable: exactly one receipt a shard counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from bucket_store.piece import PieceRef


@dataclass(frozen=True, slots=True)
class Receipt:
    """One shard's part of a window.

    `counts` is in the order of `Verdict`; `reasons` counts rows by reason; `max_admitted` is the greatest expiry key
    among unique and duplicate tuples, `max_remembered` that among the new entries (both None when there are none).
    `piece` is None for a shard with nothing new. Seconds are wall time inside the task: `keys` gathers them, `tables`
    opens and applies, `judge` looks up and decides, `verdicts` leaves them for the writers, `piece` writes it.
    """

    shard: int
    counts: tuple[int, int, int, int]
    reasons: dict[str, int]
    max_admitted: int | float | None
    max_remembered: int | float | None
    piece: PieceRef | None
    buckets: tuple[int, ...]
    rows_by_partition: dict[int, int]
    table_counters: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
