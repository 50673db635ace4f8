"""A replay as a source of windows: the parts of its plan, some at a time, in the order of time."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from bucket_store.places.place import Place
from deduper.errors import SourceAwayError
from deduper.kafka.offsets import ENDS
from deduper.replay.inputs import InputReading, ReplayFile, ReplayInput, moved
from deduper.replay.keys import Key, KeyRange, later
from deduper.replay.making import Twin
from deduper.replay.plan import Plan, PlannedFile, PlannedPart, PlannedSlice
from deduper.replay.reading import FileToRead, SliceToRead, TimedPart, TimedRead, TimedReading
from deduper.sources.protocol import BatchPartition, Parts, SourceBatch
from deduper.tasks.readers.file_parts import FileChanged, FileGone, FilePart
from deduper.tasks.readers.reading_tasks import FileReading, PartRead, fault_of
from deduper.window.completeness import REPLAY

logger = logging.getLogger(__name__)

WINDOW_BYTES = 256 << 20
"""A window takes parts up to so many bytes of records, at least one."""
_FOR_ALL_CORES = 4
"""So many times as much while there are fewer parts than cores: a part, which may be a day's file, is one task."""


class _OtherClock(SourceAwayError):
    """Records that count for the clock were not the last ones of a part: it is read again, with the right clock."""

    def __init__(self, clocks: Sequence[Key | None]) -> None:
        super().__init__("the clock before a part was another one than the survey has found")
        self.clocks = tuple(clocks)


@dataclass(frozen=True)
class ReplayBatch:
    """The parts of a window. `parts` are those of the plan from `first` on, `done` how many are judged after it.

    `clocks`: where the clock stands before each part, within the window. `kept`: of every commit, about the source.
    """

    plan: Plan
    name: str
    parts: tuple[PlannedPart, ...]
    first: int
    slices: Place
    reading: InputReading
    bounds: KeyRange
    kept: Mapping[str, Any]
    by_own_key: bool = False
    clocks: tuple[Key | None, ...] = field(default=())

    @cached_property
    def _ordinals(self) -> dict[int, int]:
        """The ordinals of the window's inputs, by their numbers in the plan: both are in source order."""
        numbers = sorted({number for part in self.parts for number in part.inputs})
        return {number: ordinal for ordinal, number in enumerate(numbers)}

    @cached_property
    def partitions(self) -> tuple[BatchPartition, ...]:
        alone = {part.number for part in self.parts if isinstance(part, PlannedFile)}
        return tuple(
            _partition(self.plan.inputs[number], None if number in alone else self.first) for number in self._ordinals
        )

    @property
    def is_known_by_digests(self) -> bool:
        return not self.plan.ends  # else the last commit has what is judged

    def records(self) -> Parts[TimedPart]:
        return Parts(TimedReading(self.reading, self.bounds, self.by_own_key), self._timed)

    @cached_property
    def _timed(self) -> list[TimedPart]:
        clocks = self.clocks or _clocks([part.last for part in self.parts])
        given = enumerate(zip(self.parts, clocks, strict=True))
        return [TimedPart(self._to_read(part), number, clock) for number, (part, clock) in given]

    def _to_read(self, part: PlannedPart) -> FileToRead | SliceToRead:
        if isinstance(part, PlannedSlice):
            return SliceToRead(
                part, self.slices / part.name, {number: self._ordinals[number] for number in part.inputs}
            )
        file = self.plan.inputs[part.number]
        assert isinstance(file, ReplayFile)
        ordinal = self._ordinals[part.number]
        try:
            found = self.reading.part(ordinal, file)
        except (FileChanged, FileGone) as exc:
            raise moved(file.name, exc) from exc
        except Exception as exc:  # noqa: BLE001  `fault_of` raises what is no fault of the file
            found = FilePart.with_fault(file, ordinal, fault_of(exc, cast(FileReading, self.reading)))
        if found is None or (part.is_ordered and found.fault is not None):
            raise moved(file.name, "it was sound when it was surveyed, and is not now")
        return FileToRead(part, found)

    def as_read(self, found: Sequence[PartRead]) -> ReplayBatch:
        """The batch itself.

        Raises:
            FileMovedError: a file was moved meanwhile.
            SourceAwayError: the clock before a part was another one: see `after_failure`.
        """
        for part, read in zip(self._timed, found, strict=True):
            if read.fault is not None and read.fault.admission in (FileChanged.admission, FileGone.admission):
                raise moved(part.name, read.fault.text)
            planned = part.of.planned
            failed = isinstance(planned, PlannedFile) and not planned.is_ordered and not planned.decoded_bytes
            if failed and planned.rows and read.fault is None:  # its records have no order yet
                raise moved(part.name, "it could not be read when it was surveyed, and can be now")
            if read.noted.cut_off is not None:
                logger.warning("%s is not whole: %s", part.name, read.noted.cut_off)
            if read.fault is not None:
                logger.warning(
                    "%s leaves by the error port as %s: %s", part.name, read.fault.admission.reason, read.fault.text
                )
        clocks = _clocks([read.last if isinstance(read, TimedRead) else None for read in found])
        if clocks != [part.latest for part in self._timed]:
            raise _OtherClock(clocks)
        return self

    def after_failure(self, error: Exception) -> ReplayBatch:
        if isinstance(error, _OtherClock):
            return replace(self, clocks=error.clocks)
        raise error

    def confirmed(self, rows: Mapping[int, int]) -> ReplayBatch:
        del rows  # a file that changed while it was read has ended the read itself
        return self

    @property
    def done(self) -> int:
        """How many parts of the plan are judged with this window."""
        return self.first + len(self.parts)

    def extra(self) -> dict[str, Any]:
        count = len(self.plan.parts)
        ends = {ENDS: json.loads(self.plan.ends)} if self.plan.ends and self.done == count else {}
        return {
            **self.kept,
            **ends,
            REPLAY: {"plan": self.name, "done": self.done, "of": count, "asked": self.plan.asked},
        }


