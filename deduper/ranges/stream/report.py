"""Reports of a range stream, since its start and over the life of its store, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bucket_store.log.records import LogState
from deduper.as_json import AsJson
from deduper.kafka.offsets import ends_from_wire


@dataclass(frozen=True, slots=True)
class InputReport(AsJson):
    """The position of an input. A folder: the job's store and its last window taken; files of later windows must stay.

    Topics: the offset of each partition.
    """

    store: str | None
    window: int | None
    offsets: Mapping[str, int]

    def __str__(self) -> str:
        if self.offsets:
            return ", ".join(f"{place}@{offset}" for place, offset in self.offsets.items())
        return "nothing" if self.window is None else f"window {self.window}"


def input_reports(state: LogState) -> dict[str, InputReport]:
    """The position of each input by the last commit; see the `extra` of a commit record."""
    folders, topics = state.extra.get("inputs", {}), state.extra.get("topics", {})
    found = {side: InputReport(store_id, window, {}) for side, (store_id, window) in folders.items()}
    return found | {side: InputReport(None, None, _offsets(wire)) for side, wire in topics.items()}


def _offsets(wire: Any) -> dict[str, int]:
    ends = ends_from_wire(wire)
    return {str(place): ends[place].offset for place in sorted(ends)}


def piece_rows(state: LogState, kind: str) -> list[int]:
    """The rows of each live piece of `ranges` or `events`."""
    return [rows for _, _, _, rows, _ in state.extra.get(kind, ())]


@dataclass(frozen=True, slots=True)
class StreamStatus(AsJson):
    """The store of a stream as its log has it; `counts` are of all its windows. `last_end`: as of a job."""

    store_id: str
    owner: str | None
    is_running: bool
    last_end: Mapping[str, object] | None
    windows: int
    published: int | None
    last_commit_us: int | None
    clock_us: int | None
    counts: Mapping[str, int]
    inputs: Mapping[str, InputReport]
    open_ranges: int
    levels: int
    remembered_events: int


@dataclass(frozen=True, slots=True)
class StreamReport(AsJson):
    """Windows of this run and their rows by outcome; then the state after the last window.

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
