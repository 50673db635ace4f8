"""A key's entries in the store, and every copy that the outputs and the store still show: verdict, window, place, why.

Copies have three sources, in this order: rows of the ports, the first copies that duplicates name, and the entries of
the store. So a first copy is known after its file was taken away, and a forgotten one as long as a duplicate of it is
there. What could not be read is said.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.log.records import CommitRecord
from deduper.admin.keys.conflicts import differing
from deduper.admin.keys.stored import StoredKey, find_key, origin_of, stored_key
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FileSink
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.core.digests import KeyValue
from deduper.core.verdict import CONFLICT_REASONS, REASONS_WITHOUT_VALUES, TupleVerdict
from deduper.errors import DeduperError, UsageError
from deduper.sinks.published import FoundRow, PublishedFile, SoughtKey, find_rows, published_files
from deduper.units import UnitError, format_time, parse_duration, parse_time

if TYPE_CHECKING:
    from deduper.admin.keys.topic_rows import TopicRow

_OUTPUTS = "outputs: "


@dataclass(frozen=True, slots=True)
class SeenCopy(AsJson):
    """One copy of a key.

    `when`: the window's begin; of a window whose record is folded away, the time of its file; None when unknown.
    `place`: `file:row`, from 0, or `topic-partition@offset`, where the source had it. `output`: the same of the port;
    None when the copy is known by a duplicate or by the store alone. `first`: place and window of the first copy that
    a duplicate names. `record`: the other columns. `known_by`: `output`, `duplicate` or `store`. `differs`: of a
    conflict, the parts of the payload that are others than the first copy's, if both rows were found.
    """

    verdict: str
    reason: str
    window: int
    when: str | None
    place: str | None
    output: str | None
    first: dict[str, Any] | None
    record: dict[str, str | None]
    known_by: str
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation(AsJson):
    """The key in the store, and its copies in the order of their windows; the JSON has both in one object.

    `unread` says what could not be read; `rows` and `files` were.
    """

    stored: StoredKey
    copies: tuple[SeenCopy, ...]
    unread: tuple[str, ...]
    files: int
    rows: int

    @property
    def has_outputs(self) -> bool:
        """Whether the outputs were searched."""
        return not any(line.startswith(_OUTPUTS) for line in self.unread)

    def to_json(self) -> dict[str, Any]:
        """See `AsJson`."""
        found = super(Explanation, self).to_json()
        stored: dict[str, Any] = found.pop("stored")
        return {**stored, **found}


@dataclass(frozen=True, slots=True)
class _PortFile:
    port: str
    file: PublishedFile
    when_us: int


def explain(
    store: OpenStore,
    values: Sequence[KeyValue],
    *,
    asked: Sequence[int | float | str] = (),
    since_us: int | None = None,
    only_store: bool = False,
    on_progress: Callable[[int, int], None] = lambda _read, _all: None,
) -> Explanation:
    """What the store has of a key, and what was said of every copy of it, in windows begun at `since_us` or later.

    `asked`: see `stored_key`. `on_progress` is given the bytes of the files that are done, and of all, after each file.
    The outputs are not read with `only_store`, nor of a store that was opened without a config, which names them.

    Raises:
        IntegrityError: a file of a port is none.
        CorruptionError: a piece of the store is damaged.
        ValueError: a value that is none of its column's type.
    """
    stored = stored_key(store, values, asked=asked)
    if store.config is None or only_store:
        why = "left out by --only-store" if only_store else "name the config: it says where they are"
        return Explanation(stored, (), (f"{_OUTPUTS}{why}",), 0, 0)
    key = SoughtKey(store.key_columns, tuple(values))
    commits = [record.body for record in store.log.records() if isinstance(record.body, CommitRecord)]
    began = {commit.window: commit.wall_us for commit in commits}
    files = [file for file in _files(store, began) if since_us is None or file.when_us >= since_us]
    all_bytes, done, rows_of = sum(file.file.size_bytes for file in files), 0, dict.fromkeys(PORTS, 0)
    copies, gone, unread = [], 0, list[str]()
    records: dict[tuple[int, str | None], Mapping[str, Any]] = {}
    for file in files:
        try:
            count, found = find_rows(file.file.path, key, store.config.source.parsed_columns)
        except FileNotFoundError:
            gone += 1
            continue
        rows_of[file.port] += count
        with_columns = [row for row in found if row.dedup.get("reason") not in REASONS_WITHOUT_VALUES]
        of_file = [_copy(store, file, row) for row in with_columns]
        records |= {(copy.window, copy.place): row.record for copy, row in zip(of_file, with_columns, strict=True)}
        copies += of_file
        done += file.file.size_bytes
        on_progress(done, all_bytes)
    for port, sink in store.config.topic_ports.items():
        rows_of[port], found_there = _of_topic(store, store.config, port, sink, key, unread)
        found_there = [replace(copy, when=_when(began, copy.window)) for copy in found_there]
        copies += [copy for copy in found_there if since_us is None or began.get(copy.window, -1) >= since_us]
    uniques = {(copy.window, copy.place) for copy in copies if copy.verdict == TupleVerdict.UNIQUE.port}
    for known in (*_named_by_duplicates(copies), *_of_store(store, values)):
        # An entry without a place is the copy of its window.
        is_there = (known.window, known.place) in uniques or (
            known.place is None and any(window == known.window for window, _ in uniques)
        )
        if not is_there and (since_us is None or began.get(known.window, -1) >= since_us):
            uniques.add((known.window, known.place))
            copies.append(replace(known, when=_when(began, known.window)))
    copies = [replace(copy, differs=_differing(store.config, copy, records)) for copy in copies]
    return Explanation(
        stored,
        tuple(sorted(copies, key=_in_order)),
        (*unread, *_unread(store, store.config, rows_of, since_us)),
        len(files) - gone,
        sum(rows_of.values()),
    )


def _files(store: OpenStore, began: dict[int, int]) -> Iterator[_PortFile]:
    """The published files of this store in its ports, by port and window."""
    for port, folder in store.ports.items():
        for file in published_files(folder, store.log.manifest.store_id):
            if file.window < store.log.state.next_window:
                yield _PortFile(port, file, began.get(file.window, file.modified_us))


def _differing(
    config: Config, copy: SeenCopy, records: Mapping[tuple[int, str | None], Mapping[str, Any]]
) -> tuple[str, ...]:
    """In what a conflict differs from its first copy, if the rows of both were found."""
    if copy.reason not in CONFLICT_REASONS or copy.first is None or config.payload is None:
        return ()
    first = records.get((copy.first["window"], copy.first["place"]))
    own = records.get((copy.window, copy.place))
    return () if first is None or own is None else differing(config.payload, own, first)


def _copy(store: OpenStore, file: _PortFile, found: FoundRow) -> SeenCopy:
    dedup = found.dedup
    keys = {column.name for column in store.key_columns}
    first = dedup.get("first_seen")
    named = None
    if first is not None and first.get("window") is not None:
        named = {"window": int(first["window"]), "place": _place(store, first["source"], first["position"])}
    return SeenCopy(
        verdict=dedup["verdict"],
        reason=dedup.get("reason") or "",
        window=int(dedup["window"]),
        when=format_time(file.when_us),
        place=_place(store, dedup["source"], dedup["position"]),
        output=f"{file.file.path}:{found.row}",
        first=named,
        record={name: _shown(value) for name, value in found.record.items() if name not in keys},
        known_by="output",
    )


def _of_topic(
    store: OpenStore, config: Config, port: str, sink: KafkaSink, key: SoughtKey, unread: list[str]
) -> tuple[int, list[SeenCopy]]:
    """(records of a port's topic, copies among them); why there are none, where it cannot be read, goes to `unread`."""
    from deduper.admin.keys.topic_rows import find_in_topic  # it loads Kafka's client, which is an extra

    try:
        count, rows = find_in_topic(config, store.log.manifest.salt, sink, key)
    except DeduperError as exc:
        unread.append(f"{port}: topic {sink.topic} was not read: {exc}")
        return 0, []
    with_columns = [row for row in rows if row.headers.get("dedup-reason") not in REASONS_WITHOUT_VALUES]
    return count, [_copy_of_topic(port, row) for row in with_columns]


def _copy_of_topic(port: str, row: TopicRow) -> SeenCopy:
    origin, first = row.headers.get("dedup-origin"), row.headers.get("dedup-first-seen")
    named = None
    if first is not None:
        named = {"window": int(row.headers["dedup-first-seen-window"]), "place": first}
    return SeenCopy(
        verdict=port,
        reason=row.headers.get("dedup-reason", ""),
        window=int(row.headers["dedup-window"]),
        when=None,
        place=origin,
        output=row.place,
        first=named,
        record={name: _shown(value) for name, value in row.record.items()},
        known_by="output",
    )


def _in_order(copy: SeenCopy) -> tuple[int, bool, str, int]:
    """By window, a first copy first, then by source and position."""
    source, position = re.fullmatch(r"(.*?)[:@]?(\d*)", copy.place or "").groups()  # type: ignore[union-attr]
    return copy.window, copy.verdict != TupleVerdict.UNIQUE.port, source, int(position or 0)


def _shown(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    return (
        str(value) if isinstance(value, Decimal | int | float) else json.dumps(value, default=str, ensure_ascii=False)
    )


def _place(store: OpenStore, source: str | None, position: int | None) -> str | None:
    if source is None:
        return None
    is_topic = store.config is not None and isinstance(store.config.source, KafkaSource)
    return f"{source}{'@' if is_topic else ':'}{position}"


def _named_by_duplicates(copies: Iterable[SeenCopy]) -> Iterator[SeenCopy]:
    for copy in copies:
        if copy.first is not None:
            window, place = copy.first["window"], copy.first["place"]
            yield SeenCopy(TupleVerdict.UNIQUE.port, "", window, None, place, None, None, {}, "duplicate")


def _of_store(store: OpenStore, values: Sequence[KeyValue]) -> Iterator[SeenCopy]:
    for entry in find_key(store, values)[2]:
        source, row = (None, None) if entry.origin is None else origin_of(store, entry.window, entry.origin)
        yield SeenCopy(
            TupleVerdict.UNIQUE.port, "", entry.window, None, _place(store, source, row), None, None, {}, "store"
        )


def _when(began: dict[int, int], window: int) -> str | None:
    return format_time(began[window]) if window in began else None


def _unread(store: OpenStore, config: Config, rows_of: dict[str, int], since_us: int | None) -> Iterator[str]:
    """What the answer is without, one sentence each."""
    state, mark = store.log.state, read_published(store.root / PUBLISHED_NAME)
    published = max(-1 if mark is None else mark.window, state.published_through)
    for port, sink in config.sinks.items():
        rows = state.totals.get(port, 0)
        if isinstance(sink, FileSink):
            expected = rows if since_us is None else _rows_since(store, port, since_us)
            missing = expected - rows_of[port]
            if missing > 0:
                late = sum(
                    output.rows
                    for window, written in state.outputs.items()
                    for output in written
                    if output.port == port and window > published
                )
                yet = f" ({late:,} are not published yet)" if late else ""
                place = f"{missing:,} of {expected:,} rows are not in {store.ports[port]}"
                yield f"{port}: {place}: taken away by a reader{yet}"
        elif isinstance(sink, KafkaSink):
            missing = rows - rows_of[port]
            if missing > 0 and rows_of[port]:
                yield f"{port}: {missing:,} of {rows:,} rows are not in topic {sink.topic}: deleted by its retention"
        elif rows:
            where = "were handed to a function" if port in config.function_ports else "are not kept (format: none)"
            yield f"{port}: its rows ({rows:,}) {where}"
    if since_us is None and state.totals.get("error", 0):
        yield "error: records that could not be parsed have no key; `deduper errors` groups them"


def _rows_since(store: OpenStore, port: str, since_us: int) -> int:
    """Rows of a port in the windows since then whose records are in the log."""
    return sum(
        record.body.counts.get(port, 0)
        for record in store.log.records()
        if isinstance(record.body, CommitRecord) and record.body.wall_us >= since_us
    )


def since(text: str, now_us: int | None = None) -> int:
    """µs since the epoch of `7d` (that long ago) or of a time in ISO 8601, UTC if no zone is written.

    Raises:
        UsageError: neither.
    """
    try:
        return (time.time_ns() // 1000 if now_us is None else now_us) - parse_duration(text)
    except UnitError:
        pass
    try:
        return parse_time(text)
    except UnitError:
        raise UsageError(f"--since {text}: write a time as 2024-12-31T23:00Z, or how long ago as 7d") from None
