"""A benchmark of seconds: both contenders run, take turns, and leave nothing behind."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bucket_store.log.commit_log import CommitLog
from bucket_store.pieces.open import open_backend
from bucket_store.places.local import local_place
from bucket_store.tables.manager import ShardTables
from deduper.bench.command import Benchmark
from deduper.bench.contenders import CONTENDERS
from deduper.bench.lanes import service_config
from deduper.bench.plan import plan
from deduper.bench.results.measures import WITH_BAD_LINES
from deduper.bench.results.targets import TARGETS
from deduper.bench.seeding import digests_of, seed_store
from deduper.bench.workload import START_US, Workload
from deduper.core.digests import plain_digest, shards_of
from deduper.window import policy
from deduper.window.table_folder import table_settings

pytestmark = [pytest.mark.spark, pytest.mark.night]


def test_a_benchmark_measures_both_and_cleans_up(
    tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates by Spark's clock, our phases, one verdict; the document is on disk, and the data gone."""
    workload = Workload(batch_rows=2000, state_keys=3000, batches_a_turn=2)
    small = replace(plan(contenders=("deduper", "passthrough"), rounds=1), workload=workload)
    reported: list[str] = []
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    settings = {"spark.master": "local[2]"}
    document = Benchmark(small, tmp_path / "out", settings, reported.append, session=session).run()
    assert json.loads((tmp_path / "out" / "bench.json").read_text(encoding="utf-8")) == json.loads(json.dumps(document))
    ours, plain = document["lanes"]
    assert (ours["failure"], plain["failure"]) == (None, None)
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
    assert list(work.iterdir()) == []
    assert reported


def test_the_formats_are_measured_with_and_without_malformed_lines(tmp_path: Path, session: SparkSession) -> None:
    """Each beside the pipeline, on a state that was written straight into the store; every measure has its value."""
    workload = Workload(batch_rows=1000, state_keys=500, batches_a_turn=2)
    small = replace(plan(rounds=1), workload=workload, table=(), families=("formats",))
    settings = {"spark.master": "local[2]"}
    document = Benchmark(small, tmp_path / "out", settings, lambda _: None, session=session).run()
    assert [lane["failure"] for lane in document["lanes"]] == [None] * 11
    names = {target.name for target in TARGETS.values() if target.family == "formats"}
    assert {measure["name"] for measure in document["measures"] if measure["value"] is not None} == names
    keys = {lane["kept"]["keys"] for lane in document["lanes"] if lane["name"] == "deduper"}
    (bad,) = [lane["kept"]["keys"] for lane in document["lanes"] if lane["name"] == WITH_BAD_LINES]
    assert keys == {500 + 2 * 800}
    assert bad < 500 + 2 * 800


def test_a_state_written_straight_into_a_store_holds_the_keys_of_the_rows(
    tmp_path: Path, session: SparkSession
) -> None:
    """Their real digests, in their buckets and shards: the judge finds each where it looks."""
    workload = Workload(batch_rows=1000, state_keys=900, state_hours=3.0)
    config = service_config(CONTENDERS["deduper"], tmp_path, workload, 2, spark={})
    seed_store(config, workload, session)
    log = CommitLog.open(local_place(config.store.path))
    assert log.state.totals["unique"] == 900
    digests = digests_of(session, config, log.manifest.salt, 0, 900)
    kind = config.key_columns[0].type
    first = plain_digest([b"user-000000000000-0"], [kind], log.manifest.salt)
    assert tuple(digests[0].tolist()) == first
    pieces, found = open_backend(config.store.url), 0
    for view in policy.shard_views(config, log.manifest, log.state):
        mine = digests[shards_of(digests, 2) == view.shard]
        order = mine[:, 0].argsort()
        with ShardTables.open(table_settings(config), pieces, view) as tables:
            for bucket in range(START_US // 3_600_000_000, START_US // 3_600_000_000 + 3):
                found += int(tables.find(bucket, mine[order]).found.sum())
    assert found == 900
