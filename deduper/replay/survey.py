"""The survey of an input: its expiry keys alone, read once by the job's own reader. Travels to executors."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from deduper.core.clock import ClockRules
from deduper.replay.inputs import InputReading, ReplayInput, ReplayRange, moved
from deduper.replay.keys import Key, KeyRange, Keys, placed_keys, stated_keys
from deduper.tasks import layout
from deduper.tasks.layout import RecordLayout
from deduper.tasks.readers.declared import Noted
from deduper.tasks.readers.file_parts import FileChanged, FileGone
from deduper.tasks.readers.reading_tasks import FileReading, fault_of

_STRIDE = 256
"""One key in so many is kept as a sample: the cuts between slices are made of them."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What an input has for a replay.

    `rows`: those in the range, which take about `decoded_bytes`. `begin`: its first key, which records before it take.
    `first`, `last`: of the keys that no guard refuses; None without one. `has_beyond`: others are refused.
    `is_ascending`: of all. `sample`: of the keys from `first` to `last`. `is_whole`: it has no key at all, or cannot be
    read.
    """

    given: ReplayInput
    rows: int = 0
    decoded_bytes: int = 0
    begin: Key | None = None
    first: Key | None = None
    last: Key | None = None
    has_beyond: bool = False
    is_ascending: bool = True
    sample: tuple[Key, ...] = ()
    is_whole: bool = False


def survey(reading: InputReading, bounds: KeyRange, given: ReplayInput) -> Survey:
    """Survey an input; a file that cannot be read leaves by the error port, and is taken whole.

    `reading` reads all columns. Of text only those are parsed that the order needs.

    Raises:
        FileMovedError: it is not the file any more that was listed.
        SourceAwayError: a range cannot be read now.
    """
    if isinstance(given, ReplayRange):
        return _surveyed(_of_keys(reading), bounds, given, reading.part(given.number, given))
    try:
        part = reading.part(given.number, given)
        if part is None:
            return Survey(given)
        # Of a file of columns, each one may be damaged alone.
        return _surveyed(_of_keys(reading) if part.rows is None else reading, bounds, given, part)
    except (FileChanged, FileGone) as exc:
        raise moved(given.name, exc) from exc
    except Exception as exc:  # noqa: BLE001  `fault_of` raises what is no fault of the file
        fault_of(exc, cast(FileReading, reading))
        return Survey(given, rows=1, is_whole=True)


def _of_keys(reading: InputReading) -> InputReading:
    """The reader, of expiry keys alone."""
    columns = reading.declared
    assert columns.expiry is not None
    alone = replace(
        columns,
        key=(columns.expiry,),
        payload=(),
        layout=RecordLayout.of(columns.layout.schema.field(layout.EXPIRY).type),
    )
    return replace(reading, declared=alone)  # type: ignore[type-var]  # readers are dataclasses


def _surveyed(reading: InputReading, bounds: KeyRange, given: ReplayInput, part: Any) -> Survey:
    found = Survey(given, decoded_bytes=part.decoded_bytes)
    sample: list[Keys] = []
    unplaced = all_rows = 0
    before: Key | None = None
    for records in reading.records(part):
        all_rows += records.num_rows
        keys, has_key = stated_keys(records)
        if found.begin is None:
            if not has_key.any():
                unplaced += records.num_rows
                continue
            before = keys[int(has_key.argmax())].item()
            found = replace(found, begin=before)
            keys = np.concatenate((np.full(unplaced, before, keys.dtype), keys))
            has_key = np.concatenate((np.ones(unplaced, np.bool_), has_key))
        assert before is not None
        placed = placed_keys(keys, has_key, before)
        taken = placed[bounds.within(placed)]
        is_ascending = found.is_ascending and placed[0].item() >= before and not (placed[1:] < placed[:-1]).any()
        before = placed[-1].item()
        is_beyond = bounds.beyond(taken)
        sound = taken[~is_beyond]
        found = replace(
            found,
            rows=found.rows + taken.size,
            has_beyond=found.has_beyond or bool(is_beyond.any()),
            is_ascending=is_ascending,
        )
        if sound.size:
            least, most = sound.min().item(), sound.max().item()
            found = replace(
                found,
                first=least if found.first is None else min(least, found.first),
                last=most if found.last is None else max(most, found.last),
            )
            sample.append(sound[::_STRIDE])
    if found.begin is None:
        return replace(found, rows=all_rows, is_whole=True)
    share = found.rows / all_rows
    whole = tuple(np.concatenate(sample).tolist()) if sample else ()
    return replace(found, decoded_bytes=int(found.decoded_bytes * share), sample=whole)


def records_in_range(
    reading: InputReading, bounds: KeyRange, part: Any, begin: Key, clock: ClockRules | None
) -> Generator[tuple[pa.RecordBatch, Keys], None, Noted]:
    """The records of a part that are in the range, with the keys that place them. Returns notes with their number.

    Raises:
        FileMovedError: it is not the file any more that was surveyed.
    """
    left_out = 0
    batches = reading.records(part, clock)
    try:
        while True:
            try:
                records = next(batches)
            except StopIteration as end:
                noted: Noted = end.value
                return replace(noted, rows=noted.rows - left_out)
            keys, has_key = stated_keys(records)
            placed = placed_keys(keys, has_key, begin)
            if placed.size:
                begin = placed[-1].item()
            if not bounds.is_whole:
                inside = bounds.within(placed)
                left_out += int(np.count_nonzero(~inside))
                if not inside.all():
                    records, placed = records.filter(pa.array(inside)), placed[inside]
            yield records, placed
    except (FileChanged, FileGone) as exc:
        raise moved(part.name, exc) from exc
