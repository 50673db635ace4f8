"""The metrics page of a range stream, `/healthz`, and `deduper status`: what the commit log says."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.cli.views.ranges import line
from deduper.ranges.stream.job import run
from deduper.ranges.stream.metrics import StreamMetrics
from deduper.ranges.stream.runner import StreamRunner, owned_store
from deduper.ranges.stream.status import stream_status
from deduper.service import window_metrics
from tests.deduper.ranges.stream.stream_scene import Scene, event, ranged
from tests.deduper.service.test_metrics_reference import documented as of_a_job
from tests.ports import free_ports

ROOT = Path(__file__).parents[4]


def two_windows(scene: Scene) -> None:
    """A late range that corrects, one that is closed, a bad event, an expired one; a third window waits."""
    scene.ranges.publish([ranged(1, "a", 0, 900, 10)])
    scene.events.publish([event(1, "a", 50), event(2, None, 50), event(3, "a", 400)])
    scene.ranges.publish([ranged(2, "a", 350, 700, 5), ranged(3, "a", 0, 30), ranged(4, "a", 0, 500)])
    scene.events.publish([event(4, "a", 200), event(5, "a", 401)])


def documented() -> dict[str, tuple[str, set[str]]]:
    """Type and labels of each row of the table, and of those of a job that are said to be the same."""
    text = (ROOT / "docs/range-aggregates.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(deduper_range_stream_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", text, re.MULTILINE)
    (named,) = re.findall(r"^The metrics of \[a job\]\(metrics\.md\) that it has too: (.*?)\.$", text, re.MULTILINE)
    shared = {f"deduper_{name}" for name in re.findall(r"`(\w+)`", named)}
    of_job = {name: (kind, labels) for name, kind, labels in of_a_job() if name in shared}
    assert of_job.keys() == shared
    own = {name: (kind, set(labels.split(", ")) - {""}) for name, kind, labels in rows}
    return own | of_job | {"deduper_job_info": ("gauge", {"name", "store"})}


@pytest.mark.slow
def test_the_page_of_a_running_stream(tmp_path: Path) -> None:
    """Names, types and labels are those of the docs; counts are those of the store, also after a restart."""
    (port,) = free_ports(["page"], None).values()
    scene = Scene(tmp_path, {"late_ranges": "correct", "metrics": {"port": port}})
    two_windows(scene)
    scene.run()
    scene.events.publish([event(6, "a", 402)])
    pages: list[str] = []

    def fetch(*_: object) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            pages.append(page.read().decode())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as page:
            assert page.read() == b"ok\n"

    run(scene.job, once=True, take_over=False, on_progress=fetch)
    families = [one for one in text_string_to_metric_families(pages[0]) if one.name.startswith("deduper_")]
    described = documented()
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        kind, labels = described.pop(name)
        found = set().union(*(one.labels for one in family.samples))
        assert (family.type, found) in ((kind, labels), (kind, set())), name  # no sample, no label
    assert described.keys() <= {"deduper_log_messages_total"}, "nothing was logged yet"
    values = {
        (
            one.name.removeprefix("deduper_").removeprefix("range_stream_"),
            *(value for _, value in sorted(one.labels.items())),
        ): one.value
        for family in families
        for one in family.samples
    }
    expected = {
        ("windows_total",): 3,
        ("rows_total", "answered", "events"): 4,
        ("rows_total", "null_id", "events"): 1,
        ("rows_total", "expired", "events"): 1,
        ("rows_total", "closed", "ranges"): 1,
        ("rows_total", "added", "ranges"): 3,
        ("late_ranges_total", "late"): 1,
        ("late_ranges_total", "closed"): 1,
        ("corrections_total",): 1,
        ("open_ranges",): 3,
        ("remembered_events",): 4,
        ("waiting", "events"): 0,
        ("window_seconds_count",): 1,
    }
    assert {name: values.get(name) for name in expected} == expected


def test_a_stream_that_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that wait and are not made; a window that takes too long; one that is not published."""
    monkeypatch.setattr(window_metrics, "LEAST_FREE_BYTES", 1)
    now = [0.0]
    scene = Scene(tmp_path)
    two_windows(scene)
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: int(now[0] * 1e6)) as owned:
        page = StreamMetrics(scene.job, CollectorRegistry(), lambda: int(now[0] * 1e6), lambda: now[0])
        assert page.health() == []
        runner = StreamRunner(scene.job, owned, lambda: int(now[0] * 1e6))
        page.follow(runner)
        assert runner.plan()
        with page.window():
            runner.run()
        page.published(0, 1.0)
        assert runner.plan()
        assert [runner.inputs[side].waiting for side in ("events", "ranges")] == [1, 1]
        now[0] = 950
        assert page.health() == ["no progress: no window was committed for 950 s, and input waits"]

        def publish(*_: object) -> None:
            assert page.health() == ["publishing stuck: a committed window has not been published for 1300 s"]

        monkeypatch.setattr("deduper.ranges.stream.runner.publish_window", publish)
        with page.window():
            now[0] = 2250
            assert page.health() == ["window stuck: one has been running for 1300 s"]
            runner.run()


def test_a_stream_runs_while_its_heartbeat_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its process exists; one that stands still, or is not there, is of no stream that runs."""
    scene = Scene(tmp_path)
    two_windows(scene)
    moves = [True, False, True]
    monkeypatch.setattr("deduper.ranges.stream.status.beats", lambda _: moves.pop(0))
    with owned_store(scene.job, take_over=False, wall_clock_us=lambda: 0):
        assert [scene.status.is_running, scene.status.is_running] == [True, False]
    assert not scene.status.is_running


@pytest.mark.slow
def test_the_status_of_a_store(tmp_path: Path) -> None:
    """Beside no owner, without a window of its own."""
    scene = Scene(tmp_path, {"late_ranges": "correct"})
    two_windows(scene)
    scene.run()
    file = tmp_path / "points.yaml"
    file.write_text(json.dumps(scene.written))
    found = CliRunner().invoke(app, ["status", str(file), "--json"])
    assert found.exit_code == 0, found.output
    status = json.loads(found.stdout)
    assert status["inputs"] == {
        "events": {"store": "aa" * 16, "window": 1, "offsets": {}},
        "ranges": {"store": "bb" * 16, "window": 1, "offsets": {}},
    }
    wanted = {"windows": 2, "published": 1, "running": False, "owner": None, "open_ranges": 3, "remembered_events": 3}
    assert {name: status[name] for name in wanted} == wanted
    assert status["counts"]["corrections"] == 1
    text = CliRunner().invoke(app, ["status", str(file)]).stdout
    assert "not running" in text
    assert "window 1" in text
    for named in (str(file), scene.store.url, str(scene.job.store_place)):
        assert CliRunner().invoke(app, ["status", named, "--json"]).stdout == found.stdout
        assert CliRunner().invoke(app, ["status", named]).stdout == text
        for option in (["--last", "5"], ["--timings"]):
            refused = CliRunner().invoke(app, ["status", named, *option])
            assert refused.exit_code == 2
            assert "--last and --timings are for windows of a job, leave them out" in " ".join(refused.stderr.split())
    assert line(stream_status(scene.job.store_place)).startswith("not running since ")
    file.write_text(json.dumps({**scene.written, "store": "elsewhere"}))
    assert CliRunner().invoke(app, ["status", str(file)]).exit_code == 2
    file.write_text(json.dumps({**scene.written, "on": 7, "more": 1}))
    wrong = CliRunner().invoke(app, ["status", str(file)])
    assert wrong.exit_code == 2
    assert wrong.output == CliRunner().invoke(app, ["run", str(file)]).output
