"""The parts that a large set of indexed rows is cut into: by id, so a part needs nothing of the others.

A part is one task. Its indexed rows come first and make an index; then the asked rows stream by. All rows of one id are
in one part: an id whose rows outgrow a task's memory needs an index that every worker has (`index_bytes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from deduper.columns import quoted
from deduper.ranges.batch.work import ID_HI, Batches, Work
from deduper.spark.arrow_map import map_in_arrow

_PART, _IS_ASKED, _INDEXED, _ASKED = "part", "is_asked", "indexed", "asked"
_TASKS_A_CORE = 2


def parts_for(size_bytes: int, index_bytes: int, cores: int) -> int:
    """How many parts an index of this size makes, each of about `index_bytes` at most (0: of any size)."""
    return max(-(-size_bytes // index_bytes) if index_bytes else 1, cores * _TASKS_A_CORE)


def in_parts(
    asked: DataFrame, indexed: DataFrame, work: Work, parts: int, columns: Sequence[str], schema: T.StructType
) -> DataFrame:
    """The asked rows with their aggregates: one shuffle, sorted so that the indexed rows of a part come first."""
    both = _packed(asked, _ASKED, parts).unionByName(_packed(indexed, _INDEXED, parts), allowMissingColumns=True)
    placed = both.repartitionById(parts, F.col(_PART)).sortWithinPartitions(_IS_ASKED)
    return map_in_arrow(placed.select(_IS_ASKED, _INDEXED, _ASKED), _AnswerPart(work, tuple(columns)), schema)


def _packed(rows: DataFrame, side: str, parts: int) -> DataFrame:
    """Rows as one column of this name, with their part."""
    part = F.pmod(ID_HI, F.lit(parts)).cast("int")
    row = F.struct(*(F.col(quoted(name)) for name in rows.columns))
    return rows.select(part.alias(_PART), F.lit(side == _ASKED).alias(_IS_ASKED), row.alias(side))


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
