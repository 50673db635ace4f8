"""The service without Spark, for runs of thousands of windows: all that is real below the engine, in one process.

Real are the log, the pieces, the tables, a start's recovery, `WindowRunner` with its seven steps, the second judging
that `WindowJudge` asks for, and the tasks (`judge_function`, on Arrow columns). Acted out is what Spark does between
them: reading, parsing, dealing rows to shards in some order, running tasks again, merging receipts, writing rows.

A `World` is what outlives processes: the directory, the wall clock, the machine. A `Process` is one driver in it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext

from bucket_store import failpoints, generation, manager, mapped_tables, piece_reader, table_file, table_shelf
from bucket_store.backend import open_backend
from bucket_store.commit_log import CommitLog
from bucket_store.log_values import LogState
from bucket_store.manager import TableSettings
from bucket_store.rocksdb_backend import RocksPieces
from bucket_store.sources_file import known_digests
from bucket_store.table_file import TableFile
from deduper import judging, owner, staging, window_run
from deduper.categories import PlaceIntervals, arrange
from deduper.checkpoint import ListedFile
from deduper.clock import POSITION_BITS, PartitionClock, batch_clock
from deduper.config import PORTS, CategoryExpiry, Config
from deduper.digests import key_digest, shards_of
from deduper.file_batch import FileBatch
from deduper.file_source import source_digest, stat_files
from deduper.judge_plan import Categories
from deduper.receipts import take_receipts
from deduper.shard_task import REASONS, BatchTask, judge_function
from deduper.source_batch import SourceBatch
from deduper.staging import Attempt, StagedFile
from deduper.verdict import Fate, Verdict
from deduper.window_judge import Judgement, WindowJudge
from deduper.window_run import Batch, WindowRunner
from tests.oracle import Answer, Row, Settings

BEGIN_US = 2_000_000_000_000_000  # beyond the times that the machine gives to files: a grace is over when we say so
SECOND = 1_000_000


class Killed(BaseException):
    """A process that dies at a failpoint. Nothing of the product catches it."""


class TaskKilled(Killed):
    """The death of a Python worker: Spark runs its task again."""


class DriverKilled(Killed):
    """The death of everything."""


class _Armed:
    """A failpoint that does something at its n-th hit, once."""

    def __init__(self, nth: int, action: Callable[[], None]) -> None:
        self.hits_left, self.action = nth, action

    def hit(self) -> None:
        self.hits_left -= 1
        if self.hits_left == 0:
            self.action()


@contextmanager
def armed(name: str, nth: int, action: Callable[[], None]) -> Iterator[_Armed]:
    """The failpoint armed in this process; other failpoints may be armed inside."""
    hook = _Armed(nth, action)
    cast(dict[str, Any], failpoints._ARMED)[name] = hook
    try:
        yield hook
    finally:
        failpoints._ARMED.pop(name, None)


@dataclass(frozen=True)
class Trial:
    """What an example runs with. `unit`: the step of the expiry keys; `ports`: rows are staged and published as files;
    `snapshot_every`: of the log."""

    settings: Settings
    unit: Any = 1
    shards: int = 1
    first_seen: bool = True
    backend: str = "file"
    ports: bool = False
    snapshot_every: int = 3

    def config(self, root: Path) -> Config:
        """The configuration of a job in `root`."""
        s = self.settings
        expiry: dict[str, Any] = {"by": s.by}
        columns = "k string"
        if s.by == "never":
            expiry["buckets"] = 3
        elif s.by == "category":
            columns += ", e string"
            expiry |= {"field": "e", "live_categories": s.live_categories, "remember_dropped": s.remember_dropped}
        elif s.by == "ordered":
            columns += ", e double" if isinstance(self.unit, float) else ", e long"
            expiry |= {"field": "e", "period": s.period, "span": s.span, "lookup": s.lookup, "clock": s.clock}
            expiry["max_jump"] = "off" if s.jump is None else s.jump
        else:
            expiry |= {"period": f"{s.period}us", "span": f"{s.span}us"}
            if s.by == "event_time":
                columns += ", e timestamp"
                expiry |= {"field": "e", "lookup": s.lookup, "clock": s.clock}
                expiry["max_ahead_of_now"] = "off" if s.ahead is None else f"{s.ahead}us"
                expiry["max_jump"] = "off" if s.jump is None else f"{s.jump}us"
        sections = {
            "name": "small",
            "source": {"format": "files", "path": "in", "file_format": "json", "schema": columns},
            "key": "k",
            "null_keys": s.null_keys,
            "expiry": expiry,
            "store": {"url": f"{self.backend}:state", "shards": self.shards, "first_seen": self.first_seen},
            "sinks": {
                port: {"format": "json", "path": f"out/{port}"} if self.ports else {"format": "none"} for port in PORTS
            },
        }
        return Config.model_validate(sections, context={"base_dir": root})


@dataclass(frozen=True)
class TaskRun:
    """A task as Spark would run it again, and what it answered the first time."""

    task: BatchTask
    shard: int
    columns: list[tuple[Any, ...]]
    verdicts: list[Any]


@dataclass(frozen=True)
class Judged:
    """One judging of a window: the files it read, the wall clock it used, what it said of every row."""

    paths: tuple[str, ...]
    wall_us: int
    answers: list[list[Answer]]


@dataclass
class Trouble:
    """What shall go wrong in the next judging; each is used up by it."""

    twin: str = ""  # "after", or a failpoint inside the first task at which the twin runs
    keep_first_receipt: bool = False
    lose_receipt: bool = False


class World:
    """A job's directory and the machine it runs on."""

    def __init__(self, root: Path, trial: Trial) -> None:
        self.root, self.trial = root, trial
        self.config = trial.config(root)
        self.now_us = self.latest_us = BEGIN_US
        self.boot = 1
        self.memory_bytes = self.disk_bytes = 1 << 24
        self.rows: dict[str, list[Row]] = {}
        self.judged: dict[tuple[int, int, int], Judged] = {}
        self.task_runs: list[TaskRun] = []
        self.trouble = Trouble()
        self.shuffles = 0
        self.figures: Counter[str] = Counter()
        self._digests: dict[tuple[Any, ...], tuple[int, int]] = {}
        (root / "in").mkdir()
        CommitLog.create(
            self.config.store.path,
            judging.fixed_settings(self.config),
            wall_us=self.now_us,
            snapshot_every=trial.snapshot_every,
        )

    def clock(self) -> int:
        """The wall clock, which `latest_us` remembers."""
        self.latest_us = max(self.latest_us, self.now_us)
        return self.now_us

    def put(self, partitions: list[list[Row]]) -> list[str]:
        """New input files, one a source partition."""
        paths = []
        for rows in partitions:
            path = str(self.root / "in" / f"{len(self.rows):05d}")
            Path(path).touch()
            self.rows[path] = rows
            paths.append(path)
        return paths

    def tables(self) -> TableSettings:
        """Where tables lie and how much room they have now. Locks are not waited for."""
        return TableSettings(
            str(self.root / "memory"),
            str(self.root / "disk"),
            self.memory_bytes,
            self.disk_bytes,
            judging.table_layout(self.config),
            lock_timeout_s=0.0,
        )

    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return f"boot {self.boot}"

    def digest(self, key: tuple[Any, ...], salt: bytes) -> tuple[int, int]:
        """The digest of a key; a store has one salt."""
        if key not in self._digests:
            self._digests[key] = key_digest(key, ["string"], salt, secure=False)
        return self._digests[key]


