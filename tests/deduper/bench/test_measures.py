"""What a benchmark makes of its numbers: spreads, ratios, targets, and what is to run at all."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from deduper.bench import cpu
from deduper.bench.contenders import CONTENDERS, LATENCY, PRESETS, STANDARD_OF_TOPICS
from deduper.bench.ends import TopicOutputs, topic_section
from deduper.bench.lanes import service_config
from deduper.bench.latency import latencies
from deduper.bench.plan import PRESET_FAMILIES, plan
from deduper.bench.results import measures
from deduper.bench.results.figures import LaneResult, LatencyResult, Spread, Trigger, Turn, ratio
from deduper.bench.results.targets import BARS, FAMILIES, TARGETS, Reached
from deduper.bench.rounds import turn_order
from deduper.bench.workload import SCHEMA, Workload
from deduper.errors import DeduperError, UsageError

if TYPE_CHECKING:
    from deduper.bench.topics import Topics


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
    of_presets = {family for families in PRESET_FAMILIES.values() for family in families}
    assert of_presets == set(FAMILIES) - {"latency"}
    assert set(LATENCY) | set(STANDARD_OF_TOPICS) <= set(CONTENDERS)
    assert {name for bars in BARS.values() for name in bars} <= set(TARGETS)
    offered = set(PRESETS["standard"]) | set(STANDARD_OF_TOPICS)
    assert {name for needed in measures.LANES_OF.values() for name in needed} <= offered


def test_every_contender_of_the_service_is_a_valid_configuration(tmp_path: Any) -> None:
    """Each differs from the default in what its name says."""
    configs = {
        name: service_config(contender, tmp_path, Workload(), 2, spark={})
        for name, contender in CONTENDERS.items()
        if contender.is_service and "parquet" in contender.sinks
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


def test_every_contender_of_the_service_is_a_valid_configuration_on_topics(tmp_path: Path) -> None:
    """The same from a topic to a topic for each port, but for those of files alone."""
    source = topic_section("localhost:9092", "clicks", SCHEMA, 10)
    configs = {}
    for name, contender in CONTENDERS.items():
        if contender.is_service and "kafka" in contender.sinks:
            outputs = TopicOutputs(contender, cast("Topics", NoBroker()), 2)
            sinks = outputs.sections(contender)
            configs[name] = service_config(contender, tmp_path, Workload(), 2, spark={}, source=source, sinks=sinks)
    assert [sink.format for sink in configs["deduper"].topic_ports.values()] == ["kafka"] * 4
    assert list(configs["deduper-one-port"].topic_ports) == ["unique"]
    assert "deduper-json-errors" not in configs


class NoBroker:
    """Names topics."""

    bootstrap = "localhost:9092"

    def create(self, name: str, partitions: int, settings: object) -> str:
        """Its own name."""
        return name


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source_format": "kafka"}, "--format kafka: needs --bootstrap-servers HOST:PORT"),
        ({"sinks": "kafka"}, "--sinks kafka: needs --format kafka"),
        ({"sinks": "delta"}, "--sinks delta: unknown name; choose from parquet, kafka"),
        ({"bad_lines": 0.01}, "--bad-lines: Parquet has no lines"),
        (
            {"contenders": ("deduper-json-errors",), "source_format": "kafka", "bootstrap_servers": "b:1"},
            "--contender deduper-json-errors: cannot be measured with --sinks kafka",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], says: str) -> None:
    """With what is missing."""
    with pytest.raises(UsageError, match=re.escape(says)):
        plan(**options)


def test_a_plan_of_topics_has_its_own_contenders_and_sizes() -> None:
    """The best of Spark's variants instead of its defaults; to Parquet what can write that."""
    topics = plan(source_format="kafka", bootstrap_servers="b:1")
    assert topics.table == STANDARD_OF_TOPICS
    assert topics.families == ("passthrough", "one-port", "watermark")
    assert (topics.workload.batch_rows, topics.sinks) == (100_000, "kafka")
    assert {lane.sinks for lane in topics.table_lanes()} == {"kafka"}
    files = plan("all", source_format="kafka", bootstrap_servers="b:1", sinks="parquet")
    assert "deduper-json-errors" in files.table
    measured = len(topics.workload.turn(0)) - 1
    assert measured * topics.rounds >= 5


def test_the_formats_are_measured_with_payloads_that_never_repeat() -> None:
    """Each beside the pipeline without dedup; a file with bad lines beside the same without."""
    groups = plan().format_lanes()
    assert list(groups) == ["json", "json-small", "csv", "json.gz", "parquet"]
    assert {lane.workload.payload for lanes in groups.values() for lane in lanes} == {"random"}
    assert [lane.workload.bad_lines for lane in groups["json"]] == [0.0, 0.0, 0.01]
    assert groups["json-small"][0].workload.batch_rows == 250_000


