"""The leak meter of a job: counts each committed window's sampled records, and keeps the sample in the store.

An accessory (`accessory`). Windows after the last writing before a crash count as missed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.leak_sample import read_leak_sample, write_leak_sample
from bucket_store.log.state import LogState
from bucket_store.places.place import Place
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry, OrderedExpiry, ProcessingTimeExpiry
from deduper.core.verdict import INT64_MAX
from deduper.leaks.figures import LeakFigures, figures_of, figures_of_sample
from deduper.leaks.meter import LeakMeter, LeakSettings, meter_of, sample_of, settings_text
from deduper.leaks.sample import SampledRecords
from deduper.tasks.judge import Receipt
from deduper.window import policy
from deduper.window.accessories.accessory import Accessory

logger = logging.getLogger(__name__)

_SECOND, _MINUTE, _HOUR, _DAY = 1e6, 60e6, 3600e6, 86400e6
_TIMES = (_SECOND, 10 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR)
_DAYS = (_DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY)
_BITS = 8
"""One key of 256: a sample of 65,536 keys is of 16 million, and its records cost 0.1 B a record in receipts."""
_PERIODS = 2
"""The sample remembers a key for so many periods, so copies up to twice the period apart are seen."""
_MOST_KEYS = 65_536
"""3 MiB of them. A full sample goes on with half of its keys: more of them only make the intervals narrower."""
_PARTS = (0.0001, 0.001, 0.01, 0.1, 0.25, 0.5)
"""Classes of distances: times, or parts of a period that is no time."""


def sample_bits(config: Config) -> int | None:
    """One key of 2**bits is in the sample; None without a meter."""
    has_distance = isinstance(config.expiry, EventTimeExpiry | OrderedExpiry | ProcessingTimeExpiry)
    return _BITS if has_distance and not config.is_seed else None


def leak_settings(config: Config) -> LeakSettings | None:
    """What the meter of a job measures; None without one."""
    bits, period = sample_bits(config), config.period_steps
    if bits is None or period is None:
        return None
    scale = config.expiry_key_scale
    memory = period * _PERIODS if scale.is_float else min(int(period * _PERIODS), INT64_MAX)
    classes = (*_TIMES, *_DAYS) if scale.is_time else tuple(part * period for part in _PARTS)
    return LeakSettings(
        bits=bits,
        most_keys=_MOST_KEYS,
        float_domain=scale.is_float,
        period=period,
        memory=memory,
        edges=tuple(sorted({0.0, float(period), *(edge for edge in classes if edge < memory)})),
    )


def stored_figures(root: Place) -> LeakFigures | None:
    """The estimates in a store's file; None without a whole one."""
    try:
        sample = read_leak_sample(root)
        return None if sample is None else figures_of_sample(sample)
    except Exception:  # noqa: BLE001  an accessory, whatever is in its file
        return None


class LeakWatch:
    """The meter of one owner; for the thread that judges. `figures` are those of the newest window."""

    def __init__(self, config: Config, log: CommitLog, seconds: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._log = log
        self._next_window = log.state.next_window
        self._first_window, self._since_us, self._missed = self._next_window, 0, 0
        self._accessory = Accessory("leak meter", self._write, seconds)
        settings = leak_settings(config)
        self._meter = None if settings is None else self._stored(settings) or LeakMeter.new(settings)

    @property
    def figures(self) -> LeakFigures | None:
        """The estimates; None before the first window, and without a meter."""
        if self._meter is None or not self._accessory.is_on or self._next_window == self._first_window:
            return None
        with self._accessory:
            return figures_of(
                self._meter,
                next_window=self._next_window,
                first_window=self._first_window,
                since_us=self._since_us,
                missed_windows=self._missed,
            )
        return None

    def add(self, before: LogState, wall_us: int, receipts: Iterable[Receipt], rows: int) -> None:
        """Count the window that was committed after `before`."""
        if self._meter is None or not self._accessory.is_on:
            return
        with self._accessory:
            given = [receipt.sampled for receipt in receipts]
            if self._next_window == self._first_window:
                self._since_us = wall_us
            self._next_window = before.next_window + 1
            parts = [part for part in given if part is not None]
            if len(parts) < len(given):
                self._missed += 1
            else:
                sampled = SampledRecords.joined(parts, float_domain=self._meter.settings.float_domain)
                self._meter.add(sampled, policy.judge_rules(self._config, before, wall_us).latest, rows)
            self._accessory.changed()

    def close(self) -> None:
        """Write the sample, at the end of a run. Safe to repeat."""
        self._accessory.close()

    def _write(self) -> None:
        assert self._meter is not None
        sample = sample_of(
            self._meter,
            store_id=self._log.manifest.store_id,
            next_window=self._next_window,
            first_window=self._first_window,
            since_us=self._since_us,
            missed_windows=self._missed,
        )
        self._log.check_owner()
        write_leak_sample(self._log.root, sample)

    def _stored(self, settings: LeakSettings) -> LeakMeter | None:
        """The measurement that the store has, if it can go on."""
        try:
            sample = read_leak_sample(self._log.root)
            if sample is None:
                return None
            meter = meter_of(sample)
        except Exception as exc:  # noqa: BLE001  an accessory, whatever is in its file
            logger.warning("the leak meter begins anew: %s", exc)
            return None
        if sample.store_id != self._log.manifest.store_id or sample.next_window > self._next_window:
            logger.warning("the leak meter begins anew: its sample is of another store, or later than this one")
            return None
        if sample.settings != settings_text(settings):
            logger.info("the leak meter begins anew: its settings, or the period, have changed")
            return None
        self._first_window, self._since_us = sample.first_window, sample.since_us
        self._missed = sample.missed_windows + self._next_window - sample.next_window
        return meter
