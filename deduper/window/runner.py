"""One window, from the records of a batch to the published outputs, in the seven numbered steps of FORMAT.md.

    1 intent          what is about to be judged, and the wall clock it is judged by
    2 judge           pieces, receipts, staged rows
    3 durable         everything the record will name is synced, and the intent is written
    4 commit record   the window exists from here on, and not a moment before
    5 publish         staged files get their final names, staged rows go to their topics
    6 published mark  readers of whole windows may go this far

Steps 5 and 6 of a window may run beside steps 1 to 3 of the next one, whose step 4 waits for them: see `publishing`.
After a crash between two steps the next start repeats or discards what is needed: see `recovery`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from bucket_store import failpoints
from bucket_store.errors import StorageAwayError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Intent, read_intents, write_intent
from bucket_store.log.profile import Profiles, WindowProfile
from bucket_store.log.records import CommitRecord, CompactionRecord, DeletionRecord, LogState, OutputFile, SourcesRef
from bucket_store.log.sources_file import keep_sources
from bucket_store.log.state import deletable, live_files
from bucket_store.log.wall_clock import is_far_ahead, next_wall_us
from bucket_store.maintenance.background_task import BackgroundTask, InBackground
from bucket_store.maintenance.compactions import Compactions
from bucket_store.maintenance.deletions import Deletions
from bucket_store.maintenance.unnamed_pieces import UnnamedPieces
from bucket_store.maintenance.worker_process import Maintenance
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import PieceStore
from bucket_store.places.place import Place
from bucket_store.threads import on_a_thread
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.config.query import BATCH, COUNTS, TXN_VERSION
from deduper.config.sections import EventTimeExpiry
from deduper.core.statistics import NO_SPANS
from deduper.core.verdict import PORT_OF_REASON, TupleVerdict
from deduper.leaks.figures import LeakFigures
from deduper.sinks import staging
from deduper.sources.files.folding import FilesToFold, SourceFolding
from deduper.sources.protocol import SourceBatch
from deduper.spark.failures import storage_away
from deduper.window import policy
from deduper.window.accessories.accessory import Accessory
from deduper.window.accessories.history_watch import HistoryWatch
from deduper.window.accessories.leak_watch import LeakWatch
from deduper.window.attempt import Judgement, summed
from deduper.window.completeness import SEED, complete_after
from deduper.window.expired_causes import expired_cause
from deduper.window.left_sources import LeftSources
from deduper.window.present_clock import present_wall_us
from deduper.window.progress import BatchProgress, ErrorGroup, Phases
from deduper.window.publishing import FunctionPorts, Publishing, TopicPorts

logger = logging.getLogger(__name__)

_ERROR_GROUPS = 5
_DELETION_BATCH, _DELETION_GRACE_US = policy.DELETION_BATCH, policy.DELETION_GRACE_US


@dataclass(frozen=True, slots=True)
class WindowInput:
    """The part of a source that a window takes. `query_id` is empty; intents and records have a field for it."""

    query_id: str
    batch_id: int
    source: SourceBatch


Judge: TypeAlias = Callable[[SourceBatch, LogState, int], Judgement]
"""Does step 2, as `WindowJudge.judge`: judges a batch as the window after a state, by its intent's clock in µs.

