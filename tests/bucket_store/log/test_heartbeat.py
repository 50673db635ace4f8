"""The owner's sign of life."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.framing import frame
from bucket_store.log.heartbeat import MAGIC, HeartBeat, moves, read_beat, read_sign
from bucket_store.places.local import local_place
from tests.bucket_store.faulty_files import FaultyFiles
from tests.bucket_store.places.memory_names import MemoryNames, memory_place


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


def test_either_the_bytes_or_the_time_are_a_sign(tmp_path: Path) -> None:
    """As earlier releases beat, with the time put back; and as some storages do, with the bytes as they were."""
    HeartBeat(local_place(tmp_path), "host:1").beat()
    path = tmp_path / "heartbeat"
    found = path.stat()

    def other_bytes() -> None:
        path.write_bytes(frame(MAGIC, 1, b"other"))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    def other_time() -> None:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 2000))

    for beat in (other_bytes, other_time):
        sleep, slept = waiting(nothing, beat)
        assert moves(local_place(tmp_path), 5.0, sleep=sleep)
        assert len(slept) == 2


def test_who_beats_is_written_once(tmp_path: Path) -> None:
    """Where a touch moves the time alone, a new owner's first beat says who it is all the same."""
    root = memory_place()
    old, new = HeartBeat(root, "old:1"), HeartBeat(root, "new:1")
    seen = []
    for owner in (old, old, new, old, new):
        owner.beat()
        beat, sign = read_beat(root), read_sign(root)
        assert beat is not None
        assert sign not in seen
        seen.append(sign)
    assert (beat.owner, beat.counter) == ("new:1", 1)


def test_process_numbers_are_known_within_a_boot(tmp_path: Path) -> None:
    """And in a child; a random nonce of an earlier release says nothing."""
    HeartBeat(local_place(tmp_path), "host:1").beat()
    beat = read_beat(local_place(tmp_path))
    assert beat is not None
    assert beat.has_our_numbers
    assert not replace(beat, nonce=bytes(8)).has_our_numbers


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


def test_a_storage_that_is_away_stops_no_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error at the end would hide the one that ends the job."""

    def is_away(*_: object) -> bytes:
        raise TimeoutError("no answer")

    owner = HeartBeat(memory_place(), "host:1")
    owner.beat()
    monkeypatch.setattr(MemoryNames, "read", is_away)
    owner.stop()
    assert "could not be removed: no answer" in caplog.text
