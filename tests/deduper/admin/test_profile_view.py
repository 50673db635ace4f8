"""Where the time went, as `status` shows it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bucket_store.log.profile import Profiles, WindowProfile
from bucket_store.places.local import local_place
from deduper.admin.open_store import open_store
from deduper.admin.profile import STEPS, TASK_STEPS, profile_view, steps_of
from deduper.admin.status import store_status
from deduper.cli.views.status import render_profile as render
from deduper.testing import Row, Settings
from tests.deduper.small_service import Process, Trial, World, machine_of

PHASES = {
    "intent": 0.01,
    "judge": 1.8,
    "judge.read": 0.5,
    "judge.shards": 0.4,
    "judge.write": 0.8,
    "durable": 0.05,
    "commit": 0.02,
    "publish": 0.03,
    "clean": 0.004,
    "expire": 0.006,
    "task.read": 0.6,
    "task.rows": 0.2,
    "task.keys": 0.1,
    "task.tables": 0.2,
    "task.judge": 0.1,
    "task.verdicts": 0.1,
    "task.piece": 0.1,
    "task.ports": 0.6,
}


def make_profile(root: Path, windows: int) -> None:
    profiles = Profiles(local_place(root))
    for window in range(windows):
        profiles.add(WindowProfile(window, 1, 1_767_225_600_000_000, 500_000, 2.0, PHASES))
    profiles.write()


def test_the_steps_of_a_window_add_up_to_it() -> None:
    """No second is shown twice, and none is lost: what no step has is `other`."""
    steps = steps_of(WindowProfile(0, 1, 0, 10, 2.0, PHASES))
    assert sum(steps.values()) == pytest.approx(2.0)
    assert steps["other"] == pytest.approx(0.18)
    named = [phase for phases in STEPS.values() for phase in phases]
    assert len(named) == len(set(named))
    assert "judge" not in named


def test_programs_get_seconds_and_shares(tmp_path: Path) -> None:
    """Of the newest windows that were asked for."""
    make_profile(tmp_path, 7)
    found = profile_view(local_place(tmp_path), last=2).to_json()
    assert [window["window"] for window in found["windows"]] == [5, 6]
    assert found["windows"][0]["rows_per_second"] == 250_000
    assert found["windows"][0]["phases"]["judge.read"] == 0.5
    assert found["shares"]["write"] == 0.4
    shares = {"read": 0.3, "rows": 0.1, "keys": 0.05, "tables": 0.1, "judge": 0.05, "verdicts": 0.05, "piece": 0.05}
    assert found["task_shares"] == {**shares, "ports": 0.3, "send": 0}
    assert list(found["task_shares"]) == [*TASK_STEPS, "send"]
    assert profile_view(local_place(tmp_path), last=0).to_json() == {"windows": [], "shares": {}, "task_shares": {}}


def test_people_get_a_column_a_window_and_the_shares_of_all(tmp_path: Path) -> None:
    """Milliseconds by step; a step that no window has is not there."""
    make_profile(tmp_path, 3)
    out = io.StringIO()
    Console(file=out, width=200).print(*render(profile_view(local_place(tmp_path), last=2)), sep="\n")
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["window", "1", "2", "share"] in lines
    assert ["rows", "500,000", "500,000", "–"] in lines
    assert ["seconds", "2.00", "2.00", "–"] in lines
    of_driver = {"intent": 10, "read": 500, "judge": 400, "write": 800, "sync": 50, "commit": 20}
    for step, ms in {**of_driver, "publish": 30, "expire": 10, "other": 180}.items():
        assert [step, str(ms), str(ms), f"{ms / 2000:.0%}"] in lines
    assert ["ports", "600", "600", "30%"] in lines
    assert not any(line[:1] == ["send"] for line in lines)
    assert render(profile_view(local_place(tmp_path / "nowhere"), last=5)) == []


def test_every_window_of_a_job_leaves_its_profile_over_restarts_too(tmp_path: Path) -> None:
    """Driver's steps and tasks' alike, in the store, for `status` and `--json`."""
    world = World(tmp_path, Trial(Settings("never"), ports=True))
    with machine_of(world):
        for _ in range(2):
            process = Process(world)
            for key in ("a", "b"):
                process.offer(world.put([[Row((key,))] * 3]))
            process.runner.close()
    view = profile_view(local_place(world.config.store.path), last=3)
    assert [(profile.window, profile.rows) for profile in view.windows] == [(1, 3), (2, 3), (3, 3)]
    assert [profile.epoch for profile in view.windows] == [1, 2, 2]
    for profile in view.windows:
        assert {"intent", "judge", "durable", "commit", "publish"} <= profile.phases.keys()
        assert {f"task.{step}" for step in TASK_STEPS} <= profile.phases.keys()
        parts = sum(seconds for name, seconds in profile.phases.items() if not name.startswith(("judge.", "task.")))
        assert 0 < parts <= profile.seconds
    reported = store_status(open_store(world.config.store.url), last=2).to_json()["profile"]
    assert [window["window"] for window in reported["windows"]] == [2, 3]
