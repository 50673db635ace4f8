"""A second start finds out whether the first owner is at work."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bucket_store.errors import FencedError
from bucket_store.framing import frame
from bucket_store.log.heartbeat import MAGIC, Beat, HeartBeat, read_sign
from bucket_store.places.local import local_place
from bucket_store.wire import encode
from deduper.errors import CannotWriteError, OwnerAliveError
from deduper.window import owner_alive, recovery
from deduper.window.owner_alive import own_name, owner_lives
from tests.deduper.store_samples import make_store, write_config


@pytest.mark.parametrize("name", ["elsewhere:1", own_name()], ids=["another machine", "this machine"])
def test_a_heart_that_beats_is_an_owner(tmp_path: Path, name: str) -> None:
    """On this machine or on another."""
    with HeartBeat(local_place(tmp_path), name, interval_s=0.05):
        assert owner_lives(local_place(tmp_path))
    assert not owner_lives(local_place(tmp_path)), "it has stopped"


def test_a_heart_that_stands_still_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at for longer than an owner takes from beat to beat."""
    monkeypatch.setattr(owner_alive, "INTERVAL_S", 0.1)
    HeartBeat(local_place(tmp_path), "elsewhere:1").beat()
    began = time.monotonic()
    assert not owner_lives(local_place(tmp_path))
    assert time.monotonic() - began >= 0.25


def test_a_beat_that_is_known_to_stand_still_is_not_watched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim comes soon after the first check. A later beat is another owner's."""
    HeartBeat(local_place(tmp_path), "elsewhere:1").beat()
    silent = read_sign(local_place(tmp_path))
    monkeypatch.setattr(owner_alive, "moves", lambda *_: True)
    assert not owner_lives(local_place(tmp_path), silent)
    HeartBeat(local_place(tmp_path), "elsewhere:2").beat()
    assert owner_lives(local_place(tmp_path), silent)


def test_a_dead_process_of_this_machine_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is known to be free."""
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    monkeypatch.setattr(owner_alive, "moves", lambda *_: pytest.fail("waited"))
    HeartBeat(local_place(tmp_path), f"{own_name().rpartition(':')[0]}:{gone.pid}").beat()
    assert not owner_lives(local_place(tmp_path))


def test_a_process_number_of_another_machine_of_that_name_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another boot, of a container, or of a release that does not say: it is watched."""
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    beat = Beat(f"{own_name().rpartition(':')[0]}:{gone.pid}", b"\0" * 8, 1)
    (tmp_path / "heartbeat").write_bytes(frame(MAGIC, 1, encode(beat)))
    monkeypatch.setattr(owner_alive, "moves", lambda *_: True)
    assert owner_lives(local_place(tmp_path))


def test_an_owner_that_lives_is_left_alone(tmp_path: Path) -> None:
    """Refused before anything is claimed; taken over when that is asked for."""
    config = make_store(write_config(tmp_path), [])

    def start(*, take_over: bool) -> int:
        with recovery.owned_store(config, take_over=take_over, wall_clock_us=lambda: 1) as owned:
            return owned.log.state.epoch

    epoch = start(take_over=False)
    with HeartBeat(local_place(config.store.path), "elsewhere:1", interval_s=0.05):
        with pytest.raises(OwnerAliveError, match="another process owns this store and is alive"):
            start(take_over=False)
        assert start(take_over=True) == epoch + 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "the last job stopped cleanly 0 s ago (by a signal)"),
        (
            CannotWriteError("/out: no room; make some"),
            "the last job ended 0 s ago with exit 1: /out: no room; make some",
        ),
        (PermissionError(13, "Permission denied", "/out"), "with exit 1: /out: Permission denied; let this user read"),
        (ValueError("odd"), "the last job ended 0 s ago with exit 70: odd"),
        (FencedError("epoch 8 has it"), "host:7 vanished: it was killed"),
    ],
)
def test_how_an_owner_ends_is_kept(tmp_path: Path, error: Exception | None, words: str) -> None:
    """Exit code, message and time; the heartbeat is gone. A fenced owner leaves the store to the other."""
    root = local_place(tmp_path)
    with suppress(Exception), owner_alive.owning(root, "host:7", 7, lambda: "signal"):
        assert read_sign(root) is not None
        if error is not None:
            raise error
    assert read_sign(root) is None
    assert words in owner_alive.how_ended(owner_alive.last_end(root, 7), "host:7")
    assert owner_alive.last_end(root, 8) is None, "the next owner has left none"


def test_an_end_that_cannot_be_kept_hides_no_error(tmp_path: Path) -> None:
    """A full disk ends the job with its own error."""
    root = local_place(tmp_path / "store")
    (tmp_path / "store" / "ended").mkdir(parents=True)
    with pytest.raises(CannotWriteError), owner_alive.owning(root, "host:7", 7):
        raise CannotWriteError("full")
    assert owner_alive.last_end(root, 7) is None


def test_a_signal_before_the_first_window_is_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its code and a message; a storage that is away delays the end of the process by no more than a moment."""
    root = local_place(tmp_path)
    owner_alive.keep_signal(root, 7, signal.SIGTERM)
    end = owner_alive.last_end(root, 7)
    assert end is not None
    assert (end.exit_code, end.owner) == (143, own_name())
    assert owner_alive.how_ended(end, own_name()).endswith("exit 143: SIGTERM ended it before its first window")
    monkeypatch.setattr(owner_alive, "_KEEPS_S", 0.05)
    monkeypatch.setattr(owner_alive, "write_end", lambda *_: time.sleep(60))
    began = time.monotonic()
    owner_alive.keep_signal(root, 8, signal.SIGTERM)
    assert time.monotonic() - began < 30
