"""The developers' measures of the service: values from timed parts, and the lanes of sweeps."""

from __future__ import annotations

from deduper.bench.workload import Workload
from tests.bench import service_measures as measures
from tests.bench.sweeps import SWEEPS, sweep_lanes


def test_a_pipeline_without_the_speed_up_sets_the_bar() -> None:
    """Two cores that give the pass-through 1.3x cannot be asked for 1.7x; nor does a better one ask for more."""
    (held,) = measures.of_cores(
        {1: {"deduper": [100], "passthrough": [100]}, 2: {"deduper": [135], "passthrough": [130]}}
    )
    assert (held.bar, held.is_met) == (1.3, True)
    (full,) = measures.of_cores(
        {1: {"deduper": [100], "passthrough": [100]}, 2: {"deduper": [165], "passthrough": [195]}}
    )
    assert (full.bar, full.is_met) == (None, False)


def test_dropping_restarts_and_compiling_say_what_they_are_made_of() -> None:
    """Sums and differences of medians, with their parts in the remark."""
    parts = {"record": 2.0, "tables": 1.0, "pieces": 3.0, "beside": 400.0}
    small, large = measures.of_dropping({1000: [parts] * 3, 50_000: [{**parts, "pieces": 30.0}]})
    assert (small.value, small.is_met, large.value, large.is_met) == (6.0, True, 33.0, False)
    assert "record 2.0, tables 1.0, pieces 3.0 ms; beside the windows 400.0 ms" in small.remark
    warm, cold = measures.of_restarts({"empty": [10.0], "warm": [10.5], "cold": [18.0]}, 50_000_000)
    assert (warm.value, warm.is_met, cold.value, cold.is_met) == (1.05, True, 8.0, True)
    starts = {"first_start_seconds": 30.0, "later_start_seconds": 10.0, "compiled_first": 26, "compiled_later": 1}
    calls = {"load_seconds": 0.5, "first_call_ms": 0.4, "later_call_ms": 0.3}
    compiled, first = measures.of_compiling({**starts, **calls})
    assert (compiled.is_met, first.is_met) == (False, True)


def test_sweeps_have_a_lane_for_each_value_and_contender() -> None:
    """Spark's own dedup has none of the states that only our store can be given at once."""
    lanes = sweep_lanes("state", ("deduper", "passthrough", "watermark-hdfs"), Workload(), 2)
    assert {lane.x for lane in lanes if lane.contender.name == "deduper"} == set(SWEEPS["state"][1])
    assert max(lane.x or 0 for lane in lanes if lane.contender.name == "watermark-hdfs") == 5_000_000
    assert all(lane.is_seeded == (lane.contender.name != "watermark-hdfs") for lane in lanes)
    assert [lane.shards for lane in sweep_lanes("shards", ("deduper",), Workload(), 2)] == [1, 2, 4, 8]
    assert [lane.workload.payload_bytes for lane in sweep_lanes("payload", ("deduper",), Workload(), 2, (5, 6))] == [
        5,
        6,
    ]
