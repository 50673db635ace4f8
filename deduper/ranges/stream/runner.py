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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from threading import Event
from typing import Any, NoReturn

import pyarrow as pa
import xxhash

from bucket_store import failpoints
from bucket_store.errors import SettingsChangedError, StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.records import CommitRecord, LogState, OutputFile
from bucket_store.log.wall_clock import next_wall_us
from bucket_store.places import steps
from bucket_store.places.new_file import create_own
from deduper.config.kafka.sections import KafkaSink
from deduper.diagnostics import Severity
from deduper.preflight import hadoop
from deduper.preflight.elsewhere import reachable
from deduper.preflight.results import Failure
from deduper.ranges.stream.events import EventLevel
from deduper.ranges.stream.inputs.folders import Input
from deduper.ranges.stream.inputs.open import open_inputs
from deduper.ranges.stream.judge import JudgedWindow, StreamJudge, StreamState
from deduper.ranges.stream.pieces import (
    EVENTS,
    RANGES,
    PieceName,
    piece_name,
    read_piece,
    remove_pieces,
    unnamed_pieces,
    write_piece,
)
from deduper.ranges.stream.ports import SLOT, file_bytes, topic_rows
from deduper.ranges.stream.ranges import RangeLevel
from deduper.ranges.stream.rows import InputRows
from deduper.ranges.stream.settings import StreamJob
from deduper.sinks import staging
from deduper.sinks.names import STAGING, Attempt, TopicPlace, final_name
from deduper.sinks.open import open_topics
from deduper.sinks.publish_state import OnUnknown
from deduper.window.owner_alive import own_name, require_no_owner
from deduper.window.present_clock import present_wall_us
from deduper.window.publishing import TopicPorts, publish_window
from deduper.window.recovery import publish_unmarked, reason_to_stop

logger = logging.getLogger(__name__)

Level = RangeLevel | EventLevel
_QUERY = "range-stream"
_DELETE_EVERY = 100
"""Windows between two deletions of folded records."""


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
    root = job.ports.store_place
    _require_reachable(job)
    try:
        log = CommitLog.open(root)
    except StoreMissingError:
        log = CommitLog.create(root, job.fixed, wall_us=wall_clock_us())
    _require_fixed(job, log)
    owner = own_name()
    if not take_over:
        require_no_owner(root)
    epoch = log.claim_epoch(owner, present_wall_us(log, wall_clock_us()))
    failpoints.hit("start.claimed")
    stop = stop or Event()
    sinks, deadline = job.topic_ports, job.ports_deadline
    with (
        HeartBeat(root, owner),
        open_topics(sinks, deadline, log, no_session, unpublished, stop, by_tasks=False) as topics,
    ):
        owned = OwnedStream(log, topics, stop)
        try:
            _recover(job, owned, epoch)
        except Exception as exc:
            raise reason_to_stop(log, exc) from exc
        yield owned


def no_session() -> NoReturn:
    """Spark sends ports of at least once, of which a stream has none."""
    raise AssertionError("a range stream has no Spark session")


def _require_reachable(job: StreamJob) -> None:
    """Check that places elsewhere answer, and that the store's storage refuses a taken name and a stale version."""
    places = {"store": job.ports.store_place}
    places |= {side: folder.place for side, folder in job.folder_inputs.items()}
    places |= {port: sink.place for port, sink in job.file_ports.items()}
    elsewhere = {name: place for name, place in places.items() if not place.is_local}
    checks = [hadoop.here(place.url for place in elsewhere.values()), *starmap(reachable, elsewhere.items())]
    for found in chain.from_iterable(checks):
        if isinstance(found, Failure):
            raise found.error
        if found.severity is Severity.WARNING:
            logger.warning("%s", found)


def _require_fixed(job: StreamJob, log: CommitLog) -> None:
    stored, given = log.manifest.settings, job.fixed
    differing = [name for name in sorted({*stored, *given}) if stored.get(name) != given.get(name)]
    if differing:
        changes = "; ".join(
            f"{name}: the store has {stored.get(name)!r}, not {given.get(name)!r}" for name in differing
        )
        raise SettingsChangedError(
            f"{log.root}: settings that are fixed for the life of a store differ: {changes}; put them back, or begin "
            "with a new store and new ports"
        )


