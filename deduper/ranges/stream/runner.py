"""The windows of a range stream, in the steps of FORMAT.md, and its start.

docs/range-aggregates.md says what differs from the windows of a job.

2 judge           rows are read and answered
3 durable         new pieces, then the files of the ports in their staging folders
4 commit record   names the live pieces and how far the inputs are taken
5 publish, 6 published mark
7 remove          staging folders, and pieces that the record names no more
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, starmap
from threading import Event
from typing import Any

import pyarrow as pa

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord, LogState, OutputFile
from bucket_store.log.wall_clock import next_wall_us
from bucket_store.places.new_file import FileWriter
from bucket_store.places.place import Place
from deduper.config.kafka.sections import KafkaSource
from deduper.errors import IntegrityError, UsageError, telling_where
from deduper.preflight import folders
from deduper.preflight.folders import reachable
from deduper.preflight.results import raise_failure
from deduper.ranges.stream.events import EventLevel
from deduper.ranges.stream.folders import FolderInput, Input
from deduper.ranges.stream.judge import JudgedWindow, StreamJudge, StreamState
from deduper.ranges.stream.pieces import (
    EVENTS,
    RANGES,
    named_pieces,
    piece_name,
    read_piece,
    remove_pieces,
    unnamed_pieces,
    write_piece,
)
from deduper.ranges.stream.ranges import RangeLevel
from deduper.ranges.stream.rows import SLOT, InputRows, topic_rows
from deduper.ranges.stream.settings import INPUTS, StreamJob
from deduper.sinks import staging
from deduper.sinks.names import Attempt
from deduper.sinks.open import open_topics
from deduper.sinks.publish_state import OnUnknown
from deduper.tasks.row_files import RowFormats
from deduper.tasks.write import StagedFile
from deduper.window.policy import differing
from deduper.window.publishing import TopicPorts, publish_window
from deduper.window.recovery import opened_log, owned_log, publish_unmarked, require_unchanged, telling_takeover

logger = logging.getLogger(__name__)

_DELETE_EVERY = 100
"""Windows between two deletions of folded records."""
_KINDS = {"folder": "a folder", "topics": "topics"}


@dataclass(frozen=True, slots=True)
class OwnedStream:
    """A stream's store whose owner this process is: its log, with an epoch claimed, and the ports that are topics."""

    log: CommitLog
    topics: TopicPorts | None
    stop: Event


@contextlib.contextmanager
def owned_store(
    job: StreamJob,
    *,
    take_over: bool,
    wall_clock_us: Callable[[], int],
    unpublished: OnUnknown = OnUnknown.REFUSE,
    stop: Event | None = None,
) -> Iterator[OwnedStream]:
    """The stream's store, claimed and with a heartbeat, after recovery. `stop` ends waits for brokers.

    Raises:
        OwnerAliveError: another owner is alive and `take_over` is not set.
        CannotWriteError, UnsafeStorageError: a storage gives no answer, or ignores the conditions of a write.
        SettingsChangedError: a setting that is fixed for the store's life was changed.
        UsageError, IntegrityError: the ports are not this store's, or newer than it.
    """
    _require_places(job)
    log = opened_log(job.store.place, job.fixed, wall_clock_us())
    require_unchanged(log, differing(job.fixed, log.manifest.settings), "begin with a new store and new ports")
    stop = stop or Event()
    with (
        owned_log(log, job, take_over=take_over, wall_clock_us=wall_clock_us),
        open_topics(job.topic_ports, job.ports_deadline, log, unpublished, stop) as topics,
    ):
        with telling_takeover(log):
            _recover(job, log, topics)
        yield OwnedStream(log, topics, stop)


def _require_places(job: StreamJob) -> None:
    """Check that places answer and can be written to, and that the store's refuses a taken name and a stale version."""
    written = {"store": job.store.place, **{port: sink.place for port, sink in job.file_ports.items()}}
    read = {side: one.place for side, one in job.folder_inputs.items() if not one.place.is_local}
    urls = [place.url for place in (*written.values(), *read.values())]
    found = chain(folders.hadoop_here(urls), folders.writable(written), *starmap(reachable, read.items()))
    raise_failure(found)


