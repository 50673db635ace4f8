"""All rows of one window in the ports' files, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from bucket_store.places.place import Place
from deduper.admin.readback import read_judged
from deduper.admin.verify.findings import Check, Finding, Findings
from deduper.admin.verify.scope import Int64s, Places, Scope
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import TupleVerdict
from deduper.errors import IntegrityError

PORTS = tuple(verdict.port for verdict in TupleVerdict)
UNIQUE, DUPLICATE, EXPIRED = (
    verdict.port for verdict in (TupleVerdict.UNIQUE, TupleVerdict.DUPLICATE, TupleVerdict.EXPIRED)
)


@dataclass(frozen=True, slots=True)
class WindowRows:
    """All rows of a window that are there, one file after another. `order` is -1 where the source is none of its."""

    files: list[tuple[str, Place, int]]
    table: pa.Table
    ports: NDArray[np.int8]
    order: Int64s

    def place(self, row: int) -> tuple[Place, int]:
        """The file of a row, and its number there."""
        begin = 0
        for _, path, count in self.files:
            if row < begin + count:
                return path, row - begin
            begin += count
        raise IndexError(row)

    def finding(self, check: Check, window: int, row: int, what: str, *, expected: object, found: object) -> Finding:
        """A finding at a row."""
        path, number = self.place(row)
        source, position = self.table["source"][row].as_py(), self.table["position"][row].as_py()
        return Finding.of(
            check,
            f"window {window}, row {number} ({source}, position {position}): {what}",
            file=path,
            expected=expected,
            found=found,
        )


def read_rows(
    scope: Scope, window: int, ports: Mapping[str, list[Place]], names: Places, findings: Findings
) -> WindowRows:
    """All rows of the window's files by port; a port of which a file is gone or damaged is no more whole."""
    files: list[tuple[str, Place, int]] = []
    tables: list[pa.Table] = []
    for port, paths in sorted(ports.items()):
        for path in paths:
            try:
                table = read_judged(path, scope.format, with_expiry=port != TupleVerdict.ERROR.port)
            except FileNotFoundError:
                scope.files.is_whole.discard((window, port))
                continue
            except (IntegrityError, OSError) as error:
                scope.files.is_whole.discard((window, port))
                findings.wrong(
                    Check.ROWS_PORT, f"window {window}", file=path, expected=f"rows of port {port}", found=error
                )
                continue
            files.append((port, path, len(table)))
            tables.append(table)
    table = pa.concat_tables(tables) if tables else scope.format.schema.empty_table()
    codes = [np.full(count, PORTS.index(port), np.int8) for port, _, count in files]
    return WindowRows(
        files,
        table,
        np.concatenate(codes) if codes else np.empty(0, np.int8),
        source_orders(table["source"], table["position"], names),
    )


def source_orders(sources: pa.ChunkedArray, positions: pa.ChunkedArray, names: Places) -> Int64s:
    """Source orders, -1 for what is none of these sources."""
    known = pa.array([name for name, _ in names], pa.string())
    ordinal = pc.fill_null(pc.index_in(sources, known), -1).to_numpy().astype(np.int64)
    starts = np.array([*(start for _, start in names), 0], np.int64)  # the last one for ordinal -1
    position = pc.fill_null(positions, -1).to_numpy().astype(np.int64) - starts[ordinal]
    is_known = (ordinal >= 0) & (position >= 0) & (position < 1 << POSITION_BITS)
    order: Int64s = np.where(is_known, ordinal << POSITION_BITS | position, -1)
    return order


def numbers(column: pa.ChunkedArray, is_float: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A column's values, 0 for null, and where there is one."""
    valid = column.is_valid().to_numpy()
    values = pc.fill_null(column, 0.0 if is_float else 0).to_numpy()
    return values.astype(np.float64 if is_float else np.int64), valid
