"""Step 2 of a window: judging it, as often as it takes for the counts to agree and for what cannot be read to be known.

Every judging is an attempt of its own, in the names of its pieces and staged files, so that nothing of an abandoned
one can be taken for the window's.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bucket_store.backend import PieceStore
from bucket_store.commit_log import CommitLog
from bucket_store.log_state import LogState, live_files
from bucket_store.manager import TableSettings
from deduper import judging, staging
from deduper.category_places import Categories, arrange_categories
from deduper.config import CategoryExpiry, Config
from deduper.errors import IntegrityError
from deduper.judge_plan import expiry_type, prepare, to_read
from deduper.output_names import file_sinks, topic_sinks
from deduper.read_task import ReadTask
from deduper.receipts import Receipt
from deduper.shard_task import BatchTask
from deduper.source_batch import SourceBatch
from deduper.spark_errors import innermost_cause
from deduper.staging import Attempt, StagedFile
from deduper.verdict import Verdict
from deduper.window_jobs import run_judge, run_read, run_write
from deduper.write_task import WriteTask, grouped

logger = logging.getLogger(__name__)

_MOST_DISAGREEMENTS = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """A window that was judged and staged, and whose counts agree.

    `seconds` are those of the parts of judging, of all its attempts; see `job_times`.
    """

    attempt: Attempt
    batch: SourceBatch
    receipts: dict[int, Receipt]
    staged: dict[str, list[StagedFile]]
    categories: Categories | None
    rows: int
    seconds: dict[str, float] = field(default_factory=dict)


class WindowJudge:
    """Judges the windows of one owner, one after another. Not for several threads."""

    def __init__(
        self,
        session: SparkSession,
        config: Config,
        log: CommitLog,
        pieces: PieceStore,
        tables: TableSettings,
    ) -> None:
        self._session = session
        self._config = config
        self._log = log
        self._pieces = pieces
        self._tables = tables
        self._attempts = 0

    def judge(self, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        """The window after `state`: of this batch, with what of it cannot be read as error tuples.

        Raises:
            IntegrityError: counts that do not agree, twice.
            PySparkException: Spark failed, and not over input.
        """
        disagreements = 0
        while True:
            attempt = Attempt(state.next_window, state.epoch, self._attempts)
            self._attempts += 1
            try:
                judgement = self._judge_once(attempt, batch, state, wall_us)
            except (PySparkException, Py4JJavaError) as exc:
                batch = batch.after_failure(exc)
                logger.warning("window %d: judged again: %s", attempt.window, innermost_cause(exc))
                continue
            problem = _disagreement(self._config, judgement)
            if problem is None:
                sure = batch.confirmed(rows_by_partition(judgement.receipts.values()))
                if sure is batch:
                    return judgement
                logger.warning("window %d: judged again: not all of it was there until it was read", attempt.window)
                self._abandon(judgement)
                batch = sure
                continue
            self._abandon(judgement)
            disagreements += 1
            if disagreements == _MOST_DISAGREEMENTS:
                raise IntegrityError(f"window {attempt.window}: not committed: {problem}")
            logger.error("window %d: judged once more: %s", attempt.window, problem)

    def _judge_once(self, attempt: Attempt, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        config = self._config
        began = time.perf_counter()
        clock = judging.clock_rules(config, state, wall_us)
        directory = (
            Path(self._tables.memory_dir).parent / "deduper-spool" / self._log.manifest.store_id / attempt.folder
        )
        directory.mkdir(parents=True)
        try:
            prepared = prepare(self._session, config, self._log.manifest.salt, batch)
            reading = ReadTask(
                directory=str(directory),
                shards=config.store.shards,
                clock=clock,
                in_order=config.clock == "arrival",
                keeps_latest=config.clock == "arrival" and config.lookup == "all_live",
                by_category=isinstance(config.expiry, CategoryExpiry),
            )
            frame = to_read(config, prepared.frame, clock)
            built = time.perf_counter()
            readers = run_read(frame, reading)
            read = time.perf_counter()
            categories = None
            if isinstance(config.expiry, CategoryExpiry):
                known = judging.category_state(state)
                categories = arrange_categories(str(directory), readers, config.store.shards, config.expiry, known)
            task = BatchTask(
                directory=str(directory),
                readers=tuple(receipt.name for receipt in readers),
                store_url=config.store.url,
                store_root=str(self._log.root),
                store_id=self._log.manifest.store_id,
                window=attempt.window,
                epoch=attempt.epoch,
                attempt=attempt.attempt,
                rules=judging.judge_rules(config, state, wall_us),
                tables=self._tables,
                views=judging.shard_views(config, self._log.manifest, self._log.state),
                source_names=batch.names,
                source_starts=batch.starts,
                sources_files={window: state.sources[window] for window in state.windows if window in state.sources},
                places=None if categories is None else categories.places,
                category_ids=() if categories is None else categories.ids,
            )
            receipts = {receipt.shard: receipt for receipt in run_judge(self._session, task, config.store.shards)}
            judged = time.perf_counter()
            keeps_order = any(sink.preserve_order for sink in topic_sinks(config).values())
            target = staging.staging_home(config) / staging.STAGING / attempt.folder
            sizes = tuple((receipt.name, receipt.rows) for receipt in readers)
            writing = WriteTask(
                directory=str(directory),
                target=str(target),
                window=attempt.window,
                shards=config.store.shards,
                readers=sizes,
                groups=grouped([rows for _, rows in sizes], config.store.shards),
                ports=(*file_sinks(config), *topic_sinks(config)),
                topics=frozenset(topic_sinks(config)),
                has_record=bool(topic_sinks(config)),
                source_names=batch.names,
                source_starts=batch.starts,
                source_slots=batch.slots if keeps_order else None,
                keep_first_seen=config.store.first_seen,
                expiry_type=expiry_type(config),
                expiry_scale=config.point_scale.scale,
            )
            run_write(self._session, writing)
            written = time.perf_counter()
            staged = staging.staged_files(self._session, config, attempt)
            done = time.perf_counter()
        finally:
            shutil.rmtree(directory)
        seconds = {
            "build": built - began,
            "read": read - built,
            "shards": judged - read,
            "write": written - judged,
            "files": done - written,
        }
        rows = int(prepared.rows_in.get["rows"])
        return Judgement(attempt, batch, receipts, staged, categories, rows, seconds)

    def _abandon(self, judgement: Judgement) -> None:
        """Nothing of this attempt is named by a record, now or later; what it staged goes with the window's rest."""
        abandoned = [receipt.piece for receipt in judgement.receipts.values() if receipt.piece is not None]
        self._pieces.delete(abandoned, keep=live_files(self._log.state))