def _recover(job: StreamJob, log: CommitLog, topics: TopicPorts | None) -> None:
    """Publish committed windows without a mark, then discard what no record names."""
    epoch = log.state.epoch
    publish_unmarked(job, log, topics)
    failpoints.hit("start.published")
    staging.discard_abandoned(job, epoch, names=log.root.names)
    for kind in (RANGES, EVENTS):
        (log.root / kind).make_directories()
        remove_pieces(log.root, kind, unnamed_pieces(log.root, kind, named_pieces(log.state, kind), epoch))
    log.delete_folded()
    failpoints.hit("start.discarded")


def state_of(job: StreamJob, log: CommitLog) -> StreamState:
    """The state after the committed windows, with all pieces read.

    Raises:
        CorruptionError, UnknownFormatError: a piece is gone or damaged.
    """
    state, extra = log.state, log.state.extra
    ranges = tuple(RangeLevel(job, read_piece(log.root, RANGES, one), one) for one in named_pieces(state, RANGES))
    events = tuple(EventLevel(job, read_piece(log.root, EVENTS, one), one) for one in named_pieces(state, EVENTS))
    schema = pa.ipc.read_schema(pa.py_buffer(extra["schema"])) if "schema" in extra else None
    clock = state.latest_point
    return StreamState(None if clock is None else int(clock), schema, ranges, events)


def _opened(job: StreamJob, side: str, state: LogState, stop: Event, *, drain: bool) -> Input:
    source = getattr(job, side)
    kind = "topics" if isinstance(source, KafkaSource) else "folder"
    before, position = state.extra.get("inputs", {}).get(side, (kind, None))
    if before != kind:
        raise UsageError(
            f"{job.store.url}: {side} were taken from {_KINDS[before]}, and are {_KINDS[kind]} now; put `{side}` back, "
            "or begin with a new store and new ports"
        )
    if not isinstance(source, KafkaSource):
        return FolderInput(side, source, position, job.max_windows)
    # Kafka's client is optional.
    from deduper.ranges.stream.topics import TopicInput

    return TopicInput(side, source.of_job(job.name), position, stop, drain=drain)


