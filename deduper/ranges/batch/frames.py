"""`range_aggregate`: DataFrames of events and ranges in, events with aggregates and bad rows out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from deduper.columns import backticked
from deduper.core.digests import SALT_BYTES
from deduper.errors import UsageError
from deduper.ranges.aggregate.aggregates import (
    OF_NUMBERS,
    OF_ONE,
    AnyAggregate,
    Kind,
    Own,
    answer_type,
    parse_aggregate,
    require_free_names,
    require_types,
)
from deduper.ranges.aggregate.points import ENDS
from deduper.ranges.batch.bad_rows import TIMES, FrameSide, event_reasons, range_reasons
from deduper.ranges.batch.work import ID_HI, ID_LO, Batches, Work
from deduper.ranges.batch.workers import Shared, arrow_columns, in_parts, parts_for, shared_by_workers
from deduper.sources.digest_columns import fast_digest
from deduper.spark.dataframes import map_in_arrow
from deduper.spark.types import type_of_ddl

INDEX_BYTES = 256 << 20
_ANSWERS = "__range_job_answers"


@dataclass(frozen=True, slots=True)
class RangeAggregates:
    """The asked rows with their aggregates, the bad rows, and how the index is spread.

    `parts`: into how many the indexed rows are cut; None where every worker has the whole index.
    """

    rows: DataFrame
    parts: int | None
    sides: tuple[FrameSide, FrameSide]

    @property
    def errors(self) -> DataFrame:
        """Bad events and ranges; planned when they are asked for, which many calls never do."""
        events, ranges = self.sides
        return events.bad().unionByName(ranges.bad())


def range_aggregate(
    events: DataFrame,
    ranges: DataFrame,
    *,
    on: str | Sequence[str],
    time: str,
    start: str,
    end: str,
    aggs: Mapping[str, str | AnyAggregate],
    ends: str = "[]",
    per: Literal["event", "range"] = "event",
    bad_rows: Literal["stop", "keep"] = "stop",
    longest_us: int | None = None,
    index_bytes: int = INDEX_BYTES,
) -> RangeAggregates:
    """Every event with the aggregates of the ranges that cover it; with `per="range"` every range with those of events.

    The side that is indexed is counted, and collected if it is small, at the call; the rows are made when Spark runs
    them. With `index_bytes=0` there are always parts.

    Raises:
        UsageError: an argument, a column that is absent, or a type that does not fit.

    Example:
        >>> visits = spark.createDataFrame([(7, 3), (7, 9)], "user int, at int")
        >>> offers = spark.createDataFrame([(7, 1, 5, 20), (7, 2, 4, 30)], "user int, start int, end int, points int")
        >>> found = range_aggregate(
        ...     visits, offers, on="user", time="at", start="start", end="end", aggs={"points": "sum(points)"}
        ... )
        >>> [row.asDict() for row in found.rows.orderBy("at").collect()]
        [{'user': 7, 'at': 3, 'points': 50}, {'user': 7, 'at': 9, 'points': None}]
    """
    keys = [on] if isinstance(on, str) else list(on)
    aggregates = {name: parse_aggregate(one) if isinstance(one, str) else one for name, one in aggs.items()}
    if ends not in ENDS or per not in ("event", "range") or bad_rows not in ("stop", "keep"):
        raise UsageError(f"ends are one of {', '.join(ENDS)}, per is event or range, bad_rows is stop or keep")
    if not keys or not aggregates:
        raise UsageError("`on` and `aggs` are not empty; write on='id', aggs={'points': 'sum(points)'}")
    _require_columns(events, ranges, keys, time, start, end)
    stops = bad_rows == "stop"
    sides = (
        FrameSide("event", events, event_reasons(events, keys, time), stops),
        FrameSide("range", ranges, range_reasons(ranges, keys, start, end, longest_us), stops),
    )
    asked, indexed = (side.good() for side in (sides if per == "event" else reversed(sides)))
    require_free_names(aggregates, asked.columns)
    types = {field.name: _arrow(field.dataType) for field in indexed.schema}
    require_types(aggregates, types, "ranges" if per == "event" else "events")
    work = Work(
        per=per,
        ends=ends,
        asked_points=(time,) if per == "event" else (start, end),
        indexed_points=(start, end) if per == "event" else (time,),
        aggregates=aggregates,
        own_types={name: _arrow(type_of_ddl(one.type)) for name, one in aggregates.items() if isinstance(one, Own)},
    )
    columns = sorted({*work.indexed_points, *(one.column for one in aggregates.values() if one.column is not None)})
    answers = T.StructType(_answer_fields(aggregates, indexed.schema))
    of_index = ranges if per == "event" else events
    of_row, parts = 2 * (8 + work.aggregate_bytes), None  # two marks with their times
    size = _index_size(of_index, columns, of_row)
    if size <= index_bytes:
        table = indexed.select(*map(backticked, columns), *_id_words(indexed, keys)).toArrow()
        shared = shared_by_workers(work.index([table]), asked.sparkSession.sparkContext)
        answered = _looked_up(asked, keys, work, shared, answers)
    else:
        index_side, asked_side = _with_digest(indexed, keys, columns), _with_digest(asked, keys, asked.columns)
        schema = T.StructType([*asked.schema.fields, *answers.fields])
        parts = parts_for(size, index_bytes, asked.sparkSession.sparkContext.defaultParallelism)
        answered = in_parts(asked_side, index_side, work, parts, asked.columns, schema)
    return RangeAggregates(answered, parts, sides)


def _index_size(indexed: DataFrame, columns: Sequence[str], bytes_a_row: int) -> int:
    """About the memory of an index, with texts.

    Bad rows count too: without texts, Spark then reads no column.
    """
    texts = [name for name in columns if isinstance(indexed.schema[name].dataType, T.StringType | T.BinaryType)]
    if texts:
        sizes = (f"coalesce(sum(octet_length({backticked(name)})), 0)" for name in texts)
        found = indexed.selectExpr("count(1)", *sizes).first()
        assert found is not None  # an aggregate without groups has one row
        rows, text_bytes = int(found[0]), int(sum(found[1:]))
    else:
        # `DataFrame.count` does the same in two stages, with a plan that is adapted in between.
        rows, text_bytes = indexed.select()._jdf.queryExecution().toRdd().count(), 0
    return rows * bytes_a_row + text_bytes


def _looked_up(asked: DataFrame, keys: Sequence[str], work: Work, shared: Shared, answers: T.StructType) -> DataFrame:
    """The asked rows with their aggregates from an index that every worker has.

    Only ids and times go to Python; the rest of a row waits in the JVM. With lists, whole rows go: their
    answers are cut into several batches.
    """
    words = _id_words(asked, keys)
    if work.has_lists:
        answered = T.StructType([*asked.schema.fields, *answers.fields])
        return map_in_arrow(asked.select("*", *words), _lookup(work, shared, asked.columns), answered)
    names = (*(ID_HI, ID_LO)[: len(words)], *work.asked_points)
    function = arrow_columns(_answer(work, shared, names, answers), answers)
    found = function(*words, *(F.col(backticked(name)) for name in work.asked_points))
    return asked.select("*", found.alias(_ANSWERS)).selectExpr(f"* EXCEPT ({_ANSWERS})", f"{_ANSWERS}.*")


def _answer(work: Work, shared: Shared, names: Sequence[str], answers: T.StructType) -> Any:
    kind = _arrow(answers)

    def answer(*columns: pa.Array) -> pa.Array:
        batch = pa.RecordBatch.from_arrays(list(columns), list(names))
        for answered in work.answers(shared.value, batch, ()):
            return answered.to_struct_array()
        return pa.array([], kind)

    return answer


def _lookup(work: Work, shared: Shared, columns: Sequence[str]) -> Any:
    def answer(batches: Iterator[pa.RecordBatch]) -> Batches:
        for batch in batches:
            yield from work.answers(shared.value, batch, columns)

    return answer


def _id_words(rows: DataFrame, keys: Sequence[str]) -> list[Column]:
    """The id of a row: one integer is a word by itself, anything else is digested."""
    if len(keys) == 1 and isinstance(rows.schema[keys[0]].dataType, T.IntegralType):
        return [F.expr(f"CAST({backticked(keys[0])} AS BIGINT) AS {ID_HI}")]
    return _digest(rows, keys)


def _digest(rows: DataFrame, keys: Sequence[str]) -> list[Column]:
    """The id as the two words of its digest: an id may have any number of columns of any type."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    hi, lo = fast_digest([(F.col(backticked(key)), types[key]) for key in keys], _salt())
    return [hi.alias(ID_HI), lo.alias(ID_LO)]


