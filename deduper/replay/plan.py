"""PURE. The plan of a replay: its parts in the order of time, and the file that keeps them.

A part is a file that is read as it is, or a slice. Inputs whose expiry keys overlap or touch make a *run*; a run of one
file whose keys ascend is that file, every other one is cut into slices. The last slice has the keys beyond the guard.
A range of a topic without any key is a slice of its own, before all others.

The file of a plan, in a frame of `bucket_store.framing` (magic `DEDUPRPL`, version 1), is a `_Body` by
`bucket_store.wire`:

    asked    what the replay was asked for, as text; another one is refused
    files    of each: path in bytes, name, digest, modified_ms, size_bytes; its number is its place
    ranges   of each: topic, partition, topic id, start, end, digest, size_bytes; as files, and one of both is empty
    ends     JSON of the end of each topic partition, as `kafka.ends` of a commit; empty for files
    parts    of each, in their order: a `PlannedFile` and nil, or nil and a `PlannedSlice`
    lost     of each topic partition with offsets that were deleted before they were sorted: a `LostOffsets`
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np

from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from bucket_store.wire import decode, encode
from deduper.replay.inputs import LostOffsets, ReplayFile, ReplayInput, ReplayRange
from deduper.replay.keys import Key, KeyRange, Keys
from deduper.replay.survey import Survey

_MAGIC, _VERSION = b"DEDUPRPL", 1


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that is read as it is; `rows` are those in the range.

    `begin`: the key of records before the first one that has a key. `last`: its greatest one. Without `is_ordered` it
    has none, or cannot be read.
    """

    number: int
    rows: int
    decoded_bytes: int
    begin: Key | None
    last: Key | None
    is_ordered: bool

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the inputs that it has records of."""
        return (self.number,)


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A slice: its file in the folder of the plan, with size and XXH3-64 checksum, and the inputs it has records of.

    `last` is the greatest expiry key of its admitted records.
    """

    name: str
    rows: int
    decoded_bytes: int
    size_bytes: int
    checksum: int
    last: Key | None
    inputs: tuple[int, ...]


