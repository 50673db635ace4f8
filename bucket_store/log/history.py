"""The course of a store's numbers over time: the file `history`, for people; an accessory of the owner.

Samples of named numbers, taken after windows, at three levels: of every one of the newest windows, the last of every
minute of about a day, the last of every hour of about a year. The upper package gives the names; totals grow from
sample to sample, so what lies between two samples is their difference, and no lost sample loses any of it.

It is no record and no truth: no decision rests on it, it is not synced, and one that is absent, damaged or of another
version begins anew.

The file is framed (magic `BSHISTRY`, version 1). The body is a msgpack array of three:

    store      the store's id
    names      [string]: the names that any of the samples has
    levels     for each of LEVELS [[wall clock in µs, next window, {index into names: number}]], ascending
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from bucket_store.errors import CorruptionError, StoreError
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place

MAGIC = b"BSHISTRY"
VERSION = 1
FILE_NAME = "history"

Number = int | float

log = logging.getLogger(__name__)


class SampleLevel(NamedTuple):
    """The last sample of each `every_us` is kept, and of these the newest `most`."""

    every_us: int
    most: int


LEVELS = (SampleLevel(1, 512), SampleLevel(60_000_000, 1500), SampleLevel(3_600_000_000, 8800))
"""Every window, minutes of a day, hours of a year."""
_BODY = msgspec.msgpack.Decoder(tuple[str, list[str], list[list[tuple[int, int, dict[int, int | float]]]]])


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers after the windows below `next_window`, the last of which was begun at `wall_us`."""

    wall_us: int
    next_window: int
    values: Mapping[str, Number]


class History:
    """The samples of a store, in memory and in the file. For the owner's thread alone."""

    def __init__(self, root: Place, store_id: str, *, next_window: int) -> None:
        """Samples beyond `next_window` are of a store that was set back, and are dropped."""
        self._path = root / FILE_NAME
        self._store_id = store_id
        self._names: dict[str, int] = {}
        self._levels: list[deque[tuple[int, bytes]]] = [deque(maxlen=level.most) for level in LEVELS]
        self.newest: Sample | None = None
        for level, samples in enumerate(read_history(root, store_id)):
            for sample in samples:
                if sample.next_window <= next_window:
                    self._append(level, sample)

    def add(self, sample: Sample) -> None:
        """Add a sample; in the minute or hour of the one before it takes its place. Not written yet."""
        for level in range(len(LEVELS)):
            self._append(level, sample)

    def begin(self, sample: Sample) -> None:
        """The first sample: the numbers before the window that is begun at its wall clock."""
        for level, (every_us, _) in enumerate(LEVELS):
            self._append(level, replace(sample, wall_us=sample.wall_us - every_us))

    def write(self) -> None:
        """Replace the file. A file that cannot be written is logged."""
        levels = [[msgspec.Raw(packed) for _, packed in level] for level in self._levels]
        body = msgspec.msgpack.encode((self._store_id, list(self._names), levels))
        try:
            self._path.replace(frame(MAGIC, VERSION, body))
        except OSError as exc:
            log.warning("%s could not be written: %s", self._path, exc)

    def _append(self, level: int, sample: Sample) -> None:
        every_us, samples = LEVELS[level].every_us, self._levels[level]
        slot = sample.next_window if level == 0 else sample.wall_us // every_us
        while level == 0 and samples and samples[-1][0] >= slot:
            samples.pop()
        if samples and samples[-1][0] >= slot:
            # The same slot, or one before it by a clock that went back.
            slot, _ = samples.pop()
        values = {self._names.setdefault(name, len(self._names)): value for name, value in sample.values.items()}
        samples.append((slot, msgspec.msgpack.encode((sample.wall_us, sample.next_window, values))))
        if self.newest is None or sample.next_window >= self.newest.next_window:
            self.newest = sample


def read_history(root: Place, store_id: str) -> tuple[tuple[Sample, ...], ...]:
    """The samples by level, ascending; none without a whole file of this store."""
    path = root / FILE_NAME
    try:
        of, levels = decode_history(path.read(), file=str(path))
    except FileNotFoundError:
        return ((),) * len(LEVELS)
    except (OSError, StoreError) as exc:
        log.warning("the history begins anew: %s", exc)
        return ((),) * len(LEVELS)
    return levels if of == store_id else ((),) * len(LEVELS)


def decode_history(data: bytes, *, file: str) -> tuple[str, tuple[tuple[Sample, ...], ...]]:
    """The store's id and the samples by level.

    Raises:
        CorruptionError, UnknownFormatError: as `unframe`, or whole, but no release writes such a file.
    """
    body = unframe(data, magic=MAGIC, version=VERSION, file=file)
    try:
        store_id, names, levels = _BODY.decode(body)
        if len(levels) != len(LEVELS):
            raise ValueError(f"{len(levels)} levels")
        if not all(0 <= index < len(names) for level in levels for _, _, values in level for index in values):
            raise ValueError("a number without a name")
        return store_id, tuple(
            tuple(
                Sample(wall_us, next_window, {names[index]: value for index, value in values.items()})
                for wall_us, next_window, values in level
            )
            for level in levels
        )
    except (ValueError, msgspec.MsgspecError) as exc:
        raise CorruptionError("body", file=file, offset=10, expected="samples", found=exc) from exc
