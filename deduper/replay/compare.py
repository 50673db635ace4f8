"""A what-if: two rules over one pass of the source. Each record's port by both, in one table.

The source is read, sorted and cut once, by the first job. The second one judges the same slices, whose records get the
digests of its key. Both have all four ports as Parquet below one folder, `here` and `there`, and the same windows, so
their rows are compared window by window.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.place import Place
from deduper.as_json import AsJson
from deduper.config.files import FileSink, FilesSource
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.dedup_column import DEDUP
from deduper.errors import IntegrityError, UsageError
from deduper.replay.making import Twin, home_of
from deduper.replay.run import ReplayReport, plan_file, plan_replays, replay
from deduper.replay.settings import Asked, replay_config
from deduper.sinks.published import published_files
from deduper.sources.open import session_settings
from deduper.spark.session import end_session, start_session
from deduper.tasks.row_files import parquet_file
from deduper.text.written import text_of_day
from deduper.units import format_time
from deduper.window.progress import BatchProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE, THERE = "here", "there"
_SAMPLES = 3
_KEYS, _MOST_KEYS, _HELD_KEYS = 10, 100_000, 20_000
_SOURCE, _POSITION, _PORT = "\0source", "\0position", "\0port"


@dataclass(frozen=True, slots=True)
class Cell(AsJson):
    """The records that leave by one port here and by one there.

    `samples` are some of them: file and row, or partition and offset, and key, see `_shown`.
    """

    json_names = ("here", "there", "records", "samples")

    here: str
    there: str
    records: int
    samples: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison(AsJson):
    """Both replays; `cells` when both are over. `keys`: those with the most records that leave by other ports.

    A key's count may be too low by what it had when it was rare among more than 100,000 keys.
    """

    json_names = ("is_over", "here", "there", "cells", "keys")

    here: ReplayReport
    there: ReplayReport
    cells: tuple[Cell, ...] = ()
    keys: tuple[dict[str, Any], ...] = ()

    @property
    def is_over(self) -> bool:
        """Both rules have judged everything."""
        return self.here.is_over and self.there.is_over


def _paired(config: Config, other: Config) -> tuple[Config, Config]:
    """Both configurations over the source of the first, with four ports of files.

    Raises:
        UsageError: their records cannot be compared.
    """
    if type(config.source) is not type(other.source):
        raise UsageError("--compare: both jobs read files, or both read topics")
    columns = "`source.schema`" if isinstance(config.source, FilesSource) else "`source.value` and `source.record`"
    if other.source.reading != config.source.reading or other.time_zone != config.time_zone:
        raise UsageError(f"--compare: both jobs read records of one format, with one {columns} and one time zone")
    if other.fingerprint == "value":
        raise UsageError(
            "--compare: the other job's `fingerprint: value` is of bytes that are not kept; write `fingerprint: all`"
        )
    times = [
        (one.expiry.by, *(getattr(one.expiry, name, None) for name in ("field", "unit"))) for one in (config, other)
    ]
    if times[0] != times[1]:
        raise UsageError(
            "--compare: both jobs have one `expiry.by`, `field` and `unit`, which is the order of the records"
        )
    sink = FileSink.model_validate({"format": "parquet", "path": "/"})
    sinks = config.sinks.model_copy(update=dict.fromkeys(PORTS, sink))
    return config.model_copy(update={"sinks": sinks}), other.model_copy(
        update={"sinks": sinks, "source": config.source}
    )


def _asked(asked: Asked, name: str) -> Asked:
    if asked.out is None:
        raise UsageError("--compare has a folder of its own: leave out --in-place")
    if asked.order == "arrival":
        raise UsageError("--compare is of --order time")
    return replace(asked, out=asked.out / name, order="time")


def plan_comparison(config: Config, other: Config, asked: Asked) -> Comparison:
    """What the comparison is to do. Changes nothing.

    Raises:
        UsageError: as `plan_replay`, or the jobs cannot be compared.
    """
    here, there = plan_replays(_replays(config, other, asked))
    return Comparison(here, there)


def _replays(config: Config, other: Config, asked: Asked) -> list[tuple[Config, Asked]]:
    pair = _paired(config, other)
    return [(one, _asked(asked, name)) for one, name in zip(pair, (HERE, THERE), strict=True)]


def compare(
    config: Config,
    other: Config,
    asked: Asked,
    *,
    on_progress: Callable[[BatchProgress], None] = lambda _: None,
    session: SparkSession | None = None,
    slice_bytes: int | None = None,
    window_bytes: int | None = None,
) -> Comparison:
    """Do it, or go on with it; as `replay`, which it calls twice.

    Raises:
        UsageError: the jobs cannot be compared.
        IntegrityError: the two have judged other records.
        DeduperError, StoreError: as `replay`.
    """
    replays = _replays(config, other, asked)
    first, second = plan_replays(replays, is_executed=True)
    (here, asked_here), (there, asked_there) = replays
    given = session
    if given is None:
        given = start_session(config.name, session_settings(here))
    try:
        judge = partial(
            replay, on_progress=on_progress, session=given, slice_bytes=slice_bytes, window_bytes=window_bytes
        )
        first = judge(here, asked_here, twin=Twin(), planned=first)
        if not first.is_over:
            return Comparison(first, second)
        file = plan_file(replay_config(here, asked_here))
        second = judge(there, asked_there, twin=Twin(file), planned=second)
        if not second.is_over:
            return Comparison(first, second)
    finally:
        if session is None:
            end_session(given)
    found = _Table([column.name for column in here.key_columns])
    for of_here, of_there in _windows(replay_config(here, asked_here), replay_config(there, asked_there), found.key):
        found.add(of_here, of_there)
    for one, given_to in ((here, asked_here), (there, asked_there)):
        home_of(replay_config(one, given_to)).remove_tree()
    return Comparison(first, second, found.cells(), found.keys())


def _windows(here: Config, there: Config, key: list[str]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The rows of each window, by both rules, in one order: place, port and key."""
    sides = []
    for config in (here, there):
        log = CommitLog.open(config.store.place)
        files: dict[int, list[tuple[int, Place]]] = {}
        for port, sink in config.file_ports.items():
            for file in published_files(sink.place, log.manifest.store_id):
                files.setdefault(file.window, []).append((PORTS.index(port), file.path))
        sides.append((log.state.next_window, files))
    (windows, of_here), (others, of_there) = sides
    if windows != others:
        raise IntegrityError(f"{windows} windows here, {others} there: the two have judged other records")
    for number in range(windows):
        yield _rows(of_here.get(number, []), key), _rows(of_there.get(number, []), key)


