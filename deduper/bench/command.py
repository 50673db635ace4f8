"""`deduper bench` from the plan to the document: one run, its parts one after another, each in turns by itself."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from deduper.bench import dropping, measures, processes
from deduper.bench.figures import LaneResult
from deduper.bench.lane_spec import LaneSpec
from deduper.bench.lanes import Engine
from deduper.bench.machine import load, machine_facts
from deduper.bench.plan import Plan
from deduper.bench.rounds import run_rounds
from deduper.bench.sweeps import SWEEPS, sweep_lanes
from deduper.bench.targets import TARGETS, Reached
from deduper.java import require_java

DOCUMENT = "bench.json"
FORMAT = 1
_DROP_TIMES, _LARGE_DROP_TIMES = 5, 3


@dataclass
class Benchmark:
    """One run, and the document that it makes. `out` gets the document after every part, so that none is lost.

    A `session` that is given is used as it is; the parts that start processes of their own have theirs.
    """

    plan: Plan
    out: Path
    spark: Mapping[str, str]
    tell: Callable[[str], None]
    work: Path | None = None
    session: SparkSession | None = None
    lanes: list[LaneResult] = field(default_factory=list)
    reached: dict[str, Reached] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Everything of the plan; gives the document."""
        require_java()
        self.out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix="deduper-bench-", dir=self.work))
        self._about = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": ["deduper", *sys.argv[1:]],
            "machine": machine_facts(home),
            "settings": {"spark": dict(self.spark), **asdict(self.plan)},
            "load_at_start": load(),
        }
        try:
            self._processes(home)
            with Engine(home / "engine", self.spark, self.plan.wishes.shards, given=self.session) as engine:
                self._groups(engine, home)
        finally:
            shutil.rmtree(home, ignore_errors=True)
            self._about |= {"load_at_end": load(), "seconds": round(time.monotonic() - began, 1)}
            self._write()
        return self.document

    @property
    def document(self) -> dict[str, Any]:
        """What is known until now."""
        found = [self.reached.get(name) or Reached(name, None, _how(name)) for name in TARGETS]
        return {
            **self._about,
            "measures": [reached.to_json() for reached in found],
            "sweep": None
            if self.plan.sweep is None
            else {"name": self.plan.sweep, "label": SWEEPS[self.plan.sweep][0]},
            "lanes": [lane.to_json() for lane in self.lanes],
            "raw": self.raw,
        }

    def _processes(self, home: Path) -> None:
        """The parts that start processes of their own, before this one has a JVM that takes memory from them."""
        families, shards = self.plan.families, self.plan.wishes.shards
        small = replace(self.plan.workload, batch_rows=min(100_000, self.plan.workload.batch_rows), state_keys=0)
        if "first-batch" in families:
            self.tell("first-batch: two starts with an empty cache of kernels")
            self.raw["first-batch"] = processes.compilations(home / "compiling", small, shards=shards, spark=self.spark)
            self._reach(measures.of_compiling(self.raw["first-batch"]))
        if "drop-bucket" in families:
            found: dict[int, list[dict[str, float]]] = {}
            for keys in self.plan.drop_keys:
                for number in range(_DROP_TIMES if keys <= 10_000_000 else _LARGE_DROP_TIMES):
                    self.tell(f"drop-bucket: {keys:,} keys, {number + 1}")
                    spent = dropping.milliseconds_of_dropping(home / "dropping", keys, shards, self.spark)
                    found.setdefault(keys, []).append(spent)
            self.raw["drop-bucket"] = {str(keys): runs for keys, runs in found.items()}
            self._reach(measures.of_dropping(found))
        if "restart" in families:
            keys = self.plan.large("restart")
            self.tell(f"restart: on an empty store and on one of {keys:,} keys")
            workload = replace(small, state_hours=20.0)
            starts = processes.restarts(
                home / "restarts", workload, keys=keys, rounds=self.plan.rounds, shards=shards, spark=self.spark
            )
            self.raw["restart"] = {kind: [asdict(start) for start in each] for kind, each in starts.items()}
            seconds = {kind: [start.seconds for start in each] for kind, each in starts.items()}
            self._reach(measures.of_restarts(seconds, keys))
        if "cores" in families or self.plan.sweep == "cores":
            self._cores(home)

    def _groups(self, engine: Engine, home: Path) -> None:
        plan = self.plan
        if plan.table:
            self._rounds(engine, plan.table_lanes(), "table", home)
            for family in plan.families:
                if family in measures.LANES_OF:
                    self._reach(measures.of_table(family, self.lanes))
        if "small-batch" in plan.families:
            self._rounds(engine, plan.small_lanes(), "small-batch", home)
            self._reach(measures.of_small_batches(self.lanes))
        if "state" in plan.families:
            self._rounds(engine, plan.state_lanes(), "state", home)
            self._reach(measures.of_states(self.lanes))
        if plan.sweep is not None and plan.sweep != "cores":
            specs = sweep_lanes(plan.sweep, plan.sweep_contenders, plan.workload, plan.wishes.shards, plan.wishes.at)
            self._rounds(engine, specs, "sweep", home)

    def _rounds(self, engine: Engine, specs: list[LaneSpec], group: str, home: Path) -> None:
        self.lanes += run_rounds(
            engine, specs, group=group, rounds=self.plan.rounds, work=home / group, spark=self.spark, tell=self.tell
        )
        shutil.rmtree(home / group, ignore_errors=True)
        self._write()

    def _cores(self, home: Path) -> None:
        """The same small benchmark on ever more cores, in turns."""
        plan = self.plan
        contenders = plan.sweep_contenders if plan.sweep == "cores" else ("deduper", "passthrough")
        counts = [int(count) for count in (plan.wishes.at if plan.sweep == "cores" else ()) or (1, 2)]
        counts = [count for count in counts if count <= len(os.sched_getaffinity(0))]
        rates: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
        documents: list[dict[str, Any]] = []
        for number in range(plan.rounds):
            for count in counts if number % 2 == 0 else counts[::-1]:
                self.tell(f"cores: {count}, {number + 1}/{plan.rounds}")
                found = processes.on_cores(
                    count, self._arguments_of_cores(contenders), home / f"cores-{number}-{count}"
                )
                documents.append({"cores": count, "round": number, "lanes": found["lanes"]})
                for lane in found["lanes"]:
                    speeds = [
                        trigger["rows"] / (trigger["durations"]["triggerExecution"] / 1000)
                        for turn in lane["turns"]
                        for trigger in turn["measured"]
                    ]
                    rates[count].setdefault(lane["contender"], []).extend(speeds)
        self.raw["cores"] = {"runs": documents, "rates": {str(count): rates[count] for count in counts}}
        if len(counts) > 1:
            self._reach(measures.of_cores({count: rates[count] for count in (counts[0], counts[-1])}))

    def _arguments_of_cores(self, contenders: tuple[str, ...]) -> list[str]:
        plan = self.plan
        rows, state = min(500_000, plan.workload.batch_rows), min(1_000_000, plan.workload.state_keys)
        sizes = {"--rows": rows, "--state": state, "--rounds": 1, "--batches": 2, "--shards": plan.wishes.shards}
        named = [text for name in contenders for text in ("--contender", name)]
        spark = [
            text
            for name, value in self.spark.items()
            if name != "spark.master"
            for text in ("--spark", f"{name}={value}")
        ]
        return [*named, *(text for name, value in sizes.items() for text in (name, str(value))), *spark]

    def _reach(self, found: list[Reached]) -> None:
        self.reached |= {reached.name: reached for reached in found}
        self._write()

    def _write(self) -> None:
        partial = self.out / f".{DOCUMENT}.partial"
        partial.write_text(json.dumps(self.document, indent=1, allow_nan=False), encoding="utf-8")
        partial.replace(self.out / DOCUMENT)


def _how(name: str) -> str:
    return f"deduper bench --measure {TARGETS[name].family}"
