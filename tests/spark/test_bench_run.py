"""A benchmark of seconds: both contenders run, take turns, and leave nothing behind."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bench.benchmark import Benchmark
from tests.bench.plan import plan
from tests.bench.targets import TARGETS
from tests.bench.workload import Workload

pytestmark = [pytest.mark.spark, pytest.mark.night]


def test_a_benchmark_measures_both_and_cleans_up(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates by Spark's clock, our phases, one verdict; the document is on disk, and the data gone."""
    workload = Workload(batch_rows=2000, state_keys=3000, batches_a_turn=2)
    small = replace(plan(contenders=("deduper", "passthrough"), rounds=1), workload=workload)
    small = replace(small, families=(*small.families, "formats"))
    reported: list[str] = []
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    settings = {"spark.master": "local[2]"}
    document = Benchmark(small, tmp_path / "out", settings, reported.append, session=session).run()
    assert json.loads((tmp_path / "out" / "bench.json").read_text(encoding="utf-8")) == json.loads(json.dumps(document))
    assert [lane["failure"] for lane in document["lanes"]] == [None] * 13
    ours, plain = document["lanes"][:2]
    assert ours["rows_per_second"]["count"] == plain["rows_per_second"]["count"] == 1
    assert [trigger["rows"] for trigger in plain["turns"][0]["measured"]] == [2000]
    # 3,000 loaded, then two batches of 2,000 rows with a fifth of them repeated.
    assert ours["kept"]["keys"] == 6200
    assert {"judge.read", "judge.shards", "judge.write", "durable", "task.judge", "task.ports"} <= ours["phases"].keys()
    # CPU time needs two measured batches; the steps have theirs always.
    assert {"tasks.read", "tasks.judge", "tasks.write"} <= ours["cpu_us"].keys()
    (measure,) = [measure for measure in document["measures"] if measure["name"] == "passthrough"]
    ratio = ours["rows_per_second"]["median"] / plain["rows_per_second"]["median"]
    assert math.isclose(measure["value"], ratio, rel_tol=0.01)
    # Of lines, plain, compressed and malformed, on a state that was written straight into a store.
    formats = {target.name for target in TARGETS.values() if target.family == "formats"}
    assert {measure["name"] for measure in document["measures"] if measure["value"] is not None} == {
        "passthrough",
        *formats,
    }
    keys = {
        lane["kept"]["keys"] for lane in document["lanes"] if lane["group"] != "table" and lane["name"] == "deduper"
    }
    assert keys == {3000 + 2 * 1600}
    assert list(work.iterdir()) == []
    assert reported
