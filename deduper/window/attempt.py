"""Step 2 of a window: attempts at its judging, until the counts agree and all unreadable input is found.

Pieces and staged files carry the number of their attempt in their names, so a file of an abandoned attempt never counts
as one of the window.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.sources_file import SourcePartition
from bucket_store.log.state import LogState, live_files
from bucket_store.pieces.store import PieceStore
from bucket_store.places.place import Place
from bucket_store.tables.manager import TableSettings
from deduper.arrow_columns import arrow_type
from deduper.config.model import Config
from deduper.config.sections import CategoryExpiry
from deduper.core.clock import ClockRules
from deduper.core.statistics import NO_SPANS, SpanCounts
from deduper.core.verdict import TupleVerdict
from deduper.errors import CannotWriteError, IntegrityError, RowsGoneError, SourceAwayError, telling_where
from deduper.sinks import staging
from deduper.sinks.names import Attempt
from deduper.sources.declared_columns import record_layout
from deduper.sources.error_details import error_details
from deduper.sources.protocol import SourceBatch
from deduper.spark.failures import cannot_write, innermost_cause, raised_in_worker, storage_away
from deduper.tasks.errors.causes import ErrorSummary, merged
from deduper.tasks.found_partitions import FoundPartitions
from deduper.tasks.judge import JudgeTask, Receipt
from deduper.tasks.origins import WindowSources
from deduper.tasks.read import ReadReceipt, ReadTask
from deduper.tasks.readers.reading_tasks import receipts_of
from deduper.tasks.row_files import RowFormats
from deduper.tasks.write import StagedFile, WriteTask, grouped, writers_for
from deduper.window import policy
from deduper.window.accessories.leak_watch import sample_bits
from deduper.window.categories import Categories, arrange_categories
from deduper.window.exchange_folder import ExchangeFolders
from deduper.window.jobs.local import Jobs, WindowRun
from deduper.window.progress import Phases
from deduper.window.storage_wait import OutageWatch, StorageWait

logger = logging.getLogger(__name__)

_MOST_DISAGREEMENTS = 2
_MOST_LOSSES = 5
"""After so many attempts whose records were gone, the window fails: something removes them."""
_CODEC = "spark.sql.parquet.compression.codec"
_CODECS = {"none": "none", "uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}
"""Spark's names that are not Arrow's."""


class _MemoryFull(Exception):
    """The exchange files do not fit into shared memory."""


@dataclass(frozen=True)
class Judgement:
    """A window that was judged and staged, and whose counts agree.

    `seconds` are the driver's by step: `read`, `shards` and `write`. `task_seconds` are the work inside the tasks,
    summed. `lateness` is that of all rows; `behind` of them were expired already as the window began. `errors` are
    those of the error port if it is written.
    """

    attempt: Attempt
    batch: SourceBatch
    receipts: dict[int, Receipt]
    staged: dict[str, list[StagedFile]]
    categories: Categories | None
    rows: int
    seconds: dict[str, float] = field(default_factory=dict)
    task_seconds: dict[str, float] = field(default_factory=dict)
    lateness: SpanCounts = NO_SPANS
    behind: int = 0
    errors: ErrorSummary = field(default_factory=lambda: merged(()))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Tuples by port, over all shards."""
        totals = [sum(counts) for counts in zip(*(one.counts for one in self.receipts.values()), strict=True)]
        return {verdict.port: count for verdict, count in zip(TupleVerdict, totals, strict=True)}

    @cached_property
    def partition_rows(self) -> Mapping[int, int]:
        """Tuples by the ordinal of their source partition, over all shards."""
        rows: Counter[int] = Counter()
        for receipt in self.receipts.values():
            rows.update(receipt.rows_by_partition)
        return rows

    @property
    def partitions(self) -> tuple[SourcePartition, ...]:
        """The source partitions as the store keeps them."""
        rows = self.partition_rows
        return tuple(partition.judged(rows.get(ordinal, 0)) for ordinal, partition in enumerate(self.batch.partitions))


