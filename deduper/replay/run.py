"""`replay`: judges what a source has in the order of time, in windows of the job's own query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from bucket_store import failpoints
from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from bucket_store.places.place import Place
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.report.collect import report_of
from deduper.admin.report.page import page
from deduper.admin.status import source_lag
from deduper.as_json import AsJson
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.errors import UsageError
from deduper.replay.estimate import MeasuredRate, ReplayEstimate, ReplaySample, estimated, measured_rate, sample_of
from deduper.replay.files import ReplayFiles, source_files
from deduper.replay.inputs import InputReading, LostOffsets, ReplayFile, ReplayInput, ReplayInputs, ReplayRange
from deduper.replay.keys import KeyRange
from deduper.replay.making import PLAN, Making, Twin, home_of, read_plan, require_same_replay
from deduper.replay.settings import Asked, Order, bounds_of, order_of, replay_config
from deduper.replay.source import ReplaySource
from deduper.service.job import Opened, run
from deduper.service.stop import Stop
from deduper.sources.declared_columns import file_reading
from deduper.sources.files.folding import FilesToFold
from deduper.sources.files.judged import FOLDER as SOURCE_FOLDER
from deduper.sources.files.judged import KnownFiles
from deduper.spark.hdfs_login import LogsIn
from deduper.window.completeness import REPLAY, replay_is_open
from deduper.window.present_clock import wall_clock_us
from deduper.window.progress import BatchProgress, RemainingInput
from deduper.window.recovery import Ownership, unpublished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT = "report.html"
_PLAN_WAITS_US = 30_000_000
"""A plan does not wait long for brokers."""


@dataclass(frozen=True, slots=True)
class ReplayReport(AsJson):
    """A replay as it is planned, or as far as it has come.

    `store`, `outputs`: where it writes; `sorts_in`: the folder of its slices. `judged`: rows by port, of all runs.
    `is_begun`: the store has the plan. `is_over`: everything is judged. A source has `files`, or `offsets` in so many
    `partitions`, of which `bytes` is an estimate; `lost` were deleted before they were sorted. `files_since`,
    `offsets_since`: those that came meanwhile, and are not judged; None: the brokers do not answer. `estimate`: of a
    plan; None when it is executed. `report`: a page about the result. `rate`: as the windows of its own store were
    judged, or those of the job's; for people, who read the time of the plan.
    """

    json_names = (
        *(
            "is_executed",
            "is_over",
            "order",
            "store",
            "outputs",
            "sorts_in",
            "files",
            "unfinished",
            "partitions",
            "offsets",
            "lost",
            "bytes",
            "estimate",
        ),
        *("is_begun", "windows", "judged", "files_since", "offsets_since", "report"),
    )

    order: Order
    store: str
    outputs: dict[str, str]
    sorts_in: str
    files: int = 0
    unfinished: int = 0
    partitions: int = 0
    offsets: int = 0
    lost: tuple[LostOffsets, ...] = ()
    bytes: int = 0
    estimate: ReplayEstimate | None = None
    is_executed: bool = False
    is_over: bool = False
    is_begun: bool = False
    windows: int = 0
    judged: dict[str, int] = field(default_factory=dict)
    files_since: int = 0
    offsets_since: int | None = 0
    report: str | None = None
    rate: MeasuredRate | None = None


def plan_replay(config: Config, asked: Asked, *, now_us: int | None = None) -> ReplayReport:
    """What a replay is to do, by a sample of its source. Changes nothing.

    Raises:
        UsageError: there is no such order or range, nothing is in the source, or the store has windows of a job.
        BrokerUnavailableError: the brokers do not answer.
    """
    return plan_replays([(config, asked)], now_us=now_us)[0]


def plan_replays(
    replays: Sequence[tuple[Config, Asked]], *, now_us: int | None = None, is_executed: bool = False
) -> list[ReplayReport]:
    """As `plan_replay`, of several replays of the same records: one sample is for all.

    `is_executed`: they are begun next, so nothing is estimated, and no broker is asked.
    """
    sample: ReplaySample | None = None
    plans: list[ReplayReport] = []
    for config, asked in replays:
        first = plans[0] if plans else None
        planned, sample = _plan(config, asked, now_us, sample, first, is_executed=is_executed)
        plans.append(planned)
    return plans


def _plan(
    config: Config,
    asked: Asked,
    now_us: int | None,
    sample: ReplaySample | None,
    first: ReplayReport | None,
    *,
    is_executed: bool,
) -> tuple[ReplayReport, ReplaySample | None]:
    order = order_of(config, asked)
    bounds = bounds_of(config, asked, wall_clock_us() if now_us is None else now_us) if order == "time" else KeyRange()
    own = replay_config(config, asked)
    log: CommitLog | None = None
    with suppress(StoreMissingError):
        log = CommitLog.open(own.store.place)
    state = LogState() if log is None else log.state
    begun = state.extra.get(REPLAY)
    if begun is not None:
        require_same_replay(own.store.place, begun, own, bounds)
    elif state.next_window and order == "time":
        remedy = "leave out --in-place" if asked.out is None else "name another --out"
        raise UsageError(f"{own.store.url}: this store has windows that were judged in another order; {remedy}")
    planned = ReplayReport(
        order=order,
        store=own.store.url,
        outputs={port: getattr(sink, "url", None) or sink.format for port, sink in own.sinks.items()},
        sorts_in=str(home_of(own)),
        windows=state.next_window,
        judged=dict(state.totals) if state.next_window else {},
        is_over=log is not None and _is_over(log),
        is_begun=begun is not None,
        # A store elsewhere may be away, and its job may run on other machines.
        rate=measured_rate(one.store.place for one in (own, config) if one.store.is_local),
    )
    if planned.is_over:
        return _of_kept_plan(planned, own), sample
    if is_executed and not isinstance(own.source, FilesSource):
        return planned, sample
    inputs: Sequence[ReplayInput]
    reading = _reading(own, bytes(16))
    if isinstance(own.source, FilesSource):
        inputs, waiting = source_files(own.source)
        if not inputs:
            raise UsageError(f"{own.source.place}: nothing is there to be replayed")
        planned = replace(planned, files=len(inputs), unfinished=waiting)
    elif planned.is_begun:  # its slices have all that is left of the topic
        return _of_plan(planned, own), sample
    elif first is not None and first.is_begun:  # the first one's slices are for both
        same = {name: getattr(first, name) for name in ("partitions", "offsets", "bytes", "lost")}
        return replace(planned, **same), sample
    else:
        source = own.source.model_copy(update={"deadline": min(own.source.deadline, _PLAN_WAITS_US)})
        inputs = _inputs(own.model_copy(update={"source": source}), bounds, reading).listed()
        planned = _with_offsets(planned, inputs)
    if is_executed:
        return replace(planned, bytes=sum(one.size_bytes for one in inputs)), sample
    sample = sample or sample_of(own, reading, bounds, inputs)
    size_bytes = sum(one.size_bytes for one in inputs)
    return replace(planned, bytes=size_bytes, estimate=estimated(own, sample, sorts=order == "time")), sample


def _with_offsets(report: ReplayReport, inputs: Iterable[ReplayInput]) -> ReplayReport:
    ranges = [one for one in inputs if isinstance(one, ReplayRange)]
    offsets = sum(one.end - one.start for one in ranges)
    size_bytes = sum(one.size_bytes for one in ranges)
    return replace(report, partitions=len({one.name for one in ranges}), offsets=offsets, bytes=size_bytes)


def _of_plan(report: ReplayReport, config: Config) -> ReplayReport:
    plan = read_plan(plan_file(config))
    return replace(_with_offsets(report, plan.inputs), lost=plan.lost)


def _of_kept_plan(report: ReplayReport, config: Config) -> ReplayReport:
    """As `_of_plan`, of a replay that is over: its plan is there until it has finished."""
    if report.order == "arrival" or isinstance(config.source, FilesSource) or not plan_file(config).exists():
        return report
    return _of_plan(report, config)


def _is_over(log: CommitLog) -> bool:
    """Whether all is judged, and published too: a kill may fall between."""
    return REPLAY in log.state.extra and not replay_is_open(log.state) and not unpublished(log)


def replay(
    config: Config,
    asked: Asked,
    *,
    on_progress: Callable[[BatchProgress], None] = lambda _: None,
    session: SparkSession | None = None,
    clock: Callable[[], int] = wall_clock_us,
    slice_bytes: int | None = None,
    window_bytes: int | None = None,
    twin: Twin | None = None,
    planned: ReplayReport | None = None,
) -> ReplayReport:
    """Do it, or go on with it. Called from the main thread, as `service.job.run`. `planned`: what `plan_replay` gave.

    Raises:
        UsageError: as `plan_replay`; or another replay is under way in the store.
        FileMovedError: a file has changed or is gone that is still to be read.
        DeduperError, StoreError: as `service.job.run`.
    """
    if planned is None:
        (planned,) = plan_replays([(config, asked)], now_us=clock(), is_executed=True)
    planned = replace(planned, is_executed=True)
    own = replay_config(config, asked)
    if planned.is_over:  # an earlier run may have been killed before it had finished
        return _finished(own, asked, planned, twin)
    if planned.order == "arrival":
        summary = run(own, once=True, on_progress=on_progress, session=session, clock=clock)
    else:
        bounds = bounds_of(config, asked, clock())
        opening = _Opening(bounds, clock(), slice_bytes, window_bytes, twin)
        shown = opening.with_rows_left(on_progress)
        summary = run(own, once=True, on_progress=shown, session=session, clock=clock, opened=opening)
    log = CommitLog.open(own.store.place)
    state = log.state
    is_over = summary.stopped_by == "drained" and (planned.order == "arrival" or _is_over(log))
    report = replace(planned, windows=state.next_window, judged=dict(state.totals), is_over=is_over)
    if REPLAY in state.extra and not isinstance(own.source, FilesSource):
        report = _of_plan(report, own)
    if not is_over:
        return report
    failpoints.hit("replay.drained")
    return _finished(own, asked, report, twin)


class _Opening:
    """Opens the replay as a source of windows, once the store is claimed."""

    def __init__(
        self, bounds: KeyRange, now_us: int, slice_bytes: int | None, window_bytes: int | None, twin: Twin | None
    ) -> None:
        self._bounds = bounds
        self._now_us = now_us
        self._slice_bytes = slice_bytes
        self._window_bytes = window_bytes
        self._twin = twin
        self._source: ReplaySource | None = None
        self._seconds = 0.0
        self._rows = 0

    def __call__(
        self, config: Config, owned: Ownership, stop: Stop, session: SparkSession, logged_in: LogsIn
    ) -> Opened:
        source = config.source
        reading = _reading(config, owned.log.manifest.salt)
        making = Making(
            config,
            owned.log,
            reading,
            self._bounds,
            lambda: _inputs(config, self._bounds, reading, stop.event),
            session,
            logged_in,
            stop.event,
            self._now_us,
            self._slice_bytes,
            self._twin,
        )
        known = KnownFiles(source, owned.log) if isinstance(source, FilesSource) else None
        self._source = ReplaySource(
            str(source.place),
            making.planned,
            making.home,
            reading,
            self._bounds,
            {} if known is None else {SOURCE_FOLDER: known.folder},
            self._window_bytes,
            self._twin,
            session.sparkContext.defaultParallelism,
        )
        made = self._source
        if not isinstance(source, FilesSource) or known is None:
            return None, lambda _: made
        return FilesToFold.of(source, known), lambda _: made

    def with_rows_left(self, on_progress: Callable[[BatchProgress], None]) -> Callable[[BatchProgress], None]:
        """Progress with the records that are left, and the time for them at the rate so far."""

        def shown(progress: BatchProgress) -> None:
            assert self._source is not None
            self._seconds += progress.seconds
            self._rows += progress.rows
            left = self._source.rows_begun - self._rows
            seconds = left * self._seconds / self._rows if self._rows else None
            on_progress(replace(progress, left=RemainingInput(left, "record", seconds)))

        return shown


def _finished(config: Config, asked: Asked, report: ReplayReport, twin: Twin | None) -> ReplayReport:
    """Remove the plan, write the page, and count what is in the source and was not judged."""
    source = config.source
    begun = CommitLog.open(config.store.place).state.extra.get(REPLAY)
    planned: set[str] | None = set()
    if begun is not None and isinstance(source, FilesSource):
        # Files without a record of the range are in no window.
        if plan_file(config).exists():
            planned = {one.path for one in read_plan(plan_file(config)).inputs if isinstance(one, ReplayFile)}
        elif asked.start is not None or asked.end is not None:
            planned = None
    if begun is not None and twin is None:
        home = home_of(config)
        (home / begun["plan"]).remove_tree()
        if not home.entries():
            home.remove_tree()
    if asked.out is not None:
        report = replace(report, report=_page(config, asked.out / _REPORT))
    if not isinstance(source, FilesSource):
        if report.order == "arrival":
            return report
        with _opened(config) as store:
            lag = source_lag(store)
        return replace(report, offsets_since=None if lag is None else lag.total)
    files, _ = source_files(source)
    if planned is None:  # an earlier run has said what came since
        return replace(report, files=report.files or len(files))
    new = KnownFiles(source, CommitLog.open(config.store.place)).new([one.path for one in files])
    since = len(set(new) - planned)
    return replace(report, files=report.files or len(files) - since, files_since=since)


def plan_file(config: Config) -> Place:
    """The file of the plan of a replay that was begun in the store of this configuration."""
    return home_of(config) / str(CommitLog.open(config.store.place).state.extra[REPLAY]["plan"]) / PLAN


def _page(config: Config, path: Path) -> str:
    with _opened(config) as store:
        path.write_text(page(report_of(store)), "utf-8")
    return str(path)


@contextmanager
def _opened(config: Config) -> Iterator[OpenStore]:
    store = open_store(config.store.url)
    with closing(store.pieces):
        yield OpenStore(store.url, config, store.log, store.pieces)


def _reading(config: Config, salt: bytes) -> InputReading:
    """How the records of the source are read, for a store with this salt."""
    if isinstance(config.source, FilesSource):
        return file_reading(config, config.source, salt)
    # Kafka's client is optional.
    from deduper.sources.kafka.reading import topic_reading

    return topic_reading(config, config.source, salt)


def _inputs(config: Config, bounds: KeyRange, reading: InputReading, stop: Event | None = None) -> ReplayInputs:
    if isinstance(config.source, FilesSource):
        return ReplayFiles(config.source)
    from deduper.replay.topics import ReplayTopics

    return ReplayTopics(config, config.source, bounds, reading, stop)
