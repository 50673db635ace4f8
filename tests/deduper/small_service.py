"""The service without Spark, for runs of thousands of windows: all that is real below the engine, in one process.

Real are the log, the pieces, the tables, a start's recovery, `WindowRunner` with its seven steps, `WindowJudge` with
the judgings it repeats, the exchange files, and the tasks of the three jobs. Acted out is what Spark does: reading and
parsing, dealing source partitions to tasks in some order, running tasks again or two at once, and handing on receipts.

A `World` is what outlives processes: the directory, the wall clock, the machine. A `Process` is one driver in it.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PythonException

from bucket_store import failpoints
from bucket_store.log import sources_file
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import ArchiveRef, LogState, SourcesRef
from bucket_store.pieces import compaction, rocksdb_backend
from bucket_store.pieces import reader as piece_reader
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.rocksdb_backend import RocksPieces
from bucket_store.pieces.store import PieceStore
from bucket_store.places.local import local_place
from bucket_store.tables import generation, manager, resident, table_file
from bucket_store.tables import mapped as mapped_tables
from bucket_store.tables.manager import TableSettings
from bucket_store.tables.table_file import MappedTable
from bucket_store.tables.view import ShardView
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.core.clock import POSITION_BITS
from deduper.core.verdict import REASONS, Admission, TupleVerdict
from deduper.sinks import staging
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.folding import FilesToFold
from deduper.sources.files.judged import KnownFiles
from deduper.sources.files.source_file import ListedFile, source_digest, stat_files
from deduper.sources.protocol import Records, SourceBatch
from deduper.tasks import exchange
from deduper.tasks import write as write_task
from deduper.tasks.judge import JudgeTask, Receipt, judge
from deduper.tasks.origins import WindowSources
from deduper.tasks.read import Admitted, ReadReceipt, ReadTask, admitted_rows, read_function
from deduper.tasks.readers.declared import Noted
from deduper.tasks.readers.reading_tasks import PartRead
from deduper.tasks.write import WriterReceipt, WriteTask, write
from deduper.testing import Answer, Row, Settings
from deduper.window import policy, recovery
from deduper.window import runner as window_run
from deduper.window.attempt import Judgement, WindowJudge
from deduper.window.exchange_folder import ExchangeFolders
from deduper.window.present_clock import present_wall_us
from deduper.window.runner import WindowInput, WindowRunner
from tests.bucket_store.maintenance.in_process import InProcess
from tests.deduper.digest_oracle import key_digest
from tests.deduper.unread import UNREAD

BEGIN_US = 2_000_000_000_000_000  # beyond the times that the machine gives to files: a grace is over when we say so
SECOND = 1_000_000
DAY = 86_400 * SECOND


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
    counts: bool = False
    """The source says by itself what was judged, as a topic does: sources files are forgotten with their keys."""

    def config(self, root: Path) -> Config:
        """The configuration of a job in `root`."""
        s = self.settings
        expiry: dict[str, Any] = {"by": s.by}
        columns = "k string"
        if s.by == "category":
            columns += ", e string"
            expiry |= {"field": "e", "live_categories": s.live_categories, "remember_dropped": s.remember_dropped}
        elif s.by == "ordered":
            columns += ", e double" if isinstance(self.unit, float) else ", e long"
            expiry |= {"field": "e", "period": s.period, "span": s.span, "lookup": s.lookup, "clock": s.clock}
            expiry["max_jump"] = "off" if s.jump is None else s.jump
        elif s.by != "never":
            expiry |= {"period": f"{s.period}us", "span": f"{s.span}us"}
            if s.by == "event_time":
                columns += ", e timestamp"
                expiry |= {"field": "e", "lookup": s.lookup, "clock": s.clock}
                expiry["max_ahead_of_now"] = "off" if s.ahead is None else f"{s.ahead}us"
                expiry["max_jump"] = "off" if s.jump is None else f"{s.jump}us"
        if s.on_conflict is not None:
            columns += ", p long"
        sections = {
            "name": "small",
            "source": {"format": "files", "path": "in", "file_format": "json", "schema": columns},
            "key": "k",
            "null_keys": s.null_keys,
            **({} if s.on_conflict is None else {"fingerprint": {"columns": ["p"]}, "on_conflict": s.on_conflict}),
            **({"max_versions": s.max_versions} if s.on_conflict == "unique" else {}),
            "expiry": expiry,
            "store": {"url": f"{self.backend}:state", "shards": self.shards, "first_seen": self.first_seen},
            "sinks": {
                port: {"format": "parquet", "path": f"out/{port}"} if self.ports else {"format": "none"}
                for port in PORTS
            },
        }
        return Config.model_validate(sections, context={"base_dir": root})


@dataclass(frozen=True)
class TaskRun:
    """A shard's task as Spark would run it again: with a copy of its keys, and what it answered the first time."""

    task: JudgeTask
    view: ShardView
    keys: dict[str, bytes]
    said: list[Said]


