"""Opens the inputs of a stream where the committed windows have left them."""

from __future__ import annotations

from bucket_store.log.records import LogState
from deduper.range_stream.inputs import FolderInput, Input
from deduper.range_stream.settings import INPUTS, StreamJob


def open_inputs(job: StreamJob, state: LogState) -> dict[str, Input]:
    """Events and ranges by their names."""
    return {side: _opened(job, side, state) for side in INPUTS}


def _opened(job: StreamJob, side: str, state: LogState) -> Input:
    position = state.extra.get(FolderInput.kept_in, {}).get(side)
    return FolderInput(side, getattr(job, side), position, job.max_windows)
