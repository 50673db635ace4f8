"""The service on a disk in memory: the product's own log, pieces, staging, recovery and seven steps, without Spark.

A `Scene` is what is outside the service and stays the same whatever happens to it: the configuration, the batches of
the source, the wall clock, and the oracle's answers. A `Process` is one driver on a machine. Acted out is what Spark
does: parsing, dealing rows to shards, and writing staged rows, which it does without syncing anything.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bucket_store.errors import StoreMissingError
from bucket_store.filesystem import FileSystem
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.heartbeat import HeartBeat
from bucket_store.log.records import LogState
from bucket_store.pieces import reader
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import PieceStore, append_piece
from bucket_store.places.local import LocalNames, local_place
from bucket_store.tables.manager import ShardTables, TableSettings
from bucket_store.tables.matches import Matches
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.sinks import staging
from deduper.sinks.names import Attempt
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.folding import FilesToFold
from deduper.sources.files.judged import KnownFiles
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.sources.protocol import SourceBatch
from deduper.tasks.judge import Receipt
from deduper.tasks.write import StagedFile
from deduper.testing import Answer, Oracle, Row, Settings
from deduper.window import policy, recovery
from deduper.window import runner as window_run
from deduper.window.attempt import Judgement
from deduper.window.runner import WindowInput, WindowRunner
from tests.bucket_store.maintenance.in_process import InProcess
from tests.deduper.engine import Engine, Shape, comparable
from tests.deduper.staged_file import staged_file
from tests.deduper.unread import UNREAD
from tests.faults.crash_disk import Disk, Machine

HOUR_US = 3_600_000_000
BEGIN_US = 1_000 * HOUR_US
Rows = dict[str, Answer]
"""The answers of some rows, by the rows' names."""


@dataclass(frozen=True)
class Plan:
    """What one scenario is: the stream's shape, and the limits that make rare things happen in a few windows."""

    windows: int = 3
    shards: int = 1
    rows: int = 4
    ports: tuple[str, ...] = ("unique", "duplicate")
    period: int = 100
    lookup: str = "own_bucket"
    snapshot_every: int = 1000
    deletion_batch: float = 8
    table_bytes: int | None = None
    seed: int = 0


@dataclass
class Scene:
    """Everything outside the service. `root` is a real directory: source files are read and tables kept there."""

    plan: Plan
    root: Path
    config: Config = field(init=False)
    settings: Settings = field(init=False)
    batches: list[tuple[ListedFile, ...]] = field(init=False)
    rows: dict[str, list[Row]] = field(init=False)
    expected: list[Rows] = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        sections: dict[str, Any] = {
            "name": "faults",
            "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t long"},
            "key": "k",
            "expiry": {"by": "ordered", "field": "t", "period": plan.period, "span": 5, "lookup": plan.lookup},
            "store": {"url": "file:state", "shards": plan.shards},
            "sinks": {
                port: {"format": "json", "path": f"out/{port}"} if port in plan.ports else {"format": "none"}
                for port in PORTS
            },
        }
        self.config = Config.model_validate(sections, context={"base_dir": self.root})
        self.settings = Settings(by="ordered", period=plan.period, span=5, lookup=plan.lookup)
        self.rows, self.batches, self.expected = {}, [], []
        self._draw_stream()

    def _draw_stream(self) -> None:
        """Two files a window; keys that come back, late rows, rows without a key."""
        draw = random.Random(self.plan.seed)
        oracle = Oracle(self.settings)
        (self.root / "in").mkdir(exist_ok=True)
        for window in range(self.plan.windows):
            files = []
            partitions = []
            for part in range(2):
                path = self.root / "in" / f"{window:03d}-{part}.json"
                path.touch()
                files.append(ListedFile(f"{path}", 1000 + window))
                rows = [
                    Row((draw.choice(("a", "b", "c", "d", None)),), 7 * window + draw.choice((0, 1, 2, 5, -9)))
                    for _ in range(self.plan.rows)
                ]
                self.rows[str(path)] = rows
                partitions.append(rows)
            self.batches.append(tuple(files))
            answers = comparable(oracle.judge(partitions, self.now_us(window)), self.settings, keep_first_seen=True)
            self.expected.append(
                {
                    row_name(file.path, position): answer
                    for file, part in zip(files, answers, strict=True)
                    for position, answer in enumerate(part)
                }
            )

    def now_us(self, window: int) -> int:
        """The wall clock while a window is judged: far enough apart for every grace to be over by the next."""
        return BEGIN_US + 2 * HOUR_US * window

    def new_disk(self) -> Disk:
        """An empty disk with the directory of the job, durable."""
        disk = Disk()
        machine = Machine(disk)
        for directory in (*reversed(self.root.parents), self.root):
            if directory != Path("/"):
                machine.mkdir(directory)
                machine.fsync_dir(directory.parent)
        return disk


