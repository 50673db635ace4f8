"""The leak meter in a job: it measures committed windows, goes on after a restart, and harms no job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bucket_store.log.leak_sample import FILE_NAME, read_leak_sample, write_leak_sample
from bucket_store.places.local import local_place
from deduper.core.kernels import measure_misses
from deduper.leaks.figures import LeakFigures
from deduper.leaks.meter import KINDS
from deduper.seeding.reading import SeedConfig
from deduper.tasks import judge as judge_task
from deduper.testing import Row, Settings
from deduper.window.accessories import leak_watch
from deduper.window.accessories.leak_watch import LeakWatch, leak_settings, sample_bits, stored_figures
from tests.deduper.leaks.test_meter import MEMORY, PERIOD, missed, settings_of, stream
from tests.deduper.small_service import Process, Trial, World, machine_of

pytestmark = pytest.mark.slow

OWN = settings_of("own_bucket")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job that samples every key."""
    world = a_world(tmp_path, OWN)
    with machine_of(world):
        yield world


@pytest.fixture(autouse=True)
def every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is in the sample."""
    monkeypatch.setattr(leak_watch, "_BITS", 0)


def a_world(directory: Path, settings: Settings) -> World:
    """A job on two shards."""
    return World(directory, Trial(settings, shards=2))


def texts(windows: list[list[list[Row]]]) -> list[list[list[Row]]]:
    """The stream with texts as keys."""
    return [
        [[Row((None if row.key[0] is None else str(row.key[0]),), row.expiry) for row in part] for part in parts]
        for parts in windows
    ]


def run(process: Process, windows: list[list[list[Row]]]) -> None:
    """Each window from files of its own."""
    for parts in windows:
        process.offer(process.world.put(parts))


def figures(process: Process) -> LeakFigures:
    """Of the newest window."""
    found = process.runner._leaks.figures
    assert found is not None
    return found


def counted(found: LeakFigures) -> dict[str, float]:
    """Records by kind."""
    return {kind: found.missed[kind].records for kind in KINDS} | {"found": found.found}


def test_a_job_measures_what_its_look_up_misses(world: World) -> None:
    """Every copy of the stream, as the oracle counts them, from the tasks of two shards."""
    windows = stream(3)
    process = Process(world)
    run(process, texts(windows))
    counts = missed(windows, OWN)
    assert counts["lookup"]
    assert counted(figures(process)) == {kind: counts[kind] for kind in (*KINDS, "found")}
    assert figures(process).records == sum(len(part) for parts in windows for part in parts)


def test_a_real_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one key in two: the figures have intervals, are written and read, and found copies count too."""
    monkeypatch.setattr(leak_watch, "_BITS", 1)
    world = a_world(tmp_path, OWN)
    with machine_of(world):
        process = Process(world)
        run(process, texts(stream(3, windows=12, keys=60, heavy=False)))  # sampled keys have copies for any salt
        process.runner.close()
    found = figures(process)
    assert found.sample == 2
    assert 0 < found.seen < found.records
    assert found.found > 0
    assert all(one.low <= one.records < one.high for one in found.missed.values())
    assert stored_figures(process.log.root) == found


def test_a_repeated_window_does_not_count_its_own_keys(world: World) -> None:
    """Attempts whose receipts are lost, or that ran twice, leave nothing in the measurement."""
    windows = stream(4)
    process = Process(world)
    for number, parts in enumerate(texts(windows)):
        if number % 2:
            world.trouble.lose_receipt = "judge"
        else:
            world.trouble.twin = "after"
        process.offer(world.put(parts))
    counts = missed(windows, OWN)
    assert counted(figures(process)) == {kind: counts[kind] for kind in (*KINDS, "found")}


def test_a_restart_goes_on(world: World) -> None:
    """After a run's end nothing is missing; the file has what the process had."""
    windows = stream(5)
    first = Process(world)
    run(first, texts(windows[:4]))
    first.runner.close()
    assert stored_figures(first.log.root) == figures(first)
    second = Process(world)
    run(second, texts(windows[4:]))
    counts = missed(windows, OWN)
    assert counted(figures(second)) == {kind: counts[kind] for kind in (*KINDS, "found")}
    assert figures(second).missed_windows == 0


def test_windows_before_a_crash_count_as_missed(world: World) -> None:
    """Those after the last writing; later windows are measured."""
    windows = texts(stream(6))
    first = Process(world)
    run(first, windows[:2])
    first.runner.close()
    run(Process(world), windows[2:5])  # and it dies
    third = Process(world)
    run(third, windows[5:6])
    found = figures(third)
    assert (found.first_window, found.next_window, found.missed_windows) == (0, 6, 3)
    assert found.records == sum(len(part) for parts in (*windows[:2], windows[5]) for part in parts)


