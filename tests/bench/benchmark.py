"""One run of `python -m tests.bench`: from the plan to the document, part by part, each part in turns of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from deduper.spark.installed import require_java
from tests.bench import dropping, measures, processes
from tests.bench.contenders import LaneSpec
from tests.bench.figures import LaneResult, LatencyResult
from tests.bench.lanes import Engine
from tests.bench.latency import measure_latency
from tests.bench.machine import load, machine_facts
from tests.bench.plan import PRESET_FAMILIES, PROCESSES, AnyPlan, LatencyPlan, Plan, ProcessPlan, SweepPlan
from tests.bench.rounds import run_rounds
from tests.bench.targets import TARGETS, Reached, Target
from tests.bench.topics import Topics
from tests.bench.workload import Workload

DOCUMENT = "bench.json"
FORMAT = 2
_DROP_TIMES, _LARGE_DROP_TIMES = 5, 3


@dataclass
class Benchmark:
    """One run, and its document, written to `out` after every part, so that no part is lost.

    Data are in the temporary folder while it runs. A given `session` is used as it is.
    """

    plan: AnyPlan
    out: Path
    spark: Mapping[str, str]
    report: Callable[[str], None]
    session: SparkSession | None = None
    lanes: list[LaneResult] = field(default_factory=list)
    latency: list[LatencyResult] = field(default_factory=list)
    reached: dict[str, Reached] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Run the whole plan; gives the document."""
        require_java()
        self.out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix="deduper-bench-"))
        self._about = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": ["python", "-m", "tests.bench", *sys.argv[1:]],
            "machine": machine_facts(home),
            "settings": {"spark": dict(self.spark), **asdict(self.plan)},
            "load_at_start": load(),
        }
        try:
            if isinstance(self.plan, ProcessPlan):
                self._processes(self.plan, home)
            else:
                with (
                    self._topics() as topics,
                    Engine(home / "engine", self.spark, self.plan.shards, given=self.session, topics=topics) as engine,
                ):
                    if isinstance(self.plan, LatencyPlan):
                        self._latency(self.plan, engine, home)
                    elif isinstance(self.plan, SweepPlan):
                        self._rounds(self.plan.rounds, engine, self.plan.lanes(), self.plan.name, home)
                    else:
                        self._groups(self.plan, engine, home)
        finally:
            shutil.rmtree(home, ignore_errors=True)
            self._about |= {"load_at_end": load(), "seconds": round(time.monotonic() - began, 1)}
            self._write()
        return self.document

    @property
    def document(self) -> dict[str, Any]:
        """The results so far."""
        found = [
            self.reached.get(target.name) or Reached(target, None, _how(target))
            for target in TARGETS.values()
            if target.name in self.reached or target.family not in PROCESSES
        ]
        return {
            **self._about,
            "measures": [reached.to_json() for reached in found],
            "lanes": [lane.to_json() for lane in self.lanes],
            "latency": [result.to_json() for result in self.latency],
            "raw": self.raw,
        }

    def _topics(self) -> AbstractContextManager[Topics | None]:
        brokers = self.plan.bootstrap_servers if isinstance(self.plan, Plan | LatencyPlan) else None
        return nullcontext() if brokers is None else Topics(brokers)

    def _latency(self, plan: LatencyPlan, engine: Engine, home: Path) -> None:
        session, _ = engine.session()
        assert engine.topics is not None
        for result in measure_latency(plan, session, engine.topics, home, self.spark, self.report):
            self.latency.append(result)
            self._reach(measures.of_latency(self.latency))

    def _groups(self, plan: Plan, engine: Engine, home: Path) -> None:
        self._rounds(plan.rounds, engine, plan.table_lanes(), "table", home)
        for family in plan.families:
            if family in measures.LANES_OF:
                self._reach(measures.of_table(family, self.lanes))
        if "small-batch" in plan.families:
            self._rounds(plan.rounds, engine, plan.small_lanes(), "small-batch", home)
            self._reach(measures.of_small_batches(self.lanes))
        if "formats" in plan.families:
            for group, lanes in plan.format_lanes().items():
                self._rounds(plan.rounds, engine, lanes, group, home)
                self._reach(measures.of_formats(self.lanes))
        if "state" in plan.families:
            self._rounds(plan.rounds, engine, plan.state_lanes(), "state", home)
            self._reach(measures.of_states(self.lanes))

    def _processes(self, plan: ProcessPlan, home: Path) -> None:
        if plan.name == "restart":
            workload = Workload(batch_rows=100_000, state_keys=0, state_hours=20.0)
            starts = processes.restarts(
                home, workload, keys=plan.keys, rounds=plan.rounds, shards=plan.shards, spark=self.spark
            )
            self.raw = {kind: [asdict(start) for start in each] for kind, each in starts.items()}
            seconds = {kind: [start.seconds for start in each] for kind, each in starts.items()}
            self._reach(measures.of_restarts(seconds, plan.keys))
        elif plan.name == "drop-bucket":
            found: dict[int, list[dict[str, float]]] = {}
            for keys in dict.fromkeys((1_000_000, plan.keys)):
                for number in range(_DROP_TIMES if keys <= 10_000_000 else _LARGE_DROP_TIMES):
                    self.report(f"{keys:,} keys, {number + 1}")
                    spent = dropping.milliseconds_of_dropping(home / "dropping", keys, plan.shards, self.spark)
                    found.setdefault(keys, []).append(spent)
            self.raw = {str(keys): runs for keys, runs in found.items()}
            self._reach(measures.of_dropping(found))
        elif plan.name == "first-batch":
            workload = Workload(batch_rows=100_000, state_keys=0)
            self.raw = processes.compilations(home / "compiling", workload, shards=plan.shards, spark=self.spark)
            self._reach(measures.of_compiling(self.raw))
        else:
            self._cores(plan, home)

    def _cores(self, plan: ProcessPlan, home: Path) -> None:
        """The same small sweep on few cores and on more, in turns."""
        arguments = ["--measure", "shards", "--at", str(plan.shards), "--rounds", "1", "--batches", "2"]
        for name in plan.contenders:
            arguments += ["--contender", name]
        rates: dict[int, dict[str, list[float]]] = {count: {} for count in plan.cores}
        runs = []
        for number in range(plan.rounds):
            for count in plan.cores if number % 2 == 0 else plan.cores[::-1]:
                self.report(f"cores: {count}, round {number + 1}")
                lanes = processes.on_cores(count, arguments, home / f"cores-{number}-{count}")["lanes"]
                runs.append({"cores": count, "round": number, "lanes": lanes})
                for lane in lanes:
                    speeds = [
                        trigger["rows"] / (trigger["durations"]["triggerExecution"] / 1000)
                        for turn in lane["turns"]
                        for trigger in turn["measured"]
                    ]
                    rates[count].setdefault(lane["contender"], []).extend(speeds)
        self.raw = {"runs": runs, "rates": {str(count): of for count, of in rates.items()}}
        self._reach(measures.of_cores(rates))

    def _rounds(self, rounds: int, engine: Engine, specs: list[LaneSpec], group: str, home: Path) -> None:
        self.lanes += run_rounds(
            engine, specs, group=group, rounds=rounds, work=home / group, spark=self.spark, report=self.report
        )
        shutil.rmtree(home / group, ignore_errors=True)
        self._write()

    def _reach(self, found: list[Reached]) -> None:
        self.reached |= {reached.target.name: reached for reached in found}
        self._write()

    def _write(self) -> None:
        partial = self.out / f".{DOCUMENT}.partial"
        partial.write_text(json.dumps(self.document, indent=1, allow_nan=False), encoding="utf-8")
        partial.replace(self.out / DOCUMENT)


def spark_settings() -> dict[str, str]:
    """Settings for the session of all contenders: all cores and 8 GB of heap."""
    return {"spark.master": f"local[{len(os.sched_getaffinity(0))}]", "spark.driver.memory": "8g"}


def _how(target: Target) -> str:
    command = "python -m tests.bench"
    if target.family == "latency" or target.family in PROCESSES:
        return f"{command} --measure {target.family}"
    if target.family == "one-port":
        return f"{command} --format kafka"
    return command if target.family in PRESET_FAMILIES["standard"] else f"{command} --preset all"