Called once a window, on the thread of the owner. Its pieces are durable then, its rows staged, and nothing is public.
"""


class WindowRunner:
    """Runs windows one after another for the owner of a store. Not for several threads.

    Everything goes through the file system that `log` was opened on. `in_background` runs work that no window waits
    for; `close` ends it. `maintenance` deletes and merges pieces in the background. `pieces`: a store to which tasks of
    other hosts append, whose unnamed pieces are removed too.
    `files` are those of a source of files. `fold_windows`: see `sources.files.folding`. `functions`, `is_held`: see
    `publishing`.
    """

    def __init__(
        self,
        config: Config,
        log: CommitLog,
        maintenance: Maintenance,
        judge: Judge,
        wall_clock_us: Callable[[], int],
        topics: TopicPorts | None = None,
        files: FilesToFold | None = None,
        in_background: InBackground = on_a_thread,
        fold_windows: int | None = None,
        pieces: PieceStore | None = None,
        functions: FunctionPorts | None = None,
        *,
        is_held: bool = False,
    ) -> None:
        self._config = config
        self._log = log
        self._maintenance = maintenance
        self._deletion = Deletions(maintenance, in_background)
        self._compaction = Compactions(maintenance, in_background)
        self._unnamed = None if pieces is None else UnnamedPieces(pieces, in_background)
        self._judge = judge
        self._topics = topics
        self._wall_clock_us = wall_clock_us
        self._publishing = Publishing(config, log, topics, in_background, functions, is_held=is_held)
        self._last_intent = max(read_intents(log.root), key=lambda intent: intent.epoch, default=None)
        self._intent: _Intending | None = None
        self._profiles = Profiles(log.root)
        self._profile_file = Accessory("profile", self._write_profile)
        self._leaks = LeakWatch(config, log)
        self._history = HistoryWatch(config, log)
        self._snapshots_seen = -1
        self._in_background = in_background
        self._files = files
        self._left_sources = LeftSources(log, in_background)
        self._folding = SourceFolding(log, files, in_background, fold_windows=fold_windows)

    def run(self, batch: WindowInput, published: Callable[[BatchProgress], None] | None = None) -> SourceBatch:
        """Judge and commit one window, and publish it or begin to. Gives the judged batch: it may be less than `batch`.

        `published` gets the window's progress once it is published, in the order of the windows; on another thread if
        it was published beside the next one. See `wait_until_published`.

        Raises:
            Exception: why the publication of the window before failed; then nothing is committed.
            IntegrityError: counts that do not agree, twice.
            FencedError: another owner has taken the store.
        """
        phases = Phases()
        self._log.check_owner()
        state = self._own_state()
        window, epoch = state.next_window, state.epoch
        failpoints.hit("window.0.batch")
        with phases.of("intent"):
            intent = self._intend(batch, state)
            state = self._own_state()
        failpoints.hit("window.1.intent")
        with phases.of("judge"):
            judgement = self._judge(batch.source, state, intent.wall_us)
        failpoints.hit("window.2.judged")
        with phases.of("durable"):
            store_id = self._log.manifest.store_id
            outputs = staging.make_durable(
                self._config, store_id, judgement.attempt, judgement.staged, names=self._log.root.names
            )
            failpoints.hit("window.3.synced")
            partitions = judgement.partitions
            sources = keep_sources(
                self._log.root,
                state,
                epoch=epoch,
                attempt=judgement.attempt.attempt,
                partitions=partitions,
                is_kept=judgement.batch.is_known_by_digests,
            )
            self._wait_for_intent()
        failpoints.hit("window.3.durable")
        waited_s = self._publishing.wait()
        if waited_s is not None:
            phases.add("wait", waited_s)
        with phases.of("commit"):
            record = self._record(batch, judgement, state, intent.wall_us, outputs, sources)
            before, state = state, self._log.place(record)
        failpoints.hit("window.4.committed")
        if self._files is not None:
            self._files.known.add(partitions)
        self._publishing.begin(window, outputs, phases)
        with phases.of("expire"):
            state = self._expire(state)
            self._compact(state)
            if self._folding.record():
                self._left_sources.remove()
            self._folding.begin()
        with phases.of("measure"):
            self._leaks.add(before, intent.wall_us, judgement.receipts.values(), judgement.rows)
            leaks = self._leaks.figures
            self._history.add(before, intent.wall_us, leaks, seconds=phases.total_s, partitions=len(partitions))
        for name, seconds in judgement.seconds.items():
            phases.add(f"judge.{name}", seconds)
        for name, seconds in judgement.task_seconds.items():
            phases.add(f"task.{name}", seconds)
        profile = WindowProfile(window, epoch, intent.wall_us, judgement.rows, phases.total_s, dict(phases.seconds))
        self._publishing.report(partial(self._report, batch.batch_id, judgement, record, profile, leaks, published))
        return judgement.batch

    def wait_until_published(self) -> None:
        """Wait until every committed window is published.

        Raises:
            Exception: why the publication failed; the same at every call.
        """
        self._publishing.wait()

    @property
    def publication_failure(self) -> Exception | None:
        """Why the publication beside the judging failed; None while it runs. Safe for all threads."""
        return self._publishing.failure

    def finish(self) -> None:
        """After the last window of a drained source: record the background work, as the next window would.

        A job that is started again for every window would never merge, fold or forget without it.
        """
        self._compaction.wait()
        self._deletion.wait()
        self._forget_deleted()
        self._record_merged(self._log.state)
        self._folding.finish()
        if not self._log.has_forgotten_retired:
            self._log.place(DeletionRecord((), wall_us=self._now(self._log.state), through_window=-1))
        self._left_sources.finish()  # after the last record: it too may forget sources

    def close(self) -> None:
        """Wait for a publication, and end the other background work, which the next start repeats. Safe to repeat."""
        if self._intent is not None:
            self._intent.is_over.wait()
        self._publishing.close()
        self._leaks.close()
        self._history.close()
        self._profile_file.close()
        self._deletion.close()
        self._folding.close()
        if self._unnamed is not None:
            self._unnamed.close()
        unnamed = self._compaction.close()
        if not unnamed:
            return
        try:
            # Their names were drawn for this compaction alone, so another owner has nothing of them.
            state = self._log.state
            self._maintenance.delete(unnamed, keep=live_files(state), writing_epoch=state.epoch)
        except Exception as exc:  # noqa: BLE001  the error that ends the job is reported, not this one
            names = ", ".join(piece.name for piece in unnamed)
            logger.warning("pieces are left for the next start: %s: %s", names, exc)

    def _report(
        self,
        batch_id: int,
        judgement: Judgement,
        record: CommitRecord,
        profile: WindowProfile,
        leaks: LeakFigures | None,
        published: Callable[[BatchProgress], None] | None,
        sent_s: float | None,
    ) -> None:
        """Report a published window; `sent_s` are the seconds of a publication beside the next one."""
        if sent_s is not None:
            profile = replace(profile, phases={**profile.phases, "send": sent_s})
        if self._profile_file.is_on:
            with self._profile_file:
                self._profiles.add(profile)
                self._profile_file.changed()
        logger.info("window %d (epoch %d, batch %d): %s", profile.window, profile.epoch, batch_id, record.counts)
        if published is None:
            return
        published(
            BatchProgress(
                window=profile.window,
                batch_id=batch_id,
                rows=profile.rows,
                **record.counts,
                seconds=profile.seconds,
                rows_per_second=profile.rows / profile.seconds,
                latest_point=self._config.expiry_key_scale.shown(record.latest_point),
                phases=profile.phases,
                tables=summed(receipt.table_counters for receipt in judgement.receipts.values()),
                leaks=leaks,
                errors=_error_groups(judgement, record),
                causes=judgement.errors.causes,
                expired_cause=self._expired_cause(judgement, record),
                left=None,
            )
        )

    def _expired_cause(self, judgement: Judgement, record: CommitRecord) -> str | None:
        expiry = self._config.expiry
        if not record.counts.get("expired") or not isinstance(expiry, EventTimeExpiry) or record.latest_point is None:
            return None
        ahead_s = (record.latest_point - record.wall_us) / 1e6
        source = self._config.source
        return expired_cause(
            judgement.lateness,
            expiry.period,
            ahead_s,
            behind=judgement.behind,
            is_of_files=isinstance(source, FilesSource),
            is_in_time=getattr(source, "order", None) == "time",
        )

    def _write_profile(self) -> None:
        self._log.check_owner()
        self._profiles.write()

    def _own_state(self) -> LogState:
        """The state of this owner: all that a window writes is named for its epoch.

        The publication reads the log too, on its thread. So the state may have a later owner's claim, and no call here
        has raised.

        Raises:
            FencedError: the state has a later owner's claim.
        """
        state = self._log.state
        if state.epoch != self._log.epoch:
            self._log.check_owner()
        return state

    def _correct_clock(self, state: LogState, now_us: int) -> LogState:
        """If the recorded clock is far ahead, place a record with the present one: a commit cannot, see `log.state`."""
        if not is_far_ahead(state.last_wall_us, now_us):
            return state
        return self._log.place(DeletionRecord((), wall_us=present_wall_us(self._log, now_us), through_window=-1))

    def _now(self, state: LogState) -> int:
        """The wall clock for the next record."""
        return next_wall_us(state.last_wall_us, self._wall_clock_us())

    def _intend(self, batch: WindowInput, state: LogState) -> Intent:
        """Step 1. A repeated intent keeps its wall clock, unless that is far ahead of the present one."""
        now_us = self._wall_clock_us()
        state = self._correct_clock(state, now_us)
        wall_us = next_wall_us(state.last_wall_us, now_us)
        intent = Intent(
            window=state.next_window,
            epoch=state.epoch,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            partitions=tuple(partition.digest for partition in batch.source.partitions),
            wall_us=wall_us,
            latest_point=state.latest_point,
            log_position=state.next_number,
            settings_hash=policy.settings_hash(self._config),
        )
        last, self._last_intent = self._last_intent, None
        is_repeated = last is not None and _asks_for(last) == _asks_for(intent)
        if last is not None and is_repeated and not is_far_ahead(last.wall_us, wall_us):
            # It is not below that of the last commit, which it followed. Claims since then do not count: with the wall
            # clock of this start's claim, no batch would ever keep its own.
            intent = replace(intent, wall_us=last.wall_us)
        self._write_intent(intent)
        return intent

    def _write_intent(self, intent: Intent) -> None:
        """Write the intent; beside the judging if the store is not on this machine, where a file takes long."""
        if self._log.root.is_local:
            write_intent(self._log.root, intent)
            return
        if self._intent is not None:
            self._intent.is_over.wait()  # that of a window which failed before it waited
        self._intent = _Intending(self._log.root, intent)
        self._in_background(self._intent.run)

    def _wait_for_intent(self) -> None:
        """Wait until the intent is written. Raises the error of the writing."""
        writing, self._intent = self._intent, None
        if writing is None:
            return
        writing.is_over.wait()
        if writing.failure is not None:
            raise writing.failure

    def _record(
        self,
        batch: WindowInput,
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
            latest = policy.processing_point(state, wall_us)
        elif admitted:
            latest = max(admitted) if latest is None else max(latest, *admitted)
        reasons: Counter[str] = Counter()
        for receipt in receipts:
            reasons.update(receipt.reasons)
        extra = dict(judgement.batch.extra())
        if judgement.categories is not None:
            extra[policy.CATEGORIES] = judgement.categories.after.to_wire()
        extra |= _statistics(judgement, state, wall_us)
        extra |= policy.fingerprint_after(self._config, state)
        extra |= complete_after(self._config, state, latest, is_seed=SEED in extra)
        if self._topics is not None:
            extra |= self._topics.extra()
        if BATCH in extra:
            extra[COUNTS] = judgement.counts
            # Not the intent's clock, which a restored copy may have kept.
            extra[TXN_VERSION] = max(self._wall_clock_us(), state.extra.get(TXN_VERSION, 0) + 1)
        return CommitRecord(
            window=judgement.attempt.window,
            epoch=judgement.attempt.epoch,
            attempt=judgement.attempt.attempt,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            wall_us=wall_us,
            settings_hash=policy.settings_hash(self._config),
            latest_point=latest,
            latest_moved_us=policy.moved_us(state, latest, wall_us),
            counts=judgement.counts,
            reasons=dict(reasons),
            pieces=tuple(receipt.piece for receipt in receipts if receipt.piece is not None),
            outputs=outputs,
            buckets=tuple(sorted({bucket for receipt in receipts for bucket in receipt.buckets})),
            timestamp=max(remembered, default=None),
            sources=sources,
            extra=extra,
        )

    def _expire(self, state: LogState) -> LogState:
        """Retire pieces in which every key is dead: first a record that no longer names them, later their bytes.

        Their bytes are deleted in the background, see `maintenance.deletions`.
        """
        now_us = self._now(state)
        dead = policy.dead_pieces(self._config, state)
        if len(dead) >= _DELETION_BATCH * self._config.store.shards or policy.are_many_bytes(dead, state):
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
            self._log.delete_folded()
        return state

    def _compact(self, state: LogState) -> None:
        """Record merged pieces in place of the small ones, and begin the next merges in the background."""
        state = self._record_merged(state)
        if not self._compaction.is_under_way and not self._is_searched(state):
            tasks = policy.next_compactions(self._config, self._log.manifest.store_id, state)
            if tasks:
                self._compaction.begin(tasks)

    def _is_searched(self, state: LogState) -> bool:
        """Whether a search for unnamed pieces is running; begins one if it is due. Called while no merge is running."""
        if self._unnamed is None:
            return False
        if not self._unnamed.is_under_way:
            self._unnamed.begin_if_due(state)
        return self._unnamed.is_under_way

    def _record_merged(self, state: LogState) -> LogState:
        """Place a record that names the merged pieces in place of the old ones.

        Raises:
            Exception: the error of a merge of live pieces, or of all merges; then none is recorded.
        """
        leaving: list[PieceRef] = []
        added: list[PieceRef] = []
        try:
            results = self._compaction.result()
        except Exception as exc:
            if storage_away(exc) is None:
                raise
            logger.info("pieces are merged later: %s", exc)
            return state
        for pieces, merged in results:
            shard = pieces[0].shard
            are_live = set(pieces) <= set(state.pieces.get(shard, ()))
            if isinstance(merged, Exception):
                if are_live and storage_away(merged) is not None:
                    logger.info("pieces of shard %d are merged later: %s", shard, merged)
                elif are_live:
                    raise merged
                else:
                    logger.info("pieces of shard %d are not merged: some of them have expired: %s", shard, merged)
            elif are_live:
                leaving += pieces
                added.append(merged)
            else:
                logger.info("piece %s is left for the next start: some of the merged pieces have expired", merged.name)
        if added:
            state = self._log.place(CompactionRecord(tuple(leaving), tuple(added), self._now(state)))
            failpoints.hit("compact.recorded")
        return state

    def fold_moved(self) -> None:
        """Called between windows: if the source's folder has moved, fold what was judged of it at once."""
        if self._files is not None and self._files.known.has_moved:
            self._folding.at_once()
            self._left_sources.remove()

    def _forget_deleted(self) -> None:
        """Forget the deleted pieces in the next record. Raises the error of the background deletion."""
        try:
            through = self._deletion.result()
        except StorageAwayError as exc:
            logger.info("retired pieces are deleted later: %s", exc)
            return
        if through is not None:
            self._log.forget_retired(through)