def row_name(path: str, position: int) -> str:
    """What tells a row from all others."""
    return f"{Path(path).name}:{position}"


class _NoThreads:
    """A pool that works in the thread of its caller."""

    def __init__(self, count: int, thread_name_prefix: str) -> None:
        """As the real one."""

    def __enter__(self) -> _NoThreads:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is held."""

    def map(self, do: Callable[[Any], Any], many: Iterable[Any]) -> Iterator[Any]:
        """In order, each when it is asked for."""
        return map(do, many)


@contextmanager
def limits(plan: Plan) -> Iterator[None]:
    """The plan's limits, and no threads for syncing, so that a run's operations come in the same order every time."""
    places: list[tuple[Any, str, Any]] = [
        (window_run, "_DELETION_BATCH", plan.deletion_batch),
        (staging, "ThreadPoolExecutor", _NoThreads),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def seeded_names(seed: object) -> Iterator[None]:
    """The same random names and nonces for the same seed: a failing state can be made again."""
    draw = random.Random(str(seed))
    before = secrets.token_bytes, secrets.token_hex
    secrets.token_bytes = lambda nbytes=None: draw.randbytes(nbytes or 32)
    secrets.token_hex = lambda nbytes=None: draw.randbytes(nbytes or 32).hex()
    try:
        yield
    finally:
        secrets.token_bytes, secrets.token_hex = before


class Process:
    """One driver: it starts, owns the store, and runs windows until something stops it."""

    def __init__(self, scene: Scene, fs: FileSystem) -> None:
        self.scene, self.fs = scene, fs
        self.committed: Callable[[int], None] = lambda window: None
        self._window = 0

    def start(self) -> None:
        """Open or create the store, claim it, recover."""
        scene = self.scene
        # Of another life: what a process has read is gone with it.
        reader._headers.clear()
        root = scene.config.store.path
        try:
            self.log = CommitLog.open(local_place(root, self.fs))
        except StoreMissingError:
            settings = policy.fixed_settings(scene.config)
            self.log = CommitLog.create(
                local_place(root, self.fs), settings, wall_us=BEGIN_US, snapshot_every=scene.plan.snapshot_every
            )
        self.log.claim_epoch("test", max(BEGIN_US, self.log.state.last_wall_us))
        HeartBeat(local_place(root, self.fs), "test").beat()
        self.pieces = open_backend(scene.config.store.url, self.fs)
        recovery.recover(scene.config, recovery.Ownership(self.log, self.pieces))
        self.judge = Judge(scene, self.log, self.pieces, self.fs)
        self._files = KnownFiles(scene.config.source, self.log)
        self.runner = WindowRunner(
            scene.config,
            self.log,
            InProcess(self.pieces),
            self.judge.judge,
            lambda: scene.now_us(self._window),
            files=FilesToFold.of(scene.config.source, self._files),
            in_background=lambda do: do(),
            fold_windows=3,  # a story has some ten windows
        )
        place = self.log.place

        def placed(body: Any) -> LogState:
            state = place(body)
            self.committed(state.next_window)
            return state

        self.log.place = placed  # type: ignore[method-assign]

    def run(self, windows: int | None = None) -> None:
        """Run batches that the store does not know, all or so many, as `job` does."""
        for number, files in enumerate(self.scene.batches):
            new = set(self._files.new([file.path for file in files]))
            fresh = tuple(file for file in files if file.path in new)
            if windows == 0:
                return
            if not fresh:
                continue
            self._window = number
            if isinstance(self.fs, Machine):
                self.fs.disk.now_us = self.scene.now_us(number)
            batch = SourceFileBatch(self.scene.config.source, tuple(stat_files(fresh)), UNREAD)
            self.runner.run(WindowInput("query", number, batch))
            windows = None if windows is None else windows - 1


class Judge:
    """Step 2 without Spark: everything that judges is real, and so is what becomes durable of it."""

    def __init__(self, scene: Scene, log: CommitLog, pieces: PieceStore, fs: FileSystem) -> None:
        self._scene, self._log, self._pieces, self._fs = scene, log, pieces, fs
        self._attempts = 0
        self._refs: list[PieceRef | None] = []
        self._state = log.state
        self._attempt = Attempt(0, 0, 0)
        self.evicted = 0
        self._engine = Engine(
            scene.settings, ["string"], Shape(shards=scene.plan.shards, seed=scene.plan.seed), memory=self
        )

    def judge(self, batch: SourceBatch, state: LogState, wall_us: int) -> Judgement:
        """The window after `state`: its pieces are durable, its rows are staged and nothing of them is synced."""
        self._state = state
        self._attempt = Attempt(state.next_window, state.epoch, self._attempts)
        self._attempts += 1
        self._views = policy.shard_views(self._scene.config, self._log.manifest, state)
        engine = self._engine
        engine.window, engine.latest, engine.moved_us = state.next_window, state.latest_point, 0
        paths = [partition.name for partition in batch.partitions]
        partitions = [self._scene.rows[path] for path in paths]
        answers = engine.judge(partitions, wall_us)
        receipts = {
            shard: Receipt.of(shard, outcome, piece)
            for shard, (outcome, piece) in enumerate(zip(engine.outcomes, self._refs, strict=True))
        }
        rows = {
            row_name(path, position): answer
            for path, part in zip(paths, answers, strict=True)
            for position, answer in enumerate(part)
        }
        return Judgement(self._attempt, batch, receipts, self._stage(rows), None, len(rows))

    def find(self, shard: int) -> Callable[[int, Any], Matches]:
        """Look-ups in the state's pieces, through tables when the plan has room for some."""
        settings = self._tables()
        view = self._views[shard]

        def look_up(bucket: int, digests: Any) -> Matches:
            if self._scene.plan.table_bytes is None:
                return ShardTables(settings, self._pieces, view, None).find(bucket, digests)
            with ShardTables.open(settings, self._pieces, view) as tables:
                found = tables.find(bucket, digests)
                self.evicted += tables.counters.evicted
                return found

        return look_up

    def commit(self, window: int, entries: list[Entries | None], live_from_bucket: Any, point: Any) -> None:
        """The window's pieces; called by the engine when every shard is judged."""
        self._refs = [
            None
            if new is None
            else append_piece(
                self._pieces,
                new,
                store_id=bytes.fromhex(self._log.manifest.store_id),
                shard=shard,
                first_window=window,
                last_window=window,
                epoch=self._attempt.epoch,
                attempt=self._attempt.attempt,
            )
            for shard, new in enumerate(entries)
        ]

    def _tables(self) -> TableSettings:
        tables, room = self._scene.root / "tables", self._scene.plan.table_bytes or 0
        return TableSettings(
            str(tables / "memory"), str(tables / "disk"), room, room, policy.table_layout(self._scene.config)
        )

    def _stage(self, rows: Rows) -> dict[str, list[StagedFile]]:
        """As writers do: a file a port with a name of its own, in folders that are there; names are not synced."""
        names = LocalNames(self._fs)
        targets = staging.make_staging(self._scene.config, self._attempt, names=names)
        staged: dict[str, list[StagedFile]] = {}
        for port in self._scene.plan.ports:
            lines = [
                json.dumps({"row": name, "window": self._attempt.window, "answer": answer})
                for name, answer in rows.items()
                if answer[0] == port
            ]
            if lines:
                place = targets[port] / f"{port}-00000-{secrets.token_hex(8)}.json"
                data = "".join(f"{line}\n" for line in lines).encode()
                staged[port] = [staged_file(port, place, data, len(lines))]
        return staged
