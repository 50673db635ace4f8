"""The owner's sign of life."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bucket_store.framing import frame
from bucket_store.log.heartbeat import MAGIC, HeartBeat, moves, read_beat
from bucket_store.places.local import local_place
from tests.bucket_store.faulty_files import FaultyFiles


def waiting(*events: Callable[[], object]) -> tuple[Callable[[float], None], list[float]]:
    """A sleep that does the n-th of these things in the n-th sleep, and the list of what was slept."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) <= len(events):
            events[len(slept) - 1]()

    return sleep, slept


def nothing() -> None:
    """What happens while nothing happens."""


def test_every_beat_says_who_and_moves(tmp_path: Path) -> None:
    """The counter of one process goes up; another process has another nonce."""
    owner = HeartBeat(local_place(tmp_path), "host:1")
    owner.beat()
    first = read_beat(local_place(tmp_path))
    owner.beat()
    second = read_beat(local_place(tmp_path))
    assert first is not None
    assert second is not None
    assert (first.owner, first.counter, second.counter) == ("host:1", 1, 2)
    HeartBeat(local_place(tmp_path), "host:1").beat()
    third = read_beat(local_place(tmp_path))
    assert third is not None
    assert third.nonce != second.nonce == first.nonce


def test_a_living_owner_is_seen_as_soon_as_it_moves(tmp_path: Path) -> None:
    """Not only at the end of the wait."""
    owner = HeartBeat(local_place(tmp_path), "host:1")
    owner.beat()
    sleep, slept = waiting(nothing, owner.beat)
    assert moves(local_place(tmp_path), 5.0, sleep=sleep)
    assert len(slept) == 2


def test_a_dead_owners_heartbeat_does_not_move(tmp_path: Path) -> None:
    """The whole wait is waited, and no longer."""
    HeartBeat(local_place(tmp_path), "host:1").beat()
    sleep, slept = waiting()
    assert not moves(local_place(tmp_path), 4.1, sleep=sleep)
    assert sum(slept) == pytest.approx(4.1)


def test_no_owner_and_one_that_stops_meanwhile_are_no_living_owner(tmp_path: Path) -> None:
    """Without a file nothing is waited for."""
    sleep, slept = waiting()
    assert not moves(local_place(tmp_path), 4.0, sleep=sleep)
    assert slept == []
    owner = HeartBeat(local_place(tmp_path), "host:1")
    owner.beat()
    sleep, slept = waiting(owner.stop)
    assert not moves(local_place(tmp_path), 4.0, sleep=sleep)
    assert len(slept) == 1


def test_a_damaged_heartbeat_is_no_beat_but_its_change_is_a_sign_of_life(tmp_path: Path) -> None:
    """Who writes it is alive, whatever it says."""
    path = tmp_path / "heartbeat"
    for bad in (b"torn", frame(MAGIC, 1, b"\x91\x01"), frame(MAGIC, 1, b"\x01"), frame(MAGIC, 1, b"")):
        path.write_bytes(bad)
        assert read_beat(local_place(tmp_path)) is None
    sleep, _ = waiting(lambda: path.write_bytes(b"other"))
    assert moves(local_place(tmp_path), 4.0, sleep=sleep)


def test_stopping_removes_ones_own_file_only(tmp_path: Path) -> None:
    """A newer owner's beat stays."""
    old, new = HeartBeat(local_place(tmp_path), "old"), HeartBeat(local_place(tmp_path), "new")
    old.beat()
    new.beat()
    old.stop()
    assert read_beat(local_place(tmp_path)) is not None
    new.stop()
    new.stop()
    assert read_beat(local_place(tmp_path)) is None


def test_it_beats_in_the_background_until_it_is_stopped(tmp_path: Path) -> None:
    """As a context manager; the thread is gone afterwards and so is the file."""
    third = threading.Event()
    files = FaultyFiles(lambda index, name, path: third.set() if name == "replace" and index >= 4 else None)  # type: ignore[func-returns-value]
    fs: Any = files
    with HeartBeat(local_place(tmp_path, fs), "host:1", interval_s=0.001):
        assert third.wait(timeout=30)
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    assert list(tmp_path.iterdir()) == []


def test_a_beat_that_cannot_be_written_is_logged_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one is tried."""
    files = FaultyFiles(lambda index, name, path: "before" if name in ("write_file", "remove") else None)
    fs: Any = files
    owner = HeartBeat(local_place(tmp_path, fs), "host:1")
    with caplog.at_level(logging.WARNING):
        owner.beat()
        files.fault = None
        owner.beat()
        files.fault = lambda index, name, path: "before" if name == "remove" else None
        owner.stop()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"heartbeat {tmp_path / 'heartbeat'} could not be written",
        f"heartbeat {tmp_path / 'heartbeat'} could not be removed",
    ]
