"""What a replay will cost, by the first records of some of its files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from bucket_store.log.profile import read_profiles
from bucket_store.places.place import Place
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.replay.keys import Key, KeyRange, stated_keys
from deduper.replay.survey import ReplayFile
from deduper.tasks.readers.file_parts import FilePart
from deduper.tasks.readers.reading_tasks import FileReading, fault_of
from deduper.tasks.readers.text import Lines, packed_share

_SAMPLED_FILES = 24
_RATED_ROWS = 100_000
"""Records of a window whose rate is taken for that of a replay's windows."""
_KEY_BYTES, _EXPIRY_BYTES, _FIRST_SEEN_BYTES = 16, 8, 20
_FREE_SLOTS = 1.5
_READS_A_RECORD = 3.0
"""Reading, judging and writing a record take so many times the reading alone; sorting adds `_SORTS_A_RECORD`."""
_SORTS_A_RECORD = 2.5


@dataclass(frozen=True, slots=True)
class Estimate(AsJson):
    """Records, the span of their expiry keys as far as the sample shows it, seconds on a core, and bytes.

    `state_bytes`: the keys of one period in memory, if all are unique. `output_bytes`: the rows of all ports before any
    compression.
    """

    json_names = ("records", "first", "last", "core_seconds", "state_bytes", "output_bytes", "sampled_files")

    records: int
    first: Any
    last: Any
    core_seconds: float
    state_bytes: int | None
    output_bytes: int
    sampled_files: int


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
class Sample:
    """The first records of some files: what every rule over them costs is estimated from it."""

    files: int = 0
    total_bytes: int = 0
    """Of all files; `file_bytes` is of the read ones."""
    rows: float = 0
    read: int = 0
    seconds: float = 0.0
    file_bytes: int = 0
    decoded_bytes: int = 0
    first: Key | None = None
    last: Key | None = None


def sample_of(config: Config, reading: FileReading, bounds: KeyRange, files: Sequence[ReplayFile]) -> Sample:
    """Read the first records of some of these files. Those that cannot be read count as none."""
    step = max(1, len(files) // _SAMPLED_FILES)
    chosen = dict.fromkeys([*files[::step], files[-1]])
    sample = Sample(len(chosen), sum(one.size_bytes for one in files))
    for file in chosen:
        try:
            part = reading.part(file.number, file)
            if part is not None:
                _add(sample, config, reading, part, bounds)
        except Exception as exc:  # noqa: BLE001  `fault_of` raises what is no fault of the file
            fault_of(exc, reading)
    return sample


def estimated(config: Config, sample: Sample, *, sorts: bool) -> Estimate:
    """The cost of a replay of the files of a sample."""
    records = round(sample.rows * sample.total_bytes / sample.file_bytes) if sample.file_bytes else 0
    a_record = sample.seconds / max(1, sample.read)
    factor = _READS_A_RECORD + (_SORTS_A_RECORD if sorts else 0.0)
    shown = config.expiry_key_scale.shown
    return Estimate(
        records=records,
        first=None if sample.first is None else shown(sample.first),
        last=None if sample.last is None else shown(sample.last),
        core_seconds=records * a_record * factor,
        state_bytes=_state_bytes(config, records, sample),
        output_bytes=round(records * sample.decoded_bytes / max(1, sample.read)),
        sampled_files=sample.files,
    )


def _add(sample: Sample, config: Config, reading: FileReading, part: FilePart, bounds: KeyRange) -> None:
    began = time.process_time()
    read = 0
    for records in islice(reading.records(part), 1):
        sample.seconds += time.process_time() - began
        read = records.num_rows
        sample.read += read
        sample.decoded_bytes += _text_bytes(records)
        keys, has_key = stated_keys(records)
        keys = keys[has_key]
        keys = keys[bounds.within(keys) & ~bounds.beyond(keys)]
        if keys.size:
            least, most = keys.min().item(), keys.max().item()
            sample.first = least if sample.first is None else min(least, sample.first)
            sample.last = most if sample.last is None else max(most, sample.last)
    sample.file_bytes += part.size_bytes
    sample.rows += float(part.rows) if part.rows is not None else _lines(config, part)


def _text_bytes(records: pa.RecordBatch) -> int:
    return int(records.nbytes)


def _lines(config: Config, part: FilePart) -> float:
    """About how many lines a file of text has, by its first block."""
    assert isinstance(config.source, FilesSource)
    count = size = 0
    for some in islice(Lines(part.path), 1):
        count, size = some.count, int(some.ends[-1]) + 1 if some.count else 0
    if not count:
        return 0.0
    return max(float(count), count * part.size_bytes * packed_share(part.path) / size)


def _state_bytes(config: Config, records: int, sample: Sample) -> int | None:
    period = config.period_steps
    if period is None or sample.first is None or sample.last is None:
        return None
    share = min(1.0, period / max(period, sample.last - sample.first))
    key = _KEY_BYTES + (_EXPIRY_BYTES if config.lookup == "all_live" else 0)
    return round(records * share * _FREE_SLOTS * (key + (_FIRST_SEEN_BYTES if config.store.first_seen else 0)))