def test_formats_are_compared_with_the_pipeline_on_the_same_files() -> None:
    """And malformed lines with the same file without them."""
    lanes = [
        a_lane("deduper", [100], group="json"),
        a_lane("passthrough", [250], group="json"),
        replace(a_lane("deduper", [110], group="json"), name=measures.WITH_BAD_LINES),
        a_lane("deduper", [100], group="csv"),
        a_lane("passthrough", [120], group="csv"),
    ]
    found = {reached.target.name: (reached.value, reached.is_met) for reached in measures.of_formats(lanes)}
    assert found["json"] == (pytest.approx(2.5), True)
    assert found["csv"] == (pytest.approx(1.2), False)
    assert found["bad-lines"] == (pytest.approx(100 / 110), True)
    assert "json.gz" not in found


def test_topics_have_bounds_of_their_own() -> None:
    """The same ratio may be enough for files and too little for topics."""
    shape = {"state_keys": 5, "format": "kafka", "sinks": "kafka"}
    lanes = [a_lane("deduper", [100], workload=shape), a_lane("passthrough", [120], workload=shape)]
    (reached,) = measures.of_table("passthrough", lanes)
    assert (reached.bar, reached.is_met) == (1.3, False)


def latency_of(contender: str, p50: float, p99: float, **more: Any) -> LatencyResult:
    """A result with these milliseconds."""
    read = {"p50": p50, "p99": p99}
    return LatencyResult(contender, contender == "deduper", 1000.0, "100ms", 30.0, 1.0, 10, read, read, **more)


def test_latency_is_compared_with_the_fastest_contender_of_sparks() -> None:
    """By the median; without a contender there is nothing to compare."""
    ours, slow = latency_of("deduper", 120, 300), latency_of("watermark-rocksdb", 200, 210)
    quick, failed = latency_of("watermark-hdfs", 150, 240), latency_of("distinct-hdfs", 1, 1, failure="no memory")
    p50, p99 = measures.of_latency([ours, slow, quick, failed])
    assert (p50.value, p50.is_met) == (pytest.approx(0.8), True)
    assert (p99.value, p99.is_met) == (pytest.approx(1.25), False)
    assert measures.of_latency([ours, failed]) == []


def test_latencies_are_of_the_records_between_warming_and_the_end() -> None:
    """Of 100 s at one record a second the last 40 but two count; both ends in ms."""
    sent_s = np.arange(100)
    columns = {
        "sent_ns": sent_s * 10**9,
        "appended_ms": sent_s * 1000 + 50,
        "seen_ns": sent_s * 10**9 + np.where(sent_s < 58, 9_000, np.where(sent_s == 70, 400, 100)) * 10**6,
    }
    found = latencies(columns, stopping_ns=101 * 10**9, seconds=40)
    assert found["records"] == 39
    assert found["appended"]["p50"] == found["appended"]["max"] == 50.0
    assert (found["read"]["p50"], found["read"]["max"]) == (100.0, 400.0)
    assert found["behind_s"] == 2.0
    with pytest.raises(DeduperError, match="nothing came out"):
        latencies({name: column[:0] for name, column in columns.items()}, 0, 40)


def test_cpu_time_is_that_between_the_ends_of_the_first_and_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So neither a start nor a stop counts; without two marks there is nothing."""
    spent = iter([{"driver": 100, "jvm": 5}, {"driver": 400, "jvm": 5}])
    monkeypatch.setattr(cpu, "cpu_us", lambda: next(spent))
    marks = cpu.CpuMarks(4)
    for _ in range(4):
        marks.batch_ended()
    assert marks.per_row(100) == {"driver": 3.0, "jvm": 0.0}
    assert cpu.CpuMarks(1).per_row(100) == {}


def test_the_cpu_time_of_a_process_grows_with_its_work() -> None:
    """It counts this process as the driver."""
    before = cpu.cpu_us()["driver"]
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert cpu.cpu_us()["driver"] - before >= 30_000


def test_steps_have_cpu_time_by_row() -> None:
    """The median over batches; a contender without steps has processes alone."""
    phases = {"task.cpu.read": 0.002}
    trigger = Trigger(1000, {"triggerExecution": 5}, phases)
    turn = Turn(0, 1.0, None, (trigger,), {"driver": 1.5})
    lane = replace(a_lane("deduper", []), turns=(turn,))
    assert lane.cpu_us == {"driver": 1.5, "tasks.read": pytest.approx(2.0)}


def test_each_round_another_begins() -> None:
    """So no contender always follows the same one."""
    orders = [turn_order(["a", "b", "c"], number) for number in range(3)]
    assert orders == [["a", "b", "c"], ["b", "a", "c"], ["c", "a", "b"]]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
