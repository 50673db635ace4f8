"""A batch of a user's own query: a DataFrame, read once, by Spark.

Its source partitions are the partitions of the DataFrame, which are known after the reading. A row's place is its
number in one of them: `batch 12 of query 5f0c11aa, partition 3`, row 4711.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deduper.columns import Column, backticked
from deduper.config.query import BATCH, QUERIES, QueryConfig, QuerySource, column_of
from deduper.core.clock import POSITION_BITS
from deduper.dedup_column import DEDUP
from deduper.errors import UsageError
from deduper.sources.declared_columns import declared
from deduper.sources.frame_places import FramePlaces, FrameRows
from deduper.sources.protocol import BatchPartition, SparkRows
from deduper.spark.dataframes import Selected
from deduper.spark.types import NoArrowTypeError, arrow_of, text_of
from deduper.tasks.found_partitions import FoundPartitions
from deduper.tasks.layout import HEADERS, KEY, ORDER, PARTITION, TIMESTAMP, TOPIC, VALUE, parsed
from deduper.tasks.read import ReadReceipt
from deduper.tasks.readers.reading_tasks import PartRead, receipts_of

PLACE_COLUMNS = ("_dedup_source", "_dedup_position")
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_TEXTS = ("string", "binary")
_SENT = {
    "key": _TEXTS,
    "value": _TEXTS,
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""The columns that Spark's own sink would send, and their types."""
_MOST_QUERIES = 100
_ROW_BITS = 33
"""The lower bits of `monotonically_increasing_id`: the number of the row in its partition."""


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """The columns of a DataFrame: their declared types, and their Arrow types."""

    columns: tuple[Column, ...]
    arrow: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, schema: StructType) -> FrameColumns:
        """Those of a schema.

        Raises:
            UsageError: a name is there twice, or a type cannot be handed to Python.
        """
        seen: dict[str, str] = {}
        for field in schema:
            if field.name.lower() in seen:
                other = seen[field.name.lower()]
                raise UsageError(
                    f"the DataFrame has two columns `{other}` and `{field.name}`, one name to Spark; drop or rename one"
                )
            if field.name.lower() == DEDUP:
                raise UsageError(f"the DataFrame has a column `{field.name}`, which the ports add; drop or rename it")
            seen[field.name.lower()] = field.name
        arrow = []
        for field in schema:
            try:
                arrow.append(arrow_of(field.dataType))
            except NoArrowTypeError as exc:
                raise UsageError(
                    f"column `{field.name}` is {exc}, which Spark hands to no Python; cast it, for instance to string"
                ) from None
        columns = [column_of(field.name, text_of(field.dataType)) for field in schema]
        return cls(tuple(columns), tuple(arrow))

    def place_of_rows(self, asked: tuple[str, ...] | None) -> tuple[str, ...]:
        """The columns that name a row's place; by default `PLACE_COLUMNS`, if both are there.

        Raises:
            UsageError: a column is missing, or the last one is no whole number.
        """
        types = {column.name: column.type.name for column in self.columns}
        if asked is None:
            if not set(PLACE_COLUMNS) <= types.keys():
                return ()
            asked = PLACE_COLUMNS
        for name in asked:
            if name not in types:
                raise UsageError(f"place: the DataFrame has no column `{name}`; it has {', '.join(types)}")
        if types[asked[-1]] not in _WHOLE_NUMBERS:
            raise UsageError(f"place: `{asked[-1]}` is {types[asked[-1]]}: the last column is a row's number, a bigint")
        return asked


