"""A range stream that is killed at each step and started again publishes what an undisturbed one does."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from tests.deduper.ranges.stream.stream_scene import OWN, Model, Row, Scene, event, ranged
from tests.forked import command

pytestmark = pytest.mark.crash

POINTS = (
    *("start.claimed", "start.published", "start.discarded", "ranges.0.batch", "ranges.1.read", "ranges.2.judged"),
    *("ranges.3.piece", "ranges.3.port", "ranges.3.staged", "log.written", "log.linked", "ranges.4.committed"),
    *("publish.renamed", "window.5.published", "window.6.checked", "window.6.half", "ranges.6.marked"),
    "ranges.7.removed",
)
SETTINGS: Row = {
    "retraction": {"column": "op", "value": "withdrawn"},
    "range_key": ("campaign",),
    "late_ranges": "correct",
    "aggregates": {"points": "sum(points)", "mean": "mean(weight)", "offers": "count"},
}


def windows(seed: int, count: int = 8) -> list[tuple[list[Row], list[Row]]]:
    """Windows in which ranges come late, are withdrawn, and close."""
    draw = random.Random(seed)
    found, number = [], 0
    for window in range(count):
        events, ranges = [], []
        for _ in range(6):
            number += 1
            identity, at = draw.choice("ab"), window * 30 + draw.randrange(-120, 30)
            events.append(event(number, identity if draw.random() < 0.9 else None, at))
            start = window * 30 + draw.randrange(-90, 60)
            op = draw.choice(["new", "new", "withdrawn"]) if window else "new"
            end = start + draw.randrange(-5, 90)
            ranges.append(ranged(draw.randrange(12), identity, start, end, draw.randrange(9), draw.random(), op))
        found.append((events, ranges))
    return found


def scene_of(root: Path, made: list[tuple[list[Row], list[Row]]], aggregates: Row | None = None) -> Scene:
    """All windows are published, so that the same ones meet in each run."""
    scene = Scene(root, SETTINGS if aggregates is None else {**SETTINGS, "aggregates": aggregates})
    for events, ranges in made:
        scene.events.publish(events)
        scene.ranges.publish(ranges)
    (root / "points.yaml").write_text(json.dumps(scene.written))
    return scene


def process(scene: Scene, armed: str) -> int:
    """The exit code of the command; of one that was killed it is negative."""
    return command("range-stream", str(scene.root / "points.yaml"), "--once", armed=armed, cwd=scene.root).returncode


def published(scene: Scene) -> dict[str, list[Row]]:
    """The rows of all ports."""
    return {port: scene.rows(port) for port in ("output", "corrections", "late", "errors")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of a run that nothing disturbs."""
    return rows_of_the_model(scene_of(tmp_path_factory.mktemp("undisturbed"), windows(1)))


def rows_of_the_model(scene: Scene) -> dict[str, list[Row]]:
    """The rows of a run, which are those of the model."""
    model = Model(scene.job)
    for events, ranges in windows(1):
        model.judge(events, ranges)
    assert process(scene, "") == 0
    rows = published(scene)
    names = list(scene.job.aggregates)
    assert {row["event"]: tuple(row[name] for name in names) for row in rows["output"]} == model.first
    found = {(row["event"], row["_window"]): tuple(row[name] for name in names) for row in rows["corrections"]}
    assert found == model.corrected
    assert all(rows.values())
    return rows


@pytest.mark.turns(9)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_step_and_resumed(point: str, undisturbed: dict[str, list[Row]], tmp_path: Path) -> None:
    """In the first start or in a later window: no row is missing, none is there twice, nothing is left over."""
    scene = scene_of(tmp_path, windows(1))
    nth = 1 if point.startswith("start") else 4
    assert process(scene, f"{point}=kill@{nth}") == -signal.SIGKILL
    shown = published(scene)
    for port, rows in shown.items():
        assert rows == undisturbed[port][: len(rows)], "what is public stays"
    assert process(scene, "") == 0
    assert published(scene) == undisturbed
    assert scene.leftovers() == []


@pytest.mark.parametrize(
    "aggregates",
    [
        SETTINGS["aggregates"],
        {
            "last": "last(weight)",
            "best": "top_k(points, 2)",
            "all": "list(points)",
            "set": "set(points)",
            "own": f"{OWN}:sizes",
        },
    ],
    ids=["sums", "lists"],
)
def test_killed_again_and_again(aggregates: Row, tmp_path: Path) -> None:
    """At a random step of each start, recoveries included, until the inputs are drained."""
    draw = random.Random(7)
    undisturbed = rows_of_the_model(scene_of(tmp_path / "undisturbed", windows(1), aggregates))
    scene = scene_of(tmp_path / "killed", windows(1), aggregates)
    kills = 0
    for _ in range(60):
        code = process(scene, f"{draw.choice(POINTS)}=kill@{draw.randrange(1, 3)}")
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if not code and len(scene.rows()) == len(undisturbed["output"]):
            break
    assert kills > 5
    assert process(scene, "") == 0
    assert published(scene) == undisturbed
    assert scene.leftovers() == []