@dataclass(frozen=True)
class Judged:
    """One judging of a window: the files it read, the wall clock it used, what it said of every row."""

    paths: tuple[str, ...]
    wall_us: int
    answers: list[list[Answer]]


@dataclass
class Trouble:
    """What shall go wrong in the next judging; each is used up by it."""

    twin: str = ""  # "after", or a failpoint inside every task at which its twin runs
    keep_first_receipt: bool = False
    lose_receipt: str = ""  # of "read", "judge" or "write"


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
            local_place(self.config.store.path),
            policy.fixed_settings(self.config),
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
            os.utime(path, (0, 0))  # as it is listed
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
            policy.table_layout(self.config),
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


_apply = MappedTable.apply


def _torn_apply(table: MappedTable, number: int, *arguments: Any) -> int:
    """`MappedTable.apply` with a failpoint in its middle: a process that dies there leaves anything behind."""
    try:
        failpoints.hit("table.torn")
    except Killed:
        _apply(table, number, *arguments)
        table.columns(number).slots[:] = 0
        raise
    return _apply(table, number, *arguments)


@contextmanager
def machine_of(world: World) -> Iterator[None]:
    """This process acts as Spark's workers on the world's machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExchangeFolders, "remove", _removed_by_the_living)
        patch.setattr(generation, "boot_id", world.boot_id)
        patch.setattr(MappedTable, "apply", _torn_apply)
        # Tables of a thousand keys would never grow here.
        patch.setattr(table_file, "_LEAST_CAPACITY", 4)
        patch.setattr(table_file, "_SLICES", 4)
        patch.setattr(table_file, "_SLICED_FROM", 16)
        patch.setattr(resident, "LEAST_SLACK", 2)
        # Of 8 pieces a shard and more, or nothing would ever be deleted here.
        patch.setattr(window_run, "_DELETION_BATCH", 1)
        patch.setattr(compaction, "FEWEST_LIVE", 0)
        # Windows of one short path have their sources in the record, others a file of them.
        patch.setattr(sources_file, "INLINE_BYTES", _INLINE_BYTES)
        patch.setattr(compaction, "FEWEST", 3)
        patch.setattr(compaction, "FEWEST_LEFT", 2)
        # Some windows have one writer, others several.
        patch.setattr(write_task, "_WRITER_BYTES", 3000)
        patch.setattr(rocksdb_backend, "_MOST_TABLES", 2)
        # The records of all windows are of the same seconds, by the storage's clock.
        patch.setitem(CommitLog.delete_folded.__kwdefaults__, "grace_us", 0)
        # Who holds a database here goes on only when the other one is through.
        patch.setitem(RocksPieces.__init__.__kwdefaults__, "lock_wait_s", 0.0)
        for module in (manager, piece_reader, staging):
            patch.setattr(module, "ThreadPoolExecutor", _NoPool)
        yield


def run_again(run: TaskRun, directory: Path) -> tuple[Receipt, list[Said]]:
    """A shard's task once more, on a copy of its keys in a folder that is there already: receipt and verdicts."""
    for name, keys in run.keys.items():
        Path(exchange.keys_file(str(directory), name)).write_bytes(keys)
    task = replace(run.task, directory=str(directory))
    return judge(task, run.view), said(task, run.view.shard)


Said = tuple[int, str, str, tuple[int, int, Any] | None]


def said(task: JudgeTask, shard: int) -> list[Said]:
    """The exchange files for the writers of every row of a shard: source order, port, reason, and window, source
    order and expiry key of the first copy."""
    if not task.readers:
        return []
    found = []
    verdicts = exchange.mapped(exchange.verdicts_file(task.directory, shard))
    firsts = exchange.mapped(exchange.firsts_file(task.directory, shard)) if task.rules.keep_first_seen else None
    for reader, name in enumerate(task.readers):
        first_copies = {}
        if firsts is not None:
            columns = [column.to_pylist() for column in firsts.get_batch(reader).columns]
            first_copies = {row: named[:3] for row, *named in zip(*columns, strict=True)}
        order = (
            exchange.mapped(exchange.keys_file(task.directory, name))
            .get_batch(shard)
            .column(exchange.ORDER)
            .to_pylist()
        )
        judged = [column.to_pylist() for column in verdicts.get_batch(reader).columns]
        for at, row, verdict, reason in zip(order, *judged, strict=True):
            first = tuple(first_copies[row]) if row in first_copies else None
            text = "" if reason < 0 else REASONS[reason]
            found.append((at, TupleVerdict(verdict).port, text, cast(Any, first)))
    return found


