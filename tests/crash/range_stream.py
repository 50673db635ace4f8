"""A range stream over inputs that are there from the beginning, as a process to kill, and what it has published."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.deduper.ranges.stream.stream_scene import Row, Scene, event, ranged
from tests.forked import command

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


def scene_of(root: Path, made: list[tuple[list[Row], list[Row]]], more: Row | None = None) -> Scene:
    """All windows are published, so that the same ones meet in each run; `more` are settings."""
    scene = Scene(root, {**SETTINGS, **(more or {})})
    for events, ranges in made:
        scene.events.publish(events)
        scene.ranges.publish(ranges)
    (root / "points.yaml").write_text(json.dumps(scene.written))
    return scene


def process(scene: Scene, armed: str) -> int:
    """The exit code of the command; of one that was killed it is negative."""
    return command("run", str(scene.root / "points.yaml"), "--once", armed=armed, cwd=scene.root).returncode


def published(scene: Scene) -> dict[str, list[Row]]:
    """The rows of all ports."""
    return {port: scene.rows(port) for port in ("output", "corrections", "late", "errors")}