class WindowJudge:
    """Judges the windows of one owner, one after another. Not for several threads."""

    def __init__(
        self,
        jobs: Jobs,
        config: Config,
        log: CommitLog,
        pieces: PieceStore,
        tables: TableSettings,
    ) -> None:
        self._jobs = jobs
        self._config = config
        self._log = log
        self._pieces = pieces
        self._tables = tables
        self._layout = record_layout(config)
        self._details = error_details(config)
        self._attempts = 0
        self._storages = StorageWait(config)
        self._outages = OutageWatch(config)
        self._folders = ExchangeFolders(tables.memory_dir, tables.disk_dir, log.manifest.store_id)
        self._folders.discard_abandoned()

    def judge(self, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        """The window after `state`, of this batch; unreadable input becomes error tuples.

        Raises:
            IntegrityError: counts that do not agree, twice.
            RowsGoneError: records were gone from an executor's host, five times.
            StorageAwayError: HDFS or an object store was away for longer than the deadline.
            SourceAwayError, BrokerUnavailableError: the source cannot be read, for longer than it waits itself.
            CannotWriteError: there is no room for exchange files or ports, or they cannot be written.
            PySparkException, Py4JJavaError: Spark failed, and not over input.
        """
        disagreements = losses = 0
        while True:
            attempt = Attempt(state.next_window, state.epoch, self._attempts)
            self._attempts += 1
            try:
                judgement = self._judge_once(attempt, batch, state, wall_us)
            except _MemoryFull:
                logger.warning("window %d: judged again: shared memory is full, using the disk", attempt.window)
                continue
            except SourceAwayError as exc:
                batch = batch.after_failure(exc)
                logger.warning("window %d: judged again: %s", attempt.window, exc)
                continue
            except (PySparkException, Py4JJavaError) as exc:
                gone = raised_in_worker(exc)
                if isinstance(gone, RowsGoneError):
                    losses += 1
                    if losses == _MOST_LOSSES:
                        raise gone from exc
                    logger.warning("window %d: judged again: %s", attempt.window, gone)
                    continue
                if self._storages.is_over(exc):
                    logger.warning("window %d: judged again: %s", attempt.window, storage_away(exc))
                    continue
                batch = batch.after_failure(exc)
                logger.warning("window %d: judged again: %s", attempt.window, innermost_cause(exc))
                continue
            problem = _disagreement(self._config, judgement)
            if problem is None:
                sure = batch.confirmed(judgement.partition_rows)
                if sure is batch:
                    self._storages.succeeded()
                    return judgement
                logger.warning("window %d: judged again: some input vanished before it was read", attempt.window)
                self._abandon(judgement)
                batch = sure
                continue
            self._abandon(judgement)
            disagreements += 1
            if disagreements == _MOST_DISAGREEMENTS:
                raise IntegrityError(f"window {attempt.window}: not committed: {problem}")
            logger.error("window %d: judged once more: %s", attempt.window, problem)

    def close(self) -> None:
        """Remove the kept exchange folder, after the last window. Safe to repeat."""
        self._folders.close()

    def _judge_once(self, attempt: Attempt, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        with self._run(attempt) as (run, folder):
            return self._run_jobs(run, attempt, batch, state, wall_us, folder)

    @contextmanager
    def _run(self, attempt: Attempt) -> Iterator[tuple[WindowRun, Path]]:
        """Run the jobs of an attempt in an exchange folder, which is then removed or kept for the next attempt."""
        with telling_where(self._folders.disk):
            folder = self._folders.make(attempt)
        finished_reads, ended = tuple[str, ...](), threading.Event()
        self._outages.look_until(ended)
        try:
            with self._jobs.open(attempt.epoch, attempt.attempt) as run:
                yield run, folder
            finished_reads = tuple(run.finished_reads)
        finally:
            ended.set()
            if finished_reads:
                self._folders.leave(folder, finished_reads)
            else:
                self._folders.remove(folder)

    def _run_jobs(
        self, run: WindowRun, attempt: Attempt, batch: SourceBatch, state: LogState, wall_us: int, folder: Path
    ) -> Judgement:
        config, phases, directory = self._config, Phases(), str(folder)
        read = self._read_task(directory, policy.clock_rules(config, state, wall_us))
        with phases.of("read"), self._writing_exchange(folder):
            found = run.read(batch.records(), read)
        batch, readers = batch.as_read(found), receipts_of(found)
        ordinals = FoundPartitions.of([reader.partitions for reader in readers]).ordinals
        with phases.of("shards"):
            categories = None
            if isinstance(config.expiry, CategoryExpiry):
                known = policy.category_state(state)
                categories = arrange_categories(partial(run.admitted, read), readers, config.expiry, known)
            judge = self._shard_task(attempt, state, wall_us, directory, readers, categories)
            judge = replace(judge, ordinals=ordinals)
            with self._writing_exchange(folder):
                shards = run.judge(judge, policy.shard_views(config, self._log.manifest, state))
        failpoints.hit("judge.judged")
        with _writing("the outputs", staging.staging_target(config, attempt)):
            with phases.of("write"):
                targets = staging.make_staging(config, attempt)
                sources = self._sources(attempt.window, batch, state, shards)
                write = self._write_task(batch, directory, targets, readers, sources)
                writers = run.write(replace(write, ordinals=ordinals))
            failpoints.hit("stage.written")
        return Judgement(
            attempt=attempt,
            batch=batch,
            receipts={receipt.shard: receipt for receipt in shards},
            staged=staging.staged_files(writers),
            categories=categories,
            rows=sum(part.rows for part in found),
            errors=merged(writer.errors for writer in writers),
            seconds=phases.seconds,
            lateness=sum((reader.lateness for reader in readers), NO_SPANS),
            behind=sum(reader.behind for reader in readers),
            task_seconds=summed(
                [
                    *(reader.seconds for reader in readers),
                    *(shard.seconds for shard in shards),
                    *(writer.seconds for writer in writers),
                ]
            ),
        )

    @contextmanager
    def _writing_exchange(self, folder: Path) -> Iterator[None]:
        """A job that writes exchange files; raises _MemoryFull when they can be written to disk instead."""
        try:
            with _writing("the exchange files of a window", folder):
                yield
        except CannotWriteError as exc:
            if self._folders.was_full(folder):
                raise _MemoryFull from exc
            raise

    def _read_task(self, directory: str, clock: ClockRules | None) -> ReadTask:
        in_order = self._config.clock == "arrival"
        return ReadTask(
            directory=directory,
            shards=self._config.store.shards,
            layout=self._layout,
            clock=clock,
            in_order=in_order,
            keeps_latest=in_order and self._config.lookup == "all_live",
            is_time=self._config.expiry.by == "event_time",
        )

    def _shard_task(
        self,
        attempt: Attempt,
        state: LogState,
        wall_us: int,
        directory: str,
        readers: Sequence[ReadReceipt],
        categories: Categories | None,
    ) -> JudgeTask:
        config = self._config
        return JudgeTask(
            directory=directory,
            readers=tuple(receipt.name for receipt in readers),
            store_url=config.store.url,
            store_id=self._log.manifest.store_id,
            window=attempt.window,
            epoch=attempt.epoch,
            attempt=attempt.attempt,
            rules=policy.judge_rules(config, state, wall_us),
            tables=replace(self._tables, layout=policy.table_layout(config, state)),
            places=None if categories is None else categories.places,
            category_ids=() if categories is None else categories.ids,
            sample_bits=sample_bits(config),
        )

    def _sources(self, window: int, batch: SourceBatch, state: LogState, shards: Iterable[Receipt]) -> WindowSources:
        """The sources of this window, and of the windows that hold first copies of its duplicates."""
        met = {first for receipt in shards for first in receipt.first_windows}
        named = {earlier: state.sources_of(earlier) for earlier in met}
        files = {earlier: ref for earlier, ref in named.items() if ref is not None}
        names = tuple(partition.name for partition in batch.partitions)
        starts = tuple(partition.start for partition in batch.partitions)
        return WindowSources(self._log.root.url, window, names, starts, files)

    def _write_task(
        self,
        batch: SourceBatch,
        directory: str,
        targets: Mapping[str, Place],
        readers: Sequence[ReadReceipt],
        sources: WindowSources,
    ) -> WriteTask:
        config, topics = self._config, self._config.topic_ports
        keeps_order = any(sink.preserve_order for sink in topics.values())
        codec = str(config.spark.get(_CODEC, "snappy")).lower()
        exchanged = sum(receipt.spilled_bytes for receipt in readers)
        writers = writers_for(exchanged, config.store.shards)
        return WriteTask(
            directory=directory,
            shards=config.store.shards,
            readers=tuple((receipt.name, receipt.rows) for receipt in readers),
            spilled_bytes=exchanged,
            groups=grouped([receipt.rows for receipt in readers], writers) if targets else (),
            targets=targets,
            topics={port: sink.dedup_headers for port, sink in topics.items()},
            columns=tuple(column.name for column in config.source.parsed_columns) if config.has_row_ports else (),
            formats=RowFormats(
                {port: sink.ending for port, sink in config.file_ports.items()},
                _CODECS.get(codec, codec),
                config.time_zone,
            ),
            sources=sources,
            source_slots=tuple(partition.slot for partition in batch.partitions) if keeps_order else None,
            dedup={port: arrow_type(config.dedup_column.of(port).type) for port in targets},
            details=self._details,
        )

    def _abandon(self, judgement: Judgement) -> None:
        """Give up an attempt: no record will name its pieces. Its staged files are removed with those of the window."""
        abandoned = [receipt.piece for receipt in judgement.receipts.values() if receipt.piece is not None]
        self._pieces.delete(abandoned, keep=live_files(self._log.state))


@contextmanager
def _writing(what: str, place: Path | Place) -> Iterator[None]:
    """Turns Spark's errors about a full or read-only file system into CannotWriteError, with the place."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as exc:
        raised = raised_in_worker(exc)
        failure = raised if isinstance(raised, CannotWriteError) else cannot_write(exc, what, place)
        if failure is None:
            raise
        raise failure from exc


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums by name."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _disagreement(config: Config, judgement: Judgement) -> str | None:
    """The reason not to commit the window: three independent counts of its rows must agree. None when they do."""
    missing = set(range(config.store.shards)) - judgement.receipts.keys()
    if missing:
        return f"no receipt from shards {sorted(missing)}"
    counts = judgement.counts
    if sum(counts.values()) != judgement.rows:
        return f"{judgement.rows} rows came in, the shards judged {sum(counts.values())}: {counts}"
    for port in (*config.file_ports, *config.topic_ports, *config.function_ports):
        staged = sum(file.rows for file in judgement.staged.get(port, ()))
        if staged != counts[port]:
            return f"port {port}: {counts[port]} rows judged, {staged} rows staged"
    return None
