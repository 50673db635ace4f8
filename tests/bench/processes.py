"""Measures that need processes of their own: starts, restarts, compilation, and a machine with fewer cores."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bucket_store.pieces.open import open_backend
from deduper.config.model import Config
from deduper.errors import DeduperError
from deduper.window.recovery import open_or_create
from tests.bench.contenders import CONTENDERS
from tests.bench.lanes import remove_tables, service_config, service_sections
from tests.bench.seeding import commit_random_keys
from tests.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Start:
    """A process of the job: seconds from its start to its first commit, and those of the window itself."""

    seconds: float
    window_seconds: float


class Service:
    """A job in a directory of its own, run by the real command, a batch a process."""

    def __init__(self, work: Path, workload: Workload, shards: int, spark: Mapping[str, str]) -> None:
        self.work = work
        self._workload = workload
        self._next = workload.load_batches
        (work / "in").mkdir(parents=True)
        contender = CONTENDERS["deduper"]
        self.config: Config = service_config(contender, work, workload, shards, spark=spark)
        sections = service_sections(contender, work, workload, shards, spark=spark)
        # JSON is YAML.
        (work / "deduper.yaml").write_text(json.dumps(sections), encoding="utf-8")

    def start(self, environment: Mapping[str, str] | None = None) -> Start:
        """Run the next batch in a new process.

        Raises:
            DeduperError: the job failed; with its last words.
        """
        self._workload.write(self.work / "in", self._next)
        self._next += 1
        command = [sys.executable, "-m", "deduper", "run", str(self.work / "deduper.yaml"), "--once", "--json"]
        began = time.perf_counter()
        errors = self.work / "errors.txt"
        with (
            errors.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **(environment or {})}
            ) as process,
        ):
            assert process.stdout is not None
            first: dict[str, Any] | None = None
            seconds = 0.0
            for line in process.stdout:
                reported = json.loads(line)
                if first is None and reported["event"] == "window":
                    first, seconds = reported, time.perf_counter() - began
        if process.returncode or first is None:
            words = errors.read_text(encoding="utf-8").strip().splitlines()[-1:] or ["it said nothing"]
            raise DeduperError(f"a run of the job ended with exit code {process.returncode}: {words[0]}")
        return Start(seconds, float(first["seconds"]))

    def fill(self, keys: int) -> None:
        """Put random keys into the store, spread over the buckets of the workload's own."""
        log = open_or_create(self.config, time.time_ns() // 1000)
        log.claim_epoch("bench", time.time_ns() // 1000)
        random = np.random.default_rng(keys)
        assert self.config.span_steps is not None
        hours = int(self._workload.state_hours)
        with contextlib.closing(open_backend(self.config.store.url)) as pieces:
            for hour in range(hours):
                count = keys * (hour + 1) // hours - keys * hour // hours
                bucket = int(self._workload.times_us(np.zeros(1, np.int64))[0] // self.config.span_steps) + hour
                moment = int(bucket * self.config.span_steps)
                commit_random_keys(self.config, log, pieces, bucket, moment, count, random)

    def cool(self) -> None:
        """Remove the resident tables, as a new machine has none. The pieces may still be in the page cache."""
        remove_tables(self.config)

    def discard(self) -> None:
        """Remove everything of it."""
        self.cool()
        shutil.rmtree(self.work, ignore_errors=True)


def restarts(
    work: Path, workload: Workload, *, keys: int, rounds: int, shards: int, spark: Mapping[str, str]
) -> dict[str, list[Start]]:
    """Starts of the job on an `empty` store, and on one of so many keys, `warm` and `cold`; in turns."""
    found: dict[str, list[Start]] = {"empty": [], "warm": [], "cold": []}
    large = Service(work / "large", workload, shards, spark)
    try:
        large.fill(keys)
        large.start()  # builds the tables
        for number in range(rounds):
            empty = Service(work / f"empty-{number}", workload, shards, spark)
            try:
                found["empty"].append(empty.start())
            finally:
                empty.discard()
            found["warm"].append(large.start())
            large.cool()
            found["cold"].append(large.start())
    finally:
        large.discard()
    return found


def compilations(work: Path, workload: Workload, *, shards: int, spark: Mapping[str, str]) -> dict[str, Any]:
    """Kernels compiled by the first process on a machine, and by a later one, counted in the cache of numba."""
    cache = work / "numba"
    environment = {"NUMBA_CACHE_DIR": str(cache)}
    service = Service(work / "first", workload, shards, spark)
    try:
        first = service.start(environment)
        compiled_first = _kernels(cache)
        later = service.start(environment)
        compiled_later = _kernels(cache) - compiled_first
        probe = subprocess.run(
            [sys.executable, "-m", "tests.bench.kernel_probe"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        )
    finally:
        service.discard()
        shutil.rmtree(cache, ignore_errors=True)
    reported = json.loads(probe.stdout)
    return {
        "first_start_seconds": first.seconds,
        "later_start_seconds": later.seconds,
        "compiled_first": compiled_first,
        "compiled_later": compiled_later,
        **reported,
    }


def on_cores(cores: int, arguments: list[str], out: Path) -> dict[str, Any]:
    """The document of a run with these arguments on so many cores: Spark has that many, and all that it starts.

    Raises:
        DeduperError: it failed.
    """
    allowed = os.sched_getaffinity(0)
    command = [sys.executable, "-m", "tests.bench", *arguments, "--out", str(out)]
    with _affinity(sorted(allowed)[:cores]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    document = out / "bench.json"
    if done.returncode or not document.exists():
        words = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise DeduperError(f"the benchmark on {cores} cores failed: {words[0]}")
    found: dict[str, Any] = json.loads(document.read_text(encoding="utf-8"))
    return found


@contextlib.contextmanager
def _affinity(cores: list[int]) -> Iterator[None]:
    """Processes started inside have these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _kernels(cache: Path) -> int:
    """Compiled signatures in a cache of numba's."""
    return sum(1 for _ in cache.rglob("*.nbc"))
