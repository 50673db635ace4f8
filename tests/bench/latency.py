"""Latency of a contender under a steady load on a topic, from an input record's CreateTime on.

A process sends (`traffic`), another reads the output with read_committed. The output topic has LogAppendTime, and every
record carries the moment of its sending, so both ends of each latency are known for every record that came out: in the
log of the broker, as Spark's own benchmark has it, and with the reader. Records of a transaction are appended before
a reader may have them. All clocks are this machine's, unless the brokers run on another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from deduper.errors import DeduperError
from deduper.service.job import run
from deduper.spark.failures import innermost_cause
from deduper.spark.session import changed_settings
from deduper.units import parse_duration
from deduper.window.progress import BatchProgress
from tests.bench.contenders import CONTENDERS, Contender
from tests.bench.ends import TopicOutputs, topic_section, topic_stream
from tests.bench.figures import LatencyResult
from tests.bench.lanes import PIPELINES, remove_tables, service_config, shuffles
from tests.bench.plan import LatencyPlan
from tests.bench.topics import Topics
from tests.bench.traffic import SCHEMA
from tests.bench.workload import Workload

logger = logging.getLogger(__name__)

_APPENDED = {"message.timestamp.type": "LogAppendTime"}
_STARTING_S = 8.0
"""Seconds that a query has to start, before those that warm it up."""
_END_S = 2.0
_PERCENTILES = (50, 90, 95, 99)


def measure_latency(
    plan: LatencyPlan,
    session: SparkSession,
    topics: Topics,
    work: Path,
    spark: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[LatencyResult]:
    """Every contender of the plan, one after another. In the main thread: a contender is stopped by a signal."""
    for number, name in enumerate(plan.contenders):
        at = work / f"latency-{number}"
        at.mkdir(parents=True)
        run_of = _Run(plan, CONTENDERS[name], session, topics, at, spark)
        try:
            result = run_of.measured()
        except Exception as error:  # the failure of one contender leaves the others' numbers valid
            logger.debug("%s failed", name, exc_info=error)
            result = replace(run_of.empty(), failure=innermost_cause(error) or type(error).__name__)
        finally:
            shutil.rmtree(at, ignore_errors=True)
        if result.failure is None:
            read = ", ".join(f"{part} {result.read[part]:,.0f} ms" for part in ("p50", "p99"))
            report(f"latency: {name} {read}, {result.records:,} records")
        else:
            report(f"{name} failed: {result.failure}")
        yield result


@dataclass
class _Run:
    """One contender under load."""

    plan: LatencyPlan
    contender: Contender
    session: SparkSession
    topics: Topics
    work: Path
    spark: Mapping[str, str]

    def empty(self) -> LatencyResult:
        """The result without numbers."""
        plan = self.plan
        return LatencyResult(
            contender=self.contender.name,
            is_service=self.contender.is_service,
            rate=plan.rate,
            trigger=plan.trigger,
            minutes=plan.minutes,
            load=round(os.getloadavg()[0], 2),
        )

    def measured(self) -> LatencyResult:
        """The result of the whole run.

        Raises:
            DeduperError: sender or reader failed, or nothing came out.
        """
        result = self.empty()
        source = self.topics.create("live", self.plan.partitions)
        outputs = TopicOutputs(self.contender, self.topics, self.plan.partitions, _APPENDED)
        seen = self.work / "seen.npz"
        seconds = _STARTING_S + self.plan.warm_s + 60 * self.plan.minutes + _END_S
        reader = _process("follow", self.topics.bootstrap, outputs.names["unique"], "--result", str(seen))
        assert reader.stdout is not None
        if reader.stdout.readline() != "following\n":
            raise DeduperError("the reader of the output did not start")
        load = ("--rate", str(self.plan.rate), "--seconds", str(seconds), "--repeats", str(self.plan.repeats))
        sender = _process("send", self.topics.bootstrap, source, *load)
        stopping_ns = time.time_ns() + int(seconds * 1e9)
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            phases = self._run_service(source, outputs) if self.contender.is_service else self._stream(source, outputs)
        finally:
            timer.cancel()
            ended = [_ended(process) for process in (sender, reader)]
        if any(ended):
            raise DeduperError(f"sender and reader ended with exit codes {ended}")
        with np.load(seen) as columns:
            return replace(result, phases=phases, **latencies(dict(columns), stopping_ns, 60 * self.plan.minutes))

    def _run_service(self, source: str, outputs: TopicOutputs) -> dict[str, float]:
        plan = self.plan
        section = topic_section(self.topics.bootstrap, source, SCHEMA, int(plan.rate * 60))
        config = service_config(
            self.contender,
            self.work,
            Workload(),
            plan.shards,
            spark=self.spark,
            source=section,
            sinks=outputs.sections(self.contender),
        ).model_copy(update={"trigger": parse_duration(plan.trigger)})
        windows: list[BatchProgress] = []
        try:
            run(config, once=False, max_windows=None, take_over=False, on_progress=windows.append, session=self.session)
        finally:
            remove_tables(config)
        return _medians(windows)

    def _stream(self, source: str, outputs: TopicOutputs) -> dict[str, float]:
        plan, contender = self.plan, self.contender
        assert contender.pipeline is not None
        stopped = threading.Event()
        before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        try:
            with changed_settings(self.session, {**shuffles(plan.shards), **contender.settings}):
                records = topic_stream(self.session, self.topics.bootstrap, source, SCHEMA, int(plan.rate * 60))
                query = (
                    outputs.writer(
                        PIPELINES[contender.pipeline](records.select("key", "value", "record.k", "record.ts"))
                    )
                    .option("checkpointLocation", str(self.work / "checkpoint"))
                    .trigger(processingTime=f"{parse_duration(plan.trigger) // 1000} milliseconds")
                    .start()
                )
                while not query.awaitTermination(0.25):  # type: ignore[arg-type]  # fractions too
                    if stopped.is_set():
                        query.stop()
                        break
        finally:
            signal.signal(signal.SIGTERM, before)
        return {}


def latencies(columns: Mapping[str, Any], stopping_ns: int, seconds: float) -> dict[str, Any]:
    """Percentiles in ms of the records that were sent in the last `seconds`, but for the end.

    Raises:
        DeduperError: there is none.
    """
    sent_ns = columns["sent_ns"]
    last_ns = int(sent_ns.max(initial=0))
    # Records that were under way when the contender was stopped may not have come out.
    until_ns = last_ns - int(_END_S * 1e9)
    counted = (sent_ns > until_ns - int(seconds * 1e9)) & (sent_ns < until_ns)
    if not counted.any():
        raise DeduperError("nothing came out")
    return {
        "records": int(counted.sum()),
        "appended": _percentiles(columns["appended_ms"][counted] - sent_ns[counted] / 1e6),
        "read": _percentiles((columns["seen_ns"] - sent_ns)[counted] / 1e6),
        # A contender that cannot keep up has put out nothing of the last seconds when it is stopped.
        "behind_s": round(max(0.0, (stopping_ns - last_ns) / 1e9), 2),
    }


def _percentiles(milliseconds: Any) -> dict[str, float]:
    values = {f"p{part}": float(np.percentile(milliseconds, part)) for part in _PERCENTILES}
    return {name: round(value, 1) for name, value in {**values, "max": float(milliseconds.max())}.items()}


def _medians(windows: list[BatchProgress]) -> dict[str, float]:
    """Of the later half of all windows: rows, seconds, and seconds by phase."""
    later = windows[len(windows) // 2 :]
    if not later:
        return {}
    names = dict.fromkeys(name for window in later for name in window.phases)
    found = {name: statistics.median(window.phases.get(name, 0.0) for window in later) for name in names}
    whole = {
        "rows": statistics.median(window.rows for window in later),
        "seconds": statistics.median(window.seconds for window in later),
    }
    return {name: round(value, 5) for name, value in {**whole, **found}.items()}


def _process(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "tests.bench.traffic", *words], stdout=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str]) -> int:
    """The exit code; a process that does not end by itself is asked to."""
    # A signal in the last moments of an interpreter would end it with another code.
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(3)
    process.send_signal(signal.SIGTERM)
    return process.wait(120)
