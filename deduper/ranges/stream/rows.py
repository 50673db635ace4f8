"""Rows that cannot be answered, or come too late, as rows of the ports `late` and `errors`. PURE."""

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
from deduper.text.written import json_lines


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
