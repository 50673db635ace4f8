"""Rebuilds a lost piece from the rows of the unique port: the same bytes, or none.

A piece holds what the store must know of the unique tuples of one window: the digest of the key, the bucket, the expiry
key, the origin. All of it stands in the published rows or follows from them, and encoding is deterministic. So the
piece is judged once more: its window's unique rows, in an empty store, leave the same entries as
then. Whether that is so needs no trust in the files: a record names the piece by its header's checksum,
which covers every byte, and only a piece of the same checksum is given back.

| kept in the piece | taken from |
|---|---|
| digest | the key columns, with the store's salt |
| bucket, expiry key | the expiry column; by processing time the window's latest point; by category see `_places` |
| origin | `_dedup.source` by its place in the window's sources file, and `_dedup.position` |
| epoch, attempt | the piece's name |

With `all_live` a key may be unique twice in a window: the last one in source order is what the piece holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.errors import StoreError
from bucket_store.log.records import CommitRecord, LogState, WindowInfo
from bucket_store.log.sources_archive import SourcesReader
from bucket_store.pieces.piece import Entries, PieceRef, decode_header, encode_piece
from bucket_store.places.place import Place
from bucket_store.tables.matches import Matches
from deduper.admin.open_store import OpenStore
from deduper.admin.readback import OutputRows, read_rows
from deduper.columns import Column, parse_columns
from deduper.core.categories import CategoryState
from deduper.core.clock import POSITION_BITS
from deduper.core.digests import Plain, plain_digest, shards_of
from deduper.core.judge import JudgeRules, ShardRows, judge_shard
from deduper.errors import IntegrityError
from deduper.expiry_key import ExpiryKeyScale
from deduper.text.written import text_of_day
from deduper.units import UNIT_US
from deduper.window.policy import CATEGORIES, category_state

_NAME = re.compile(r"(?P<window>\d{12,})-(?P<epoch>\d{6,})-(?P<attempt>\d{3,})-(?P<shard>\d{4,})-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of an attempt: the piece's bytes, proven equal to the lost ones, or why there are none."""

    data: bytes | None
    why: str


class WindowRebuilder:
    """Rebuilds pieces of one window; the rows are read once for all of its shards."""

    def __init__(self, store: OpenStore, window: int, files: Sequence[Place], without: str = "") -> None:
        self._store = store
        self._without = without or f"no output file of the unique port of window {window} was found"
        self._window = window
        self._files = tuple(files)
        self._problem = ""
        self._rows: _Unique | None = None

    def rebuild(self, piece: PieceRef) -> Rebuilt:
        """The bytes of a piece of this window, if the rows can prove them."""
        made_by = _NAME.fullmatch(piece.name)
        if piece.first_window != piece.last_window or made_by is None:
            return Rebuilt(None, f"it was merged of windows {piece.first_window} to {piece.last_window}")
        if not self._files:
            return Rebuilt(None, self._without)
        if self._rows is None and not self._problem:
            try:
                self._rows = self._read()
            except (IntegrityError, OSError) as error:
                self._problem = str(error)
        if self._rows is None:
            return Rebuilt(None, self._problem)
        try:
            return self._from(self._rows, piece, int(made_by["epoch"]), int(made_by["attempt"]))
        except (IntegrityError, ValueError, OverflowError) as error:
            return Rebuilt(None, str(error))

    def _read(self) -> _Unique:
        settings = self._store.settings
        columns = {column.name: column for column in self._store.key_columns}
        field = settings.get("expiry.field")
        expiry_column = None if field is None else parse_columns(field)[0]
        if expiry_column is not None:
            columns[expiry_column.name] = expiry_column
        read = [read_rows(file, list(columns.values())) for file in self._files]
        return _Unique.of(self._store, self._window, read, expiry_column)

    def _from(self, rows: _Unique, piece: PieceRef, epoch: int, attempt: int) -> Rebuilt:
        settings = self._store.settings
        mine = np.flatnonzero(shards_of(rows.digests, settings["shards"]) == piece.shard)
        if settings["expiry.lookup"] == "all_live":
            mine = _last_of_each_key(rows, mine)
        if len(mine) != piece.entries:
            return Rebuilt(None, f"the outputs hold {len(mine):,} of its {piece.entries:,} keys")
        state = self._store.log.state
        info = _window_info(self._store, state, self._window)
        category = None
        if settings["expiry.by"] == "category":
            category = _places(self._store, self._window, rows, info)[mine]
        entries = _entries(self._store, rows, mine, category, info, self._window)
        if entries is None:
            return Rebuilt(None, "the outputs hold none of its keys")
        data = encode_piece(
            entries,
            store_id=bytes.fromhex(self._store.log.manifest.store_id),
            shard=piece.shard,
            first_window=self._window,
            last_window=self._window,
            epoch=epoch,
            attempt=attempt,
        )
        header = decode_header(data, file=piece.file, offset=piece.offset)
        if header.to_ref(file=piece.file, name=piece.name, offset=piece.offset) != piece:
            return Rebuilt(
                None,
                f"the outputs give a piece of checksum {header.checksum:016x}, the record names {piece.checksum:016x}: "
                f"{rows.doubt or 'they are not what the window gave out'}",
            )
        names = ", ".join(file.name for file in self._files)
        return Rebuilt(data, f"{piece.entries:,} keys from {names}, checksum {piece.checksum:016x}")


