"""The rows of an error port of files, read back in batches: reason, detail, place, and the record's text where wanted.

The columns of a batch are those of `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore
from deduper.config.files import FileSink
from deduper.core.verdict import Admission, TupleVerdict
from deduper.diagnostics import near
from deduper.errors import UsageError
from deduper.sinks.published import published_files, said_and_records, said_of_rows

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
_WITHOUT_RAW = pa.schema([field for field in SCHEMA if field.name != "raw"])
REASONS: Final = tuple(one.reason for one in Admission if one.verdict is TupleVerdict.ERROR)
"""All reasons of an error."""


def require_reasons(reasons: Collection[str]) -> None:
    """Refuse what is no reason of an error: its rows would be none, without a word.

    Raises:
        UsageError: with the near name, and all of them.
    """
    for unknown in sorted(set(reasons) - set(REASONS)):
        raise UsageError(
            f"`{unknown}` is no reason of an error; {near(unknown, REASONS)}reasons are {', '.join(REASONS)}"
        )


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
    found = published_files(store.ports[ERROR], store.log.manifest.store_id)
    return [(file.window, file.path) for file in found if file.window in windows]


def read_errors(path: Place, *, raw: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a file of the error port in its order, with `raw` where it is wanted.

    Raises:
        IntegrityError: it is no such file.
        FileNotFoundError: a reader has taken it away.
    """
    yield from said_of_rows(path, SCHEMA if raw else _WITHOUT_RAW)


def read_records(path: Place, *, is_text: bool) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The rows of a file of the error port in its order, and their records.

    The record of a line of text is in `raw`; others are the columns of a port that is Parquet. Raises as `read_errors`.
    """
    if is_text:
        yield from ((batch, batch) for batch in read_errors(path, raw=True))
    else:
        yield from said_and_records(path, SCHEMA)
