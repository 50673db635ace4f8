"""The rows of a window: those that inputs give, those of `late` and `errors`, and records for topics. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from deduper.arrow_columns import kind_of
from deduper.core.digest_kernels import array_digest
from deduper.errors import UsageError
from deduper.ranges.aggregate.cells import Ids
from deduper.ranges.aggregate.points import Ints
from deduper.ranges.aggregate.rows import whole
from deduper.ranges.stream.settings import WINDOW
from deduper.tasks.kafka_rows import HEADERS, KEY, TIMESTAMP, VALUE, with_headers
from deduper.tasks.kafka_rows import SLOT as SLOT_COLUMN
from deduper.text.written import json_lines

SLOT = 0
"""The one writer of a port that is a topic: a window is one transaction."""
_NO_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class PortRow:
    """A row of `late` or `errors`."""

    side: str
    reason: str
    record: str | None


@dataclass(frozen=True, slots=True)
class InputRows:
    """The input of a window: rows, and the records that make no row, as (reason, text)."""

    table: pa.Table
    bad: Sequence[tuple[str, str | None]] = ()

    @property
    def count(self) -> int:
        """Rows and records."""
        return int(self.table.num_rows) + len(self.bad)


def port_rows(side: str, reason: str, rows: pa.Table, where: Ints) -> list[PortRow]:
    """Some rows, with a reason."""
    if not len(where):
        return []
    return [PortRow(side, reason, record) for record in json_lines(rows.take(pa.array(where))).to_pylist()]


def port_table(port: Sequence[PortRow], window: int) -> pa.Table:
    """The rows of a port."""
    texts = {name: pa.array([getattr(one, name) for one in port], pa.string()) for name in ("side", "reason", "record")}
    return pa.table({**texts, WINDOW: pa.array([window] * len(port), pa.int64())})


def digests(side: str, rows: pa.Table, columns: Sequence[str], salt: bytes) -> Ids:
    """Two words for the values of these columns.

    Raises:
        UsageError: a column is of a type that has no digest.
    """
    kinds = []
    for name in columns:
        kind = kind_of(rows.schema.field(name).type)
        if kind is None:
            raise UsageError(f"`{name}` of {side} is {rows.schema.field(name).type}, which cannot be a key; cast it")
        kinds.append(kind)
    hi, lo = array_digest([whole(rows[name]) for name in columns], kinds, salt)
    return Ids(hi.view(np.int64), lo.view(np.int64))


def numbers(rows: pa.Table, name: str) -> Ints:
    """A column of integers without nulls, aligned."""
    found: Ints = np.array(whole(rows[name]).to_numpy(zero_copy_only=False), np.int64)
    return found


def topic_rows(rows: pa.Table, on: Sequence[str], window: int) -> pa.Table:
    """Records as `sinks.staged_records` has them: the id as the key, if there is one; the row as JSON; the window.

    The id is a text or a whole number as it is, and JSON otherwise. Rows of `late` and `errors` have none.
    """
    values = json_lines(rows).combine_chunks()
    windows = pa.repeat(pa.scalar(str(window)), rows.num_rows)
    records = {
        KEY: _keys(rows, on).cast(pa.binary()),
        VALUE: values.cast(pa.binary()),
        HEADERS: with_headers(pa.nulls(rows.num_rows, _NO_HEADERS), {"dedup-window": windows}),
        TIMESTAMP: pa.nulls(rows.num_rows, pa.int64()),
        SLOT_COLUMN: pa.array(np.full(rows.num_rows, SLOT, np.int32)),
    }
    return pa.table(records)


def _keys(rows: pa.Table, on: Sequence[str]) -> pa.Array:
    if not set(on) <= set(rows.column_names):
        return pa.nulls(rows.num_rows, pa.string())
    first = rows[on[0]].combine_chunks()
    if len(on) == 1 and (pa.types.is_string(first.type) or pa.types.is_integer(first.type)):
        return first.cast(pa.string())
    return json_lines(rows.select(list(on))).combine_chunks()
