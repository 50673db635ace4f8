"""The history of a job: its differences are the windows', after restarts and crashes too, and it harms no job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bucket_store.log.history import FILE_NAME, Sample, read_history
from bucket_store.places.local import local_place
from deduper.window.accessories import history_watch
from deduper.window.accessories.history_watch import FILES, SECONDS, HistoryWatch
from tests.deduper.leaks.test_meter import settings_of, stream
from tests.deduper.small_service import Process, Trial, World, machine_of
from tests.deduper.window.test_leak_watch import run, texts

pytestmark = pytest.mark.slow

PORTS = ("unique", "duplicate", "expired", "error")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job on two shards."""
    world = World(tmp_path, Trial(settings_of("own_bucket"), shards=2))
    with machine_of(world):
        yield world


def samples(world: World, process: Process) -> tuple[Sample, ...]:
    """Of every window."""
    return read_history(local_place(world.config.store.path), process.log.manifest.store_id)[0]


def test_samples_are_the_totals_of_the_store(world: World) -> None:
    """One before the first window, one after each; reasons and keys too."""
    process = Process(world)
    windows = texts(stream(2))
    run(process, windows)
    process.runner.close()
    found = samples(world, process)
    assert [sample.next_window for sample in found] == list(range(len(windows) + 1))
    assert all(found[0].values[port] == 0 for port in PORTS)
    rows = [sum(sample.values[port] for port in PORTS) for sample in found]
    assert [after - before for before, after in pairwise(rows)] == [sum(map(len, parts)) for parts in windows]
    state = process.log.state
    assert {name: found[-1].values[name] for name in PORTS} == state.totals
    assert found[-1].values["reason.null_key"] == state.reason_totals["null_key"]
    assert found[-1].values["latest"] == state.latest_point
    assert found[-1].values[FILES] == 2 * len(windows)
    assert found[-1].values["leak.lookup.high"] >= found[-1].values["leak.lookup"]
    seconds = [sample.values.get(SECONDS, 0) for sample in found]
    assert seconds == sorted(seconds)


def test_a_crash_loses_samples_and_no_numbers(world: World) -> None:
    """The next sample has what the lost ones had; seconds alone are those of the windows that were sampled."""
    windows = texts(stream(3))
    first = Process(world)
    run(first, windows[:2])
    first.runner.close()
    run(Process(world), windows[2:4])  # and it dies
    third = Process(world)
    run(third, windows[4:5])
    third.runner.close()
    found = samples(world, third)
    assert [sample.next_window for sample in found] == [0, 1, 2, 5]
    assert {name: found[-1].values[name] for name in PORTS} == third.log.state.totals


def test_it_is_written_now_and_then(world: World) -> None:
    """Ten seconds after the last writing."""
    process, now = Process(world), [0.0]
    process.runner._history = HistoryWatch(world.config, process.log, lambda: now[0])
    for now[0], count in ((9.9, 0), (10.0, 3), (19.9, 3), (20.0, 5)):
        run(process, texts([stream(1)[0]]))
        assert len(samples(world, process)) == count


def test_no_failure_of_it_stops_a_window(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows are committed, and the log says why there is no history."""

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(history_watch, "values_of", fails)
    process = Process(world)
    run(process, texts(stream(1)[:2]))
    process.runner.close()
    assert process.log.state.next_window == 2
    assert "the history stops" in caplog.text
    assert not (world.config.store.path / FILE_NAME).exists()
