"""The measurement as the store's file has it, and back. PURE."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bucket_store.log.leak_sample import LeakSample
from deduper.leaks.meter import LeakMeter, LeakSettings, LeakTotals, SampledKeys

_KEY_COLUMNS = ("words", "seen", "newest", "missed")
_TOTALS = ("sampled", "totals", "squares", "distances")


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
