"""A range stream that is killed at each step and started again publishes what an undisturbed one does."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.crash.range_stream import SETTINGS, process, published, scene_of, windows
from tests.deduper.ranges.stream.stream_scene import OWN, Model, Row, Scene

pytestmark = pytest.mark.crash

POINTS = (
    *("start.claimed", "start.published", "start.discarded", "window.0.batch", "ranges.1.read", "window.2.judged"),
    *("ranges.3.piece", "ranges.3.port", "window.3.durable", "log.written", "log.linked", "window.4.committed"),
    *("publish.renamed", "window.5.published", "window.6.checked", "window.6.half", "window.6.marked"),
    "ranges.7.removed",
)


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


@pytest.mark.night
@pytest.mark.parametrize("storage", ["file", "objects"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_step_and_resumed(
    point: str,
    storage: str,
    undisturbed: dict[str, list[Row]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the first start or in a later window: no row is missing, none is there twice, nothing is left over."""
    monkeypatch.setattr(Scene, "storage", storage)
    scene = scene_of(tmp_path, windows(1))
    nth = 1 if point.startswith("start") else 4
    assert process(scene, f"{point}=kill@{nth}") == -signal.SIGKILL
    shown = published(scene)
    for port, rows in shown.items():
        assert rows == undisturbed[port][: len(rows)], "what is public stays"
    assert process(scene, "") == 0
    assert published(scene) == undisturbed
    assert scene.leftovers() == []


@pytest.mark.night
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
    undisturbed = rows_of_the_model(scene_of(tmp_path / "undisturbed", windows(1), {"aggregates": aggregates}))
    scene = scene_of(tmp_path / "killed", windows(1), {"aggregates": aggregates})
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
