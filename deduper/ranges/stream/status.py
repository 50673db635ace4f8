"""The state of a stream's store, read beside a running owner: nothing is claimed or written. And a run's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bucket_store.log.heartbeat import read_beat
from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.log.records import LogState
from bucket_store.places.place import Place
from deduper.admin.open_store import opened_log
from deduper.admin.status import beats
from deduper.as_json import AsJson
from deduper.kafka.offsets import ends_from_wire
from deduper.ranges.stream.pieces import EVENTS, RANGES, named_pieces
from deduper.window.owner_alive import end_as_json, last_end, process_exists


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


def _input_reports(state: LogState) -> dict[str, InputReport]:
    """The position of each input by the last commit; see the `extra` of a commit record."""
    return {side: _input_report(*found) for side, found in state.extra.get("inputs", {}).items()}


def _input_report(kind: str, position: Any) -> InputReport:
    if kind == "folder":
        return InputReport(position[0], position[1], {})
    ends = ends_from_wire(position)
    return InputReport(None, None, {str(place): ends[place].offset for place in sorted(ends)})


@dataclass(frozen=True, slots=True)
class StreamStatus(AsJson):
    """The store of a stream as its log has it; `counts` are of all its windows.

    `open_ranges` counts rows of levels: ranges that were not left out yet, and retractions. `last_end`: as of a job.
    """

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
class StreamRun(AsJson):
    """Windows of a run and their rows by outcome; of one window, `stopped_by` is None."""

    windows: int
    counts: Mapping[str, int]
    seconds: float
    stopped_by: str | None = None


def stream_status(root: Place) -> StreamStatus:
    """The status of the stream whose store is in this folder.

    Raises:
        StoreMissingError: there is no store yet.
    """
    log = opened_log(root, is_made_by_run=True)
    state, beat, mark = log.state, read_beat(root), read_published(root / PUBLISHED_NAME)
    ranges = named_pieces(state, RANGES)
    is_running = beat is not None and process_exists(beat) is not False and beats(root)
    return StreamStatus(
        store_id=log.manifest.store_id,
        owner=None if beat is None else beat.owner,
        is_running=is_running,
        last_end=None if is_running else end_as_json(last_end(root, state.epoch)),
        windows=state.next_window,
        published=None if mark is None or mark.window < 0 else mark.window,
        last_commit_us=state.last_wall_us if state.next_window else None,
        clock_us=None if state.latest_point is None else int(state.latest_point),
        counts=dict(state.totals),
        inputs=_input_reports(state),
        open_ranges=sum(piece.rows for piece in ranges),
        levels=len(ranges),
        remembered_events=sum(piece.rows for piece in named_pieces(state, EVENTS)),
    )
