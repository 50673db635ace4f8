"""The errors of a store by reason and detail, for `errors`: from the error port's rows, else from the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FileSink, FilesSource
from deduper.config.kafka.options import connection_options, librdkafka_options
from deduper.config.kafka.sections import KafkaSink
from deduper.core.verdict import PORT_OF_REASON, Admission, TupleVerdict
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
    return said_of_rows(path, SCHEMA if raw else _WITHOUT_RAW)


def read_records(path: Place, *, is_text: bool) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The rows of a file of the error port in its order, and their records.

    The record of a line of text is in `raw`; others are the columns of a port that is Parquet. Raises as `read_errors`.
    """
    if is_text:
        yield from ((batch, batch) for batch in read_errors(path, raw=True))
    else:
        yield from said_and_records(path, SCHEMA)


_MOST_GROUPS = 10_000
_OF_LOG = 1000


@dataclass(frozen=True, slots=True)
class ErrorRowGroup(AsJson):
    """Error rows of one reason and detail; `place` is that of the first one. None: not known."""

    reason: str
    detail: str | None
    rows: int
    first_window: int | None
    last_window: int | None
    place: str | None


@dataclass(frozen=True, slots=True)
class ErrorsReport(AsJson):
    """The answer of `errors`.

    `origin` is the folder or the topic of the error port, or says why only the log was read. `windows` and `rows` are
    those with errors. `taken_rows`: error rows that the log counts and that are not there any more; None for some
    windows only. `others` are rows of further groups.
    """

    origin: str
    windows: int
    rows: int
    taken_rows: int | None
    groups: tuple[ErrorRowGroup, ...]
    others: int


@dataclass(slots=True)
class _Group:
    first: int
    last: int
    place: str | None
    rows: int = 0


@dataclass(slots=True)
class _Groups:
    reasons: Collection[str]
    """Those that count; all if there is none."""
    windows: set[int] = field(default_factory=set)
    found: dict[tuple[str, str | None], _Group] = field(default_factory=dict)
    others: int = 0

    def add(self, key: tuple[str, str | None], rows: int, window: int, place: str | None) -> None:
        if self.reasons and key[0] not in self.reasons:
            return
        self.windows.add(window)
        group = self.found.get(key)
        if group is None:
            if len(self.found) >= _MOST_GROUPS:
                self.others += rows
                return
            group = self.found[key] = _Group(window, window, place)
        elif window < group.first:  # partitions of a topic are read in turns
            group.first, group.place = window, place
        group.rows += rows
        group.last = max(group.last, window)

    def report(self) -> tuple[ErrorRowGroup, ...]:
        ordered = sorted(self.found.items(), key=lambda item: (-item[1].rows, item[0][0], item[0][1] or ""))
        return tuple(ErrorRowGroup(*key, group.rows, group.first, group.last, group.place) for key, group in ordered)


def errors_report(store: OpenStore, windows: WindowRange, reasons: Collection[str] = ()) -> ErrorsReport:
    """The errors of these windows and reasons, of all reasons if none is given.

    Raises:
        IntegrityError: a file of the port is not what the job writes.
        KafkaSinkError: the brokers do not answer, or refuse.
        UsageError: as `require_reasons`.
    """
    require_reasons(reasons)
    port = error_port(store)
    if port is None:
        sink = None if store.config is None else store.config.sinks.error
        if isinstance(sink, KafkaSink) and "reason" in sink.dedup_headers:
            return _of_topic(store, sink, windows, _Groups(reasons))
        return _of_log(store, windows, _Groups(reasons))
    groups = _Groups(reasons)
    for window, path in error_files(store, windows):
        try:
            for batch in read_errors(path, raw=False):
                numbers: dict[tuple[str, str | None], list[int]] = {}
                keys = zip(batch.column("reason").to_pylist(), batch.column("detail").to_pylist(), strict=True)
                for number, key in enumerate(keys):
                    numbers.setdefault(key, []).append(number)
                for key, same in numbers.items():
                    first = batch.slice(same[0], 1).to_pylist()[0]
                    groups.add(key, len(same), window, _place(store, first["source"], first["position"], key[0]))
        except FileNotFoundError:
            continue  # a reader has taken it
    return _report(store, str(store.ports[ERROR]), windows, groups)


def _report(store: OpenStore, origin: str, windows: WindowRange, groups: _Groups) -> ErrorsReport:
    rows = groups.others + sum(group.rows for group in groups.found.values())
    counted_rows = store.log.state.totals.get(ERROR, 0)
    taken = max(0, counted_rows - rows) if windows == WindowRange() and not groups.reasons else None
    return ErrorsReport(origin, len(groups.windows), rows, taken, groups.report(), groups.others)


def _of_topic(store: OpenStore, sink: KafkaSink, windows: WindowRange, groups: _Groups) -> ErrorsReport:
    """By the headers of the records that the brokers still hold, each record once."""
    from deduper.sources.kafka.fetching import records_of, whole_topic  # it loads Kafka's client, which is an extra

    client = librdkafka_options(sink.bootstrap_servers, connection_options(sink.options))
    for part, batch in whole_topic(client, sink.topic):
        for record in records_of(part, batch):
            reason, window = record.header("dedup-reason"), int(record.header("dedup-window") or -1)
            if reason is not None and (window in windows or windows == WindowRange()):
                groups.add((reason, record.header("dedup-detail")), 1, window, record.header("dedup-origin"))
    return _report(store, f"topic {sink.topic}", windows, groups)


def _place(store: OpenStore, source: str, position: int, reason: str) -> str:
    if reason in ("file_missing", "file_unreadable", "file_header"):
        return source
    if store.config is not None and isinstance(store.config.source, FilesSource):
        return f"{source}:{position + 1}" if store.config.source.is_text else f"{source}, row {position}"
    return f"{source}@{position}"


def _of_log(store: OpenStore, windows: WindowRange, groups: _Groups) -> ErrorsReport:
    """The reasons alone, from the newest commit records."""
    for commit in store.log.last_commits(min(_OF_LOG, store.log.state.next_window)):
        if commit.window in windows:
            for reason, rows in _error_reasons(commit.reasons.items()):
                groups.add((reason, None), rows, commit.window, None)
    rows = sum(group.rows for group in groups.found.values())
    if store.config is None:
        why = "the log: name the config file to read the error port"
    else:
        why = f"the log: the error port is `{store.config.sinks.error.format}`, which has no rows to read back"
    return ErrorsReport(why, len(groups.windows), rows, None, groups.report(), 0)


def _error_reasons(reasons: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(name, rows) for name, rows in reasons if PORT_OF_REASON.get(name) == ERROR and rows]