@dataclass(frozen=True, slots=True)
class _Unique:
    """The unique rows of a window: one array entry a row. `expiry` is a stored key, `category` the value as text."""

    digests: NDArray[np.uint64]
    order: NDArray[np.int64]
    expiry: NDArray[Any] | None
    category: list[str] | None
    doubt: str

    @classmethod
    def of(cls, store: OpenStore, window: int, read: Sequence[OutputRows], expiry_column: Column | None) -> _Unique:
        settings = store.settings
        wanted = [(rows, np.flatnonzero(rows.windows == window).tolist()) for rows in read]
        keys = store.key_columns
        kinds = [column.type for column in keys]
        is_secure, salt = settings["digest"] == "secure", store.log.manifest.salt
        digests = [
            plain_digest([rows.values[column.name][row] for column in keys], kinds, salt, secure=is_secure)
            for rows, numbers in wanted
            for row in numbers
        ]
        ordinals, doubt = _ordinals(store, window, {rows.sources[row] for rows, numbers in wanted for row in numbers})
        places = [
            (ordinals[rows.sources[row]], int(rows.positions[row])) for rows, numbers in wanted for row in numbers
        ]
        order = [ordinal << POSITION_BITS | position - start for (ordinal, start), position in places]
        expiry = category = None
        if expiry_column is not None:
            values = [rows.values[expiry_column.name][row] for rows, numbers in wanted for row in numbers]
            if settings["expiry.by"] == "category":
                category = [_category_text(value, expiry_column) for value in values]
            else:
                expiry = _expiry_keys(store.scale, settings.get("expiry.unit"), values)
        return cls(
            np.array(digests, np.uint64).reshape(len(digests), 2), np.array(order, np.int64), expiry, category, doubt
        )


def _ordinals(store: OpenStore, window: int, names: set[str]) -> tuple[dict[str, tuple[int, int]], str]:
    """The place of each source partition in the window, what its positions count from, and what is doubtful about it.

    Without the window's sources file the files go by modification time and path, as they did then, if they are still
    there, and by path if not; the checksum shows whether that was right. The start of topic partitions is unknown.
    """
    if store.log.state.sources_of(window) is not None:
        try:
            partitions = SourcesReader(store.root, store.log.state).of(window) or ()
            known = {partition.name: (ordinal, partition.start) for ordinal, partition in enumerate(partitions)}
            if names <= known.keys():
                return known, ""
        except (StoreError, OSError):
            pass

    def place(name: str) -> tuple[int, str]:
        try:
            return Path(name).stat().st_mtime_ns // 1_000_000, name
        except OSError:
            return 0, name

    guessed = {name: (ordinal, 0) for ordinal, name in enumerate(sorted(names, key=place))}
    return guessed, f"the sources file of window {window} is lost too, the order of its source partitions is a guess"


def _expiry_keys(scale: ExpiryKeyScale, unit: str | None, values: Sequence[Plain | None]) -> NDArray[Any]:
    if any(value is None for value in values):
        raise IntegrityError("a unique row without an expiry key: the outputs are not what the window gave out")
    if scale.is_float:
        return np.array(values, np.float64)
    return np.array(values, np.int64) * np.int64(UNIT_US[unit] if unit else 1)