class SmallJobs:
    """The jobs of a window as Spark runs them: tasks in some order, with the records in batches of some length.

    A task that is killed runs again. An exception of one comes as a text.
    """

    def __init__(self, world: World, salt: bytes) -> None:
        self.wall_us = 0
        self.batch: SourceBatch | None = None
        self.finished_reads: Sequence[str] = ()
        self._world = world
        self._salt = salt
        self._trouble = Trouble()
        self._was_killed = False
        self._partitions: list[list[Row]] = []
        self.sources: dict[int, SourcesRef | ArchiveRef] = {}
        self._paths: tuple[str, ...] = ()
        self._starts: tuple[int, ...] = ()

    def read(self, records: Records, task: ReadTask) -> list[PartRead]:
        """Each task has some of the source partitions, one after another."""
        batch = self.batch
        assert batch is not None
        world = self._world
        self._trouble, world.trouble = world.trouble, Trouble()
        world.shuffles += 1
        draw = random.Random(world.shuffles)
        self._paths = tuple(partition.name for partition in batch.partitions)
        self._starts = tuple(partition.start for partition in batch.partitions)
        self._partitions = [world.rows[path] for path in self._paths]
        dealt: list[list[int]] = [[] for _ in self._partitions]
        for ordinal in draw.sample(range(len(dealt)), len(dealt)):
            draw.choice(dealt).append(ordinal)
        length = draw.choice((1, 3, 1000))
        receipts = []
        for ordinals in dealt:
            records = self._records(ordinals)

            def read_all(records: pa.RecordBatch = records) -> ReadReceipt | None:
                cuts = range(0, records.num_rows, length)
                rows = list(read_function(task)(records.slice(cut, length) for cut in cuts))
                return pickle.loads(rows[0].column(0)[0].as_py()) if rows else None

            receipt = self._task(read_all, lambda receipt: _read_said(task, receipt))
            if receipt is not None:
                receipts.append(receipt)
        self._lose("read", receipts)
        if not self._was_killed:  # twins run here one after the other
            self.finished_reads = [receipt.name for receipt in receipts]
        found = [PartRead(receipt) for receipt in receipts] + [PartRead()] * (len(self._partitions) - len(receipts))
        rows = sum(map(len, self._partitions))
        return [replace(one, noted=Noted(0 if number else rows)) for number, one in enumerate(found)]

    def judge(self, task: JudgeTask, views: Sequence[ShardView]) -> list[Receipt]:
        """Judges every shard, and remembers what was said of every row."""
        world = self._world
        keys = {name: Path(exchange.keys_file(task.directory, name)).read_bytes() for name in task.readers}
        answers: dict[int, Answer] = {}
        receipts = []
        for view in views:
            receipts.append(self._task(partial(judge, task, view), lambda receipt: _judge_said(task, receipt)))
            of_shard = said(task, view.shard)
            answers.update((at, (port, text, self._named(task.window, first))) for at, port, text, first in of_shard)
            world.task_runs = [*world.task_runs[-11:], TaskRun(task, view, keys, of_shard)]
        world.judged[task.window, task.epoch, task.attempt] = Judged(
            self._paths,
            self.wall_us,
            [
                [answers.get(ordinal << POSITION_BITS | position, _NO_ANSWER) for position in range(len(rows))]
                for ordinal, rows in enumerate(self._partitions)
            ],
        )
        for receipt in receipts:
            for name in ("hits", "loaded", "merged", "evicted", "expired"):
                world.figures[f"tables {name}"] += int(receipt.table_counters[name])
        self._lose("judge", receipts)
        return receipts

    def admitted(self, task: ReadTask, readers: Sequence[ReadReceipt]) -> list[Admitted]:
        """From the files of the reading tasks."""
        return [admitted_rows(task, receipt.name) for receipt in readers]

    def close(self) -> None:
        """Nothing to close."""

    @contextmanager
    def open(self, epoch: int, attempt: int) -> Iterator[SmallJobs]:
        """The jobs of one attempt."""
        self.finished_reads, self._was_killed = (), False
        yield self

    def _named(self, window: int, first: tuple[int, int, Any] | None) -> Any:
        """A first copy with the name of its source partition, and its position there."""
        if first is None:
            return None
        of_window, origin, expiry = first
        sources = WindowSources(str(self._world.config.store.path), window, self._paths, self._starts, self.sources)
        name, position = sources.places(np.array([of_window]), np.array([origin]))
        return of_window, name[0].as_py(), position[0].as_py(), expiry

    def write(self, task: WriteTask) -> list[WriterReceipt]:
        """Writes the ports."""
        receipts = [self._task(partial(write, task, writer), _write_said) for writer in range(len(task.groups))]
        self._lose("write", receipts)
        return receipts

    def _task(self, run: Callable[[], _R], tell: Callable[[_R], object]) -> _R:
        """A task's receipt; run again until it lives, and perhaps by two at once. `tell`: what it has done."""
        while True:
            try:
                return self._with_twin(run, tell)
            except TaskKilled:
                self.finished_reads, self._was_killed = (), True
            except AssertionError:
                raise
            except Exception as exc:
                raise PythonException(traceback.format_exc()) from exc

    def _with_twin(self, run: Callable[[], _R], tell: Callable[[_R], object]) -> _R:
        twin = self._trouble.twin
        if not twin:
            return run()
        given: list[_R] = []
        reported: list[object] = []

        def run_one() -> None:
            given.append(run())
            reported.append(tell(given[-1]))

        if twin == "after":
            run_one()
            run_one()
        else:
            with armed(twin, 1, run_one):
                run_one()
        assert all(one == reported[0] for one in reported), "a twin has done something else"
        # What was done by the one whose receipt counts is as it was, whatever the other one did since.
        taken = 0 if self._trouble.keep_first_receipt else -1
        assert tell(given[taken]) == reported[taken], "a twin has changed what the other one did"
        return given[taken]

    def _lose(self, job: str, receipts: list[Any]) -> None:
        if self._trouble.lose_receipt == job and receipts:
            receipts.pop()

    def _records(self, ordinals: list[int]) -> pa.RecordBatch:
        """The rows of some source partitions as the plan gives them to a reading task."""
        config = self._world.config
        rows = [row for ordinal in ordinals for row in self._partitions[ordinal]]
        order = [p << POSITION_BITS | i for p in ordinals for i in range(len(self._partitions[p]))]
        admission = [self._parsed(row) for row in rows]
        digests = np.array([self._world.digest(row.key, self._salt) for row in rows], np.uint64).reshape(-1, 2)
        words = digests.view(np.int64)
        expiry: list[Any] = [row.expiry for row in rows]
        kind = pa.float64() if config.expiry_key_scale.is_float else pa.int64()
        columns = {
            "_hi": pa.array(words[:, 0]),
            "_lo": pa.array(words[:, 1]),
            "_order": pa.array(order, pa.int64()),
            "_admission": pa.array(admission, pa.int8()),
        }
        if config.expiry.by == "category":
            columns["_category"] = pa.array(expiry, pa.string())
        elif config.expiry_column is None:
            columns["_expiry"] = pa.array([0] * len(rows), pa.int64())
        else:
            columns["_expiry"] = pa.array(expiry, kind)
        if config.has_fingerprint:
            columns["_fingerprint"] = pa.array([1 + row.payload for row in rows], pa.uint64())
        raw = [None if at == Admission.ADMITTED else repr(row) for row, at in zip(rows, admission, strict=True)]
        columns["_raw"] = pa.array(raw, pa.string())
        if self._world.trial.ports:
            columns["_0"] = pa.array([row.key[0] for row in rows], pa.string())
            if config.expiry_column is not None:
                field = columns["_category" if config.expiry.by == "category" else "_expiry"]
                columns["_1"] = field.cast(pa.timestamp("us", "UTC")) if config.expiry.by == "event_time" else field
            if config.has_fingerprint:
                columns[f"_{len(config.source.parsed_columns) - 1}"] = pa.array(
                    [row.payload for row in rows], pa.int64()
                )
        return pa.RecordBatch.from_pydict(columns)

    def _parsed(self, row: Row) -> Admission:
        config = self._world.config
        if config.null_keys == "error" and None in row.key:
            return Admission.NULL_KEY
        if config.expiry_column is not None and row.expiry is None:
            return Admission.NULL_EXPIRY
        return Admission.ADMITTED


