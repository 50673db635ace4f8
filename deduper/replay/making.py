"""Makes the plan of a replay, or finds that of an earlier run.

a  survey the inputs of the source, and sort what is out of order into slices
b  the plan, in a file of its own; it and the slices are durable
c  one rebase record names the plan: from here on no job starts on the store, and the parts of the plan are judged

Before c there is no replay: the next start surveys again, and removes what no record names.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

from pyspark.sql import SparkSession

from bucket_store import failpoints
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import RebaseRecord
from bucket_store.places.place import Place
from deduper.config.model import Config
from deduper.core.clock import ClockRules
from deduper.errors import IntegrityError, SourceAwayError, StopRequested, UsageError
from deduper.replay.inputs import InputReading, ReplayInputs
from deduper.replay.keys import KeyRange
from deduper.replay.plan import Outline, Plan, PlannedPart, first_key, outline
from deduper.replay.shuffle import sorted_slices, surveys_of
from deduper.replay.slices import Cutting
from deduper.sinks.staging import staging_home
from deduper.sources.declared_columns import record_layout
from deduper.spark.failures import raised_in_worker
from deduper.spark.hdfs_login import LogsIn
from deduper.units import counted
from deduper.window.completeness import REPLAY
from deduper.window.policy import settings_hash
from deduper.window.progress import PROGRESS

logger = logging.getLogger(__name__)

_FOLDER = "_replay"
"""Beside the rows of the first file port, or in the store: folders of plans, with their slices."""
PLAN = "plan"
SLICE_BYTES = 32 << 20
_NOTHING = "nothing is to be replayed: the source has no records in this range"
_RECORDS, _HOME = "records", "home"


def asked_for(config: Config, bounds: KeyRange) -> str:
    """What a replay was asked for: one that is under way is continued only as it was begun.

    `records`: what its slices have of each record for the ports. `home`: the folder that had its plan.
    """
    layout = record_layout(config)
    records = [name for name, is_there in (("columns", layout.has_columns), ("sent", layout.are_sent)) if is_there]
    asked = {"from": bounds.first, "to": bounds.end, "settings": settings_hash(config)}
    return json.dumps({**asked, _RECORDS: records, _HOME: str(home_of(config))})


def home_of(config: Config) -> Place:
    """The folder of the plans and slices of a replay of this configuration."""
    return staging_home(config) / _FOLDER


def require_same_replay(root: Place, begun: Mapping[str, Any], config: Config, bounds: KeyRange) -> None:
    """The replay that was begun in a store, and may be over, is the one that is asked for. Raises UsageError.

    Slices have what the ports of their time needed, and lie beside the first one. Another home is refused only if the
    plan is not there and still counts: a store may have been moved, with its ports and the plan.
    """
    was, asked = json.loads(begun["asked"]), json.loads(asked_for(config, bounds))
    others = {name for name, value in asked.items() if was[name] != value}
    if _HOME in others and (begun["done"] == begun["of"] or (home_of(config) / begun["plan"] / PLAN).exists()):
        others.remove(_HOME)
    if others:
        what = "other ports" if others <= {_RECORDS, _HOME} else "another range or other rules"
        raise UsageError(
            f"{root}: a replay with {what} was begun in this store ({begun['asked']}): repeat it as it was, or name "
            "another --out"
        )


@dataclass(frozen=True, slots=True)
class Twin:
    """One of two replays over the same slices. `first` is the plan of the other one; None: this is the first."""

    first: Place | None = None


@dataclass(frozen=True, slots=True)
class Making:
    """Everything that a plan is made of. `inputs` are those of the source; opened if there is no plan."""

    config: Config
    log: CommitLog
    reading: InputReading
    bounds: KeyRange
    inputs: Callable[[], ReplayInputs]
    session: SparkSession
    logged_in: LogsIn
    stop: Event
    now_us: int
    slice_bytes: int | None = None
    twin: Twin | None = None

    @property
    def home(self) -> Place:
        """The folder of the plans."""
        return home_of(self.config)

    def planned(self) -> tuple[Plan, str, int]:
        """The plan, its name, and how many of its parts are judged.

        Raises:
            UsageError: the store has a plan of another replay, or windows of none; or nothing is in the range; or
                offsets are deleted before they are read, again and again.
            IntegrityError: offsets of a topic are gone, and `data_loss` is `fail`; or the plan's file is gone.
            FencedError: another process has taken the store; its plan is left alone.
            StopRequested: the stop was requested before the plan was made; nothing is left of it.
        """
        state = self.log.state
        begun: dict[str, Any] | None = state.extra.get(REPLAY)
        if begun is not None:
            require_same_replay(self.log.root, begun, self.config, self.bounds)
            return read_plan(self.home / begun["plan"] / PLAN), begun["plan"], begun["done"]
        if state.next_window:
            raise UsageError(
                f"{self.log.root}: this store has windows of a job: records of before them would be judged too late. "
                "A replay needs a new store: leave out --in-place, or give `store.url` and the sinks new places"
            )
        self.log.check_owner()
        self._remove_earlier()
        name = _name(self.log.manifest.store_id, state.epoch)
        with _ending_jobs(self.session, self.stop):
            plan = self._made(self.home / name)
        (self.home / name).make_directories()
        (self.home / name / PLAN).create(plan.to_bytes())
        failpoints.hit("replay.planned")
        named = {"plan": name, "done": 0, "of": len(plan.parts), "asked": plan.asked}
        extra = {**self.log.state.extra, REPLAY: named}
        self.log.place(RebaseRecord(replace(self.log.state, extra=extra, retired=()), self.log.state.last_wall_us))
        failpoints.hit("replay.begun")
        return plan, name, 0

    def _remove_earlier(self) -> None:
        """Remove what lower epochs have left. A higher one may have a plan that counts: this process may have slept."""
        names = {_name(self.log.manifest.store_id, epoch) for epoch in range(1, self.log.state.epoch)}
        for entry in self.home.entries():
            if entry.name in names:
                (self.home / entry.name).remove_tree()

    def _made(self, folder: Place) -> Plan:
        if self.twin is not None and self.twin.first is not None:
            return replace(read_plan(self.twin.first), asked=asked_for(self.config, self.bounds))
        inputs = self.inputs()
        while True:
            try:
                return self._sorted(folder, inputs)
            except Exception as exc:
                away = raised_in_worker(exc)
                if not isinstance(away, SourceAwayError):
                    raise
                inputs.wait_for(away)
                folder.remove_tree()

    def _sorted(self, folder: Place, source: ReplayInputs) -> Plan:
        inputs = source.listed()
        is_of_topics = bool(source.ends)
        PROGRESS.info("surveying %s", counted(len(inputs), source.noun))
        surveys = surveys_of(self.session, self.reading, self.bounds, inputs)
        source.surveyed()
        is_float = self.config.expiry_key_scale.is_float
        cuts_all = is_of_topics or self.twin is not None
        keyless_at = first_key(surveys, self.bounds) if is_of_topics else None
        size = self.slice_bytes or SLICE_BYTES
        drawn = outline(surveys, size, is_float=is_float, cuts_all=cuts_all, keyless_at=keyless_at)
        if not drawn.order:
            raise UsageError(_NOTHING)
        to_sort = [one for one in inputs if one.number in drawn.cuts.inputs]
        if to_sort:
            PROGRESS.info("sorting %s by time, of %d", counted(len(to_sort), source.noun), len(inputs))
        failpoints.hit("replay.surveyed")
        slices = sorted_slices(self.session, self._cutting(drawn), to_sort, folder, self.logged_in)
        source.require_same()
        if slices.keys() - {one for one in drawn.order if isinstance(one, int)}:
            raise IntegrityError("records were cut into a slice that is no part of the plan")
        parts: list[PlannedPart] = []
        for one in drawn.order:
            if not isinstance(one, int):
                parts.append(one)
            elif one in slices:
                parts.append(slices[one])
        if not parts:
            raise UsageError(_NOTHING)
        return Plan(asked_for(self.config, self.bounds), tuple(inputs), tuple(parts), source.ends, source.lost)

    def _cutting(self, drawn: Outline) -> Cutting:
        expiry = self.config.expiry
        ahead = getattr(expiry, "max_ahead_of_now", None)
        clock = ClockRules(self.config.expiry_key_scale.is_float, 1, ahead, None, self.now_us, None, 0)
        return Cutting(self.reading, self.bounds, drawn.cuts, clock)


def read_plan(file: Place) -> Plan:
    """The plan in a file that a store names.

    Raises:
        IntegrityError: the file is gone.
        CorruptionError, UnknownFormatError: as `Plan.of_bytes`.
    """
    try:
        data = file.read()
    except FileNotFoundError:
        raise IntegrityError(f"{file}: the plan of the replay is gone; begin again with another --out") from None
    return Plan.of_bytes(data, str(file))


def _name(store_id: str, epoch: int) -> str:
    return f"{store_id[:8]}-{epoch:06d}"


@contextmanager
def _ending_jobs(session: SparkSession, stop: Event) -> Iterator[None]:
    """End the jobs of the block when a stop is requested. Raises StopRequested then."""
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(0.2):
            if stop.is_set():
                session.sparkContext.cancelAllJobs()
                return

    watching = Thread(target=watch, name="replay-stop", daemon=True)
    watching.start()
    try:
        yield
    except Exception as exc:
        if stop.is_set():
            raise StopRequested("the plan was not finished; the next start makes it again") from exc
        raise
    finally:
        is_over.set()
        watching.join()
    if stop.is_set():
        raise StopRequested("the plan was not finished; the next start makes it again")
