"""The benchmark on a real broker: rows from topics to topics, and latency under a steady load."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.bench.benchmark import Benchmark
from tests.bench.plan import latency_plan, plan
from tests.services.kafka_broker import Broker

pytestmark = pytest.mark.services
SETTINGS = {"spark.master": "local[2]"}


def bench_topics(broker: Broker) -> set[str]:
    """The topics of benchmarks."""
    return {name for name in broker.admin().list_topics(timeout=10).topics if name.startswith("deduper-bench-")}


@pytest.mark.night
def test_rows_go_from_topic_to_topic_in_turns(
    tmp_path: Path, broker: Broker, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every contender reads all batches, ours with its CPU time by step; no topic and no file is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = plan(
        contenders=("deduper", "passthrough", "watermark-rocksdb-tuned"),
        rounds=2,
        source_format="kafka",
        payload="random",
        bad_lines=0.1,
        bootstrap_servers=broker.bootstrap,
    )
    small = replace(asked, workload=replace(asked.workload, batch_rows=1000, state_keys=2000, batches_a_turn=3))
    document = Benchmark(small, tmp_path / "out", SETTINGS, lambda _: None, session=session).run()
    assert [lane["failure"] for lane in document["lanes"]] == [None] * 3
    assert [lane["rows_per_second"]["count"] for lane in document["lanes"]] == [4] * 3
    ours, plain, _ = document["lanes"]
    assert {"driver", "jvm", "workers", "driver.send", "tasks.judge"} <= ours["cpu_us"].keys()
    assert {"driver", "jvm", "workers"} <= plain["cpu_us"].keys()
    # 2,000 loaded and 800 new ones in each of six batches, of which a tenth is malformed.
    assert 0.85 * 6800 < ours["kept"]["keys"] < 0.95 * 6800
    assert bench_topics(broker) == set()
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


@pytest.mark.night
def test_latency_is_measured_from_create_time_to_the_reader(
    tmp_path: Path, broker: Broker, session: SparkSession
) -> None:
    """Ours and one of Spark's, one after the other; what is read was appended before."""
    asked = latency_plan(
        ("deduper", "watermark-rocksdb-tuned-changelog"), bootstrap_servers=broker.bootstrap, minutes=0.1, rate=200
    )
    document = Benchmark(replace(asked, warm_s=15.0), tmp_path / "out", SETTINGS, lambda _: None, session=session).run()
    ours, spark = document["latency"]
    assert (ours["failure"], spark["failure"]) == (None, None)
    for found in (ours, spark):
        # Of six seconds at 200 a second, with a fifth of repeats; a sender that was held up makes good one second.
        assert 0.5 * 960 < found["records"] <= 7 * 200
        assert 0 < found["read"]["p50"] <= found["read"]["p99"] <= found["read"]["max"]
        assert found["appended"]["p50"] <= found["read"]["p50"]
    assert ours["phases"]["rows"] > 0
    assert {measure["name"] for measure in document["measures"] if measure["met"] is not None} == {
        "latency-p50",
        "latency-p99",
    }
    assert bench_topics(broker) == set()