_R = TypeVar("_R")
_INLINE_BYTES = 210
_NO_ANSWER: Answer = ("nothing was said", "", None)


def _read_said(task: ReadTask, receipt: ReadReceipt | None) -> object:
    if receipt is None:
        return None
    keys = Path(exchange.keys_file(task.directory, receipt.name)).read_bytes()
    records = Path(exchange.rows_file(task.directory, receipt.name)).read_bytes()
    return replace(receipt, name="", seconds={}), keys, records


def _judge_said(task: JudgeTask, receipt: Receipt) -> object:
    return replace(receipt, piece=None, table_counters={}, seconds={}), said(task, receipt.shard)


def _write_said(receipt: WriterReceipt) -> object:
    return {file.port: parquet.read_table(str(file.place), partitioning=None).to_pylist() for file in receipt.files}


class _SmallJudge(WindowJudge):
    """Tells its jobs by which clock they judge."""

    def __init__(self, world: World, log: CommitLog, pieces: PieceStore) -> None:
        self._small = SmallJobs(world, log.manifest.salt)
        super().__init__(self._small, world.config, log, pieces, world.tables())
        self._world = world

    def judge(self, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        self._small.wall_us, self._small.batch = wall_us, batch
        named = {window: state.sources_of(window) for window in range(state.next_window)}
        self._small.sources = {window: ref for window, ref in named.items() if ref is not None}
        # There may be more or less room than there was.
        self._tables = self._world.tables()
        return super().judge(batch, state, wall_us)

    @property
    def left_folder(self) -> Path | None:
        """The folder that the next window is to write over."""
        return self._folders._left

    def die(self) -> None:
        """A killed process removes nothing, and its locks are free."""
        for lock in self._folders._locks.values():
            os.close(lock)
        self._folders._locks.clear()
        self._folders._left = None


_remove = ExchangeFolders.remove


def _removed_by_the_living(places: ExchangeFolders, folder: Path) -> None:
    if not isinstance(sys.exception(), Killed):
        _remove(places, folder)


class _Maintenance(InProcess):
    """A process of its own, which may die alone while it writes a piece."""

    def __init__(self, world: World, store: PieceStore) -> None:
        super().__init__(store)
        self._world = world

    def merge(self, task: CompactionTask) -> PieceRef | None:
        """Counted."""
        self._world.figures["pieces merged"] += len(task.pieces)
        try:
            return super().merge(task)
        except TaskKilled:
            return None


@dataclass(frozen=True)
class _CountedBatch(SourceFileBatch):
    """Files of which the commit record says which were judged: those `before`, and these."""

    before: tuple[str, ...] = ()

    @property
    def is_known_by_digests(self) -> bool:
        return False

    def extra(self) -> dict[str, Any]:
        return {"files": [*self.before, *(partition.digest.hex() for partition in self.partitions)]}


class Process:
    """A driver, from its start on: it owns the store until another one starts."""

    def __init__(self, world: World) -> None:
        """Starts: every step of `owner`, in its order, with `--take-over`."""
        self.world = world
        # A new process has nothing mapped and nothing read.
        mapped_tables._mapped.clear()
        piece_reader._headers.clear()
        config = world.config
        self.log = recovery.open_or_create(config, world.now_us)
        self.log.claim_epoch("small:1", present_wall_us(self.log, world.now_us))
        failpoints.hit("start.claimed")
        self.pieces = open_backend(config.store.url)
        recovery.recover(config, recovery.Ownership(self.log, self.pieces))
        self.judge = _SmallJudge(world, self.log, self.pieces)
        self._files = None if world.trial.counts else KnownFiles(config.source, self.log)
        self.runner = WindowRunner(
            config,
            self.log,
            _Maintenance(world, self.pieces),
            self.judge.judge,
            world.clock,
            in_background=lambda do: do(),
            files=None if self._files is None else FilesToFold.of(config.source, self._files),
            fold_windows=3,  # a story has some ten windows
        )
        self._batches = 0
        self._counted = {bytes.fromhex(digest) for digest in self.log.state.extra.get("files", ())}

    def offer(self, paths: list[str]) -> bool:
        """A batch of Spark's: False when the store knows all of its files."""
        if self._files is None:
            new = [path for path in paths if source_digest(path, 0) not in self._counted]
        else:
            new = self._files.new(paths)
        fresh = tuple(ListedFile(path, 0) for path in new)
        if not fresh:
            return False
        self._batches += 1
        source, files = self.world.config.source, tuple(stat_files(fresh))
        batch = SourceFileBatch(source, files, UNREAD)
        if self.world.trial.counts:
            batch = _CountedBatch(source, files, UNREAD, before=tuple(self.log.state.extra.get("files", ())))
        try:
            self._guarded(lambda: self.runner.run(WindowInput("query", self._batches, batch)))
            if self._files is None:
                self._counted |= {source_digest(path, 0) for path in new}
            failpoints.hit("window.7.checkpoint")
        except Killed:
            self.judge.die()
            raise
        return True

    def _guarded(self, action: Callable[[], object]) -> None:
        with recovery.telling_takeover(self.log):
            action()