def test_it_is_written_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds after the last writing, with the window that comes then."""
    process = Process(world)
    now = [0.0]
    process.runner._leaks = LeakWatch(world.config, process.log, lambda: now[0])
    for now[0], written in ((9.9, None), (10.0, 2), (19.9, 2), (20.0, 4)):
        run(process, [[[Row(("a",), 1)]]])
        sample = read_leak_sample(process.log.root)
        assert (None if sample is None else sample.next_window) == written


@pytest.mark.parametrize("damage", ["flip", "cut", "version", "other store", "later", "body"])
def test_a_file_that_cannot_be_used_begins_a_new_measurement(
    world: World, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning, and the job goes on."""
    first = Process(world)
    run(first, [[[Row(("a",), 1)]]])
    first.runner.close()
    path = world.config.store.path / FILE_NAME
    data = path.read_bytes()
    sample = read_leak_sample(local_place(path.parent))
    assert sample is not None
    if damage == "flip":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    elif damage == "cut":
        path.write_bytes(data[:-9])
    elif damage == "version":
        path.write_bytes(data[:8] + b"\x02\0" + data[10:])
    elif damage == "other store":
        write_leak_sample(local_place(path.parent), replace(sample, store_id="another"))
    elif damage == "later":
        write_leak_sample(local_place(path.parent), replace(sample, next_window=9))
    else:
        write_leak_sample(local_place(path.parent), replace(sample, columns={**sample.columns, "words": b"123"}))
    with caplog.at_level(logging.WARNING):
        second = Process(world)
    assert any("leak meter begins anew" in message for message in caplog.messages)
    run(second, [[[Row(("a",), 11)]]])
    found = figures(second)
    assert (found.first_window, found.records, counted(found)["lookup"]) == (1, 1, 0)


def test_another_period_begins_a_new_measurement(world: World) -> None:
    """Its kinds would mean something else."""
    first = Process(world)
    run(first, [[[Row(("a",), 1)]]])
    first.runner.close()
    expiry = world.config.expiry.model_copy(update={"period": PERIOD * 2})
    world.config = world.config.model_copy(update={"expiry": expiry})
    assert Process(world).runner._leaks.figures is None


@pytest.mark.parametrize("where", ["task", "driver", "file"])
def test_no_failure_of_it_stops_a_window(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails, verdicts and commits are as without it."""

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left") if where == "file" else RuntimeError("a bug")

    target, name = {
        "task": (judge_task, "sampled_records"),
        "driver": (leak_watch, "figures_of"),
        "file": (leak_watch, "write_leak_sample"),
    }[where]
    monkeypatch.setattr(target, name, fails)
    windows = stream(8)
    process = Process(world)
    run(process, texts(windows))
    process.runner.close()
    assert process.log.state.next_window == len(windows)
    assert process.log.state.totals["unique"]
    assert any("leak" in message for message in caplog.messages)


@pytest.mark.parametrize("settings", [Settings("never"), Settings("category", live_categories=2)])
def test_expiries_without_a_distance_have_no_meter(tmp_path: Path, settings: Settings) -> None:
    """Nothing is sampled, nothing is written."""
    world = a_world(tmp_path, settings)
    assert sample_bits(world.config) is None
    assert leak_settings(world.config) is None
    with machine_of(world):
        process = Process(world)
        run(process, [[[Row(("a",), "x")]]])
        process.runner.close()
    assert process.runner._leaks.figures is None
    assert not (world.config.store.path / FILE_NAME).exists()


def test_a_seed_has_no_meter(tmp_path: Path) -> None:
    """Its records are judged by nobody's clock."""
    config = a_world(tmp_path, OWN).config
    assert sample_bits(config) == 0
    assert sample_bits(SeedConfig.model_construct(**dict(config))) is None


def test_processing_time_is_measured(tmp_path: Path) -> None:
    """A key that comes again after its period was missed by the period."""
    world = a_world(tmp_path, Settings("processing_time", period=10_000_000, span=1_000_000))
    with machine_of(world):
        process = Process(world)
        for seconds in (0, 9, 10, 15):
            world.now_us += seconds * 1_000_000
            run(process, [[[Row(("a",))]]])
    assert counted(figures(process)) == {"lookup": 0, "period": 2, "expired": 0, "found": 1}


def test_settings_in_steps(world: World) -> None:
    """The memory is two periods; classes of distances ascend, and the period ends one."""
    settings = leak_settings(world.config)
    assert settings is not None
    assert (settings.period, settings.memory) == (PERIOD, MEMORY)
    assert settings.edges[0] == 0
    assert PERIOD in settings.edges
    assert np.all(np.diff(settings.edges) > 0)
    assert measure_misses.nopython_signatures, "compiled"
