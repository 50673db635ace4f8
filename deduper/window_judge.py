"""Step 2 of a window: judging it, as often as it takes for the counts to agree and for what cannot be read to be known.

Every judging is an attempt of its own, in the names of its pieces and staged files, so that nothing of an abandoned
one can be taken for the window's.

With `clock: arrival` a window is first judged against the latest point at its start, which spares a pass through
Python. Afterwards the receipts tell whether the order of the tuples could have mattered at all: it could not when the
greatest admitted expiry key, less a period, still lies before the least one that a verdict rests on. Otherwise the
window is judged again, tuple by tuple.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bucket_store.backend import PieceStore
from bucket_store.commit_log import CommitLog
from bucket_store.log_state import LogState, live_files
from bucket_store.manager import TableSettings
from deduper import judging, staging
from deduper.config import CategoryExpiry, Config
from deduper.errors import IntegrityError
from deduper.job_times import JobClock
from deduper.judge_plan import Categories, arrange_categories, judged, prepare
from deduper.output_names import file_sinks, topic_sinks
from deduper.receipts import Receipt, ReceiptBox, take_receipts
from deduper.shard_task import BatchTask
from deduper.source_batch import SourceBatch
from deduper.spark_errors import innermost_cause
from deduper.staging import Attempt, StagedFile
from deduper.verdict import Verdict

logger = logging.getLogger(__name__)

_MOST_DISAGREEMENTS = 2
_MOST_WINDOWS_IN_ORDER = 64


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
        receipts: ReceiptBox,
    ) -> None:
        self._session = session
        self._config = config
        self._log = log
        self._pieces = pieces
        self._tables = tables
        self._receipts = receipts
        self._jobs = JobClock(session)
        self._attempts = 0
        # How many windows to come are judged in order at once, and how many it was the last time.
        self._in_order_left = 0
        self._in_order_last = 0

    def judge(self, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        """The window after `state`: of this batch, with what of it cannot be read as error tuples.

        Raises:
            IntegrityError: counts that do not agree, twice.
            PySparkException: Spark failed, and not over input.
        """
        disagreements = 0
        spent: dict[str, float] = {}
        in_order = self._starts_in_order()
        while True:
            attempt = Attempt(state.next_window, state.epoch, self._attempts)
            self._attempts += 1
            try:
                judgement = self._judge_once(attempt, batch, state, wall_us, in_order=in_order)
            except (PySparkException, Py4JJavaError) as exc:
                batch = batch.after_failure(exc)
                logger.warning("window %d: judged again: %s", attempt.window, innermost_cause(exc))
                continue
            for name, seconds in judgement.seconds.items():
                spent[name] = spent.get(name, 0.0) + seconds
            problem = _disagreement(self._config, judgement)
            if problem is None and not in_order and self._config.clock == "arrival":
                mattered = _order_matters(self._config, judgement)
                self._remember_order(mattered=mattered)
                if mattered:
                    logger.info("window %d: its order matters: judged again, tuple by tuple", attempt.window)
                    self._abandon(judgement)
                    in_order = True
                    continue
            if problem is None:
                sure = batch.confirmed(rows_by_partition(judgement.receipts.values()))
                if sure is batch:
                    return replace(judgement, seconds=spent)
                logger.warning("window %d: judged again: not all of it was there until it was read", attempt.window)
                self._abandon(judgement)
                batch = sure
                continue
            self._abandon(judgement)
            disagreements += 1
            if disagreements == _MOST_DISAGREEMENTS:
                raise IntegrityError(f"window {attempt.window}: not committed: {problem}")
            logger.error("window %d: judged once more: %s", attempt.window, problem)

    def _judge_once(
        self, attempt: Attempt, batch: SourceBatch, state: LogState, wall_us: int, *, in_order: bool
    ) -> Judgement:
        config = self._config
        times = self._jobs.attempt()
        prepared = prepare(self._session, config, self._log.manifest.salt, batch)
        categories = None
        if isinstance(config.expiry, CategoryExpiry):
            categories = arrange_categories(prepared.frame, config.expiry, judging.category_state(state))
        task = BatchTask(
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
            source_slots=batch.slots,
            sources_files={window: state.sources[window] for window in state.windows if window in state.sources},
            places=None if categories is None else categories.places,
        )
        frame = judged(
            self._session,
            config,
            prepared.frame,
            judging.clock_rules(config, state, wall_us),
            None if categories is None else categories.ids,
            task,
            self._receipts,
            in_order=in_order,
        )
        times.built()
        staged = staging.stage(frame, config, attempt, on_written=times.written)
        receipts = take_receipts(self._receipts, attempt.window, attempt.epoch, attempt.attempt)
        rows = int(prepared.rows_in.get["rows"])
        return Judgement(attempt, batch, receipts, staged, categories, rows, times.seconds())

    def _abandon(self, judgement: Judgement) -> None:
        """Nothing of this attempt is named by a record, now or later; what it staged goes with the window's rest."""
        abandoned = [receipt.piece for receipt in judgement.receipts.values() if receipt.piece is not None]
        self._pieces.delete(abandoned, keep=live_files(self._log.state))

    def _starts_in_order(self) -> bool:
        """Whether to judge tuple by tuple from the start: the order mattered lately, or the jump guard needs it."""
        if self._config.clock != "arrival":
            return False
        if self._config.max_jump_steps is not None:
            return True
        if self._in_order_left == 0:
            return False
        self._in_order_left -= 1
        return True

    def _remember_order(self, *, mattered: bool) -> None:
        """Windows in which the order matters come in rows: a replayed log has nothing else. So ask ever more rarely."""
        if not mattered:
            self._in_order_last = 0
            return
        self._in_order_last = min(2 * self._in_order_last + 1, _MOST_WINDOWS_IN_ORDER)
        self._in_order_left = self._in_order_last


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


def _order_matters(config: Config, judgement: Judgement) -> bool:
    """Whether a clock that moves tuple by tuple could have said anything else than the one at the window's start.

    Any clock of the window lies between the latest point at its start and the greatest admitted expiry key. What the
    first holds for older than a period is so for all; the rest is younger for all if it is for the greatest.
    """
    period = config.period_steps
    receipts = judgement.receipts.values()
    greatest = [receipt.max_admitted for receipt in receipts if receipt.max_admitted is not None]
    least = [receipt.least_decisive for receipt in receipts if receipt.least_decisive is not None]
    return period is not None and bool(greatest) and bool(least) and min(least) <= max(greatest) - period


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
