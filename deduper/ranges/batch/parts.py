"""The parts that a large set of indexed rows is cut into: by id, and large ids along time into slices.

A part is one task. Its indexed rows come first and make an index; then the asked rows stream by. A range is copied into
every slice that it touches, so a slice needs nothing of its neighbours. Copies are bounded: where many ranges are open
at most times, slices are fewer and longer (`_MOST_COPIES`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import quoted
from deduper.ranges.batch.times import as_number
from deduper.ranges.batch.work import ID_HI, ID_LO, Batches, Work
from deduper.spark.arrow_map import map_in_arrow

_PART, _IS_ASKED, _INDEXED, _ASKED, _CUTS, _FIRST, _BEGIN, _END = (
    *("part", "is_asked", "indexed", "asked", "cuts", "first", "begin", "end"),
)
_TASKS_A_CORE = 2
_ACCURACY = 1000
_MOST_COPIES = 2
"""Copies of a range beside the first, on the average of an id."""


@dataclass(frozen=True, slots=True)
class LargeId:
    """An id of its own parts, `first` and the following; a time is in the slice of as many cuts as lie before it."""

    hi: int
    lo: int
    first: int
    cuts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PartPlan:
    """Parts by hash for all other ids, then the slices of the large ones."""

    by_hash: int
    large: tuple[LargeId, ...]

    @property
    def count(self) -> int:
        """All parts."""
        return self.by_hash + sum(len(one.cuts) + 1 for one in self.large)

    @classmethod
    def of(cls, asked: DataFrame, indexed: DataFrame, work: Work, parts: int) -> PartPlan:
        """Parts of about equally many rows; reads the ids of both sides, and the times of large ids."""
        parts = max(parts, asked.sparkSession.sparkContext.defaultParallelism * _TASKS_A_CORE)
        counts = asked.select(ID_HI, ID_LO).union(indexed.select(ID_HI, ID_LO)).groupBy(ID_HI, ID_LO).count()
        rows = counts.agg(F.sum("count")).first()
        size = max(1, (rows[0] if rows is not None and rows[0] else 0) // parts)
        large = {(row[0], row[1]): row[2] for row in counts.where(F.col("count") > size).collect()}
        # A range may need the events of every slice, so that these are not cut.
        cuts = _cuts(asked, indexed, work, large, size) if work.per == "event" and large else {}
        of_ids, first = [], parts
        for words in sorted(large):
            of_ids.append(LargeId(*words, first, cuts.get(words, ())))
            first += len(of_ids[-1].cuts) + 1
        return cls(parts, tuple(of_ids))


def _cuts(
    asked: DataFrame, indexed: DataFrame, work: Work, large: dict[tuple[int, int], int], size: int
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Times that cut the events and starts of each large id into slices of about `size` rows."""
    most = max(-(-count // size) for count in large.values())
    times = _of_ids(asked, _as_number(asked, work.asked_points[0]).alias(_BEGIN), large)
    starts = _of_ids(indexed, _as_number(indexed, work.indexed_points[0]).alias(_BEGIN), large)
    shares = F.array(*(F.lit(at / most) for at in range(1, most)))
    quantiles = F.percentile_approx(_BEGIN, shares, F.lit(_ACCURACY))
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    for hi, lo, cuts in times.union(starts).groupBy(ID_HI, ID_LO).agg(quantiles).collect():
        wide = max(1, most // -(-large[hi, lo] // size))
        found[hi, lo] = tuple(sorted(set((cuts or [])[wide - 1 :: wide])))
    plan = PartPlan(0, tuple(LargeId(*words, 0, cuts) for words, cuts in found.items()))
    placed = _placed(indexed, plan, work.indexed_points)
    touched = F.sum(F.col(_END) - F.col(_BEGIN)).alias("copies")
    for hi, lo, copies, ranges in placed.where(F.col(_FIRST).isNotNull()).groupBy(ID_HI, ID_LO).agg(
        touched, F.count(F.lit(1))
    ).collect():  # fmt: skip
        wide = max(1, -(-copies // (ranges * _MOST_COPIES)))
        found[hi, lo] = found[hi, lo][wide - 1 :: wide]
    return found


def _of_ids(rows: DataFrame, column: Column, ids: dict[tuple[int, int], int]) -> DataFrame:
    wanted = F.lit(False)
    for hi, lo in ids:
        wanted |= (F.col(ID_HI) == hi) & (F.col(ID_LO) == lo)
    return rows.where(wanted).select(ID_HI, ID_LO, column)


def in_parts(
    asked: DataFrame, indexed: DataFrame, work: Work, plan: PartPlan, columns: Sequence[str], schema: T.StructType
) -> DataFrame:
    """The asked rows with their aggregates: one shuffle, sorted so that the indexed rows of a part come first."""
    of_asked = _placed(asked, plan, work.asked_points[:1])
    of_indexed = _placed(indexed, plan, work.indexed_points)
    by_hash = F.pmod(ID_HI, F.lit(plan.by_hash)).cast("int")
    part = F.coalesce(F.col(_FIRST) + F.col(_BEGIN), by_hash)
    parts = F.coalesce(F.sequence(part, F.col(_FIRST) + F.col(_END)), F.array(by_hash))
    both = of_asked.select(part.alias(_PART), F.lit(True).alias(_IS_ASKED), F.col("row").alias(_ASKED)).unionByName(
        of_indexed.select(F.explode(parts).alias(_PART), F.lit(False).alias(_IS_ASKED), F.col("row").alias(_INDEXED)),
        allowMissingColumns=True,
    )
    placed = both.repartitionById(plan.count, F.col(_PART)).sortWithinPartitions(_IS_ASKED)
    return map_in_arrow(placed.select(_IS_ASKED, _INDEXED, _ASKED), _AnswerPart(work, tuple(columns)), schema)


def _placed(rows: DataFrame, plan: PartPlan, points: Sequence[str]) -> DataFrame:
    """Rows as one column `row`, with the first part and the first and last slice of large ids, null for others.

    A null start lies in the first slice, a null end in the last one.
    """
    fields = [F.col(quoted(name)) for name in rows.columns]
    numbers = [_as_number(rows, name) for name in points]
    cuts_type = "double" if isinstance(rows.schema[points[0]].dataType, T.FloatType | T.DoubleType) else "bigint"
    known = [(one.hi, one.lo, one.first, list(one.cuts)) for one in plan.large]
    large = rows.sparkSession.createDataFrame(
        known, f"{ID_HI} bigint, {ID_LO} bigint, {_FIRST} int, {_CUTS} array<{cuts_type}>"
    )
    packed = rows.select(
        ID_HI, ID_LO, F.struct(*fields).alias("row"), numbers[0].alias("from"), numbers[-1].alias("to")
    ).join(F.broadcast(large), [ID_HI, ID_LO], "left")
    begin = F.when(F.col("from").isNull(), 0).otherwise(_slice("from"))
    end = F.when(F.col("to").isNull(), F.size(_CUTS)).otherwise(_slice("to"))
    return packed.select(ID_HI, ID_LO, "row", _FIRST, begin.alias(_BEGIN), end.alias(_END))


def _as_number(rows: DataFrame, name: str) -> Column:
    return F.expr(as_number(name, rows.schema[name].dataType))


def _slice(point: str) -> Column:
    """How many cuts of the row's id lie before a point."""
    return F.size(F.filter(_CUTS, lambda cut: cut < F.col(point)))


@dataclass(frozen=True, slots=True)
class _AnswerPart:
    """The task of one part."""

    work: Work
    columns: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """The asked rows of the part with their aggregates."""
        held: list[pa.Table] = []
        index = None
        for batch in batches:
            first = batch.num_rows - batch[_IS_ASKED].true_count
            if first:
                held.append(pa.Table.from_struct_array(batch[_INDEXED].slice(0, first)))
            if first == batch.num_rows:
                continue
            asked = pa.RecordBatch.from_struct_array(batch[_ASKED].slice(first))
            if index is None:
                empty = pa.Table.from_struct_array(batch[_INDEXED].slice(0, 0))
                index = self.work.index([*held, empty])
                held.clear()
            yield from self.work.answers(index, asked, self.columns)
