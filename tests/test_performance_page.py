"""docs/performance-notes.md gets its tables from the documents of `python -m tests.bench`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = "before\n<!-- figures {0}: begin -->\nold\n<!-- figures {0}: end -->\nafter\n"


@pytest.fixture
def performance() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("performance", ROOT / "scripts" / "performance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def document() -> dict[str, Any]:
    """The document of a run of seconds, its table alone."""
    stored: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "bench.json").read_text(encoding="utf-8"))
    return {**stored, "lanes": [lane for lane in stored["lanes"] if lane["group"] == "table"]}


def test_a_table_is_replaced_by_the_figures_of_a_run(performance: ModuleType, document: dict[str, Any]) -> None:
    """Rates, ratios, command and load; the rest of the page stays; brokers and folders are left out."""
    document["command"] += ["--bootstrap-servers", "10.1.2.3:9092", "--out", "/somewhere/else"]
    page = performance.filled(PAGE.format("some"), "some", document)
    assert page.startswith("before\n<!-- figures some: begin -->\n| contender |")
    assert page.endswith("<!-- figures some: end -->\nafter\n")
    assert "| **deduper** | 16,166 (10,504 to 19,936) | 4 |  |" in page
    assert "| passthrough | 89,187 (41,356 to 132,626) | 4 | 0.18 x |" in page
    assert "`python -m tests.bench --preset quick`, load 7.2 to 7.9, 2 cores." in page
    assert "old" not in page
    assert performance.filled(page, "some", document) == page


def test_cpu_time_has_a_table_of_its_own(performance: ModuleType, document: dict[str, Any]) -> None:
    """Processes, all of them, and the steps that were measured."""
    document["lanes"][0]["cpu_us"] = {"driver": 1.0, "jvm": 0.5, "workers": 2.0, "maintenance": 0.25, "tasks.read": 1.5}
    page = performance.filled(PAGE.format("some-cpu"), "some", document)
    assert "| deduper | 1.00 | 0.50 | 2.00 | 3.75 | 1.50 |  |  |  |" in page


def test_latencies_of_several_runs_stand_in_one_table(performance: ModuleType, document: dict[str, Any]) -> None:
    """A row for each end; one that failed says so."""
    found = {"p50": 1.0, "p90": 2.0, "p95": 3.0, "p99": 4.0, "max": 5000.0}
    result = {"contender": "deduper", "rate": 1000.0, "trigger": "100ms", "load": 1.0, "read": found, "appended": {}}
    merged = performance.merged([{**document, "latency": [result]}, {**document, "latency": [result]}])
    page = performance.filled(PAGE.format("latency"), "latency", merged)
    assert page.count("| deduper | 1,000 | 100ms | read | 1 | 2 | 3 | 4 | 5,000 |") == 2
    assert page.count("| deduper | 1,000 | 100ms | appended | failed |") == 2


def test_formats_have_a_table_of_their_own(performance: ModuleType, document: dict[str, Any]) -> None:
    """Each group beside its own pipeline; the contenders of the other table are left out."""
    csv = [{**lane, "group": "csv"} for lane in document["lanes"]]
    both = {**document, "lanes": [*document["lanes"], *csv]}
    page = performance.filled(PAGE.format("formats"), "formats", both)
    assert page.count("passthrough") == 1
    small = performance.filled(PAGE.format("some"), "some", both)
    assert small.count("passthrough") == 1


def test_a_table_that_the_page_lacks_is_named(performance: ModuleType, document: dict[str, Any]) -> None:
    """Nothing is written elsewhere instead."""
    with pytest.raises(SystemExit, match="has no `<!-- figures other: begin -->`"):
        performance.filled(PAGE.format("some"), "other", document)