PlannedPart: TypeAlias = PlannedFile | PlannedSlice


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a replay judges, in the order of judging.

    `ends`: of topics, the end of each partition when the parts are judged, as the JSON of `kafka.ends`.
    """

    asked: str
    inputs: tuple[ReplayInput, ...]
    parts: tuple[PlannedPart, ...]
    ends: str = ""
    lost: tuple[LostOffsets, ...] = ()

    @property
    def rows(self) -> int:
        """The records of all parts."""
        return sum(part.rows for part in self.parts)

    def to_bytes(self) -> bytes:
        """The file of the plan."""
        files = tuple(
            _File(os.fsencode(one.path), one.name, one.digest, one.modified_ms, one.size_bytes)
            for one in self.inputs
            if isinstance(one, ReplayFile)
        )
        ranges = tuple(
            _Range(one.topic, one.partition, one.topic_id, one.start, one.end, one.digest, one.size_bytes)
            for one in self.inputs
            if isinstance(one, ReplayRange)
        )
        parts = tuple(_Part(part, None) if isinstance(part, PlannedFile) else _Part(None, part) for part in self.parts)
        return frame(_MAGIC, _VERSION, encode(_Body(self.asked, files, ranges, self.ends, parts, self.lost)))

    @classmethod
    def of_bytes(cls, data: bytes, file: str) -> Self:
        """The plan in a file of this name.

        Raises:
            CorruptionError, UnknownFormatError: it is not whole, or of another version.
        """
        inner = unframe(data, magic=_MAGIC, version=_VERSION, file=file)
        try:
            body = decode(_Body, inner)
        except ValueError as exc:
            raise CorruptionError("body", file=file, offset=BODY_OFFSET, expected="a plan", found=str(exc)) from exc
        files = [
            ReplayFile(number, os.fsdecode(one.path), one.name, one.digest, one.modified_ms, one.size_bytes)
            for number, one in enumerate(body.files)
        ]
        ranges = [
            ReplayRange(number, one.topic, one.partition, one.topic_id, one.start, one.end, one.digest, one.size_bytes)
            for number, one in enumerate(body.ranges)
        ]
        parts = (part.file if part.slice is None else part.slice for part in body.parts)
        sound = tuple(part for part in parts if part is not None)
        return cls(body.asked, (*files, *ranges), sound, body.ends, body.lost)


@dataclass(frozen=True, slots=True)
class _File:
    path: bytes
    name: str
    digest: bytes
    modified_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Range:
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    digest: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Part:
    file: PlannedFile | None
    slice: PlannedSlice | None


@dataclass(frozen=True, slots=True)
class _Body:
    asked: str
    files: tuple[_File, ...]
    ranges: tuple[_Range, ...]
    ends: str
    parts: tuple[_Part, ...]
    lost: tuple[LostOffsets, ...]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where the records of some inputs go: a slice has the keys from its start to that of the next one.

    `inputs` are their numbers, with the key of their first records. The slice behind the last start has the keys beyond
    the guard. `own`: the slices of inputs without any key, by number; they come after that.
    """

    starts: Keys
    inputs: dict[int, Key] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)

    def slices_of(
        self, keys: Keys, numbers: np.ndarray[tuple[int], np.dtype[np.int64]], bounds: KeyRange
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The slice of each record, by its key and the number of its input."""
        slices = (np.searchsorted(self.starts, keys, side="right") - 1).astype(np.int64)
        slices[bounds.beyond(keys)] = self.starts.size
        for number in np.unique(numbers).tolist():
            if number in self.own:
                slices[numbers == number] = self.own[number]
        return slices

    @property
    def count(self) -> int:
        """All slices."""
        return int(self.starts.size) + 1 + len(self.own)


@dataclass(frozen=True, slots=True)
class Outline:
    """The order of a replay before its slices are there: whole files, then files and numbers of slices by time."""

    order: tuple[PlannedFile | int, ...]
    cuts: Cuts


def outline(
    surveys: Sequence[Survey],
    slice_bytes: int,
    *,
    is_float: bool,
    cuts_all: bool = False,
    keyless_at: Key | None = None,
) -> Outline:
    """The parts of the surveyed inputs, with slices of about so many bytes. Inputs without records are in none.

    `cuts_all`: those in order are cut too. `keyless_at`: each of those without any expiry key is a slice of its own, at
    this key; None: they are files, which are read as they are.
    """
    whole = [one for one in surveys if one.is_whole and one.rows]
    order: list[PlannedFile | int] = []
    starts: list[Key] = []
    cut: dict[int, Key] = {}
    keyed = [one for one in surveys if one.rows and not one.is_whole]
    for run in _runs([one for one in keyed if one.first is not None]):
        if len(run) == 1 and run[0].is_ascending and not (run[0].has_beyond or cuts_all):
            order.append(_as_it_is(run[0]))
            continue
        cut |= {one.given.number: one.begin for one in run if one.begin is not None}
        of_run = _starts(run, slice_bytes)
        order += range(len(starts), len(starts) + len(of_run))
        starts += of_run
    cut |= {one.given.number: one.begin for one in keyed if one.first is None and one.begin is not None}
    if any(one.has_beyond for one in keyed):
        order.append(len(starts))
    own: dict[int, int] = {}
    if keyless_at is not None:
        own = {one.given.number: len(starts) + 1 + place for place, one in enumerate(whole)}
        cut |= dict.fromkeys(own, keyless_at)
    first: Iterable[PlannedFile | int] = [_as_it_is(one) for one in whole] if keyless_at is None else own.values()
    return Outline((*first, *order), Cuts(np.array(starts, np.float64 if is_float else np.int64), cut, own))


def first_key(surveys: Sequence[Survey], bounds: KeyRange) -> Key:
    """The first key of all, or some key of the range."""
    return min((one.first for one in surveys if one.first is not None), default=bounds.some_key)


def _runs(surveys: Sequence[Survey]) -> list[list[Survey]]:
    """Inputs whose keys overlap or touch, by their order in time."""
    runs: list[list[Survey]] = []
    end: Key | None = None
    for one in sorted(surveys, key=lambda one: (one.first, one.last)):
        assert one.first is not None
        assert one.last is not None
        if end is None or one.first > end:
            runs.append([])
            end = one.last
        runs[-1].append(one)
        end = max(end, one.last)
    return runs


def _starts(run: Sequence[Survey], slice_bytes: int) -> list[Key]:
    """The starts of a run's slices: its first key, and quantiles of its sample."""
    first = min(one.first for one in run if one.first is not None)
    count = -(-sum(one.decoded_bytes for one in run) // slice_bytes)
    sample = np.sort(np.concatenate([np.array(one.sample) for one in run]))
    places = np.arange(1, count) * sample.size // max(1, count)
    return [first, *(key for key in np.unique(sample[places]).tolist() if key > first)]


def _as_it_is(one: Survey) -> PlannedFile:
    return PlannedFile(one.given.number, one.rows, one.decoded_bytes, one.begin, one.last, not one.is_whole)
