"""The state of a stream's store, read beside a running owner: nothing is claimed or written."""

from __future__ import annotations

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import read_beat
from bucket_store.log.manifest import FILE_NAME as MANIFEST_NAME
from bucket_store.log.marks import PUBLISHED_NAME, read_published
from bucket_store.places.place import Place
from deduper.admin.status import beats
from deduper.ranges.stream.pieces import EVENTS, RANGES
from deduper.ranges.stream.report import StreamStatus, input_reports, piece_rows
from deduper.window.owner_alive import end_as_json, last_end, process_exists


def stream_status(root: Place) -> StreamStatus:
    """The status of the stream whose store is in this folder.

    Raises:
        StoreMissingError: there is no store yet.
    """
    try:
        log = CommitLog.open(root)
    except StoreMissingError as error:
        if (root / MANIFEST_NAME).exists():
            raise
        raise StoreMissingError(
            f"{root}: there is no store yet; the first start of `deduper range-stream` makes it"
        ) from error
    state, beat, mark = log.state, read_beat(root), read_published(root / PUBLISHED_NAME)
    ranges = piece_rows(state, RANGES)
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
        inputs=input_reports(state),
        open_ranges=sum(ranges),
        levels=len(ranges),
        remembered_events=sum(piece_rows(state, EVENTS)),
    )
