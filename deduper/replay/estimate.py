"""What a replay will cost, by the first records of some of its inputs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import pyarrow as pa

from bucket_store.log.profile import read_profiles
from bucket_store.places.place import Place
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.replay.inputs import InputReading, ReplayInput, ReplayRange
from deduper.replay.keys import Key, KeyRange, stated_keys
from deduper.tasks.readers.file_parts import FilePart
from deduper.tasks.readers.reading_tasks import FileReading, fault_of
from deduper.tasks.readers.text import Lines, packed_share

_SAMPLED_INPUTS, _SAMPLED_OFFSETS, _SAMPLED_BYTES = 24, 1_000, 8 << 20
"""Inputs, and of a range so many of its offsets, up to so many bytes."""
_RATED_ROWS = 100_000
"""Records of a window whose rate is taken for that of a replay's windows."""
_KEY_BYTES, _EXPIRY_BYTES, _FIRST_SEEN_BYTES = 16, 8, 20
_FREE_SLOTS = 1.5
_READS_A_RECORD = 3.0
"""Reading, judging and writing a record take so many times the reading alone; sorting adds `_SORTS_A_RECORD`."""
_SORTS_A_RECORD = 2.5


@dataclass(frozen=True, slots=True)
class ReplayEstimate(AsJson):
    """Records, the span of their expiry keys as far as the sample shows it, seconds on a core, and bytes.

    `state_bytes`: the keys of one period in memory, if all are unique. `output_bytes`: the rows of all ports before any
    compression.
    """

    json_names = ("records", "first", "last", "core_seconds", "state_bytes", "output_bytes", "sampled")

    records: int
    first: Any
    last: Any
    core_seconds: float
    state_bytes: int | None
    output_bytes: int
    sampled: int


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """Records a second that the windows of a store were judged with; `store` says whose."""

    records_per_second: float
    store: str


def measured_rate(stores: Iterable[Place]) -> MeasuredRate | None:
    """The rate of the first of these stores that has windows as large as a replay's: small ones cost more a record."""
    for store in stores:
        large = [window for window in read_profiles(store) if window.rows >= _RATED_ROWS and window.seconds > 0]
        if large:
            rate = sum(window.rows for window in large) / sum(window.seconds for window in large)
            return MeasuredRate(rate, str(store))
    return None


@dataclass(slots=True)
class ReplaySample:
    """The first records of some inputs: what every rule over them costs is estimated from it."""

    inputs: int = 0
    total_bytes: int = 0
    """Of all inputs; `file_bytes` is of the read ones."""
    rows: float = 0
    read: int = 0
    seconds: float = 0.0
    file_bytes: int = 0
    decoded_bytes: int = 0
    first: Key | None = None
    last: Key | None = None


def sample_of(config: Config, reading: InputReading, bounds: KeyRange, inputs: Sequence[ReplayInput]) -> ReplaySample:
    """Read the first records of some of these inputs. Files that cannot be read count as none.

    Raises:
        SourceAwayError: a range cannot be read now.
    """
    step = max(1, len(inputs) // _SAMPLED_INPUTS)
    chosen = dict.fromkeys([*inputs[::step], inputs[-1]])
    sample = ReplaySample(len(chosen), sum(one.size_bytes for one in inputs))
    for one in chosen:
        if isinstance(one, ReplayRange):
            _add(sample, sampled_records(reading, one), bounds)
            sample.file_bytes += one.size_bytes
            sample.rows += one.end - one.start
            continue
        try:
            part = reading.part(one.number, one)
            if part is not None:
                _add(sample, islice(reading.records(part), 1), bounds)
                sample.file_bytes += part.size_bytes
                sample.rows += float(part.rows) if part.rows is not None else _lines(config, part)
        except Exception as exc:  # noqa: BLE001  `fault_of` raises what is no fault of the file
            fault_of(exc, cast(FileReading, reading))
    return sample


def estimated(config: Config, sample: ReplaySample, *, sorts: bool) -> ReplayEstimate:
    """The cost of a replay of the inputs of a sample."""
    records = round(sample.rows * sample.total_bytes / sample.file_bytes) if sample.file_bytes else 0
    a_record = sample.seconds / max(1, sample.read)
    factor = _READS_A_RECORD + (_SORTS_A_RECORD if sorts else 0.0)
    shown = config.expiry_key_scale.shown
    return ReplayEstimate(
        records=records,
        first=None if sample.first is None else shown(sample.first),
        last=None if sample.last is None else shown(sample.last),
        core_seconds=records * a_record * factor,
        state_bytes=_state_bytes(config, records, sample),
        output_bytes=round(records * sample.decoded_bytes / max(1, sample.read)),
        sampled=sample.inputs,
    )


def sampled_records(reading: InputReading, given: ReplayRange) -> Iterator[pa.RecordBatch]:
    """The first records of a range.

    Raises:
        SourceAwayError: they cannot be read now.
    """
    end, size = min(given.end, given.start + _SAMPLED_OFFSETS), 0
    for records in reading.records(reading.part(0, replace(given, end=end))):
        yield records
        size += records.nbytes
        if size >= _SAMPLED_BYTES:
            return


def _add(sample: ReplaySample, some: Iterator[pa.RecordBatch], bounds: KeyRange) -> None:
    began = time.process_time()
    for records in some:
        sample.seconds += time.process_time() - began
        sample.read += records.num_rows
        sample.decoded_bytes += records.nbytes
        keys, has_key = stated_keys(records)
        keys = keys[has_key]
        keys = keys[bounds.within(keys) & ~bounds.beyond(keys)]
        if keys.size:
            least, most = keys.min().item(), keys.max().item()
            sample.first = least if sample.first is None else min(least, sample.first)
            sample.last = most if sample.last is None else max(most, sample.last)
        began = time.process_time()


def _lines(config: Config, part: FilePart) -> float:
    """About how many lines a file of text has, by its first block."""
    assert isinstance(config.source, FilesSource)
    count = size = 0
    for some in islice(Lines(part.path), 1):
        count, size = some.count, int(some.ends[-1]) + 1 if some.count else 0
    if not count:
        return 0.0
    return max(float(count), count * part.size_bytes * packed_share(part.path) / size)


def _state_bytes(config: Config, records: int, sample: ReplaySample) -> int | None:
    period = config.period_steps
    if period is None or sample.first is None or sample.last is None:
        return None
    share = min(1.0, period / max(period, sample.last - sample.first))
    key = _KEY_BYTES + (_EXPIRY_BYTES if config.lookup == "all_live" else 0)
    return round(records * share * _FREE_SLOTS * (key + (_FIRST_SEEN_BYTES if config.store.first_seen else 0)))
