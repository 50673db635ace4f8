"""A contender on its workload: its directory, its turns, and the size of its state at the end.

All lanes of a workload read the same files, by hard links in a source directory each. A turn links the batches that
are next and runs the query until the source is drained, so every turn restarts the query on the state that it left.
Other tests count the outputs; here they are deleted after each turn.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from deduper.bench.contenders import CONTENDERS, Contender, LaneSpec
from deduper.bench.figures import LaneResult, Trigger, Turn
from deduper.bench.workload import PERIOD_HOURS, SCHEMA, Workload
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.service.job import run
from deduper.sources.open import session_settings
from deduper.spark.session import end_session, start_session
from deduper.window.progress import BatchProgress
from deduper.window.table_folder import table_folders

_TELL_SECONDS = 20.0
_SHUFFLE = "spark.sql.shuffle.partitions"
_NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


class Listener(StreamingQueryListener):
    """Spark's own durations of every batch with rows, in order."""

    def __init__(self) -> None:
        self.durations: list[dict[str, int]] = []

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to note."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch has ended."""
        durations = event.progress.durationMs
        if "addBatch" in durations:
            self.durations.append({name: int(value) for name, value in durations.items()})

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to note."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to note."""

    def take(self, count: int) -> list[dict[str, int]]:
        """The next `count` batches; Spark reports them from a queue of its own, so they may come a moment later."""
        deadline = time.monotonic() + _TELL_SECONDS
        while len(self.durations) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        if len(self.durations) != count:
            raise RuntimeError(f"Spark reported {len(self.durations)} batches, {count} were run")
        taken, self.durations = self.durations, []
        return taken


def service_sections(
    contender: Contender, work: Path, workload: Workload, shards: int, *, spark: Mapping[str, str]
) -> dict[str, Any]:
    """The service's config as a file has it: defaults, but for the settings of the contender and the benchmark."""
    sections: dict[str, Any] = {
        "name": "bench",
        "source": {
            "format": "files",
            "path": str(work / "in"),
            "file_format": workload.file_kind.removesuffix(".gz"),
            "schema": SCHEMA,
            "max_files_per_batch": workload.files_a_batch,
        },
        "key": "k",
        "expiry": {
            "by": "event_time",
            "field": "ts",
            "period": f"{PERIOD_HOURS}h",
            "span": "1h",
            "max_ahead_of_now": "off",
        },
        # The whole state is resident: a state that does not fit is another measurement.
        "store": {"url": "rocksdb:state", "shards": shards, "memory": "16GiB", "tables": str(work / "tables")},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
        "spark": dict(spark),
    }
    for name, values in contender.settings.items() if contender.is_service else ():
        if name == "sinks":
            for port, sink in values.items():
                sections[name][port] = sink if sink["format"] == "none" else {**sections[name][port], **sink}
        else:
            sections[name] = {**sections[name], **values}
    return sections


def service_config(
    contender: Contender, work: Path, workload: Workload, shards: int, *, spark: Mapping[str, str]
) -> Config:
    """`service_sections`, checked."""
    sections = service_sections(contender, work, workload, shards, spark=spark)
    return Config.model_validate(sections, context={"base_dir": work})


def _settle(session: SparkSession) -> None:
    """Write pending bytes and collect the heap, so that no contender pays for the one before it."""
    os.sync()
    jvm: Any = session._jvm
    jvm.System.gc()


