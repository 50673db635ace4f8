"""What a benchmark makes of its numbers: spreads, ratios, targets, and what is to run at all."""

from __future__ import annotations

from typing import Any

import pytest

from deduper.bench import measures
from deduper.bench.contenders import CONTENDERS, PRESETS
from deduper.bench.figures import LaneResult, Spread, Trigger, Turn, ratio
from deduper.bench.lanes import service_config
from deduper.bench.plan import PRESET_FAMILIES, plan
from deduper.bench.rounds import turn_order
from deduper.bench.targets import FAMILIES, TARGETS, Reached
from deduper.bench.workload import Workload
from deduper.errors import UsageError


def a_lane(contender: str, milliseconds: list[int], *, group: str = "table", **more: Any) -> LaneResult:
    """A lane with these trigger times for 1,000 rows each; the restart before them took a minute."""
    turns = tuple(
        Turn(number, 1.0, Trigger(1000, {"triggerExecution": 60_000}), (Trigger(1000, {"triggerExecution": spent}),))
        for number, spent in enumerate(milliseconds)
    )
    fields: dict[str, Any] = {"x": None, "workload": {"state_keys": 5}, "shards": 2, "loaded": (), **more}
    return LaneResult(contender, contender, group, turns=turns, **fields)


def test_a_spread_is_least_middle_greatest() -> None:
    """Of an even number the middle is between the two; of none there is none."""
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(1.0, 2.5, 10.0, 4)
    assert Spread.of([]) is None


def test_the_batch_that_starts_a_query_does_not_count() -> None:
    """Only the others make the rates; by Spark's milliseconds."""
    lane = a_lane("deduper", [500, 1000, 2000])
    assert lane.rows_per_second == Spread(500.0, 1000.0, 2000.0, 3)
    assert lane.milliseconds == Spread(500, 1000, 2000, 3)


def test_ratios_are_of_medians() -> None:
    """One slow batch moves nothing; without a value there is no ratio."""
    assert ratio([2.0, 4.0, 100.0], [1.0, 2.0, 3.0]) == 2.0
    assert ratio([], [1.0]) is None


def test_rows_per_second_are_compared_with_the_pipeline_and_the_best_rocksdb() -> None:
    """The best of Spark's variants counts."""
    lanes = [
        a_lane("deduper", [100] * 3),
        a_lane("passthrough", [80] * 3),
        a_lane("watermark-hdfs", [400] * 3),
        a_lane("watermark-rocksdb", [900] * 3),
        a_lane("watermark-rocksdb-changelog", [700] * 3),
        a_lane("watermark-rocksdb-tuned", [600] * 3),
    ]
    (plain,) = measures.of_table("passthrough", lanes)
    assert (plain.value, plain.is_met) == (pytest.approx(0.8), False)
    hdfs, rocks = measures.of_table("watermark", lanes)
    assert (hdfs.value, hdfs.is_met) == (pytest.approx(4.0), True)
    assert (rocks.value, rocks.is_met) == (pytest.approx(6.0), False)
    assert rocks.remark == "against watermark-rocksdb-tuned, the best of 3"


def test_who_is_missing_or_failed_leaves_a_measure_unmeasured() -> None:
    """Never met by default."""
    lanes = [a_lane("deduper", [100]), a_lane("watermark-hdfs", [], failure="out of memory")]
    for reached in [*measures.of_table("watermark", lanes), *measures.of_table("bytes", lanes)]:
        assert (reached.value, reached.is_met) == (None, None)


def test_times_are_at_most_and_rates_at_least() -> None:
    """At the very target a measure is met, beyond it not."""
    assert Reached(TARGETS["clock"], 1.10).is_met
    assert not Reached(TARGETS["clock"], 1.11).is_met
    assert Reached(TARGETS["state"], 0.9).is_met
    assert not Reached(TARGETS["state"], 0.89).is_met


def test_every_measure_has_a_target_and_every_family_a_measure() -> None:
    """And presets name only what there is."""
    assert {target.family for target in TARGETS.values()} == set(FAMILIES)
    assert set(measures.LANES_OF) <= set(FAMILIES)
    assert {name for members in PRESETS.values() for name in members} == set(CONTENDERS)
    assert {family for families in PRESET_FAMILIES.values() for family in families} == set(FAMILIES)
    assert {name for needed in measures.LANES_OF.values() for name in needed} <= set(PRESETS["standard"])


def test_every_contender_of_the_service_is_a_valid_configuration(tmp_path: Any) -> None:
    """Each differs from the default in what its name says."""
    configs = {
        name: service_config(contender, tmp_path, Workload(), 2, spark={})
        for name, contender in CONTENDERS.items()
        if contender.is_service
    }
    assert configs["deduper-clock-batch"].clock == "batch"
    assert configs["deduper-all-live"].lookup == "all_live"
    assert not configs["deduper-no-first-seen"].store.first_seen
    assert configs["deduper-file"].store.url.startswith("file:")
    assert configs["deduper-json-errors"].sinks.error.format == "json"
    assert configs["deduper-no-duplicates"].sinks.duplicate.format == "none"
    assert [
        port.format for port in (configs["deduper-one-port"].sinks.unique, configs["deduper-one-port"].sinks.error)
    ] == [
        "parquet",
        "none",
    ]
    assert (configs["deduper"].clock, configs["deduper"].lookup) == ("arrival", "own_bucket")


def test_a_call_runs_only_what_it_asks_for() -> None:
    """A contender brings the measures that it answers; a preset its own, and its sizes; rounds can be given."""
    assert plan(contenders=("deduper", "passthrough")).families == ("passthrough",)
    assert plan(contenders=("deduper",)).table == ("deduper",)
    assert "state" in plan("all").families
    assert "state" not in plan().families
    assert (plan("quick").workload.batch_rows, plan("quick").workload.state_keys) == (50_000, 100_000)
    assert (plan("quick").rounds, plan().rounds, plan("quick", rounds=5).rounds) == (2, 3, 5)


def test_large_and_small_lanes_are_of_the_service() -> None:
    """Small batches beside the pipeline without dedup; a hundred million keys against one million."""
    standard = plan()
    assert [(lane.contender.name, lane.workload.batch_rows) for lane in standard.small_lanes()] == [
        ("deduper", 1000),
        ("passthrough", 1000),
    ]
    assert [lane.x for lane in standard.state_lanes()] == [1e6, 1e8]


@pytest.mark.parametrize(
    ("preset", "contenders", "says"),
    [
        ("fast", (), "--preset fast: unknown name; choose from quick, standard, all"),
        ("standard", ("flink",), "--contender flink: unknown name; choose from deduper, "),
    ],
)
def test_an_unknown_name_is_refused_before_anything_runs(preset: str, contenders: tuple[str, ...], says: str) -> None:
    """With the known names."""
    with pytest.raises(UsageError, match=says):
        plan(preset, contenders)


def test_each_round_another_begins() -> None:
    """So no contender always follows the same one."""
    orders = [turn_order(["a", "b", "c"], number) for number in range(3)]
    assert orders == [["a", "b", "c"], ["b", "a", "c"], ["c", "a", "b"]]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