class _Intending(BackgroundTask):
    """The writing of an intent."""

    def __init__(self, root: Place, intent: Intent) -> None:
        super().__init__()
        self._root = root
        self._intent = intent

    def act(self) -> None:
        write_intent(self._root, self._intent)


def _statistics(judgement: Judgement, state: LogState, wall_us: int) -> dict[str, Any]:
    """The statistics after the window, for its record; those before it if computing them fails."""
    try:
        duplicates: Counter[int] = Counter()
        for receipt in judgement.receipts.values():
            duplicates.update(receipt.first_windows)
        live = (pieces[0].first_window for pieces in state.pieces.values())
        after = policy.statistics_of(state).with_window(
            judgement.attempt.window,
            wall_us,
            lateness=judgement.lateness,
            distance=sum((receipt.distances for receipt in judgement.receipts.values()), NO_SPANS),
            duplicates=duplicates,
            exact_us={window: info.wall_us for window, info in state.windows.items()},
            first_live=min(live, default=judgement.attempt.window),
        )
        return {policy.STATISTICS: after.to_wire()}
    except Exception as exc:  # noqa: BLE001  a window is worth more than its statistics
        logger.warning("window %d: its statistics are left out: %s", judgement.attempt.window, exc)
        return {name: state.extra[name] for name in (policy.STATISTICS,) if name in state.extra}


def _error_groups(judgement: Judgement, record: CommitRecord) -> tuple[ErrorGroup, ...]:
    """The largest groups of error rows of a window, by reason and detail, or by reason where no detail was made."""
    reasons = {
        name: rows for name, rows in record.reasons.items() if PORT_OF_REASON.get(name) == TupleVerdict.ERROR.port
    }
    counts = judgement.errors.counts or {(reason, None): rows for reason, rows in reasons.items()}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0][0], item[0][1] or ""))
    return tuple(ErrorGroup(reason, detail, rows) for (reason, detail), rows in ordered[:_ERROR_GROUPS])


def _asks_for(intent: Intent) -> tuple[object, ...]:
    """The parts of an intent that are equal in a repetition."""
    return intent.window, intent.partitions, intent.settings_hash, intent.latest_point
