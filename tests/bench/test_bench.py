"""The benchmark's names, plans and tables; `tests/spark/test_bench_run.py` runs it."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.bench import measures, tables
from tests.bench.__main__ import app
from tests.bench.contenders import CONTENDERS, LATENCY, PRESETS, STANDARD_OF_TOPICS
from tests.bench.figures import LaneResult, Trigger, Turn
from tests.bench.lanes import service_config
from tests.bench.plan import PRESET_FAMILIES, PROCESSES, SWEEPS, plan, sweep_lanes
from tests.bench.targets import BARS, FAMILIES, TARGETS
from tests.bench.workload import Workload

STORED = Path(__file__).parent.parent / "data" / "bench.json"


def a_lane(contender: str, milliseconds: list[int]) -> LaneResult:
    """A lane with these trigger times for 1,000 rows each; the restart before them took a minute."""
    turns = tuple(
        Turn(number, 1.0, Trigger(1000, {"triggerExecution": 60_000}), (Trigger(1000, {"triggerExecution": spent}),))
        for number, spent in enumerate(milliseconds)
    )
    return LaneResult(contender, contender, "table", None, {"state_keys": 5}, 2, (), turns)


def test_the_names_can_be_asked_for_and_wrong_ones_are_refused() -> None:
    """Before Spark starts; a preset, family or measure names only what there is."""
    names = json.loads(CliRunner().invoke(app, ["--list", "--json"]).stdout)
    assert set(names) == {"contenders", "presets", "measures", "sweeps"}
    assert "watermark-rocksdb-changelog" in CliRunner().invoke(app, ["--list"]).stdout
    for wrong in (["--preset", "fast"], ["--contender", "flink"], ["--measure", "speed"], ["--rate", "5"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
    assert {name for members in PRESETS.values() for name in members} == set(CONTENDERS)
    assert {*LATENCY, *STANDARD_OF_TOPICS} <= set(CONTENDERS)
    of_presets = {family for families in PRESET_FAMILIES.values() for family in families}
    assert of_presets == set(FAMILIES) - {"latency", *PROCESSES}
    assert {name for bars in BARS.values() for name in bars} <= set(TARGETS)


def test_contenders_of_the_service_are_valid_configurations(tmp_path: Path) -> None:
    """Each of them on files; and every sweep has its lanes."""
    for contender in CONTENDERS.values():
        if contender.is_service and "parquet" in contender.sinks:
            assert service_config(contender, tmp_path, Workload(), 2, spark={}).name == "bench"
    for name, (_, values) in SWEEPS.items():
        assert {lane.x for lane in sweep_lanes(name, ("deduper",), Workload(), 2)} == set(values)
    assert [lane.name for lane in plan("all").state_lanes()] == ["deduper at 1,000,000", "deduper at 100,000,000"]


def test_a_ratio_is_of_medians_without_the_batch_that_starts_a_query() -> None:
    """One slow batch moves nothing; a contender that is missing leaves its measure without a value."""
    lanes = [a_lane("deduper", [100, 100, 5000]), a_lane("passthrough", [80] * 3)]
    (reached,) = measures.of_table("passthrough", lanes)
    assert (reached.value, reached.is_met) == (pytest.approx(0.8), False)
    assert [one.is_met for one in measures.of_table("watermark", lanes)] == [None, None]


def test_the_tables_have_every_contender_and_measure() -> None:
    """From the stored document of a run of seconds."""
    document = json.loads(STORED.read_text(encoding="utf-8"))
    console = Console(width=200, record=True, file=io.StringIO())
    for part in tables.tables({**document, "settings": {"families": []}}):
        console.print(part)
    text = console.export_text()
    for lane in document["lanes"]:
        assert f"{lane['rows_per_second']['median']:,.0f}" in text
    assert all(measure["text"] in text for measure in document["measures"])


@pytest.mark.parametrize("duplicates", [0.0, 0.2, 0.9])
def test_a_measured_batch_repeats_its_share_of_keys(duplicates: float) -> None:
    """All others are new, over two rounds too; a batch is a function of the workload and its number."""
    workload = Workload(batch_rows=1000, state_keys=5000, duplicates=duplicates, payload_bytes=10)
    seen = {key for number in range(workload.load_batches) for key in workload.rows(number)["k"].to_pylist()}
    assert len(seen) == workload.loaded_keys
    for number in [*workload.turn(0), *workload.turn(1)]:
        keys = workload.rows(number)["k"].to_pylist()
        new = [key for key in keys if key not in seen]
        assert len(new) == len(set(new))
        assert math.isclose(1 - len(new) / len(keys), duplicates, abs_tol=1e-3)
        seen.update(new)
    assert workload.rows(7).equals(workload.rows(7))
