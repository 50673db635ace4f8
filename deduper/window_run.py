"""One window, from the records of a batch to the published outputs, in the seven numbered steps of FORMAT.md.

    1 intent          what is about to be judged, and the wall clock it is judged by
    2 judge           pieces, receipts, staged rows
    3 durable         everything the record will name is synced
    4 commit record   the window exists from here on, and not a moment before
    5 publish         staged files get their final names
    6 published mark  readers of whole windows may go this far
    7 Spark's checkpoint, after this returns

Whatever dies between two steps, the next start repeats or discards what is needed: see `owner`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bucket_store import failpoints
from bucket_store.backend import PieceStore
from bucket_store.background import on_a_thread
from bucket_store.commit_log import CommitLog
from bucket_store.log_state import deletable, live_files
from bucket_store.log_values import CollationRecord, CommitRecord, DeletionRecord, LogState, OutputFile, SourcesRef
from bucket_store.marks import PUBLISHED_NAME, Intent, Published, prepare_published, read_intents, write_intent
from bucket_store.profile_file import Profiles, WindowProfile
from bucket_store.sources_file import SourcePartition, forgotten, remove_forgotten, write_sources
from deduper import judging, staging
from deduper.aside import Aside
from deduper.collating import Collation, next_merging
from deduper.config import Config
from deduper.deleting import Deletion
from deduper.errors import UsageError
from deduper.housekeeping import Housekeeper, InProcess
from deduper.output_names import TopicPlace
from deduper.progress import BatchProgress
from deduper.source_batch import SourceBatch
from deduper.window_judge import Judgement, port_counts, rows_by_partition

logger = logging.getLogger(__name__)

_DELETION_BATCH = judging.DELETION_BATCH
_DELETION_GRACE_US = judging.DELETION_GRACE_US


@dataclass(frozen=True, slots=True)
class Batch:
    """What Spark asked for: what of one of its batches the store does not know yet."""

    query_id: str
    batch_id: int
    source: SourceBatch


class Judge(Protocol):
    """Who does step 2; the service's is `WindowJudge`."""

    def judge(self, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        """The window after `state`, its pieces durable and its rows staged."""


class TopicPorts(Protocol):
    """Who publishes to topics; the service's is `KafkaPorts`."""

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Publish the rows of a committed window that go to topics. Safe to repeat after any crash."""


class WindowRunner:
    """Runs windows one after another for the owner of a store. Not for several threads.

    Everything goes through the file system that `log` was opened on. `aside` runs what no window has to wait for; it is
    ended by `close`. `housekeeper` deletes and merges pieces there, this process without one.
    """

    def __init__(
        self,
        config: Config,
        log: CommitLog,
        pieces: PieceStore,
        judge: Judge,
        wall_clock_us: Callable[[], int],
        topics: TopicPorts | None = None,
        aside: Aside = on_a_thread,
        housekeeper: Housekeeper | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._housekeeper = housekeeper or InProcess(pieces)
        self._deletion = Deletion(self._housekeeper, aside)
        self._collation = Collation(self._housekeeper, aside)
        self._judge = judge
        self._wall_clock_us = wall_clock_us
        self._topics = topics
        self._last_intent = max(read_intents(log.root, fs=log.fs), key=lambda intent: intent.epoch, default=None)
        self._profiles = Profiles(log.root, fs=log.fs)
        self._snapshots_seen = -1
        self._sources = log.state.sources

    def run(self, batch: Batch) -> tuple[BatchProgress, SourceBatch]:
        """Judge, commit and publish one window: what came of it, and what was judged, which may be less than was asked.

        Raises:
            IntegrityError: counts that do not agree, twice.
            FencedError: another owner has taken the store.
        """
        phases = _Phases()
        self._log.check_owner()
        state = self._log.state
        window, epoch = state.next_window, state.epoch
        failpoints.hit("window.0.batch")
        with phases.of("intent"):
            intent = self._intend(batch, state)
        failpoints.hit("window.1.intent")
        with phases.of("judge"):
            judgement = self._judge.judge(batch.source, state, intent.wall_us)
        failpoints.hit("window.2.judged")
        with phases.of("durable"):
            store_id = self._log.manifest.store_id
            outputs = staging.make_durable(self._config, store_id, judgement.attempt, judgement.staged, fs=self._log.fs)
            failpoints.hit("window.3.synced")
            sources = write_sources(
                self._log.root,
                window=window,
                epoch=epoch,
                attempt=judgement.attempt.attempt,
                partitions=_partitions(judgement),
                is_kept=judgement.batch.is_known_by_digests,
                fs=self._log.fs,
            )
        failpoints.hit("window.3.durable")
        with phases.of("commit"):
            record = self._record(batch, judgement, state, intent.wall_us, outputs, sources)
            state = self._log.place(record)
        failpoints.hit("window.4.committed")
        with phases.of("publish"):
            publish_window(self._config, self._log, window, outputs, self._topics)
        failpoints.hit("window.6.marked")
        with phases.of("clean"):
            # With those of attempts that failed: nobody else would come for them before the next start.
            staging.discard_window(self._config, window, epoch, fs=self._log.fs)
        with phases.of("expire"):
            state = self._expire(state)
            self._collate(state)
            self._remove_forgotten()
        for name, seconds in judgement.seconds.items():
            phases.add(f"judge.{name}", seconds)
        for name, seconds in judgement.task_seconds.items():
            phases.add(f"task.{name}", seconds)
        profile = WindowProfile(window, epoch, intent.wall_us, judgement.rows, phases.seconds, phases.as_dict())
        self._profiles.add(profile)
        logger.info("window %d (epoch %d, batch %d): %s", window, epoch, batch.batch_id, record.counts)
        progress = BatchProgress(
            window=window,
            batch_id=batch.batch_id,
            rows=judgement.rows,
            **record.counts,
            seconds=profile.seconds,
            rows_per_second=judgement.rows / profile.seconds,
            latest_point=self._config.point_scale.shown(record.latest_point),
            phases=profile.phases,
            tables=_tables(judgement),
        )
        return progress, judgement.batch

    def close(self) -> None:
        """End what is done beside the windows; the next start goes on with it. Safe to repeat."""
        self._deletion.close()
        unnamed = self._collation.close()
        if unnamed is None:
            return
        try:
            # Its name was drawn for this merging alone, so whoever owns the store by now has nothing of it.
            state = self._log.state
            self._housekeeper.delete([unnamed], keep=live_files(state), writing_epoch=state.epoch)
        except Exception as exc:  # noqa: BLE001  # whatever ends the job is to be told, not this
            logger.warning("piece %s is left for the next start: %s", unnamed.name, exc)

    def _intend(self, batch: Batch, state: LogState) -> Intent:
        """Step 1. The wall clock never goes back; a repeated intent keeps its own."""
        wall_us = max(self._wall_clock_us(), state.last_wall_us)
        intent = Intent(
            window=state.next_window,
            epoch=state.epoch,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            partitions=batch.source.digests,
            wall_us=wall_us,
            latest_point=state.latest_point,
            log_position=state.next_number,
            settings_hash=judging.settings_hash(self._config),
        )
        last, self._last_intent = self._last_intent, None
        if last is not None and _asks_for(last) == _asks_for(intent):
            # Not below that of the last commit, which is the one it followed. Claims since then do not count: with the
            # wall clock of the claim of this very start, no batch would ever be repeated by its own.
            intent = replace(intent, wall_us=last.wall_us)
        write_intent(self._log.root, intent, fs=self._log.fs)
        return intent

    def _record(
        self,
        batch: Batch,
        judgement: Judgement,
        state: LogState,
        wall_us: int,
        outputs: tuple[OutputFile, ...],
        sources: SourcesRef,
    ) -> CommitRecord:
        """Step 4's record: a function of the state before, the intent and the receipts."""
        receipts = [judgement.receipts[shard] for shard in sorted(judgement.receipts)]
        admitted = [receipt.max_admitted for receipt in receipts if receipt.max_admitted is not None]
        remembered = [receipt.max_remembered for receipt in receipts if receipt.max_remembered is not None]
        latest = state.latest_point
        if self._config.expiry.by == "processing_time":
            latest = wall_us
        elif admitted:
            latest = max(admitted) if latest is None else max(latest, *admitted)
        moved = latest != state.latest_point
        reasons: Counter[str] = Counter()
        for receipt in receipts:
            reasons.update(receipt.reasons)
        extra = judgement.batch.extra()
        if judgement.categories is not None:
            extra[judging.CATEGORIES] = judgement.categories.after.to_wire()
        return CommitRecord(
            window=judgement.attempt.window,
            epoch=judgement.attempt.epoch,
            attempt=judgement.attempt.attempt,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            wall_us=wall_us,
            settings_hash=judging.settings_hash(self._config),
            latest_point=latest,
            latest_moved_us=wall_us if moved else state.latest_moved_us,
            counts=port_counts(receipts),
            reasons=dict(reasons),
            pieces=tuple(receipt.piece for receipt in receipts if receipt.piece is not None),
            outputs=outputs,
            buckets=tuple(sorted({bucket for receipt in receipts for bucket in receipt.buckets})),
            timestamp=max(remembered, default=None),
            sources=sources,
            extra=extra,
        )

    def _expire(self, state: LogState) -> LogState:
        """Let go of pieces in which everything is dead: first a record that no longer names them, later their bytes.

        The bytes go beside the next windows, see `deleting`.
        """
        now_us = max(self._wall_clock_us(), state.last_wall_us)
        dead = judging.dead_pieces(self._config, state)
        if len(dead) >= _DELETION_BATCH * self._config.store.shards:
            through = max(piece.last_window for piece in dead)
            state = self._log.place(DeletionRecord(pieces=dead, wall_us=now_us, through_window=through))
            failpoints.hit("expire.recorded")
        self._forget_deleted()
        if not self._deletion.is_under_way:
            # This is the owner's only thread that judges, so no older view is in use.
            gone = deletable(state, oldest_view=state.next_number, now_us=now_us, grace_us=_DELETION_GRACE_US)
            if gone:
                self._deletion.begin(gone, keep=live_files(state), epoch=state.epoch)
                self._forget_deleted()  # a small one may be through
        snapshots = state.next_number // self._log.manifest.snapshot_every
        if snapshots != self._snapshots_seen:
            self._snapshots_seen = snapshots
            self._log.delete_folded(now_us=now_us)
        return state

    def _collate(self, state: LogState) -> None:
        """Let one piece take the place of many small ones, and have the next ones merged beside the next windows."""
        merged = self._collation.result()
        if merged is not None:
            leaving, added = merged
            if set(leaving) <= set(state.pieces.get(added.shard, ())):
                now_us = max(self._wall_clock_us(), state.last_wall_us)
                state = self._log.place(CollationRecord(leaving, (added,), now_us))
                failpoints.hit("collate.recorded")
            else:
                logger.info("piece %s is left for the next start: some of what was merged has died", added.name)
        if not self._collation.is_under_way:
            task = next_merging(self._config, self._log.manifest.store_id, state)
            if task is not None:
                self._collation.begin(task)

    def _remove_forgotten(self) -> None:
        """The sources files that the records of this window let the store forget."""
        before, self._sources = self._sources, self._log.state.sources
        remove_forgotten(self._log.root, forgotten(before, self._sources), fs=self._log.fs)

    def _forget_deleted(self) -> None:
        """What a deletion beside the windows came to: the next record tells it, and a failure is this window's."""
        through = self._deletion.result()
        if through is not None:
            self._log.forget_retired(through)


def publish_window(
    config: Config, log: CommitLog, window: int, outputs: Sequence[OutputFile], topics: TopicPorts | None = None
) -> None:
    """Steps 5 and 6. Safe to repeat.

    Every file port has the mark of the greatest published window beside its files, put there after all ports.
    """
    log.check_owner()
    files = [output for output in outputs if TopicPlace.of(output.final) is None]
    if len(files) < len(outputs):
        if topics is None:
            raise UsageError(f"window {window} was staged for topics, and no port is a topic now: put the sinks back")
        topics.publish(window, outputs)
    for output in staging.publish(files, fs=log.fs):
        logger.warning("window %d: %s was published and is gone: a reader must have taken it", window, output.final)
    failpoints.hit("window.5.published")
    mark_published(config, log, window)
    log.forget_outputs(window)


def mark_published(config: Config, log: CommitLog, window: int) -> None:
    """Every port is out up to this window (-1: none is), says the mark in the store and in each file port.

    Never set back by who slept while another took over: see `marks`.
    """
    mark = Published(log.manifest.store_id, window)
    paths = mark_paths(config, log)
    prepared = [(prepare_published(path, mark, epoch=log.state.epoch, fs=log.fs), path) for path in paths]
    log.check_owner()
    failpoints.hit("window.6.checked")
    for number, (temporary, path) in enumerate(prepared):
        log.fs.replace(temporary, path)
        if number == 0:
            failpoints.hit("window.6.half")


def mark_paths(config: Config, log: CommitLog) -> list[Path]:
    """Where the marks of a job stand: the store's, then each file port's."""
    ports = [sink.path / staging.PUBLISHED for sink in staging.file_sinks(config).values()]
    return [log.root / PUBLISHED_NAME, *ports]


def _asks_for(intent: Intent) -> tuple[object, ...]:
    """What must be equal in an intent for another to be its repetition."""
    return intent.window, intent.partitions, intent.settings_hash, intent.latest_point


def _partitions(judgement: Judgement) -> tuple[SourcePartition, ...]:
    return judgement.batch.partitions(rows_by_partition(judgement.receipts.values()))


def _tables(judgement: Judgement) -> dict[str, float]:
    """What the shards' tables saw and did, summed."""
    totals: dict[str, float] = {}
    for receipt in judgement.receipts.values():
        for name, value in receipt.table_counters.items():
            totals[name] = totals.get(name, 0) + value
    return totals


class _Phases:
    """Seconds of wall time by phase, in order."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def as_dict(self) -> dict[str, float]:
        return dict(self._seconds)
