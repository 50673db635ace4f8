"""A contender on its workload: its directory, its turns, and the size of its state at the end.

A turn puts the batches that are next where the lane reads (`ends`), and runs the query until the source is drained, so
every turn restarts the query on the state that it left. Other tests count the outputs; here they are deleted after each
turn.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from bucket_store.places.open import open_place
from deduper.config.model import Config
from deduper.service.job import run
from deduper.sources.open import session_settings
from deduper.spark.session import changed_settings, end_session, start_session
from deduper.window.progress import BatchProgress
from tests.bench.contenders import CONTENDERS, Contender, LaneSpec
from tests.bench.cpu import CpuMarks
from tests.bench.ends import (
    FileOutputs,
    FileRows,
    Outputs,
    Rows,
    TopicOutputs,
    TopicRows,
    topic_section,
)
from tests.bench.figures import LaneResult, Trigger, Turn
from tests.bench.topics import Topics
from tests.bench.workload import PERIOD_HOURS, SCHEMA, Workload
from tests.deduper.store_memory import table_folders

_TELL_SECONDS = 20.0
_SHUFFLE = "spark.sql.shuffle.partitions"
_NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


class Listener(StreamingQueryListener):
    """Spark's own durations of every batch with rows of one query, in order."""

    def __init__(self) -> None:
        self.durations: list[dict[str, int]] = []
        self._query = ""
        self._cpu = CpuMarks(0)

    def restart(self, query: str, cpu: CpuMarks) -> None:
        """From now on a query of this name counts; reports of others may still come."""
        self.durations, self._query, self._cpu = [], query, cpu

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to note."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch has ended."""
        durations = event.progress.durationMs
        if "addBatch" in durations and event.progress.name == self._query:
            # Before the durations: who waits for the last of them asks for the CPU time next.
            self._cpu.batch_ended()
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
    contender: Contender,
    work: Path,
    workload: Workload,
    shards: int,
    *,
    spark: Mapping[str, str],
    source: Mapping[str, Any] | None = None,
    sinks: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The service's config as a file has it: defaults, but for the settings of the contender and the benchmark.

    Files in and out, unless `source` and `sinks` are given.
    """
    sections: dict[str, Any] = {
        "name": "bench",
        "source": dict(source or FileRows(workload, work).section(work, workload.batch_rows)),
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
        "sinks": dict(sinks or FileOutputs(work).sections(contender)),
        "spark": dict(spark),
    }
    for name, values in contender.settings.items() if contender.is_service else ():
        if name != "sinks":
            sections[name] = {**sections[name], **values}
    return sections


def service_config(
    contender: Contender,
    work: Path,
    workload: Workload,
    shards: int,
    *,
    spark: Mapping[str, str],
    source: Mapping[str, Any] | None = None,
    sinks: Mapping[str, Any] | None = None,
) -> Config:
    """`service_sections`, checked."""
    sections = service_sections(contender, work, workload, shards, spark=spark, source=source, sinks=sinks)
    return Config.model_validate(sections, context={"base_dir": work})


def shuffles(shards: int) -> dict[str, str]:
    """Spark's settings for contenders of Spark's: as many shuffle partitions as the service has shards."""
    return {_SHUFFLE: str(shards), _NO_DATA_BATCHES: "false"}


def _settle(session: SparkSession) -> None:
    """Write pending bytes and collect the heap, so that no contender pays for the one before it."""
    os.sync()
    jvm: Any = session._jvm
    jvm.System.gc()


class Lane:
    """One lane, from its first batch to its last. Not for several threads."""

    def __init__(self, spec: LaneSpec, work: Path, rows: Rows, outputs: Outputs, spark: Mapping[str, str]) -> None:
        self.spec = spec
        self.work = work
        self._rows = rows
        self._outputs = outputs
        self._progress: list[BatchProgress] = []
        self._ended: list[float] = []
        self._cpu: CpuMarks = CpuMarks(0)
        self._spark = dict(spark)
        self.loaded: tuple[Trigger, ...] = ()
        self.turns: list[Turn] = []
        self.failure: str | None = None
        work.mkdir(parents=True)

    @property
    def config(self) -> Config:
        """The service's configuration on this lane's workload, for its measured batches."""
        return self._config(self.spec.workload.batch_rows)

    def _config(self, batch_rows: int) -> Config:
        spec = self.spec
        return service_config(
            spec.contender,
            self.work,
            spec.workload,
            spec.shards,
            spark=self._spark,
            source=self._rows.section(self.work, batch_rows),
            sinks=self._outputs.sections(spec.contender),
        )

    def prepare(self, session: SparkSession, listener: Listener) -> None:
        """Fill the state, by streaming or by writing pieces."""
        workload = self.spec.workload
        if self.spec.is_seeded:
            if not self.spec.contender.is_service:
                return
            from tests.bench.seeding import seed_store

            seed_store(self.config, workload, session)
        elif workload.load_batches:
            self.loaded = tuple(self._run(session, listener, range(workload.load_batches)))

    def take_turn(self, session: SparkSession, listener: Listener, round_number: int) -> Turn:
        """The batches of a round; the first restarts the query and does not count."""
        _settle(session)
        load = os.getloadavg()[0]
        triggers = self._run(session, listener, self.spec.workload.turn(round_number))
        cpu = self._cpu.per_row(sum(trigger.rows for trigger in triggers[1:]))
        turn = Turn(round_number, round(load, 2), triggers[0], tuple(triggers[1:]), cpu)
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
            workload={**asdict(spec.workload), "sinks": spec.sinks, "is_seeded": spec.is_seeded},
            shards=spec.shards,
            loaded=self.loaded,
            turns=tuple(self.turns),
            kept=self._kept() if spec.contender.is_service and self.failure is None else {},
            failure=self.failure,
        )

    def discard(self) -> None:
        """Remove the lane's directory and its resident tables."""
        if self.spec.contender.is_service:
            remove_tables(self.config)
        shutil.rmtree(self.work, ignore_errors=True)

    def _run(self, session: SparkSession, listener: Listener, numbers: range) -> list[Trigger]:
        workload = self.spec.workload
        self._rows.give(numbers, self.work)
        batch_rows = workload.batch(numbers[0]).rows
        self._cpu = CpuMarks(len(numbers))
        query = f"{self.work.name}-{numbers[0]}"
        listener.restart("" if self.spec.contender.is_service else query, self._cpu)
        self._progress.clear()
        self._ended.clear()
        if self.spec.contender.is_service:
            run(
                self._config(batch_rows),
                once=True,
                max_windows=None,
                take_over=False,
                on_progress=self._note,
                session=session,
            )
        else:
            self._run_pipeline(session, query, batch_rows)
        durations = self._durations() if self.spec.contender.is_service else listener.take(len(numbers))
        phases = [progress.phases for progress in self._progress] or [{} for _ in numbers]
        self._outputs.forget()
        return [
            Trigger(workload.batch(number).rows, spent, {name: round(value, 6) for name, value in of_window.items()})
            for number, spent, of_window in zip(numbers, durations, phases, strict=True)
        ]

    def _note(self, progress: BatchProgress) -> None:
        self._progress.append(progress)
        self._ended.append(time.perf_counter())
        self._cpu.batch_ended()

    def _durations(self) -> list[dict[str, int]]:
        """From one window's end to the next one's, as Spark's trigger counts: with all work between them."""
        begun = self._ended[0] - self._progress[0].seconds if self._ended else 0.0
        whole = [end - start for start, end in pairwise([begun, *self._ended])]
        return [
            {"triggerExecution": round(seconds * 1000), "addBatch": round(progress.seconds * 1000)}
            for seconds, progress in zip(whole, self._progress, strict=True)
        ]

    def _run_pipeline(self, session: SparkSession, name: str, batch_rows: int) -> None:
        contender = self.spec.contender
        assert contender.pipeline is not None
        settings = {**shuffles(self.spec.shards), **contender.settings}
        with changed_settings(session, settings):
            rows = self._rows.stream(session, self.work, batch_rows)
            query = (
                self._outputs.writer(PIPELINES[contender.pipeline](rows))
                .queryName(name)
                .option("checkpointLocation", str(self.work / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def _kept(self) -> dict[str, float]:
        """Bytes of pieces on disk and of resident tables, and both by key."""
        from bucket_store.log.commit_log import CommitLog

        state = CommitLog.open(open_place(self.config.store.url)).state
        keys = sum(piece.entries for pieces in state.pieces.values() for piece in pieces)
        disk = _bytes(self.config.store.path / "pieces", "*")
        tables = sum(_bytes(directory, "*.table") for directory in _table_directories(self.config))
        if not keys:
            return {}
        return {
            "keys": keys,
            "disk_bytes": disk,
            "table_bytes": tables,
            "disk_per_key": round(disk / keys, 2),
            "memory_per_key": round(tables / keys, 2),
        }


def remove_tables(config: Config) -> None:
    """Remove the resident tables of a job's store, if it has one."""
    for directory in _table_directories(config):
        shutil.rmtree(directory, ignore_errors=True)


def _table_directories(config: Config) -> list[Path]:
    from bucket_store.errors import StoreError
    from bucket_store.log.commit_log import CommitLog

    try:
        store_id = CommitLog.open(open_place(config.store.url)).manifest.store_id
    except StoreError:
        return []
    return table_folders(config, store_id)


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

    A session that is `given` is used as it is and left running. With `topics`, rows may come from them and go to them.
    """

    def __init__(
        self,
        work: Path,
        settings: Mapping[str, str],
        shards: int,
        *,
        given: SparkSession | None = None,
        topics: Topics | None = None,
    ) -> None:
        source = None if topics is None else topic_section(topics.bootstrap, "source", SCHEMA, 1)
        self._config = service_config(CONTENDERS["deduper"], work, Workload(), shards, spark=settings, source=source)
        self.topics = topics
        self._shards = shards
        self._given = given
        self._session: SparkSession | None = None
        self._listener = Listener()

    def rows(self, workload: Workload, inputs: Path) -> Rows:
        """The rows of a workload; those of files are kept in `inputs`."""
        return (
            TopicRows(workload, self._cluster, self._shards)
            if workload.format == "kafka"
            else FileRows(workload, inputs)
        )

    def outputs(self, spec: LaneSpec, work: Path) -> Outputs:
        """The outputs of a lane, whose directory is `work`."""
        return TopicOutputs(spec.contender, self._cluster, self._shards) if spec.sinks == "kafka" else FileOutputs(work)

    @property
    def _cluster(self) -> Topics:
        assert self.topics is not None, "the plan of a run with topics has brokers"
        return self.topics

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


def _bytes(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.rglob(pattern) if path.is_file())
