"""How the parts of a replay are read in a window: each as one sequence, which goes on where the one before it ends.

Travels to executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa

from bucket_store.places.place import Place
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.errors import IntegrityError
from deduper.replay.inputs import InputReading
from deduper.replay.keys import Key, KeyRange, Keys, greatest_admitted, later
from deduper.replay.plan import PlannedFile, PlannedSlice
from deduper.replay.slices import slice_batches
from deduper.replay.survey import records_in_range
from deduper.tasks import exchange, layout
from deduper.tasks.read import ReadTask, spill
from deduper.tasks.readers.declared import Declared, Noted
from deduper.tasks.readers.file_parts import FilePart
from deduper.tasks.readers.reading_tasks import FileReading, PartRead, read_file


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file that is read as it is; `part` has its ordinal in the window."""

    planned: PlannedFile
    part: FilePart

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.part.path


@dataclass(frozen=True, slots=True)
class SliceToRead:
    """A slice in its folder. `ordinals` are those in the window of its inputs, by their numbers in the plan."""

    planned: PlannedSlice
    place: Place
    ordinals: Mapping[int, int]

    @property
    def name(self) -> str:
        """The slice, for messages."""
        return str(self.place)


@dataclass(frozen=True, slots=True)
class TimedPart:
    """A part of a window, with its number there, and where the clock stands before it."""

    of: FileToRead | SliceToRead
    sequence: int
    latest: Key | None

    @property
    def name(self) -> str:
        """The part, for messages."""
        return self.of.name

    @property
    def decoded_bytes(self) -> int:
        """About how many bytes its records take, decoded."""
        return self.of.planned.decoded_bytes


@dataclass(frozen=True, slots=True)
class TimedRead(PartRead):
    """The result of a part, and the greatest expiry key of its admitted records."""

    last: Key | None = None


_OF_RULES = [int(one) for one in Admission if one.is_of_rules]


@dataclass(frozen=True, slots=True)
class TimedReading:
    """Reads parts of a replay; pickled into the job. `by_own_key`: slices were made with the key of another job.

    `reading` is a `FileReading` if the plan has parts that are files.
    """

    reading: InputReading
    bounds: KeyRange
    by_own_key: bool = False

    def __call__(self, task: ReadTask, part: TimedPart) -> PartRead:
        """Spill the records of a part, in its sequence. A file without order that has changed gives that as its fault.

        Raises:
            FileMovedError: its file, which is in order, is not as it was surveyed.
            IntegrityError: its records are not in order any more.
        """
        clock = task.clock
        if clock is not None and task.in_order:
            clock = replace(clock, latest=later(clock.latest, part.latest))
        task = replace(task, sequence=part.sequence, clock=clock)
        if isinstance(part.of, FileToRead) and not part.of.planned.is_ordered:
            return read_file(cast(FileReading, self.reading), task, part.of.part, takes_changed=False)
        taken = _Taken(self._batches(part.of, task.clock))
        receipt = spill(task, taken)
        noted = Noted(part.of.planned.rows) if isinstance(part.of, SliceToRead) else taken.noted
        return TimedRead(receipt, noted, last=taken.last)

    def _batches(self, of: FileToRead | SliceToRead, clock: ClockRules | None) -> Iterator[pa.RecordBatch | Noted]:
        if isinstance(of, SliceToRead):
            for batch in slice_batches(of.place, of.planned):
                placed = _at_ordinals(batch, of.ordinals)
                yield _by_own_key(placed, self.reading.declared) if self.by_own_key else placed
            return
        assert of.planned.begin is not None
        records = records_in_range(self.reading, self.bounds, of.part, of.planned.begin, clock)
        before: Key | None = None
        while True:
            try:
                batch, keys = next(records)
            except StopIteration as end:
                yield end.value
                return
            _require_ascending(of.name, before, keys)
            before = keys[-1].item() if keys.size else before
            yield batch


def _by_own_key(batch: pa.RecordBatch, declared: Declared) -> pa.RecordBatch:
    """Records of a slice with the digests of another key, and errors by its rule for nulls."""
    admission = exchange.numbers(batch.column(layout.ADMISSION)).astype(np.int8)
    admission[np.isin(admission, _OF_RULES)] = int(Admission.ADMITTED)
    columns = {number: batch.column(layout.parsed(number)) for number in range(len(declared.columns))}
    order = batch.column(layout.ORDER).to_numpy()
    raw = batch.column(layout.RAW)
    return declared.records(columns, order, admission=admission, texts=lambda *_: raw)


class _Taken(Iterator[pa.RecordBatch]):
    """Batches as they are taken; what was noted of them, and the greatest admitted key, when all are."""

    def __init__(self, batches: Iterator[pa.RecordBatch | Noted]) -> None:
        self._batches = batches
        self.last: Key | None = None
        self.noted = Noted(0)

    def __next__(self) -> pa.RecordBatch:
        given = next(self._batches)
        if isinstance(given, Noted):
            self.noted = given
            given = next(self._batches)
        self.last = later(self.last, greatest_admitted(given))
        return given


def _at_ordinals(batch: pa.RecordBatch, ordinals: Mapping[int, int]) -> pa.RecordBatch:
    """Records with the ordinals of the window in place of the plan's numbers."""
    order = batch.column(layout.ORDER).to_numpy()
    numbers, inverse = np.unique(order >> POSITION_BITS, return_inverse=True)
    mapped = np.array([ordinals[number] for number in numbers.tolist()], np.int64)[inverse]
    placed = pa.array((mapped << POSITION_BITS) | (order & ((1 << POSITION_BITS) - 1)))
    return batch.set_column(batch.schema.get_field_index(layout.ORDER), batch.schema.field(layout.ORDER), placed)


def _require_ascending(name: str, before: Key | None, keys: Keys) -> None:
    if not keys.size:
        return
    if (before is not None and keys[0] < before) or (keys[1:] < keys[:-1]).any():
        raise IntegrityError(f"{name}: its records were in order when it was surveyed, and are not now")
