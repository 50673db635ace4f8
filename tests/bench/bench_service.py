"""Measures of the service for its developers, beyond those of `deduper bench`.

    python -m tests.bench.bench_service restart               # 50 M keys: warm and cold starts against an empty store
    python -m tests.bench.bench_service drop-bucket           # dropping an expired bucket of 1 M and of 50 M keys
    python -m tests.bench.bench_service first-batch           # kernels compiled and loaded by the first two starts
    python -m tests.bench.bench_service cores                 # one core against two
    python -m tests.bench.bench_service shards --at 1 --at 2  # a sweep: one thing varied, for some contenders

Progress goes to standard error, tables to standard output, and everything raw to `bench/NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deduper.bench.command import spark_settings
from deduper.bench.contenders import CONTENDERS
from deduper.bench.lanes import Engine
from deduper.bench.machine import load, machine_facts
from deduper.bench.results import report
from deduper.bench.results.targets import Reached
from deduper.bench.rounds import run_rounds
from deduper.bench.workload import Workload
from deduper.spark.allocator import keep_few_arenas
from tests.bench import dropping, processes, service_measures
from tests.bench.sweeps import CONTENDERS_OF_A_SWEEP, SWEEPS, sweep_lanes

DROP_TIMES, LARGE_DROP_TIMES = 5, 3
MEASURES = ("restart", "drop-bucket", "first-batch", "cores")

Found = tuple[list[Reached], dict[str, Any]]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def restart(home: Path, options: argparse.Namespace, spark: dict[str, str]) -> Found:
    """Starts on an empty store and on one of many keys."""
    workload = Workload(batch_rows=100_000, state_keys=0, state_hours=20.0)
    keys = options.keys or 50_000_000
    starts = processes.restarts(
        home, workload, keys=keys, rounds=options.rounds or 3, shards=options.shards, spark=spark
    )
    seconds = {kind: [start.seconds for start in each] for kind, each in starts.items()}
    raw = {kind: [asdict(start) for start in each] for kind, each in starts.items()}
    return service_measures.of_restarts(seconds, keys), raw


def drop_bucket(home: Path, options: argparse.Namespace, spark: dict[str, str]) -> Found:
    """The time that dropping a bucket holds up the judging thread, small and large."""
    found: dict[int, list[dict[str, float]]] = {}
    for keys in dict.fromkeys((1_000_000, options.keys or 50_000_000)):
        for number in range(DROP_TIMES if keys <= 10_000_000 else LARGE_DROP_TIMES):
            tell(f"{keys:,} keys, {number + 1}")
            spent = dropping.milliseconds_of_dropping(home / "dropping", keys, options.shards, spark)
            found.setdefault(keys, []).append(spent)
    return service_measures.of_dropping(found), {str(keys): runs for keys, runs in found.items()}


def first_batch(home: Path, options: argparse.Namespace, spark: dict[str, str]) -> Found:
    """Two starts with an empty cache of kernels."""
    workload = Workload(batch_rows=100_000, state_keys=0)
    raw = processes.compilations(home / "compiling", workload, shards=options.shards, spark=spark)
    return service_measures.of_compiling(raw), raw


def cores(home: Path, options: argparse.Namespace, spark: dict[str, str]) -> Found:
    """The same small benchmark on one core and on two, in turns."""
    counts = [int(count) for count in options.at or (1, 2) if count <= len(os.sched_getaffinity(0))]
    if len(counts) < 2:
        raise SystemExit(f"cores: two numbers of cores that this machine has are needed, not {counts}")
    # A sweep of one value, with the rows and keys that sweeps have by default.
    arguments = ["shards", "--at", str(options.shards), "--rounds", "1", "--batches", "2"]
    for name in options.contender or ("deduper", "passthrough"):
        arguments += ["--contender", name]
    for name, value in spark.items():
        arguments += [] if name == "spark.master" else ["--spark", f"{name}={value}"]
    rates: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    documents = []
    for number in range(options.rounds or 3):
        for count in counts if number % 2 == 0 else counts[::-1]:
            tell(f"cores: {count}, round {number + 1}")
            found = processes.on_cores(count, arguments, home / f"cores-{number}-{count}")
            documents.append({"cores": count, "round": number, "lanes": found["lanes"]})
            for lane in found["lanes"]:
                speeds = [
                    trigger["rows"] / (trigger["durations"]["triggerExecution"] / 1000)
                    for turn in lane["turns"]
                    for trigger in turn["measured"]
                ]
                rates[count].setdefault(lane["contender"], []).extend(speeds)
    reached = service_measures.of_cores({count: rates[count] for count in (counts[0], counts[-1])})
    return reached, {"runs": documents, "rates": {str(count): rates[count] for count in counts}}


def sweep(home: Path, options: argparse.Namespace, spark: dict[str, str]) -> list[dict[str, Any]]:
    """The lanes of a sweep, as `deduper bench` writes them."""
    base = Workload(batch_rows=options.rows or 500_000, state_keys=1_000_000)
    base = replace(base, batches_a_turn=1 + options.batches) if options.batches else base
    specs = sweep_lanes(
        options.name, options.contender or CONTENDERS_OF_A_SWEEP, base, options.shards, options.at or ()
    )
    with Engine(home / "engine", spark, options.shards) as engine:
        lanes = run_rounds(
            engine, specs, group="sweep", rounds=options.rounds or 2, work=home / "sweep", spark=spark, report=tell
        )
    return [lane.to_json() for lane in lanes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(*MEASURES, *SWEEPS))
    parser.add_argument("--keys", type=int, help="keys of the large state")
    parser.add_argument("--at", type=float, action="append", help="a value of the sweep, or a number of cores")
    parser.add_argument("--contender", choices=tuple(CONTENDERS), action="append")
    parser.add_argument("--rows", type=int, help="rows a batch of a sweep")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--batches", type=int, help="measured batches a turn of a sweep")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--spark", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    options = parser.parse_args()
    keep_few_arenas()  # as `run` does
    if wrong := [text for text in options.spark if not re.match(r"spark\.[^=]+=", text)]:
        parser.error(f"--spark {wrong[0]}: write a Spark setting as spark.driver.memory=8g")
    spark = spark_settings() | dict(text.split("=", 1) for text in options.spark)
    home = Path(tempfile.mkdtemp(prefix="deduper-bench-"))
    document: dict[str, Any] = {"command": sys.argv, "machine": machine_facts(home), "load_at_start": load()}
    try:
        if options.name in SWEEPS:
            document["lanes"] = sweep(home, options, spark)
            rows = report.lane_rows(document["lanes"])
        else:
            measures = {"restart": restart, "drop-bucket": drop_bucket, "first-batch": first_batch, "cores": cores}
            reached, document["raw"] = measures[options.name](home, options, spark)
            document["measures"] = [each.to_json() for each in reached]
            rows = report.measure_rows(document)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    document["load_at_end"] = load()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{options.name}.json"
    file.write_text(json.dumps(document, indent=1), encoding="utf-8")
    for row in rows:
        print(" | ".join(row))
    tell(f"numbers: {file}")


if __name__ == "__main__":
    main()
