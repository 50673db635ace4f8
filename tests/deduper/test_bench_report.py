"""The page and the tables of a benchmark, from its stored document alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from deduper.bench import answers, report
from deduper.cli import app
from deduper.errors import UsageError

STORED = Path(__file__).parent.parent / "data" / "bench.json"


@pytest.fixture
def document() -> dict[str, Any]:
    """That of a run of seconds: a table of two contenders, a sweep, and some measures."""
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def test_the_page_is_one_file_that_loads_nothing(document: dict[str, Any]) -> None:
    """No script, no font, no picture from elsewhere; every plot stands in it, and is well formed."""
    page = report.page(document)
    assert not re.findall(r'<(?:script|link|img|iframe)|url\((?!#)|@import|href="(?!#)', page)
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 4
    for plot in plots:
        ElementTree.fromstring(plot)


def test_the_page_is_a_function_of_the_document(document: dict[str, Any]) -> None:
    """The same bytes each time, so that two runs can be compared."""
    assert report.page(document) == report.page(json.loads(json.dumps(document)))


def test_the_page_says_what_was_measured_on_what(document: dict[str, Any]) -> None:
    """Machine, load, versions, settings, seed, command; and each measure with its target, met or not."""
    page = report.page(document)
    machine = document["machine"]
    for told in (machine["cpu"], machine["system"], machine["file_system"], "spark.master=local[2]", "seed 1"):
        assert str(told) in page
    assert f"Load {document['load_at_start'][0]} at the start, {document['load_at_end'][0]} at the end" in page
    assert f"pyspark {machine['packages']['pyspark']}" in page
    assert page.count("not measured") == sum(measure["met"] is None for measure in document["measures"])
    assert page.count("NOT MET") == sum(measure["met"] is False for measure in document["measures"])


def test_what_failed_says_why_and_what_it_says_is_no_markup(document: dict[str, Any]) -> None:
    """A contender without numbers is in the table, with its reason."""
    lane = document["lanes"][0]
    lane |= {"failure": "<b>out of memory", "rows_per_second": None, "milliseconds": None, "phases": {}}
    page = report.page(document)
    assert "&lt;b&gt;out of memory" in page
    assert "<b>out" not in page


def test_steps_of_a_window_add_up_to_its_trigger(document: dict[str, Any]) -> None:
    """What Spark does around our window is in `other`."""
    for name, steps in report.steps(document["lanes"]).items():
        (lane,) = [lane for lane in document["lanes"] if lane["name"] == name and lane["phases"]]
        assert sum(steps.values()) == pytest.approx(lane["milliseconds"]["median"] / 1000, rel=0.01)


def test_without_a_plotting_library_it_is_said_what_to_install(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are written all the same, and the page can be made later."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"not installed: pip install matplotlib"):
        report.page(document)
    assert answers.tables(document)


def test_the_page_can_be_made_from_a_stored_document(tmp_path: Path) -> None:
    """Where there was nothing to plot with when it was measured."""
    stored = tmp_path / "bench.json"
    stored.write_bytes(STORED.read_bytes())
    result = CliRunner().invoke(app, ["bench", "--render", str(stored)])
    assert result.exit_code == 0
    assert (tmp_path / "bench.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    stored.write_text("{}", encoding="utf-8")
    refused = CliRunner().invoke(app, ["bench", "--render", str(stored)])
    assert refused.exit_code == 2


def test_the_names_can_be_asked_for() -> None:
    """As a table and in JSON; nothing runs."""
    told = CliRunner().invoke(app, ["bench", "--list"])
    assert told.exit_code == 0
    assert "watermark-rocksdb-changelog" in told.stdout
    names = json.loads(CliRunner().invoke(app, ["bench", "--list", "--json"]).stdout)
    assert set(names) == {"contenders", "presets", "measures", "sweeps"}


@pytest.mark.parametrize("arguments", [["--preset", "fast"], ["--spark", "master=local"], ["--contender", "flink"]])
def test_a_wrong_name_is_refused_before_spark_starts(arguments: list[str]) -> None:
    """With what there is instead."""
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
