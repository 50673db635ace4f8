"""The rows of an error port of files, read back in batches: reason, detail, place, and the record's text where wanted.

The columns of a batch are those of `SCHEMA`. `detail` is null in files of releases that wrote none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa

from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore
from deduper.admin.storage import inside
from deduper.config.files import FileSink
from deduper.core.verdict import Admission, TupleVerdict
from deduper.sinks.names import FinalName, Format
from deduper.sinks.published import dedup_of_rows, errors_of, format_of, parquet_file
from deduper.tasks.dedup_column import DEDUP

ERROR = TupleVerdict.ERROR.port
"""The name of the error port."""

SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("source", pa.string()),
        ("position", pa.int64()),
        ("raw", pa.string()),
    ]
)
REASONS: Final = tuple(one.reason for one in Admission if one.verdict is TupleVerdict.ERROR)
"""All reasons of an error."""
_BATCH_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Windows from `first` to `last`, both counted; no end where `last` is None."""

    first: int = 0
    last: int | None = None

    def __contains__(self, window: int) -> bool:
        return window >= self.first and (self.last is None or window <= self.last)

    def newest(self, count: int, next_window: int) -> WindowRange:
        """Those of them that are among the newest `count` of a store."""
        return WindowRange(max(self.first, next_window - count), self.last)

    @classmethod
    def of(cls, text: str) -> WindowRange:
        """`7`, `7..9`, `7..` or `..9`.

        Raises:
            ValueError: anything else.
        """
        first, dots, last = text.partition("..")
        try:
            begin = int(first) if first else 0
            end = (int(last) if last else None) if dots else begin
        except ValueError:
            raise ValueError(f"`{text}` names no windows; write a number or a range such as 7..9") from None
        if begin < 0 or (end is not None and end < begin) or not text.strip("."):
            raise ValueError(f"`{text}` names no windows; write a number or a range such as 7..9")
        return cls(begin, end)


def error_port(store: OpenStore) -> FileSink | None:
    """The error port, if it is one of files, and the store was named by a config."""
    sink = None if store.config is None else store.config.sinks.error
    return sink if isinstance(sink, FileSink) else None


def error_files(store: OpenStore, windows: WindowRange) -> list[tuple[int, Place]]:
    """The published files of the error port with their windows, in the order of these; those that are still there."""
    prefix, port = store.log.manifest.store_id[:8], store.ports[ERROR]
    names = [(FinalName.of(entry.name), port / entry.name) for entry in inside(port)]
    return [(name.window, file) for name, file in names if name and name.store == prefix and name.window in windows]


def read_errors(path: Place, *, raw: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a file of the error port in its order; `raw` is null unless it is wanted.

    Raises:
        IntegrityError: it is no such file.
        FileNotFoundError: a reader has taken it away.
    """
    with errors_of(path):
        yield from (_of_parquet if format_of(path) is Format.PARQUET else _of_text)(path, raw=raw)


def read_records(path: Place, *, is_text: bool) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The rows of a file of the error port in its order, and their records.

    The record of a line of text is in `raw`; others are the columns of a port that is Parquet. Raises as `read_errors`.
    """
    if is_text:
        yield from ((batch, batch) for batch in read_errors(path, raw=True))
        return
    with errors_of(path), parquet_file(path) as opened:
        for batch in opened.iter_batches(_BATCH_ROWS, use_threads=False):
            columns = [name for name in batch.schema.names if name != DEDUP]
            yield _said(batch), batch.select(columns)


def _of_parquet(path: Place, *, raw: bool) -> Iterator[pa.RecordBatch]:
    with parquet_file(path) as file:
        wanted = [name for name in SCHEMA.names if raw or name != "raw"]
        there = {leaf.path for leaf in map(file.schema.column, range(len(file.schema)))}
        leaves = [f"{DEDUP}.{name}" for name in wanted if f"{DEDUP}.{name}" in there]
        yield from map(_said, file.iter_batches(_BATCH_ROWS, columns=leaves, use_threads=False))


def _said(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What `_dedup` says, as SCHEMA has it; null where it says nothing."""
    struct = batch.column(DEDUP)
    names = [field.name for field in struct.type]
    columns = [
        struct.field(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _of_text(path: Place, *, raw: bool) -> Iterator[pa.RecordBatch]:
    rows = dedup_of_rows(path)
    while some := list(islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(
            [{name: row.get(name) for name in SCHEMA.names if raw or name != "raw"} for row in some], SCHEMA
        )