@cache
def _salt() -> bytes:
    """One a process: Spark compiles each text of an expression anew, and a salt is part of it."""
    return os.urandom(SALT_BYTES)


def _with_digest(rows: DataFrame, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    return rows.select(*map(backticked, columns), *_digest(rows, keys))


def _arrow(kind: T.DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")


def _answer_fields(aggregates: Mapping[str, AnyAggregate], indexed: T.StructType) -> list[T.StructField]:
    return [T.StructField(name, _answer_type(one, indexed)) for name, one in aggregates.items()]


def _answer_type(one: AnyAggregate, indexed: T.StructType) -> T.DataType:
    if isinstance(one, Own):
        return type_of_ddl(one.type)
    if one.column is None or one.kind in (Kind.COUNT, *OF_NUMBERS):
        return from_arrow_type(answer_type(one, one.column and _arrow(indexed[one.column].dataType)))
    of_column = indexed[one.column].dataType
    return of_column if one.kind in OF_ONE else T.ArrayType(of_column)


def _require_columns(
    events: DataFrame, ranges: DataFrame, keys: Sequence[str], time: str, start: str, end: str
) -> None:
    found = _types_of(events, "events", [*keys, time]), _types_of(ranges, "ranges", [*keys, start, end])
    for key in keys:
        if found[0][key] != found[1][key]:
            kinds = " and ".join(side[key].simpleString() for side in found)
            raise UsageError(f"id column `{key}` is {kinds} in events and ranges; cast one of them")
        if isinstance(found[0][key], T.ArrayType | T.MapType | T.StructType):
            raise UsageError(f"id column `{key}` is {found[0][key].simpleString()}; an id is made of scalar columns")
    for side, column in ((0, time), (1, start), (1, end)):
        kind = found[side][column]
        if not isinstance(kind, TIMES):
            raise UsageError(f"`{column}` is {kind.simpleString()}, which is no time; cast it, as to timestamp")
        if kind != found[0][time]:
            kinds = f"{found[0][time].simpleString()} and {kind.simpleString()}"
            raise UsageError(f"`{time}` and `{column}` are {kinds}; times of events and ranges have one type, cast one")


def _types_of(rows: DataFrame, side: str, columns: Sequence[str]) -> dict[str, T.DataType]:
    types = {field.name: field.dataType for field in rows.schema}
    for column in columns:
        if column not in types:
            raise UsageError(f"{side} have no column `{column}`; columns are {', '.join(types)}")
    return types