class _Receipts:
    """The accumulator: of two receipts for one key it keeps one."""

    def __init__(self, world: World) -> None:
        self.value: dict[Any, Any] = {}
        self._world = world

    def add(self, receipts: dict[Any, Any]) -> None:
        self.value = {**receipts, **self.value} if self._world.trouble.keep_first_receipt else self.value | receipts


class _Context:
    """What a task asks Spark for."""

    shard = 0

    def partitionId(self) -> int:
        return self.shard


_context = _Context()


class _NoPool:
    """A thread pool without threads: starting them costs more than all else that a small window does."""

    def __init__(self, workers: int, **_: Any) -> None:
        pass

    def __enter__(self) -> _NoPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, action: Callable[..., Any], *columns: Any) -> Iterator[Any]:
        return map(action, *columns)

    def submit(self, action: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(action(*arguments))
        except Exception as error:  # noqa: BLE001  # as a pool does
            future.set_exception(error)
        return future


_apply = TableFile.apply


def _torn_apply(table: TableFile, entries: Any, only_window: int, start: int = 0) -> int:
    """`TableFile.apply` with a failpoint in its middle: whoever dies there leaves anything behind."""
    try:
        failpoints.hit("table.torn")
    except Killed:
        _apply(table, entries, only_window, start)
        table.slots[:] = 0
        raise
    return _apply(table, entries, only_window, start)


@contextmanager
def machine_of(world: World) -> Iterator[None]:
    """This process acts as Spark's workers on the world's machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskContext, "get", lambda: _context)
        patch.setattr(generation, "boot_id", world.boot_id)
        patch.setattr(TableFile, "apply", _torn_apply)
        # Tables of a thousand keys would never grow here.
        patch.setattr(table_file, "_LEAST_CAPACITY", 4)
        patch.setattr(table_shelf, "LEAST_SLACK", 2)
        # Of 8 pieces a shard and more, or nothing would ever be deleted here.
        patch.setattr(window_run, "_DELETION_BATCH", 1)
        # Who holds a database here goes on only when the other one is through.
        patch.setitem(RocksPieces.__init__.__kwdefaults__, "lock_wait_s", 0.0)
        for module in (manager, piece_reader, staging):
            patch.setattr(module, "ThreadPoolExecutor", _NoPool)
        yield


def run_task(task: BatchTask, shard: int, columns: list[tuple[Any, ...]], receipts: Any) -> list[Any]:
    """One task from its input to its receipt; the verdicts in the order of the input."""
    _context.shard = shard
    judge = judge_function(task, receipts)
    return [verdict for column in judge(iter(columns)) for verdict in column.to_pylist()]


class SmallJudge(WindowJudge):
    """Judges windows as Spark would."""

    def __init__(self, world: World, log: CommitLog, pieces: Any) -> None:
        self._world = world
        self._box = _Receipts(world)
        super().__init__(cast(Any, None), world.config, log, pieces, world.tables(), cast(Any, self._box))

    def _judge_once(
        self, attempt: Attempt, batch: SourceBatch, state: LogState, wall_us: int, *, in_order: bool
    ) -> Judgement:
        world, config = self._world, self._config
        partitions = [world.rows[path] for path in batch.names]
        rows = [row for part in partitions for row in part]
        order = np.array([p << POSITION_BITS | i for p, part in enumerate(partitions) for i in range(len(part))], "i8")
        fate = np.array([self._parsed(row) for row in rows], np.uint8)
        salt = self._log.manifest.salt
        digests = np.array([world.digest(row.key, salt) for row in rows], np.uint64).reshape(-1, 2)
        categories, latest = None, None
        clock = judging.clock_rules(config, state, wall_us)
        if isinstance(config.expiry, CategoryExpiry):
            categories = _arranged(config.expiry, judging.category_state(state), rows, order, fate)
            expiry = np.array([categories.ids.get(row.expiry, 0) for row in rows], np.int64)
        else:
            floats = config.point_scale.is_float
            keys = [0 if clock is None or row.expiry is None else row.expiry for row in rows]
            expiry = np.array(keys, np.float64 if floats else np.int64)
        if clock is not None and not in_order:
            fate = batch_clock(clock, expiry, fate)
        elif clock is not None:
            fate, before, has_latest = PartitionClock(clock).run(order, expiry, fate)
            latest = pa.array(before, mask=~has_latest) if config.lookup == "all_live" else None
        task = BatchTask(
            store_url=config.store.url,
            store_root=str(self._log.root),
            store_id=self._log.manifest.store_id,
            window=attempt.window,
            epoch=attempt.epoch,
            attempt=attempt.attempt,
            rules=judging.judge_rules(config, state, wall_us),
            tables=world.tables(),
            views=judging.shard_views(config, self._log.manifest, self._log.state),
            source_names=batch.names,
            source_starts=batch.starts,
            source_slots=batch.slots,
            sources_files={window: state.sources[window] for window in state.windows if window in state.sources},
            places=None if categories is None else categories.places,
        )
        words = digests.view(np.int64)
        columns = [words[:, 0], words[:, 1], order, fate.view(np.int8), expiry]
        in_shard = shards_of(digests, config.store.shards)
        verdicts: list[Any] = [None] * len(rows)
        for shard in range(config.store.shards):
            index = np.flatnonzero(in_shard == shard)
            for row, verdict in zip(*self._task(task, shard, index, columns, latest), strict=True):
                verdicts[row] = verdict
        answers = _by_partition([_answer(verdict) for verdict in verdicts], partitions)
        key = (attempt.window, attempt.epoch, attempt.attempt)
        world.judged[key] = Judged(batch.names, wall_us, answers)
        if world.trouble.lose_receipt:
            self._box.value.popitem()
        world.trouble = Trouble()
        receipts = take_receipts(cast(Any, self._box), *key)
        for receipt in receipts.values():
            for name in ("hits", "loaded", "merged", "evicted", "expired"):
                world.figures[f"tables {name}"] += int(receipt.table_counters[name])
        return Judgement(attempt, batch, receipts, self._staged(attempt, answers), categories, len(rows))

    def _parsed(self, row: Row) -> Fate:
        if self._config.null_keys == "error" and None in row.key:
            return Fate.NULL_KEY
        if self._config.expiry_column is not None and row.expiry is None:
            return Fate.NULL_EXPIRY
        return Fate.ADMITTED

    def _task(
        self, task: BatchTask, shard: int, index: Any, columns: list[Any], latest: Any
    ) -> tuple[list[int], list[Any]]:
        """The rows of a shard in the order they came, and their verdicts; run again until it lives."""
        world = self._world
        while True:
            world.shuffles += 1
            rows = np.array(random.Random(world.shuffles).sample(index.tolist(), index.size), np.int64)
            parts = [tuple(pa.array(column[rows]) for column in columns)]
            if latest is not None:
                parts[0] += (latest.take(pa.array(rows)),)
            batches = parts if rows.size else []
            try:
                verdicts = self._with_twin(task, shard, batches)
            except TaskKilled:
                continue
            world.task_runs = [*world.task_runs[-11:], TaskRun(task, shard, batches, verdicts)]
            return rows.tolist(), verdicts

    def _with_twin(self, task: BatchTask, shard: int, batches: list[tuple[Any, ...]]) -> list[Any]:
        twin = self._world.trouble.twin
        if not twin:
            return run_task(task, shard, batches, self._box)
        answers: list[list[Any]] = []

        def run_twin() -> None:
            answers.append(run_task(task, shard, batches, self._box))

        if twin == "after":
            verdicts = run_task(task, shard, batches, self._box)
            run_twin()
        else:
            with armed(twin, 1, run_twin):
                verdicts = run_task(task, shard, batches, self._box)
        assert all(answer == verdicts for answer in answers), "a twin gives other verdicts"
        return verdicts

    def _staged(self, attempt: Attempt, answers: list[list[Answer]]) -> dict[str, list[StagedFile]]:
        staged: dict[str, list[StagedFile]] = {}
        if not self._world.trial.ports:
            return staged
        target = staging.staging_home(self._config) / staging.STAGING / attempt.folder
        for port in PORTS:
            lines = [
                json.dumps([ordinal, position, *answer]) + "\n"
                for ordinal, part in enumerate(answers)
                for position, answer in enumerate(part)
                if answer[0] == port
            ]
            if lines:
                path = target / f"_port={port}" / "part-0.json"
                path.parent.mkdir(parents=True)
                path.write_text("".join(lines))
                staged[port] = [StagedFile(port, path, len(lines))]
        failpoints.hit("stage.written")
        return staged


def _arranged(expiry: CategoryExpiry, state: Any, rows: list[Row], order: Any, fate: Any) -> Categories:
    arrivals: dict[str, list[int]] = {}
    for row, at, known in zip(rows, order.tolist(), fate.tolist(), strict=True):
        if known == Fate.ADMITTED:
            arrivals.setdefault(row.expiry, []).append(at)
    after, intervals = arrange(
        state,
        {value: orders[0] for value, orders in arrivals.items()},
        lambda value, order: next((at for at in arrivals[value] if at >= order), None),
        expiry.live_categories,
        expiry.remember_dropped,
    )
    values = list(arrivals)
    return Categories(after, PlaceIntervals.of(values, intervals), {value: id for id, value in enumerate(values)})


def _by_partition(answers: list[Answer], partitions: list[list[Row]]) -> list[list[Answer]]:
    given = iter(answers)
    return [[next(given) for _ in part] for part in partitions]


def _answer(verdict: dict[str, Any]) -> Answer:
    """(port, reason, first copy), with the path of the first copy's source partition."""
    first = verdict.get("first_seen")
    reason = "" if verdict["reason"] is None else REASONS[verdict["reason"]]
    named = None if first is None else (first["window"], first["source"], first["position"], first["expiry"])
    return Verdict(verdict["verdict"]).port, reason, cast(Any, named)


class Process:
    """A driver, from its start on: it owns the store until another one starts."""

    def __init__(self, world: World) -> None:
        """Starts: every step of `owner`, in its order, with `--take-over`."""
        self.world = world
        # A new process has nothing mapped and nothing read.
        mapped_tables._mapped.clear()
        piece_reader._headers.clear()
        config = world.config
        self.log = owner.open_or_create(config, world.now_us)
        self.log.claim_epoch("small:1", max(world.now_us, self.log.state.last_wall_us))
        failpoints.hit("start.claimed")
        self.pieces = open_backend(config.store.url)
        self._guarded(lambda: owner.recover(config, self.log, self.pieces))
        self.judge = SmallJudge(world, self.log, self.pieces)
        self.runner = WindowRunner(config, self.log, self.pieces, self.judge, world.clock)
        self._known = known_digests(self.log.root, self.log.state.sources)
        self._batches = 0

    def offer(self, paths: list[str]) -> bool:
        """A batch of Spark's: False when the store knows all of its files."""
        listed = [ListedFile(f"file://{path}", 0) for path in paths]
        fresh = tuple(file for file in listed if source_digest(file.path, 0) not in self._known)
        if not fresh:
            return False
        self._batches += 1
        batch = FileBatch(self.world.config.source, tuple(stat_files(fresh)))
        self._guarded(lambda: self.runner.run(Batch("query", self._batches, batch)))
        self._known |= {source_digest(file.path, 0) for file in fresh}
        failpoints.hit("window.7.checkpoint")
        return True

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as exc:
            raise owner.reason_to_stop(self.log, exc) from exc