class StreamRunner:
    """Runs windows one after another for the owner of a store: `plan`, then `run`. Not for several threads."""

    def __init__(
        self, job: StreamJob, owned: OwnedStream, wall_clock_us: Callable[[], int], *, drain: bool = False
    ) -> None:
        """Opens the inputs at the positions of the committed windows; with `drain`, topics end at their present ends.

        Raises:
            UsageError: a side was taken from a folder, and is topics now, or the other way round.
            TopicMissingError, IntegrityError, KafkaOptionsError: as `TopicInput`.
        """
        log = owned.log
        assert log.epoch is not None, "no epoch was claimed"
        self._job = job
        self.log = log
        self._planned: dict[str, Input] = {}
        self._topics = owned.topics
        self._epoch = log.epoch
        self._wall_clock_us = wall_clock_us
        self._formats = RowFormats({port: sink.ending for port, sink in job.file_ports.items()})
        self._judge = StreamJudge(job, log.manifest.salt)
        self.inputs = {side: _opened(job, side, log.state, owned.stop, drain=drain) for side in INPUTS}
        self.state = state_of(job, log)

    def plan(self) -> bool:
        """Find the inputs' next rows, and give whether there is a window to make of them. Safe to repeat.

        The first window waits for both inputs, unless their columns are declared.

        Raises:
            FencedError: another owner has taken the store.
            UsageError, IntegrityError, DeduperError: as `Input.plan`.
        """
        self.log.check_owner()
        self._planned = {side: one for side, one in self.inputs.items() if one.plan()}
        is_first = self.state.schema is None
        if is_first and any(side not in self._planned and one.declared is None for side, one in self.inputs.items()):
            self._planned = {}
        return bool(self._planned)

    def run(self) -> tuple[int, dict[str, int]]:
        """The planned window: its number and its counts.

        Raises:
            FencedError: another owner has taken the store meanwhile.
            UsageError, IntegrityError, DeduperError: as `Input.take`, `StreamJudge.judge` and `publish_window`.
        """
        waiting, self._planned = self._planned, {}
        assert waiting, "nothing was planned"
        window = self.log.state.next_window
        failpoints.hit("window.0.batch")
        began = time.perf_counter()
        rows = {side: one.take() for side, one in waiting.items()}
        failpoints.hit("ranges.1.read")
        judged = self._judge.judge(window, self.state, rows.get(EVENTS), rows.get(RANGES) or self._no_ranges())
        failpoints.hit("window.2.judged")
        self._write_levels(window, judged.state)
        outputs = self._stage(window, judged)
        failpoints.hit("window.3.durable")
        self.state, before = judged.state, self.state
        self.log.place(self._record(window, judged.counts, outputs))
        failpoints.hit("window.4.committed")
        for one in waiting.values():
            one.committed()
        publish_window(self._job, self.log, window, outputs, self._topics)
        failpoints.hit("window.6.marked")
        staging.discard_window(self._job, window, self._epoch, names=self.log.root.names)
        self._remove_left(before)
        if window % _DELETE_EVERY == _DELETE_EVERY - 1:
            self.log.delete_folded()
        logger.info("window %d: %s in %.2f s", window, judged.counts, time.perf_counter() - began)
        return window, judged.counts

    def _no_ranges(self) -> InputRows | None:
        """Declared columns without rows, which the first window of events needs."""
        declared = self.inputs[RANGES].declared
        return None if self.state.schema is not None or declared is None else InputRows(declared.empty_table())

    def _write_levels(self, window: int, state: StreamState) -> None:
        """Step 3 for the levels that have no piece yet."""
        root = self.log.root
        new = [(kind, level) for kind, levels in state.levels.items() for level in levels if level.piece is None]

        def write(number: int) -> None:
            kind, level = new[number]
            name = piece_name(window, self._epoch, number)
            level.piece, level.rows = write_piece(root, kind, name, level.rows, level.last_us)

        staging.for_each(write, range(len(new)), staging.threads_for([root]))

    def _stage(self, window: int, judged: JudgedWindow) -> tuple[OutputFile, ...]:
        """Step 3 for the ports: one file each, durable in its staging folder."""
        attempt, log = Attempt(window, self._epoch, 0), self.log
        homes = staging.make_staging(self._job, attempt, names=log.root.names)
        files = staging.for_each(
            lambda port: self._staged(homes[port], window, port, judged.ports[port]),
            list(judged.ports),
            staging.threads_for(homes.values()),
        )
        staged = {file.port: [file] for file in files}
        return staging.make_durable(self._job, log.manifest.store_id, attempt, staged, names=log.root.names)

    def _staged(self, folder: Place, window: int, port: str, rows: pa.Table) -> StagedFile:
        is_sent = port in self._job.topic_ports
        if is_sent:
            rows = topic_rows(rows, self._job.on, window)
        place = folder / f"{port}.{self._formats.of(port)}"
        with telling_where(str(place)), contextlib.closing(FileWriter(place)) as file:
            written = self._formats.begin(port, file, rows)
            written.write(rows)
            found = written.finish()
            if found != rows.num_rows:
                raise IntegrityError(f"{place}: {rows.num_rows} rows were written, {found} are in the file")
            failpoints.hit("ranges.3.port")
            return StagedFile(port, place, found, file.size_bytes, file.checksum, (SLOT,) if is_sent else ())

    def _record(self, window: int, counts: dict[str, int], outputs: tuple[OutputFile, ...]) -> CommitRecord:
        """Step 4."""
        last, state = self.log.state, self.state
        wall_us = next_wall_us(last.last_wall_us, self._wall_clock_us())
        extra: dict[str, Any] = {
            kind: [level.piece.as_list for level in levels if level.piece is not None]
            for kind, levels in state.levels.items()
        }
        taken = {side: one for side, one in self.inputs.items() if one.position is not None}
        extra["inputs"] = {side: [one.kind, one.position] for side, one in taken.items()}
        if state.schema is not None:
            extra["schema"] = state.schema.serialize().to_pybytes()
        return CommitRecord(
            window=window,
            epoch=self._epoch,
            attempt=0,
            query_id="",
            batch_id=window,
            wall_us=wall_us,
            settings_hash="",
            latest_point=state.clock,
            latest_moved_us=wall_us if state.clock != last.latest_point else last.latest_moved_us,
            counts=counts,
            reasons={},
            pieces=(),
            outputs=outputs,
            buckets=(),
            timestamp=None,
            sources=None,
            extra=extra,
        )

    def _remove_left(self, before: StreamState) -> None:
        """Step 7: remove the pieces that the record before names and the present one does not."""
        for kind, levels in before.levels.items():
            named = {level.piece for level in self.state.levels[kind]}
            left = [level.piece.name for level in levels if level.piece is not None and level.piece not in named]
            remove_pieces(self.log.root, kind, left)
