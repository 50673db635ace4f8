"""The tables of a benchmark, from its stored document alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from deduper.bench.results import report
from deduper.cli.main import app
from deduper.cli.views import bench as bench_view

STORED = Path(__file__).parent.parent.parent / "data" / "bench.json"


@pytest.fixture
def document() -> dict[str, Any]:
    """The document of a run of seconds: a table of two contenders, and some measures."""
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def test_the_tables_have_every_contender_and_measure(document: dict[str, Any]) -> None:
    """Each measure with its target, met or not; each contender with its rates."""
    console = Console(width=200, record=True, file=io.StringIO())
    for part in bench_view.tables(document):
        console.print(part)
    text = console.export_text()
    assert text.count("not measured") == sum(measure["met"] is None for measure in document["measures"])
    assert text.count("NOT MET") == sum(measure["met"] is False for measure in document["measures"])
    for lane in document["lanes"]:
        assert f"{lane['rows_per_second']['median']:,.0f}" in text
        assert lane["name"] in text


def test_a_failed_contender_says_why(document: dict[str, Any]) -> None:
    """A contender without numbers is in the table, with its reason."""
    lane = document["lanes"][0]
    lane |= {"failure": "out of memory", "rows_per_second": None, "milliseconds": None, "phases": {}}
    assert report.lane_rows([lane]) == [(lane["name"], "–", "–", "–", "–", "0", "–", "out of memory")]


def test_a_bar_of_the_run_stands_beside_the_target(document: dict[str, Any]) -> None:
    """A measure that is held against the run itself shows both."""
    measure = document["measures"][0] | {"bar": 0.5}
    (row,) = report.measure_rows({"measures": [measure]})
    assert row[2] == "≥ 0.90x (here 0.50x)"


def test_the_names_can_be_asked_for() -> None:
    """As a table and in JSON; nothing runs."""
    reported = CliRunner().invoke(app, ["bench", "--list"])
    assert reported.exit_code == 0
    assert "watermark-rocksdb-changelog" in reported.stdout
    names = json.loads(CliRunner().invoke(app, ["bench", "--list", "--json"]).stdout)
    assert set(names) == {"contenders", "presets", "measures"}


@pytest.mark.parametrize("arguments", [["--preset", "fast"], ["--rounds", "0"], ["--contender", "flink"]])
def test_a_wrong_name_is_refused_before_spark_starts(arguments: list[str]) -> None:
    """With what there is instead."""
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2


def test_cpu_time_has_a_row_for_every_contender_that_was_measured() -> None:
    """Processes add up; steps are parts of them."""
    spent = {"driver": 1.0, "jvm": 2.0, "workers": 3.0, "maintenance": 0.5, "driver.send": 0.75, "tasks.read": 2.5}
    lanes = [{"name": "deduper", "group": "table", "cpu_us": spent}, {"name": "plain", "group": "table", "cpu_us": {}}]
    (row,) = report.cpu_rows(lanes)
    assert row == ("deduper", "table", "1.00", "2.00", "3.00", "6.50", "2.50", "–", "–", "0.75")
    assert len(row) == len(report.CPU_HEAD)


def test_latency_has_two_rows_for_every_contender(document: dict[str, Any]) -> None:
    """One for each end; one that failed says why; measures that were not asked for are left out."""
    found = {"p50": 10.0, "p90": 20.0, "p95": 25.0, "p99": 1234.0, "max": 2000.0}
    about = {"contender": "deduper", "rate": 1000.0, "trigger": "100ms", "load": 0.5, "behind_s": 0.1}
    good = {**about, "appended": found, "read": found, "failure": None}
    failed = {**about, "appended": {}, "read": {}, "failure": "no broker"}
    rows = report.latency_rows([good, failed])
    assert [row[3] for row in rows] == ["appended", "read"] * 2
    assert "1,234" in rows[0]
    assert rows[2][-1] == "no broker"
    assert {len(row) for row in rows} == {len(report.LATENCY_HEAD)}
    console = Console(width=200, record=True, file=io.StringIO())
    for part in bench_view.tables({**document, "lanes": [], "latency": [good]}):
        console.print(part)
    assert "not measured" not in console.export_text()
