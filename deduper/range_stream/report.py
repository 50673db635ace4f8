"""What a range stream has done since its start, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deduper.as_json import AsJson


@dataclass(frozen=True, slots=True)
class InputReport(AsJson):
    """How far an input was taken. Of a folder: the job's store and its last window; files of later windows must stay.

    Of topics: the offset of each partition.
    """

    store: str | None
    window: int | None
    offsets: Mapping[str, int]

    def __str__(self) -> str:
        if self.offsets:
            return ", ".join(f"{place}@{offset}" for place, offset in self.offsets.items())
        return "nothing" if self.window is None else f"window {self.window}"


@dataclass(frozen=True, slots=True)
class StreamReport(AsJson):
    """Windows of this run and their rows by what became of them; then the state after the last one.

    `open_ranges` counts rows of levels: ranges that were not left out yet, and retractions.
    """

    windows: int
    counts: Mapping[str, int]
    next_window: int
    clock_us: int | None
    inputs: Mapping[str, InputReport]
    open_ranges: int
    levels: int
    remembered_events: int
    stopped_by: str
    seconds: float
