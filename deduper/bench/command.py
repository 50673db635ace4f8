"""One run of `deduper bench`: from the plan to the document, part by part, each part in turns of its own."""

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

from deduper.bench.contenders import LaneSpec
from deduper.bench.lanes import Engine
from deduper.bench.latency import measure_latency
from deduper.bench.machine import load, machine_facts
from deduper.bench.plan import PRESET_FAMILIES, LatencyPlan, Plan
from deduper.bench.results import measures
from deduper.bench.results.figures import LaneResult, LatencyResult
from deduper.bench.results.targets import TARGETS, Reached, Target
from deduper.bench.rounds import run_rounds
from deduper.bench.topics import Topics
from deduper.spark.java import require_java

DOCUMENT = "bench.json"
FORMAT = 2


@dataclass
class Benchmark:
    """One run, and its document, written to `out` after every part, so that no part is lost.

    Data are in the temporary folder while it runs. A given `session` is used as it is.
    """

    plan: Plan | LatencyPlan
    out: Path
    spark: Mapping[str, str]
    report: Callable[[str], None]
    session: SparkSession | None = None
    lanes: list[LaneResult] = field(default_factory=list)
    latency: list[LatencyResult] = field(default_factory=list)
    reached: dict[str, Reached] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Run the whole plan; gives the document."""
        require_java()
        self.out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix="deduper-bench-"))
        self._about = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": ["deduper", *sys.argv[1:]],
            "machine": machine_facts(home),
            "settings": {"spark": dict(self.spark), **asdict(self.plan)},
            "load_at_start": load(),
        }
        try:
            with (
                self._topics() as topics,
                Engine(home / "engine", self.spark, self.plan.shards, given=self.session, topics=topics) as engine,
            ):
                if isinstance(self.plan, LatencyPlan):
                    self._latency(self.plan, engine, home)
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
        found = [self.reached.get(target.name) or Reached(target, None, _how(target)) for target in TARGETS.values()]
        return {
            **self._about,
            "measures": [reached.to_json() for reached in found],
            "lanes": [lane.to_json() for lane in self.lanes],
            "latency": [result.to_json() for result in self.latency],
        }

    def _topics(self) -> AbstractContextManager[Topics | None]:
        brokers = self.plan.bootstrap_servers
        return nullcontext() if brokers is None else Topics(brokers)

    def _latency(self, plan: LatencyPlan, engine: Engine, home: Path) -> None:
        session, _ = engine.session()
        assert engine.topics is not None
        for result in measure_latency(plan, session, engine.topics, home, self.spark, self.report):
            self.latency.append(result)
            self._reach(measures.of_latency(self.latency))

    def _groups(self, plan: Plan, engine: Engine, home: Path) -> None:
        self._rounds(plan, engine, plan.table_lanes(), "table", home)
        for family in plan.families:
            if family in measures.LANES_OF:
                self._reach(measures.of_table(family, self.lanes))
        if "small-batch" in plan.families:
            self._rounds(plan, engine, plan.small_lanes(), "small-batch", home)
            self._reach(measures.of_small_batches(self.lanes))
        if "formats" in plan.families:
            for group, lanes in plan.format_lanes().items():
                self._rounds(plan, engine, lanes, group, home)
                self._reach(measures.of_formats(self.lanes))
        if "state" in plan.families:
            self._rounds(plan, engine, plan.state_lanes(), "state", home)
            self._reach(measures.of_states(self.lanes))

    def _rounds(self, plan: Plan, engine: Engine, specs: list[LaneSpec], group: str, home: Path) -> None:
        self.lanes += run_rounds(
            engine, specs, group=group, rounds=plan.rounds, work=home / group, spark=self.spark, report=self.report
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
    if target.family == "latency":
        return "deduper bench --measure latency"
    if target.family == "one-port":
        return "deduper bench --format kafka"
    return "deduper bench" if target.family in PRESET_FAMILIES["standard"] else "deduper bench --preset all"