class FramePlan:
    """The records of a query's DataFrames: Spark gives their columns, and the reading tasks make the rest of them.

    It is one selection, made once: the JVM analyses every step of a plan again at every batch.
    """

    def __init__(self, session: SparkSession, config: QueryConfig, salt: bytes) -> None:
        columns = config.source.parsed_columns
        self._declared = declared(config, salt)
        sent = _sent(columns) if config.topic_ports else {}
        is_whole = bool(config.topic_ports) and sends_whole_rows(columns)
        taken = range(len(columns)) if is_whole else self._declared.stored(())
        made = {ORDER: _order(), **{parsed(number): _value(columns[number]) for number in taken}, **sent}
        if config.source.row_place:
            made |= _named_places(config.source)
        self._given = Selected(session, [column.alias(name) for name, column in made.items()])

    def records(self, tuples: DataFrame) -> DataFrame:
        """The columns of every row that `FrameRows` takes."""
        return self._given.of(tuples)

    def rows(self, *, are_named: bool) -> FrameRows:
        """What the reading tasks make records with; the rows may name their places."""
        return FrameRows(self._declared, FramePlaces() if are_named else None)


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """A batch of a query; `batch_id` None is of a DataFrame that is no stream. See `SourceBatch`.

    `planned_ms` is when Spark planned it, None if that is not known; `queries` are the last batches of earlier windows
    (`QUERIES`).
    """

    rows: DataFrame
    plan: FramePlan
    query_id: str
    batch_id: int | None
    planned_ms: int | None
    queries: Mapping[str, tuple[int, int | None]]
    has_places: bool
    partitions: tuple[BatchPartition, ...] = ()

    @classmethod
    def of(
        cls,
        rows: DataFrame,
        plan: FramePlan,
        query_id: str,
        batch_id: int | None,
        planned_ms: int | None,
        *,
        extra: Mapping[str, Any],
        has_places: bool = False,
    ) -> FrameBatch:
        """A batch that was not read. `extra` is that of the newest commit record; `has_places`: columns name places."""
        unread = _partition(query_id, batch_id, 0, rows=0)
        return cls(rows, plan, query_id, batch_id, planned_ms, last_batches(extra), has_places, (unread,))

    @property
    def is_known_by_digests(self) -> bool:
        """No: the commit record says which batch was judged."""
        return False

    def records(self) -> SparkRows:
        """The rows, by Spark; see `SourceBatch`."""
        return SparkRows(self.plan.records(self.rows), self.plan.rows(are_named=self.has_places))

    def as_read(self, found: Sequence[PartRead]) -> FrameBatch:
        """The batch with the partitions that its rows were found in."""
        receipts = receipts_of(found)
        partitions = self._named_partitions(receipts) if self.has_places else self._read_partitions(receipts)
        return replace(self, partitions=partitions)

    def after_failure(self, error: Exception) -> FrameBatch:
        """Raises the error: no single row of a DataFrame is unreadable, so a failure is one of the query."""
        raise error

    def confirmed(self, rows: Mapping[int, int]) -> FrameBatch:
        """The batch itself: Spark succeeds only if it has read all of it."""
        del rows
        return self

    def extra(self) -> dict[str, Any]:
        """`QUERIES` with this batch, and `BATCH`."""
        queries = dict(self.queries)
        if self.batch_id is not None:
            queries.pop(self.query_id, None)
            queries[self.query_id] = self.batch_id, self.planned_ms
        return {
            QUERIES: [[query, *last] for query, last in list(queries.items())[-_MOST_QUERIES:]],
            BATCH: [self.query_id, self.batch_id],
        }

    def _read_partitions(self, receipts: Sequence[ReadReceipt]) -> tuple[BatchPartition, ...]:
        """One for each partition of the DataFrame up to the last with rows."""
        rows = {receipt.first_order >> POSITION_BITS: receipt.rows for receipt in receipts if receipt.rows}
        return tuple(
            _partition(self.query_id, self.batch_id, ordinal, rows=rows.get(ordinal, 0))
            for ordinal in range(max(rows, default=0) + 1)
        )

    def _named_partitions(self, receipts: Sequence[ReadReceipt]) -> tuple[BatchPartition, ...]:
        """The sources that the rows name, and the partitions of the DataFrame with rows that name none."""
        found = FoundPartitions.of([receipt.partitions for receipt in receipts]).ends
        if not found:
            return self.partitions
        made = []
        for ordinal, (name, end) in enumerate(found.items()):
            partition = _partition(self.query_id, self.batch_id, ordinal, rows=end)
            if isinstance(name, int):
                name = _name(self.query_id, self.batch_id, name)
            made.append(replace(partition, name=name))
        return tuple(made)


def last_batches(extra: Mapping[str, Any]) -> dict[str, tuple[int, int | None]]:
    """The last batch of each query and when it was planned, from the `extra` of a store's newest commit record."""
    return {query: (batch_id, planned_ms) for query, batch_id, planned_ms in extra.get(QUERIES, ())}


def _order() -> SparkColumn:
    number = F.monotonically_increasing_id()
    partition = F.shiftleft(F.shiftright(number, _ROW_BITS), POSITION_BITS)
    return partition.bitwiseOR(number.bitwiseAND(F.lit((1 << _ROW_BITS) - 1)))


def _named_places(source: QuerySource) -> dict[str, SparkColumn]:
    """The columns that `FramePlaces` takes. A null in one of them names no place."""
    *names, position = source.row_place
    texts = [F.col(backticked(name)).cast("string") for name in names]
    return {
        TOPIC: F.concat(*(part for text in texts for part in (F.lit("-"), text))).substr(2, 1 << 30),
        PARTITION: F.spark_partition_id(),
        ORDER: F.col(backticked(position)).cast("bigint"),
    }


def _value(column: Column) -> SparkColumn:
    return F.col(backticked(column.name))


def sends_whole_rows(columns: Sequence[Column]) -> bool:
    """Whether a topic gets whole rows as JSON: they have no column `value` of text or bytes."""
    return not any(column.name == "value" and column.type.text in _TEXTS for column in columns)


def _sent(columns: Sequence[Column]) -> dict[str, SparkColumn]:
    """What is sent of a row: of its `key`, `value`, `headers` and `timestamp` those that Spark's own sink would take.

    For every row, Spark asks every Arrow column how large it has become: a column of nulls is not for nothing.
    """
    given = {column.name: _value(column) for column in columns if column.type.text in _SENT.get(column.name, ())}
    sent = {}
    if "key" in given:
        sent[KEY] = given["key"].cast("binary")
    if "headers" in given:
        # A text, null when there are none: an array of structs takes longer than all else of a record, be it empty.
        sent[HEADERS] = F.when(F.size(given["headers"]) > 0, F.to_json(given["headers"]))
    if "value" in given:
        sent[VALUE] = given["value"].cast("binary")
        if "timestamp" in given:
            sent[TIMESTAMP] = F.unix_millis(given["timestamp"])
    return sent


def _partition(query_id: str, batch_id: int | None, ordinal: int, *, rows: int) -> BatchPartition:
    """A source partition; its positions end at `rows`. `digest` is its own in every batch."""
    digest = blake2b(f"{query_id}/{batch_id}/{ordinal}".encode(), digest_size=16).digest()
    return BatchPartition(_name(query_id, batch_id, ordinal), digest, version=0, end=rows)


def _name(query_id: str, batch_id: int | None, partition: int) -> str:
    batch = "rows" if batch_id is None else f"batch {batch_id}" + (f" of query {query_id[:8]}" if query_id else "")
    return f"{batch}, partition {partition}"