def _recover(job: StreamJob, owned: OwnedStream, epoch: int) -> None:
    """Publish committed windows without a mark, then discard what no record names."""
    log = owned.log
    publish_unmarked(job.ports, log, owned.topics)
    failpoints.hit("start.published")
    staging.discard_abandoned(job.ports, epoch, names=log.root.names)
    for kind in (RANGES, EVENTS):
        (log.root / kind).make_directories()
        remove_pieces(log.root, kind, unnamed_pieces(log.root, kind, _named(log.state, kind), epoch))
    log.delete_folded()
    failpoints.hit("start.discarded")


def _named(state: LogState, kind: str) -> list[PieceName]:
    return [PieceName(*piece) for piece in state.extra.get(kind, ())]


def state_of(job: StreamJob, log: CommitLog) -> StreamState:
    """The state after the committed windows, with all pieces read.

    Raises:
        CorruptionError, UnknownFormatError: a piece is gone or damaged.
    """
    state, extra = log.state, log.state.extra
    ranges = tuple(RangeLevel(job, read_piece(log.root, RANGES, one), one) for one in _named(state, RANGES))
    events = tuple(EventLevel(job, read_piece(log.root, EVENTS, one), one) for one in _named(state, EVENTS))
    schema = pa.ipc.read_schema(pa.py_buffer(extra["schema"])) if "schema" in extra else None
    clock = state.latest_point
    return StreamState(None if clock is None else int(clock), schema, ranges, events)


