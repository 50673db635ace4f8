"""What a shard's task reports to the driver: exactly one receipt a shard counts, however often the task ran.

A receipt travels in a PySpark accumulator whose value is a dict. Spark merges the updates of successful tasks only, but
it may merge two of one shard (a twin, a repeated stage): under the key (window, epoch, attempt, shard) the dict keeps
one. Plain sums would over-count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from bucket_store.piece import PieceRef

ReceiptKey = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Receipt:
    """One shard's part of a window.

    `counts` is in the order of `Verdict`; `reasons` counts rows by reason; `max_admitted` is the greatest expiry key
    among unique and duplicate tuples, `max_remembered` that among the new entries (both None when there are none).
    `least_decisive` is the least expiry key that a verdict rests on: of the admitted tuples, and of the entries of
    earlier windows that made one a duplicate. `piece` is None for a shard with nothing new. Seconds are wall time
    inside the task: `read` waits for the exchange and Arrow, `tables` opens and applies, `judge` looks up and decides,
    `write` gives the verdicts to Spark until it has taken them, `piece` writes it; `read.columns` is a part of `read`.
    """

    shard: int
    counts: tuple[int, int, int, int]
    reasons: dict[str, int]
    max_admitted: int | float | None
    least_decisive: int | float | None
    max_remembered: int | float | None
    piece: PieceRef | None
    buckets: tuple[int, ...]
    rows_by_partition: dict[int, int]
    table_counters: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class _ReceiptsParam(AccumulatorParam[dict[ReceiptKey, Receipt]]):
    def zero(self, value: dict[ReceiptKey, Receipt]) -> dict[ReceiptKey, Receipt]:
        del value  # every zero is the empty box
        return {}

    def addInPlace(
        self, value1: dict[ReceiptKey, Receipt], value2: dict[ReceiptKey, Receipt]
    ) -> dict[ReceiptKey, Receipt]:
        value1.update(value2)
        return value1


ReceiptBox = Accumulator[dict[ReceiptKey, Receipt]]


def receipt_box(session: SparkSession) -> ReceiptBox:
    """A new, empty accumulator of receipts; one serves all batches of a session."""
    return session.sparkContext.accumulator({}, _ReceiptsParam())


def take_receipts(box: ReceiptBox, window: int, epoch: int, attempt: int) -> dict[int, Receipt]:
    """The receipts of one judging by shard, leaving the box empty: those of other attempts are of no use to anyone."""
    taken = {key[3]: receipt for key, receipt in box.value.items() if key[:3] == (window, epoch, attempt)}
    box.value = {}
    return taken