def _rows(files: list[tuple[int, Place]], key: list[str]) -> pa.Table:
    if not files:
        columns = {_SOURCE: pa.string(), _POSITION: pa.int64(), _PORT: pa.int8()}
        return pa.schema([*((name, pa.null()) for name in key), *columns.items()]).empty_table()
    tables = []
    for port, file in files:
        with parquet_file(file) as opened:
            read = opened.read(columns=[*key, f"{DEDUP}.source", f"{DEDUP}.position"])
        dedup = read.column(DEDUP)
        source = pc.struct_field(dedup, "source").cast(pa.string())
        position = pc.struct_field(dedup, "position")
        names = [*key, _SOURCE, _POSITION, _PORT]
        ports = pa.chunked_array([pa.array(np.full(read.num_rows, port, np.int8))])
        tables.append(pa.table([*(read.column(name) for name in key), source, position, ports], names))
    whole = pa.concat_tables(tables)
    return whole.sort_by([(_SOURCE, "ascending"), (_POSITION, "ascending")])


def _shown(values: pa.ChunkedArray) -> list[Any]:
    """The values of a key column as JSON takes them, different ones for different values.

    Times and dates are texts, since those of any year are keys, and `datetime` ends at the years 1 and 9999. Decimals,
    NaN and infinities are texts too; binary is hexadecimal digits, as a command line takes it.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        times = [
            None if at is None else format_time(at)
            for at in values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        ]
        return times if kind.tz else [None if at is None else at.removesuffix("Z") for at in times]
    if pa.types.is_date(kind):
        return [None if day is None else text_of_day(day) for day in values.cast(pa.int32()).to_pylist()]
    return [_as_json(value) for value in values.to_pylist()]


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    is_plain = not isinstance(value, Decimal) and (not isinstance(value, float) or math.isfinite(value))
    return value if is_plain else str(value)


@dataclass(slots=True)
class _Table:
    """Counts by both ports, samples, and the keys of records whose ports differ."""

    key: list[str]
    counts: Counter[int] = field(default_factory=Counter)
    samples: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    moved: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def add(self, here: pa.Table, there: pa.Table) -> None:
        """Add a window. Raises IntegrityError if the two have other records."""
        for name in (_SOURCE, _POSITION):
            if here.column(name) != there.column(name):
                raise IntegrityError("a window has other records here and there")
        width = len(PORTS)
        cells = here.column(_PORT).to_numpy().astype(np.int64) * width + there.column(_PORT).to_numpy()
        for cell, count in enumerate(np.bincount(cells, minlength=width * width).tolist()):
            self.counts[cell] += count
            missing = _SAMPLES - len(self.samples.get(cell, ()))
            if count and missing > 0 and cell // width != cell % width:
                rows = here.take(pa.array(np.flatnonzero(cells == cell)[:missing]))
                places = [rows.column(name).to_pylist() for name in (_SOURCE, _POSITION)]
                shown = [
                    {"source": source, "position": position, "key": dict(zip(self.key, key, strict=True))}
                    for source, position, key in zip(*places, self._keys_of(rows), strict=True)
                ]
                self.samples.setdefault(cell, []).extend(shown)
        differ = np.flatnonzero(cells // width != cells % width)
        if differ.size:
            of_keys = here.take(pa.array(differ)).select(self.key)
            counted = of_keys.group_by(self.key).aggregate([([], "count_all")])
            for shown_key, count in zip(self._keys_of(counted), counted.column("count_all").to_pylist(), strict=True):
                self.moved[shown_key] += count
            if len(self.moved) > _MOST_KEYS:
                self.moved = Counter(dict(self.moved.most_common(_HELD_KEYS)))

    def _keys_of(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        return list(zip(*(_shown(rows.column(name)) for name in self.key), strict=True))

    def cells(self) -> tuple[Cell, ...]:
        """The table, row by row; cells without records are left out."""
        width = len(PORTS)
        return tuple(
            Cell(PORTS[cell // width], PORTS[cell % width], count, tuple(self.samples.get(cell, ())))
            for cell, count in sorted(self.counts.items())
            if count
        )

    def keys(self) -> tuple[dict[str, Any], ...]:
        """The keys that matter most."""
        most = self.moved.most_common(_KEYS)
        return tuple({"key": dict(zip(self.key, key, strict=True)), "records": count} for key, count in most)
