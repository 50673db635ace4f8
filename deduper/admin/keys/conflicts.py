"""The newest conflicts of a job by the outputs: which keys conflict most, and in which columns.

The usual finding is one column that a retry changes, or one producer whose counter began again. Rows come from ports of
any format, so values are compared as plain ones: a time in Parquet is its text in JSON.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.columns import ColumnType
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.core.verdict import CONFLICT_REASONS, TupleVerdict
from deduper.errors import DeduperError, UsageError
from deduper.payload import Leaf, leaves
from deduper.sinks import plain_values
from deduper.sinks.published import FoundRow, published_files, rows_where
from deduper.text.wrong import masked

MOST = 1000
"""So many of the newest conflicts are looked at."""
_MOST_KEYS = 20
_UNIQUE = TupleVerdict.UNIQUE.port


@dataclass(frozen=True, slots=True)
class ConflictReport(AsJson):
    """Conflicts by key and by column.

    `total`: all that the store counts. `looked_at` of them were read; of `compared` the first copy's row was there too.
    `columns`: how many of those differ in each; `keys`: those with the most conflicts. `unread`: what was not read.
    """

    total: int
    looked_at: int
    compared: int
    columns: dict[str, int]
    keys: tuple[tuple[str, int], ...]
    unread: tuple[str, ...]


def conflicts_of(store: OpenStore, *, values: bool = False) -> ConflictReport:
    """The newest conflicts; keys are masked without `values`.

    Raises:
        UsageError: the store was named without a config, or the job compares no payloads.
        IntegrityError: a file of a port is none.
    """
    config = store.config
    if config is None:
        raise UsageError("--conflicts needs the config: it says where the outputs are")
    if not config.has_fingerprint:
        raise UsageError("--conflicts: the job compares no payloads; add `fingerprint: all` to its config")
    totals = store.log.state.reason_totals
    total = sum(totals.get(reason, 0) for reason in CONFLICT_REASONS)
    found = list(_newest(store, config, min(MOST, total)))
    firsts = _first_copies(store, config, found)
    unread = [*_unread(config)]
    if config.payload is not None and isinstance(config.source, KafkaSource):
        unread += _from_source(store, config, found, firsts)
    keys, columns, compared = Counter[tuple[object, ...]](), Counter[str](), 0
    for row in found:
        keys[tuple(row.record.get(name) for name in config.key)] += 1
        first = firsts.get(_named(row) or (-1, "", -1))
        if first is not None and config.payload is not None:
            compared += 1
            columns.update(differing(config.payload, row.record, first))
    return ConflictReport(
        total=total,
        looked_at=len(found),
        compared=compared,
        columns=dict(columns.most_common()),
        keys=tuple((_text(key, values=values), count) for key, count in keys.most_common(_MOST_KEYS)),
        unread=tuple(unread),
    )


def _newest(store: OpenStore, config: Config, most: int) -> Iterator[FoundRow]:
    """The newest conflicts of the ports that are files, by window; no file is read once all are found."""
    if not most:
        return
    store_id = store.log.manifest.store_id
    of_conflicts = ("duplicate", "error", *((_UNIQUE,) if config.keeps_versions else ()))
    ports = [port for port in of_conflicts if port in store.ports]
    files = [file for port in ports for file in published_files(store.ports[port], store_id)]
    count = 0
    for file in sorted(files, key=lambda file: -file.window):
        try:
            rows = rows_where(file.path, config.source.parsed_columns, "reason", CONFLICT_REASONS)
        except FileNotFoundError:
            continue
        yield from rows[: most - count]
        count += len(rows)
        if count >= most:
            return


_Named = tuple[int, str, int]
"""Window, source and position."""


def _named(row: FoundRow) -> _Named | None:
    first = row.dedup.get("first_seen")
    return None if first is None else (int(first["window"]), first["source"], int(first["position"]))


def _first_copies(store: OpenStore, config: Config, found: list[FoundRow]) -> dict[_Named, Mapping[str, Any]]:
    """The records of first copies, of those that conflicts name and a port of files has."""
    wanted: defaultdict[int, set[_Named]] = defaultdict(set)
    for row in found:
        if (named := _named(row)) is not None:
            wanted[named[0]].add(named)
    files = published_files(store.ports[_UNIQUE], store.log.manifest.store_id) if _UNIQUE in store.ports else []
    firsts: dict[_Named, Mapping[str, Any]] = {}
    for file in files:
        if file.window in wanted:
            positions = {position for _, _, position in wanted[file.window]}
            try:
                rows = rows_where(file.path, config.source.parsed_columns, "position", positions)
            except FileNotFoundError:
                continue
            for row in rows:
                named = file.window, row.dedup["source"], int(row.dedup["position"])
                if named in wanted[file.window]:
                    firsts[named] = row.record
    return firsts


def _from_source(
    store: OpenStore, config: Config, found: list[FoundRow], firsts: dict[_Named, Mapping[str, Any]]
) -> Iterator[str]:
    """Add the first copies that the source's topics still hold; gives why they cannot be read.

    A record under another key is none: its topic was made again.
    """
    from deduper.admin.keys.topic_rows import source_records  # it loads Kafka's client, which is an extra

    missing = {named: row for row in found if (named := _named(row)) is not None and named not in firsts}
    wanted: defaultdict[str, set[int]] = defaultdict(set)
    for _, source, position in missing:
        wanted[source].add(position)
    try:
        records = source_records(config, store.log.manifest.salt, wanted)
    except DeduperError as exc:
        yield f"first copies: the source was not read: {exc}"
        return
    for named, row in missing.items():
        record = records.get(named[1:])
        if record is not None and all(record.get(name) == row.record.get(name) for name in config.key):
            firsts[named] = record


def _text(key: tuple[object, ...], *, values: bool) -> str:
    texts = ["null" if value is None else str(value) for value in key]
    return ", ".join(texts if values else map(masked, texts))


def _unread(config: Config) -> Iterator[str]:
    if not config.store.first_seen:
        yield "columns: first copies are not kept (`first_seen: false`)"
    if config.payload is None:
        yield "columns: the payload is the value of records, as bytes"
    for port in ("unique", "duplicate", "error"):
        if port == _UNIQUE and isinstance(config.source, KafkaSource) and not config.keeps_versions:
            continue  # first copies come from the source
        if port not in config.file_ports and (port != "error" or config.may_refuse_conflicts):
            yield f"{port}: only ports of files are read"


def differing(payload: Sequence[Leaf], one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the leaves whose values differ, by the rules of fingerprints; `one` and `other` are records."""
    return tuple(leaf.name for leaf in payload if _compared(one, leaf) != _compared(other, leaf))


def _compared(record: Mapping[str, Any], leaf: Leaf) -> Any:
    value = _at(record, leaf)
    try:
        return _plain(value, leaf.kind)
    except (ValueError, KeyError, TypeError, ArithmeticError):  # written while the column had another type
        return str(value)


def _at(record: Any, leaf: Leaf) -> Any:
    """The value of a leaf; where a value on its path is no object, that one: null, or of another type."""
    for name in leaf.path:
        if not isinstance(record, Mapping):
            break
        record = record.get(name)
    return record


def _plain(value: Any, kind: ColumnType) -> Any:
    if kind.name == "struct":
        return tuple(_plain(_at(value, leaf), leaf.kind) for leaf in leaves(kind.parts))
    if value is None:
        return None
    if kind.name == "array":
        return tuple(_plain(one, kind.parts[0].type) for one in value)
    if kind.name == "map":
        of_key, of_value = (part.type for part in kind.parts)
        entries = value.items() if isinstance(value, Mapping) else value
        return frozenset((_plain(key, of_key), _plain(one, of_value)) for key, one in entries)
    plain: Any = plain_values.of_row(value, kind)
    return "NaN" if plain != plain else plain
