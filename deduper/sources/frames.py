"""A batch of a query that somebody else has written: a DataFrame, read once, by Spark.

Its source partitions are the partitions of the DataFrame, which are known once it was read. A row's place is its number
in one of them: `batch 12 of query 5f0c11aa, partition 3`, row 4711.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deduper.columns import Column, backticked
from deduper.config.query import column_of
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import Admission
from deduper.errors import UsageError
from deduper.sources.kafka.stream import RECORD
from deduper.sources.parsing import REC
from deduper.sources.protocol import BatchPartition, BatchRead, ReadingRun
from deduper.spark.arrow_types import NoArrowTypeError, arrow_of
from deduper.tasks.dedup_column import DEDUP
from deduper.tasks.layout import ADMISSION, ORDER, RAW
from deduper.tasks.read import ReadReceipt, ReadTask

QUERIES = "queries"
"""Of a commit record's `extra`: the last batch of each query, as (query id, batch id), the newest query last."""
BATCH = "batch"
"""Of the same: the query id and the batch id of this window; None for rows that are no batch."""
_MOST_QUERIES = 100
_ROW_BITS = 33
"""Of `monotonically_increasing_id`: the number of the row in its partition."""


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """The columns of a DataFrame: their declared types, and how Arrow has them."""

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
        columns = [column_of(field.name, field.dataType.simpleString()) for field in schema]
        return cls(tuple(columns), tuple(arrow))


class FrameTuples:
    """The tuples of the DataFrames of a query; the columns are made once, each takes dozens of calls to the JVM."""

    def __init__(self, schema: StructType, *, are_sent: bool) -> None:
        """`are_sent`: some ports are topics."""
        self._columns = [
            F.struct(*[F.col(backticked(field.name)) for field in schema]).alias(REC),
            F.lit(None).cast("string").alias(RAW),
            F.lit(int(Admission.ADMITTED)).cast("tinyint").alias(ADMISSION),
            _order().alias(ORDER),
        ]
        if are_sent:
            self._columns.append(_record(schema).alias(RECORD))

    def of(self, frame: DataFrame) -> DataFrame:
        """REC, RAW, ADMISSION, ORDER, and RECORD for ports that are topics."""
        return frame.select(*self._columns)


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """A batch of a query; `batch_id` None is of a DataFrame that is no stream. See `SourceBatch`.

    `queries` are the last batches of earlier windows (`QUERIES`).
    """

    tuples: DataFrame
    query_id: str
    batch_id: int | None
    queries: tuple[tuple[str, int], ...]
    partitions: tuple[BatchPartition, ...] = ()

    @classmethod
    def of(cls, tuples: DataFrame, query_id: str, batch_id: int | None, *, extra: Mapping[str, Any]) -> FrameBatch:
        """A batch that was not read, as `FrameTuples` makes it. `extra` is that of the newest commit record."""
        unread = _partition(query_id, batch_id, 0, rows=0)
        return cls(tuples, query_id, batch_id, tuple(last_batches(extra).items()), (unread,))

    @property
    def is_known_by_digests(self) -> bool:
        """No: the commit record says which batch was judged."""
        return False

    def read(self, run: ReadingRun, task: ReadTask) -> BatchRead:
        """Spill the rows; see `SourceBatch`."""
        receipts, rows = run.by_spark(self.tuples, task)
        return BatchRead(replace(self, partitions=self._read_partitions(receipts)), receipts, rows)

    def after_failure(self, error: Exception) -> FrameBatch:
        """No row of a DataFrame is unreadable by itself: what fails is the query's. Raises the error."""
        raise error

    def confirmed(self, rows: Mapping[int, int]) -> FrameBatch:
        """The batch: Spark has read it, and says so by succeeding."""
        del rows
        return self

    def extra(self) -> dict[str, Any]:
        """`QUERIES` with this batch, and `BATCH`."""
        queries = dict(self.queries)
        if self.batch_id is not None:
            queries.pop(self.query_id, None)
            queries[self.query_id] = self.batch_id
        return {
            QUERIES: [list(one) for one in list(queries.items())[-_MOST_QUERIES:]],
            BATCH: [self.query_id, self.batch_id],
        }

    def _read_partitions(self, receipts: Sequence[ReadReceipt]) -> tuple[BatchPartition, ...]:
        """One for each partition of the DataFrame up to the last with rows."""
        rows = {receipt.first_order >> POSITION_BITS: receipt.rows for receipt in receipts if receipt.rows}
        return tuple(
            _partition(self.query_id, self.batch_id, ordinal, rows=rows.get(ordinal, 0))
            for ordinal in range(max(rows, default=0) + 1)
        )


def last_batches(extra: Mapping[str, Any]) -> dict[str, int]:
    """The last batch of each query that a store knows, from the `extra` of its newest commit record."""
    return dict(extra.get(QUERIES, ()))


def _order() -> SparkColumn:
    number = F.monotonically_increasing_id()
    partition = F.shiftleft(F.shiftright(number, _ROW_BITS), POSITION_BITS)
    return partition.bitwiseOR(number.bitwiseAND(F.lit((1 << _ROW_BITS) - 1)))


def _record(schema: StructType) -> SparkColumn:
    """What is sent of a row: its `key`, `value`, `headers` and `timestamp`, as Spark's own sink for Kafka takes them.

    Without a column `value` of text or bytes the value is the whole row as JSON.
    """
    types = {field.name: field.dataType.simpleString() for field in schema}

    def column(name: str, *kinds: str) -> SparkColumn | None:
        return F.col(backticked(name)) if types.get(name) in kinds else None

    value, key = column("value", "string", "binary"), column("key", "string", "binary")
    headers = column("headers", "array<struct<key:string,value:binary>>")
    timestamp = column("timestamp", "timestamp") if value is not None else None
    if value is None:
        value = F.to_json(F.struct(*[F.col(backticked(name)) for name in types]))
    none = F.lit(None)
    return F.struct(
        (none if key is None else key).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        (none if headers is None else headers).cast("array<struct<key:string,value:binary>>").alias("headers"),
        (F.lit(None).cast("bigint") if timestamp is None else F.unix_millis(timestamp)).alias("timestamp"),
    )


def _partition(query_id: str, batch_id: int | None, ordinal: int, *, rows: int) -> BatchPartition:
    """A source partition; no two of a window have one name, by which rows are found again."""
    batch = "rows" if batch_id is None else f"batch {batch_id}" + (f" of query {query_id[:8]}" if query_id else "")
    digest = blake2b(f"{query_id}/{batch_id}/{ordinal}".encode(), digest_size=16).digest()
    return BatchPartition(f"{batch}, partition {ordinal}", digest, version=0, end=rows)