class StreamRunner:
    """Runs windows one after another for the owner of a store. Not for several threads.

    `is_publishing`: the last window is committed, and not out on all ports yet.
    """

    def __init__(
        self, job: StreamJob, owned: OwnedStream, wall_clock_us: Callable[[], int], *, drain: bool = False
    ) -> None:
        """With `drain`, inputs that are topics end at their present ends."""
        log = owned.log
        assert log.epoch is not None, "no epoch was claimed"
        self._job = job
        self.log = log
        self.is_publishing = False
        self._topics = owned.topics
        self._epoch = log.epoch
        self._wall_clock_us = wall_clock_us
        self._judge = StreamJudge(job, log.manifest.salt)
        self.inputs = open_inputs(job, log.state, owned.stop, drain=drain)
        self.state = state_of(job, log)

    @property
    def windows(self) -> int:
        """The committed windows of the store."""
        return self.log.state.next_window

    def run(self) -> dict[str, int] | None:
        """The next window: its counts; None if the inputs have nothing new.

        Raises:
            FencedError: another owner has taken the store.
            UsageError, IntegrityError, DeduperError: as `inputs`, `StreamJudge.judge` and `publish_window`.
        """
        waiting = self._waiting()
        if not waiting:
            return None
        self.log.check_owner()
        window = self.log.state.next_window
        failpoints.hit("ranges.0.batch")
        began = time.perf_counter()
        rows = {side: one.take() for side, one in waiting.items()}
        failpoints.hit("ranges.1.read")
        judged = self._judge.judge(window, self.state, rows.get(EVENTS), rows.get(RANGES) or self._no_ranges())
        failpoints.hit("ranges.2.judged")
        state = self._durable(window, judged.state)
        outputs = self._stage(window, judged)
        failpoints.hit("ranges.3.staged")
        self.state, before = state, self.state
        self.log.place(self._record(window, judged.counts, outputs))
        failpoints.hit("ranges.4.committed")
        for one in waiting.values():
            one.committed()
        self.is_publishing = True
        publish_window(self._job.ports, self.log, window, outputs, self._topics)
        self.is_publishing = False
        failpoints.hit("ranges.6.marked")
        staging.discard_window(self._job.ports, window, self._epoch, names=self.log.root.names)
        self._remove_left(before)
        if window % _DELETE_EVERY == _DELETE_EVERY - 1:
            self.log.delete_folded()
        logger.info("window %d: %s in %.2f s", window, judged.counts, time.perf_counter() - began)
        return judged.counts

    def _waiting(self) -> dict[str, Input]:
        """The inputs that have rows to take; the first window waits for both, unless their columns are declared."""
        found = {side: one for side, one in self.inputs.items() if one.plan()}
        is_first = self.state.schema is None
        if is_first and any(side not in found and one.declared is None for side, one in self.inputs.items()):
            return {}
        return found

    def _no_ranges(self) -> InputRows | None:
        """Declared columns without rows, which the first window of events needs."""
        declared = self.inputs[RANGES].declared
        return None if self.state.schema is not None or declared is None else InputRows(declared.empty_table())

    def _durable(self, window: int, state: StreamState) -> StreamState:
        """Step 3 for the levels that have no piece yet."""
        root = self.log.root
        kinds: tuple[tuple[str, Sequence[Level]], ...] = ((RANGES, state.ranges), (EVENTS, state.events))
        new = [(kind, level) for kind, levels in kinds for level in levels if level.piece is None]

        def write(number: int) -> None:
            kind, level = new[number]
            name = piece_name(window, self._epoch, number)
            level.piece, level.rows = write_piece(root, kind, name, level.rows, level.last_us)

        staging.for_each(write, range(len(new)), staging.threads_for([root]))
        return state

    def _stage(self, window: int, judged: JudgedWindow) -> tuple[OutputFile, ...]:
        """Step 3 for the ports: one file each, durable in its staging folder; of topics, in the store's."""
        homes = [self.log.root, *(sink.place for sink in self._job.file_ports.values())]
        ports = list(judged.ports.items())
        return tuple(staging.for_each(lambda one: self._staged(window, *one), ports, staging.threads_for(homes)))

    def _staged(self, window: int, port: str, rows: pa.Table) -> OutputFile:
        attempt = Attempt(window, self._epoch, 0)
        sink = self._job.port(port)
        if isinstance(sink, KafkaSink):
            home, data, kind = self.log.root, topic_rows(rows, self._job.on, window), "parquet"
            final = str(TopicPlace(sink.topic, (SLOT,), self._job.name))
        else:
            home, data, kind = sink.place, file_bytes(rows, sink.format), sink.format
            final = str(home / final_name(self.log.manifest.store_id, attempt, 0, kind))
        folder = staging.through(self.log.root.names, home) / STAGING / attempt.folder
        folder.make_directories()
        file = folder / f"{port}.{kind}"
        create_own(file, data, failpoint=steps.STAGED)
        failpoints.hit("ranges.3.port")
        return OutputFile(port, str(file), final, len(data), xxhash.xxh3_64_intdigest(data), rows.num_rows)

    def _record(self, window: int, counts: dict[str, int], outputs: tuple[OutputFile, ...]) -> CommitRecord:
        """Step 4."""
        last, state = self.log.state, self.state
        wall_us = next_wall_us(last.last_wall_us, self._wall_clock_us())
        extra: dict[str, Any] = {
            RANGES: [level.piece.as_list for level in state.ranges if level.piece is not None],
            EVENTS: [level.piece.as_list for level in state.events if level.piece is not None],
        }
        for side, one in self.inputs.items():
            if one.position is not None:
                extra.setdefault(one.kept_in, {})[side] = one.position
        if state.schema is not None:
            extra["schema"] = state.schema.serialize().to_pybytes()
        return CommitRecord(
            window=window,
            epoch=self._epoch,
            attempt=0,
            query_id=_QUERY,
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
        for kind, then, now in (
            (RANGES, before.ranges, self.state.ranges),
            (EVENTS, before.events, self.state.events),
        ):
            named = {level.piece.name for level in now if level.piece is not None}
            left = [level.piece.name for level in then if level.piece is not None and level.piece.name not in named]
            remove_pieces(self.log.root, kind, left)
