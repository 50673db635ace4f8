"""Counts the sampled records of committed windows: copies that were found, and copies that were not. PURE.

A key is remembered until its latest copy is `memory` old. Each further record of it is a copy: a duplicate was found,
anything else was missed, in one of three ways (`KINDS`).

The state is a function of the settings and of the records that were given, window by window. `sample_of` and `meter_of`
turn it into the store's file and back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.log.leak_sample import LeakSample
from deduper.core import kernels
from deduper.core.clock import domain_ends
from deduper.core.kernels import Bools, Expiries, Int64s, UInt64s
from deduper.core.verdict import TupleVerdict
from deduper.leaks.sample import SampledRecords, in_sample

KINDS = ("lookup", "period", "expired")
"""The ways in which a copy is missed; docs/leaks.md."""
FOUND = len(KINDS)
"""The place of the found copies, behind the kinds."""
_FULL = 0.75
"""After room was made, at most this share of the sample is in use."""
_MOST_BITS = 60
_KEY_COLUMNS = ("words", "seen", "newest", "missed")
_TOTALS = ("sampled", "totals", "squares", "distances")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LeakSettings:
    """What is measured, in steps of the stored expiry key.

    bits: one key of 2**bits is in the sample at first. most_keys: that it holds. memory: how long it remembers a key.
    edges: upper ends of the classes of distances, in steps, ascending.
    """

    bits: int
    most_keys: int
    float_domain: bool
    period: int | float
    memory: int | float
    edges: tuple[float, ...]

    @property
    def dtype(self) -> type[np.int64] | type[np.float64]:
        """Of expiry keys."""
        return np.float64 if self.float_domain else np.int64


@dataclass(slots=True)
class SampledKeys:
    """The keys of the sample, in the order of their arrival; the first `count` rows of each column.

    seen: an admitted copy is remembered; newest: the greatest expiry key of them. missed [kind]: the weights of the
    key's records that were missed.
    """

    words: UInt64s
    seen: Bools
    newest: Expiries
    missed: Floats

    @classmethod
    def empty(cls, settings: LeakSettings) -> SampledKeys:
        """Columns without a key, and room for all."""
        size = settings.most_keys
        return cls(
            words=np.zeros(size, np.uint64),
            seen=np.zeros(size, np.bool_),
            newest=np.zeros(size, settings.dtype),
            missed=np.zeros((size, len(KINDS))),
        )

    def all(self) -> tuple[NDArray[Any], ...]:
        """In the order of the class."""
        return self.words, self.seen, self.newest, self.missed


@dataclass(slots=True)
class LeakTotals:
    """The sums since the measurement began.

    records, seen: all records of its windows, and those of sampled keys. sampled, totals: by kind, and last the found
    copies; squares: by kind, see `figures.of_count`. distances [found or missed, class].
    """

    sampled: Int64s
    totals: Floats
    squares: Floats
    distances: Floats
    records: int = 0
    seen: int = 0

    @classmethod
    def none(cls, settings: LeakSettings) -> LeakTotals:
        """Nothing was counted."""
        kinds = len(KINDS) + 1
        return cls(
            sampled=np.zeros(kinds, np.int64),
            totals=np.zeros(kinds),
            squares=np.zeros(kinds),
            distances=np.zeros((2, len(settings.edges) + 1)),
        )

    def all(self) -> tuple[NDArray[Any], ...]:
        """The arrays, in the order of the class."""
        return self.sampled, self.totals, self.squares, self.distances


@dataclass(slots=True)
class LeakMeter:
    """The measurement; for one thread. `bits`: of the sample now."""

    settings: LeakSettings
    bits: int
    count: int
    keys: SampledKeys
    totals: LeakTotals
    _rows: dict[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._index()

    @classmethod
    def new(cls, settings: LeakSettings) -> LeakMeter:
        """A measurement that begins."""
        return cls(settings, settings.bits, 0, SampledKeys.empty(settings), LeakTotals.none(settings))

    @property
    def weight(self) -> float:
        """Records that one of the sample stands for."""
        return float(2**self.bits)

    def add(self, records: SampledRecords, latest: int | float | None, rows: int) -> None:
        """Count a committed window: its sampled records in source order, the latest point before it, all its rows."""
        records, places = self._placed(records.of_sample(self.bits), latest)
        settings, keys, totals = self.settings, self.keys, self.totals
        dtype = settings.dtype
        lowest, _ = domain_ends(float_domain=settings.float_domain)
        totals.records += rows
        totals.seen += int(records.words.size)
        kernels.measure_misses(
            places,
            records.expiry.astype(dtype),
            records.verdict,
            dtype(0 if latest is None else latest),
            latest is not None,
            dtype(settings.period),
            dtype(settings.memory),
            lowest,
            self.weight,
            np.array(settings.edges, np.float64),
            *keys.all()[1:],
            *totals.all(),
        )

    def _placed(self, records: SampledRecords, latest: int | float | None) -> tuple[SampledRecords, Int64s]:
        """The records with the rows of their keys. Where the sample is full, some of both leave it."""
        new = self._unknown(records)
        if self.count + len(new) > self.settings.most_keys:
            self._drop_forgotten(latest)
            while self.count + len(new) > _FULL * self.settings.most_keys and self.bits < _MOST_BITS:
                self.bits += 1
                self._keep(in_sample(self.keys.words[: self.count], self.bits))
                records = records.of_sample(self.bits)
                new = self._unknown(records)
            self._index()
            new = self._unknown(records)
        for column in self.keys.all():
            column[self.count : self.count + len(new)] = 0
        self.keys.words[self.count : self.count + len(new)] = new
        self._rows.update(zip(new, range(self.count, self.count + len(new)), strict=True))
        self.count += len(new)
        return records, np.array([self._rows[word] for word in records.words.tolist()], np.int64)

    def _unknown(self, records: SampledRecords) -> list[int]:
        """The keys that are not remembered, each once, in the order of their arrival; expired ones too."""
        return [word for word in dict.fromkeys(records.words.tolist()) if word not in self._rows]

    def _drop_forgotten(self, latest: int | float | None) -> None:
        keys = self.keys
        kept = keys.seen[: self.count].copy()
        if latest is not None:
            kept &= keys.newest[: self.count] > _point(latest, self.settings.memory)
        self._keep(kept)
        self._index()

    def _keep(self, kept: Bools) -> None:
        for column in self.keys.all():
            of_kept = column[: self.count][kept]
            column[: len(of_kept)] = of_kept
        self.count = int(np.count_nonzero(kept))

    def _index(self) -> None:
        self._rows = dict(zip(self.keys.words[: self.count].tolist(), range(self.count), strict=True))


def _point(latest: int | float, period: int | float) -> int | float:
    return max(latest - period, -(2**63)) if isinstance(latest, int) else latest - period


def settings_text(settings: LeakSettings) -> str:
    """Equal for equal settings."""
    return json.dumps(asdict(settings), sort_keys=True)


def sample_of(
    meter: LeakMeter, *, store_id: str, next_window: int, first_window: int, since_us: int, missed_windows: int
) -> LeakSample:
    """The measurement, to be written."""
    columns = {
        **dict(zip(_KEY_COLUMNS, (column[: meter.count] for column in meter.keys.all()), strict=True)),
        **dict(zip(_TOTALS, meter.totals.all(), strict=True)),
    }
    return LeakSample(
        store_id=store_id,
        next_window=next_window,
        first_window=first_window,
        since_us=since_us,
        missed_windows=missed_windows,
        settings=settings_text(meter.settings),
        bits=meter.bits,
        records=meter.totals.records,
        seen=meter.totals.seen,
        keys=meter.count,
        columns={name: _little(column).tobytes() for name, column in columns.items()},
    )


def meter_of(sample: LeakSample) -> LeakMeter:
    """The measurement that was written.

    Raises:
        ValueError, KeyError, TypeError: no release writes such a sample.
    """
    given = json.loads(sample.settings)
    settings = LeakSettings(**{**given, "edges": tuple(given["edges"])})
    if not 0 <= sample.keys <= settings.most_keys:
        raise ValueError(f"{sample.keys} keys, where {settings.most_keys} is the most")
    keys, totals = SampledKeys.empty(settings), LeakTotals.none(settings)
    for name, column in zip(_KEY_COLUMNS, keys.all(), strict=True):
        _fill(column[: sample.keys], sample.columns[name])
    for name, column in zip(_TOTALS, totals.all(), strict=True):
        _fill(column, sample.columns[name])
    totals.records, totals.seen = sample.records, sample.seen
    if len(set(keys.words[: sample.keys].tolist())) != sample.keys:
        raise ValueError("a key is there twice")
    return LeakMeter(settings, sample.bits, sample.keys, keys, totals)


def _little(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(column.dtype.newbyteorder("<"), copy=False)


def _fill(column: NDArray[Any], data: bytes) -> None:
    column[...] = np.frombuffer(data, column.dtype.newbyteorder("<")).reshape(column.shape)


def warm(*, float_domain: bool) -> None:
    """Compiles, or loads from the cache, the kernel for one domain."""
    meter = LeakMeter.new(LeakSettings(0, 2, float_domain, 1, 1, (1.0,)))
    one = np.zeros(1, np.int64)
    expiry = one.astype(meter.settings.dtype)
    meter.add(SampledRecords(one.view(np.uint64), expiry, one, np.full(1, TupleVerdict.UNIQUE, np.uint8)), None, 1)