def _clocks(lasts: Sequence[Key | None]) -> list[Key | None]:
    """Where the clock stands before each part, by the greatest keys of the parts; None for the committed point."""
    clocks: list[Key | None] = []
    latest: Key | None = None
    for last in lasts:
        clocks.append(latest)
        latest = later(latest, last)
    return clocks


def _partition(given: ReplayInput, first_part: int | None) -> BatchPartition:
    """An input of a window; with `first_part`, only some of its records, of that window."""
    digest = given.digest
    if first_part is not None:
        digest = hashlib.blake2b(f"{first_part}\0".encode() + digest, digest_size=16).digest()
    return BatchPartition(given.name, digest, given.version, given.end, given.start, given.slot)


class ReplaySource:
    """See `PlannedSource`. `planned` gives the plan, its name, and how many of its parts are judged."""

    def __init__(
        self,
        place: str,
        planned: Callable[[], tuple[Plan, str, int]],
        slices: Place,
        reading: InputReading,
        bounds: KeyRange,
        kept: Mapping[str, Any],
        window_bytes: int | None = None,
        twin: Twin | None = None,
        cores: int = 1,
    ) -> None:
        self.place = place
        self._planned = planned
        self._slices = slices
        self._reading = reading
        self._bounds = bounds
        self._kept = kept
        self._twin = twin
        self._window_bytes = WINDOW_BYTES if window_bytes is None else window_bytes
        self._cores = cores
        self._plan: Plan | None = None
        self._name = ""
        self._done = 0
        self.rows_begun = 0
        """The records that were not judged as the run began."""

    def begin(self, *, drain: bool) -> None:
        """Make the plan, or read that of an earlier run."""
        del drain  # a replay has an end
        self._plan, self._name, self._done = self._planned()
        self.rows_begun = sum(part.rows for part in self._plan.parts[self._done :])

    def next_batch(self) -> ReplayBatch | None:
        """The first parts that were not judged."""
        plan = self._plan
        if plan is None or self._done == len(plan.parts):
            return None
        first = None if self._twin is None else self._twin.first
        taken = [plan.parts[self._done]]
        size = taken[0].decoded_bytes
        for part in plan.parts[self._done + 1 :]:
            size += part.decoded_bytes
            if size > self._window_bytes * (_FOR_ALL_CORES if len(taken) < self._cores else 1):
                break
            taken.append(part)
        return ReplayBatch(
            plan,
            self._name,
            tuple(taken),
            self._done,
            self._slices / self._name if first is None else first.parent,
            self._reading,
            self._bounds,
            self._kept,
            first is not None,
        )

    def newest(self, batch: SourceBatch) -> SourceBatch:
        """The batch itself: a replay has an end."""
        return batch

    def judged(self, batch: SourceBatch) -> None:
        """Remove the slices of the window: no later one needs them, but a twin."""
        assert isinstance(batch, ReplayBatch)
        self._done = batch.done
        if self._twin is not None:
            return
        for part in batch.parts:
            if isinstance(part, PlannedSlice):
                (batch.slices / part.name).remove()

    def put_off(self, reason: SourceAwayError) -> None:
        """A replay has no later trigger."""
        raise reason