class Lane:
    """One lane, from its first batch to its last. Not for several threads."""

    def __init__(self, spec: LaneSpec, work: Path, inputs: Path, spark: Mapping[str, str]) -> None:
        self.spec = spec
        self.work = work
        self._inputs = inputs
        self._progress: list[BatchProgress] = []
        self._ended: list[float] = []
        self._spark = dict(spark)
        self.loaded: tuple[Trigger, ...] = ()
        self.turns: list[Turn] = []
        self.failure: str | None = None
        (work / "in").mkdir(parents=True)

    @property
    def config(self) -> Config:
        """The service's configuration on this lane's workload."""
        return service_config(self.spec.contender, self.work, self.spec.workload, self.spec.shards, spark=self._spark)

    def prepare(self, session: SparkSession, listener: Listener) -> None:
        """Fill the state, by streaming or by writing pieces."""
        workload = self.spec.workload
        if self.spec.is_seeded:
            if not self.spec.contender.is_service:
                return
            from deduper.bench.seeding import seed_store

            seed_store(self.config, workload, session)
        elif workload.load_batches:
            self.loaded = tuple(self._run(session, listener, range(workload.load_batches)))

    def take_turn(self, session: SparkSession, listener: Listener, round_number: int) -> Turn:
        """The batches of a round; the first restarts the query and does not count."""
        _settle(session)
        load = os.getloadavg()[0]
        triggers = self._run(session, listener, self.spec.workload.turn(round_number))
        turn = Turn(round_number, round(load, 2), triggers[0], tuple(triggers[1:]))
        self.turns.append(turn)
        return turn

    def result(self, group: str) -> LaneResult:
        """All measured batches."""
        spec = self.spec
        return LaneResult(
            name=spec.name,
            contender=spec.contender.name,
            group=group,
            x=spec.x,
            workload={**asdict(spec.workload), "is_seeded": spec.is_seeded},
            shards=spec.shards,
            loaded=self.loaded,
            turns=tuple(self.turns),
            kept=self._kept() if spec.contender.is_service and self.failure is None else {},
            failure=self.failure,
        )

    def discard(self) -> None:
        """Remove the lane's directory and its resident tables."""
        if self.spec.contender.is_service:
            for directory in self._table_directories():
                shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)

    def _run(self, session: SparkSession, listener: Listener, numbers: range) -> list[Trigger]:
        workload = self.spec.workload
        for number in numbers:
            for path in workload.write(self._inputs, number):
                os.link(path, self.work / "in" / path.name)
        listener.durations.clear()
        self._progress.clear()
        self._ended.clear()
        if self.spec.contender.is_service:
            run(
                self.config,
                once=True,
                max_batches=None,
                take_over=False,
                on_progress=self._note,
                session=session,
            )
        else:
            self._run_pipeline(session)
        durations = self._durations() if self.spec.contender.is_service else listener.take(len(numbers))
        phases = [progress.phases for progress in self._progress] or [{} for _ in numbers]
        self._forget_outputs()
        return [
            Trigger(workload.batch(number).rows, spent, {name: round(value, 6) for name, value in of_window.items()})
            for number, spent, of_window in zip(numbers, durations, phases, strict=True)
        ]

    def _note(self, progress: BatchProgress) -> None:
        self._progress.append(progress)
        self._ended.append(time.perf_counter())

    def _durations(self) -> list[dict[str, int]]:
        """From one window's end to the next one's, as Spark's trigger counts: with all work between them."""
        begun = self._ended[0] - self._progress[0].seconds if self._ended else 0.0
        whole = [end - start for start, end in pairwise([begun, *self._ended])]
        return [
            {"triggerExecution": round(seconds * 1000), "addBatch": round(progress.seconds * 1000)}
            for seconds, progress in zip(whole, self._progress, strict=True)
        ]

    def _run_pipeline(self, session: SparkSession) -> None:
        contender = self.spec.contender
        assert contender.pipeline is not None
        settings = {_SHUFFLE: str(self.spec.shards), _NO_DATA_BATCHES: "false", **contender.settings}
        with _settings(session, settings):
            rows = (
                session.readStream.schema(SCHEMA)
                .option("maxFilesPerTrigger", self.spec.workload.files_a_batch)
                .format(self.spec.workload.file_kind.removesuffix(".gz"))
                .load(str(self.work / "in"))
            )
            query = (
                PIPELINES[contender.pipeline](rows)
                .writeStream.format("parquet")
                .option("path", str(self.work / "out"))
                .option("checkpointLocation", str(self.work / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def _forget_outputs(self) -> None:
        """Published and written rows; the marks and logs beside them stay."""
        for path in (self.work / "out").rglob("*"):
            hidden = any(part.startswith(("_", ".")) for part in path.relative_to(self.work).parts)
            if path.is_file() and not hidden:
                path.unlink()

    def _kept(self) -> dict[str, float]:
        """Bytes of pieces on disk and of resident tables, and both by key."""
        from bucket_store.log.commit_log import CommitLog

        state = CommitLog.open(self.config.store.path).state
        keys = sum(piece.entries for pieces in state.pieces.values() for piece in pieces)
        disk = _bytes(self.config.store.path / "pieces", "*")
        tables = sum(_bytes(directory, "*.table") for directory in self._table_directories())
        if not keys:
            return {}
        return {
            "keys": keys,
            "disk_bytes": disk,
            "table_bytes": tables,
            "disk_per_key": round(disk / keys, 2),
            "memory_per_key": round(tables / keys, 2),
        }

    def _table_directories(self) -> list[Path]:
        from bucket_store.errors import StoreError
        from bucket_store.log.commit_log import CommitLog

        try:
            store_id = CommitLog.open(self.config.store.path).manifest.store_id
        except StoreError:
            return []
        return table_folders(self.config, store_id)


def _exchanged(rows: DataFrame) -> DataFrame:
    return rows.repartition(F.col("k"))


def _widened(rows: DataFrame) -> DataFrame:
    """With constants of the shape of `_dedup`: the cost of its columns, without any judging."""
    text = F.lit("unique").alias("verdict")
    dedup = F.struct(
        text,
        F.lit(None).cast("string").alias("reason"),
        F.lit(1).cast("bigint").alias("window"),
        F.lit("file").alias("source"),
        F.unix_micros("ts").alias("position"),
        F.lit(None).cast("string").alias("raw"),
    )
    return _exchanged(rows).withColumn("_dedup", dedup)


def _within_watermark(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", f"{PERIOD_HOURS} hours").dropDuplicatesWithinWatermark(["k"])


def _distinct(rows: DataFrame) -> DataFrame:
    """With the event time among the columns, or its state would only grow: a repeated key has the same."""
    return rows.withWatermark("ts", f"{PERIOD_HOURS} hours").dropDuplicates(["k", "ts"])


PIPELINES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "plain": lambda rows: rows,
    "exchanged": _exchanged,
    "widened": _widened,
    "within_watermark": _within_watermark,
    "distinct": _distinct,
}


class Engine:
    """The session that all lanes of a run share, started when it is first needed. A context manager.

    A session that is `given` is used as it is and left running.
    """

    def __init__(
        self, work: Path, settings: Mapping[str, str], shards: int, *, given: SparkSession | None = None
    ) -> None:
        self._config = service_config(CONTENDERS["deduper"], work, Workload(), shards, spark=settings)
        self._given = given
        self._session: SparkSession | None = None
        self._listener = Listener()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.streams.removeListener(self._listener)
            if self._given is None:
                end_session(self._session)

    def session(self) -> tuple[SparkSession, Listener]:
        """The session, and the listener for its batches."""
        if self._session is None:
            self._session = self._given or start_session(self._config.name, session_settings(self._config))
            self._session.streams.addListener(self._listener)
        return self._session, self._listener


@contextlib.contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _bytes(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.rglob(pattern) if path.is_file())
