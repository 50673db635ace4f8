"""`seed`: fills a job's new store with keys that were seen before it, and states from when on its history is complete.

a  claim an epoch, and place one rebase record that says that a seed is begun: from here on no job starts
b  the windows: the input is judged by the job's own steps, without outputs (`service.job`)
c  read back all live keys and compare their count with the verdicts
d  claim the next epoch, and place one rebase record: the seed is over, and the mark *complete since*, if it was stated

Broken off anywhere, the same command continues with what was not judged; after b it does c and d alone. The same input
once more has nothing new. With expiry the count of c has one direction: keys that expire meanwhile are `died`, the
difference, and no other reason for it can be told from theirs. Without expiry the count is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bucket_store import failpoints
from bucket_store.errors import FencedError, StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.store import PieceStore
from deduper.admin.keys.values import parse_expiry
from deduper.admin.move.key_sum import KeySum, live_entries, sum_of_all
from deduper.admin.move.owning import owning
from deduper.admin.open_store import OpenStore
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.core.complete_since import CompleteSince
from deduper.core.verdict import PORT_OF_REASON, TupleVerdict
from deduper.errors import IntegrityError, UsageError
from deduper.seeding.reading import (
    has_windows,
    open_input,
    require_apart,
    require_finished,
    require_no_other,
    seed_config,
)
from deduper.seeding.source import SeedInput, seeds_of
from deduper.service.job import Opened, run
from deduper.service.stop import Stop
from deduper.sources.files.listing import found_files
from deduper.spark.hdfs_login import LogsIn
from deduper.units import UnitError, parse_time
from deduper.window.completeness import COMPLETE, OUTPUTS_THROUGH, SEED, SEED_OPEN, complete_since, is_complete
from deduper.window.present_clock import wall_clock_us
from deduper.window.progress import BatchProgress
from deduper.window.recovery import Ownership

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SeedReport(AsJson):
    """What is read, what came of it in this run, and the proof: the live keys before and after it.

    `files` of the input, or the `offsets` of a topic that this run judges. `until`: where the topic ends for this seed,
    as a job on it writes it for `source.starting_offsets`. `is_executed`: the input is judged to its end; False after a
    signal, and in a plan. `died`: keys of before and unique ones that have expired since. `complete_since` and
    `is_complete`: the store's mark, and whether `unique` is final by it; in a plan, the stated mark. `reasons`: error
    rows of all runs of the seed, by reason.
    """

    json_names = (
        *("is_executed", "input", "files", "offsets", "until", "windows", "counts", "reasons", "before", "died"),
        *("after", "complete_since", "is_complete"),
    )

    input: str
    files: int | None = None
    offsets: int | None = None
    until: dict[str, dict[str, int]] | None = None
    windows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    before: KeySum | None = None
    after: KeySum | None = None
    complete_since: Any = None
    is_complete: bool = False

    @property
    def is_executed(self) -> bool:
        """The keys count, and so does the mark."""
        return self.after is not None

    @property
    def died(self) -> int | None:
        """How many keys have expired since the run began, of those before it and of its own.

        With `all_live` fewer by the entries that versions have moved: they are there twice.
        """
        if self.before is None or self.after is None:
            return None
        return self.before.count + self.counts["unique"] - self.after.count


@dataclass(frozen=True, slots=True)
class Statement:
    """What an operator states: the history is complete since `point`; None: since ever."""

    point: int | float | None

    @classmethod
    def of(cls, text: str, config: Config) -> Statement:
        """As it is written: `ever`, or an expiry key.

        Raises:
            UsageError: the job's keys expire by no point, or the text is none.
        """
        if text == "ever":
            return cls(None)
        if config.expiry.by in ("never", "category"):
            raise UsageError(f"--complete-since {text}: with `expiry.by: {config.expiry.by}` write `ever`")
        if config.expiry.by == "processing_time":
            try:
                return cls(parse_time(text))
            except UnitError:
                raise UsageError(
                    f"--complete-since {text}: write a time such as 2025-03-01T00:00:00Z, or `ever`"
                ) from None
        try:
            point = parse_expiry(text, config)
        except UsageError as error:
            raise UsageError(str(error).replace("--at", "--complete-since")) from error
        assert not isinstance(point, str)
        return cls(point)


def plan_seed(config: Config, given: SeedInput, statement: Statement | None) -> SeedReport:
    """What `seed` is to do. Changes nothing.

    Raises:
        UsageError: the job cannot read such an input, nothing is there, a file cannot be read yet or was seeded as one
            of another input, the seed of another input is not over, or a job has judged windows in the
            store.
        BrokerUnavailableError, KafkaDeniedError: of a topic.
    """
    source = seed_config(config, given).source
    seeds, state = _seeded(config)
    report = SeedReport(input=given.name, complete_since=None if statement is None else _shown(config, statement.point))
    if isinstance(source, FilesSource):
        try:
            found = found_files(source)
        except OSError as error:
            raise UsageError(f"--files {given.place}: it cannot be listed: {error.strerror}") from error
        if not (found.finished or found.unfinished):
            raise UsageError(
                f"--files {given.place}: no file is there; names that begin with `_` or `.` are passed over"
            )
        require_finished(given, found)
        require_apart(config, given, [file.path for file in found.finished], seeds)
        require_no_other(given, state)
        report = replace(report, files=len(found.finished))
    else:
        from deduper.seeding.topics import planned_offsets

        require_no_other(given, state)
        judged = planned_offsets(source, given, seeds, state)
        report = replace(report, offsets=judged.left, until=judged.next_offsets)
    return report


def _seeded(config: Config) -> tuple[dict[str, dict[str, Any]], LogState]:
    """What was judged of each input, and the store's state; those of a new store if there is none.

    Raises:
        UsageError: a job has judged windows in the store.
    """
    try:
        log = CommitLog.open(config.store.place)
    except StoreMissingError:
        return {}, LogState()  # the seed creates it
    seeds = seeds_of(log.state)
    if seeds is None:
        raise has_windows(str(log.root), log.state.next_window)
    return seeds, log.state


def seed(
    config: Config,
    given: SeedInput,
    statement: Statement | None,
    *,
    on_progress: Callable[[BatchProgress], None] = lambda _: None,
    session: SparkSession | None = None,
) -> SeedReport:
    """Fill the store, in the steps at the top. Called from the main thread, as `service.job.run`.

    Raises:
        UsageError: as `plan_seed`.
        OwnerAliveError, CheckFailedError: a job runs on the store.
        FencedError: a job has taken the store meanwhile.
        IntegrityError: the store has other keys than were judged.
        DeduperError, StoreError: as `service.job.run`.
    """
    planned = plan_seed(config, given, statement)
    opening = _Opening(config, given)
    summary = run(
        seed_config(config, given),
        once=True,
        on_progress=on_progress,
        session=session,
        opened=opening,
    )
    judged = replace(
        planned,
        windows=summary.windows,
        counts={port: getattr(summary, port) for port in PORTS},
        before=opening.before,
    )
    if summary.stopped_by != "drained":
        return judged
    failpoints.hit("seed.drained")
    return _finish(config, given, judged, statement, opening.epoch, wall_clock_us())


class _Opening:
    """Opens the input once the store is claimed, and sums up the keys that are there."""

    def __init__(self, own: Config, given: SeedInput) -> None:
        self._own = own
        self._given = given
        self.before: KeySum | None = None
        self.epoch = 0

    def __call__(
        self, config: Config, owned: Ownership, stop: Stop, session: SparkSession, logged_in: LogsIn
    ) -> Opened:
        del session, logged_in
        opened = open_input(config, self._own, self._given, owned, stop)
        state = owned.log.state
        self.before = _live_keys(config, state, owned.pieces, owned.log.manifest.store_id)
        self.epoch = state.epoch
        return opened


def _finish(
    config: Config, given: SeedInput, judged: SeedReport, statement: Statement | None, epoch: int, now_us: int
) -> SeedReport:
    """Steps c and d."""
    log = CommitLog.open(config.store.place)
    state = log.state
    if state.epoch != epoch:
        raise FencedError(f"{log.root}: another process has taken the store meanwhile: repeat the command")
    with closing(open_backend(config.store.url)) as pieces:
        after = _live_keys(config, state, pieces, log.manifest.store_id)
        errors = {
            one: rows for one, rows in state.reason_totals.items() if PORT_OF_REASON.get(one) == TupleVerdict.ERROR.port
        }
        report = replace(judged, after=after, reasons=errors)
        if given.kind == "topic":
            from deduper.seeding.topics import SeededOffsets

            report = replace(report, until=SeededOffsets.from_wire(state.extra[SEED][given.name]).next_offsets)
        died = report.died
        assert died is not None
        may_move = config.keeps_versions and config.lookup == "all_live"
        if (died < 0 and not may_move) or (died and config.expiry.by == "never"):
            raise IntegrityError(
                f"{log.root}: {report.before} before, {report.counts['unique']:,} unique, and {report.after} after: "
                "run `deduper verify`"
            )
        failpoints.hit("seed.proven")
        stated = complete_since(state) if statement is None else CompleteSince(statement.point, config.period_steps)
        mark = {} if stated is None else {COMPLETE: stated.to_wire()}
        with owning(OpenStore(config.store.url, config, log, pieces), now_us) as owned:
            if owned.epoch != epoch + 1:
                raise FencedError(f"{log.root}: another process has taken the store meanwhile: repeat the command")
            extra = {name: value for name, value in log.state.extra.items() if name != SEED_OPEN}
            state = replace(log.state, extra=extra | mark)
            owned.rebase(
                state,
                action="seed",
                **({OUTPUTS_THROUGH: state.next_window - 1} if given.is_of_outputs else {}),
                complete_since=None if stated is None else str(_shown(config, stated.point)),
                keys=after.count,
                checksum=after.checksum_hex,
            )
    found = complete_since(state)
    return replace(
        report,
        complete_since=None if found is None else _shown(config, found.point),
        is_complete=is_complete(config, state),
    )


def _live_keys(config: Config, state: LogState, pieces: PieceStore, store_id: str) -> KeySum:
    """Reads every live piece, a bucket at a time."""
    blocks = (block for shard in state.pieces for block in live_entries(config, state, pieces, store_id, shard))
    return sum_of_all(blocks, 0)


def _shown(config: Config, point: int | float | None) -> Any:
    return "ever" if point is None else config.expiry_key_scale.shown(point)