def port_counts(receipts: Iterable[Receipt]) -> dict[str, int]:
    """Tuples by port, over all shards."""
    totals = [sum(counts) for counts in zip(*(receipt.counts for receipt in receipts), strict=True)]
    return {verdict.port: count for verdict, count in zip(Verdict, totals, strict=True)}


def rows_by_partition(receipts: Iterable[Receipt]) -> Counter[int]:
    """Tuples by the ordinal of their source partition, over all shards."""
    rows: Counter[int] = Counter()
    for receipt in receipts:
        rows.update(receipt.rows_by_partition)
    return rows


def _disagreement(config: Config, judgement: Judgement) -> str | None:
    """Why the window must not be committed: conservation, held against three independent counts. None when it holds."""
    missing = set(range(config.store.shards)) - judgement.receipts.keys()
    if missing:
        return f"no receipt from shards {sorted(missing)}"
    counts = port_counts(judgement.receipts.values())
    if sum(counts.values()) != judgement.rows:
        return f"{judgement.rows} rows came in, the shards judged {sum(counts.values())}: {counts}"
    for port in (*file_sinks(config), *topic_sinks(config)):
        staged = sum(file.rows for file in judgement.staged.get(port, ()))
        if staged != counts[port]:
            return f"port {port}: {counts[port]} rows judged, {staged} rows staged"
    return None