def _category_text(value: Plain | None, column: Column) -> str:
    """The value as Spark's cast to string writes it."""
    if isinstance(value, bytes):
        return value.decode()
    if column.type.name == "boolean":
        return "true" if value else "false"
    if column.type.name == "date" and value is not None:
        return text_of_day(int(value))
    return str(value)


def _last_of_each_key(rows: _Unique, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the rows with these numbers, for every digest the last one in source order."""
    last: dict[tuple[int, int], int] = {}
    for row in numbers[np.argsort(rows.order[numbers], kind="stable")].tolist():
        last[int(rows.digests[row, 0]), int(rows.digests[row, 1])] = row
    return np.array(sorted(last.values()), np.int64)


def _entries(
    store: OpenStore,
    rows: _Unique,
    mine: NDArray[np.int64],
    category: NDArray[np.int64] | None,
    info: WindowInfo | None,
    window: int,
) -> Entries | None:
    """The entries of the rows `mine`: those of an empty shard that judges them."""
    settings = store.settings
    is_by_wall_clock = settings["expiry.by"] == "processing_time"
    if is_by_wall_clock and info is None:
        raise IntegrityError(f"the latest point of window {window} is in no record any more")
    rules = JudgeRules(
        by=settings["expiry.by"],
        lookup_all_live=settings["expiry.lookup"] == "all_live",
        float_domain=store.scale.is_float,
        period=1,
        span=settings.get("expiry.span", 1),
        buckets=settings.get("expiry.buckets", 1),
        keep_first_seen=settings["first_seen"],
        latest=info.timestamp if is_by_wall_clock and info is not None else None,
    )
    shard = ShardRows(
        digests=rows.digests[mine],
        order=rows.order[mine],
        admission=np.zeros(len(mine), np.uint8),
        expiry=None if rows.expiry is None else rows.expiry[mine],
        latest_before=None,
        has_latest=None,
        category=category,
    )
    return judge_shard(shard, rules, window, _knows_nothing).entries


def _knows_nothing(_: int, digests: NDArray[np.uint64]) -> Matches:
    return Matches(np.zeros(len(digests), np.bool_), None, None, None)


def _window_info(store: OpenStore, state: LogState, window: int) -> WindowInfo | None:
    if window in state.windows:
        return state.windows[window]
    commit = _commits(store, {window}).get(window)
    return None if commit is None else WindowInfo(commit.buckets, commit.timestamp, commit.counts, commit.wall_us)


def _commits(store: OpenStore, windows: set[int]) -> dict[int, CommitRecord]:
    """The commit records of these windows that are still in the log."""
    found = {}
    try:
        for record in store.log.records():
            if isinstance(record.body, CommitRecord) and record.body.window in windows:
                found[record.body.window] = record.body
    except StoreError:
        pass  # a damaged old record; what was found before it serves
    return found


def _places(store: OpenStore, window: int, rows: _Unique, info: WindowInfo | None) -> NDArray[np.int64]:
    """The place of every row's category.

    From the lists of live values after this window and before it, if those records are still in the log, and the list
    of today. A value in none of them took a place that is only known to be one of the window's buckets: values without
    a place get the free ones, in the order in which they arrived.
    """
    assert rows.category is not None
    state = store.log.state
    commits = _commits(store, {window - 1, window})
    places = dict(category_state(state).live)
    for number in (window - 1, window):
        if number in commits:
            places |= dict(CategoryState.from_wire(commits[number].extra[CATEGORIES]).live)
    first: dict[str, int] = {}
    for value, order in zip(rows.category, rows.order.tolist(), strict=True):
        first[value] = min(order, first.get(value, order))
    buckets = set() if info is None else set(info.buckets)
    places = {value: place for value, place in places.items() if value in first and (not buckets or place in buckets)}
    missing = sorted(first.keys() - places.keys(), key=lambda value: first[value])
    free = sorted(buckets - set(places.values()))
    if len(missing) > len(free):
        raise IntegrityError(f"the places of categories {', '.join(missing[:5])} are in no record any more")
    places |= dict(zip(missing, free, strict=False))
    return np.array([places[value] for value in rows.category], np.int64)
