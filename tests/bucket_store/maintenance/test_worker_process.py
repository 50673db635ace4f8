"""The process that deletes and merges pieces: does what the store does, and its death harms nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.maintenance import worker_process as housekeeping_process
from bucket_store.maintenance.worker_process import MaintenanceWorker
from bucket_store.pieces.compaction import CompactionTask
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.rocksdb_backend import RocksPieces, _writer
from bucket_store.pieces.store import PieceLocation, append_piece
from tests.processes import freeze, is_alive

pytestmark = pytest.mark.slow  # each starts a process

_DEADLINE_S = 30.0
STORE_ID = "ab" * 16


@pytest.fixture
def pieces(tmp_path: Path) -> RocksPieces:
    """A store of pieces."""
    return RocksPieces(tmp_path / "state")


@pytest.fixture
def process(pieces: RocksPieces) -> Iterator[MaintenanceWorker]:
    """Who deletes there."""
    deleter = MaintenanceWorker(pieces.url)
    yield deleter
    deleter.close()


def two(pieces: RocksPieces, epoch: int = 1) -> tuple[PieceLocation, PieceLocation]:
    """Two pieces of one database."""
    first = pieces.append(shard=0, epoch=epoch, name="first", data=b"1" * 1000)
    return first, pieces.append(shard=0, epoch=epoch, name="second", data=b"2" * 1000)


def appended(pieces: RocksPieces, window: int) -> PieceRef:
    """A piece of a window, with one key."""
    entries = Entries(np.array([0]), np.array([0, 1]), np.array([[window + 1, 1]], np.uint64))
    where = {"shard": 0, "first_window": window, "last_window": window, "epoch": 1, "attempt": 0}
    return append_piece(pieces, entries, store_id=bytes.fromhex(STORE_ID), **where)


def lying(pieces: RocksPieces) -> list[str]:
    """The names of all pieces that lie there."""
    return sorted(piece.name for piece in pieces.pieces())


def pid_of(process: MaintenanceWorker) -> int:
    """The process that was started."""
    assert process._process is not None
    return process._process.pid


def kill_when_asked(process: MaintenanceWorker) -> None:
    """Kill the frozen process once a request waits for it: one that is dead before is replaced, and loses nothing."""
    assert process._talk is not None
    unread, deadline = array("i", [0]), time.monotonic() + _DEADLINE_S
    while not unread[0]:
        assert time.monotonic() < deadline, "no request"
        fcntl.ioctl(process._talk, termios.TIOCOUTQ, unread)
        time.sleep(0.001)
    os.kill(pid_of(process), signal.SIGKILL)


def wait_for_end(pid: int) -> None:
    """Until a process is gone, or a zombie of somebody else's."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        if not is_alive(pid):
            return
        time.sleep(0.02)
    raise AssertionError(f"{pid} still runs")


def test_it_deletes_as_the_store_does(pieces: RocksPieces, process: MaintenanceWorker) -> None:
    """What is asked for and no more; a file in which nothing is left, but not while it may get a piece."""
    first, second = two(pieces)
    assert process.delete([first], keep={second.file}, writing_epoch=1) == ()
    assert lying(pieces) == ["second"]
    one = pid_of(process)
    assert process.delete([second], writing_epoch=1) == ()
    assert lying(pieces) == []
    assert (Path(pieces.url.partition(":")[2]) / second.file).exists()
    assert process.delete([second], writing_epoch=2) == ()
    assert not (Path(pieces.url.partition(":")[2]) / second.file).exists()
    assert pid_of(process) == one


def test_what_is_held_comes_back(pieces: RocksPieces, process: MaintenanceWorker) -> None:
    """A writer has the database's lock."""
    first, _ = two(pieces)
    with _writer(Path(pieces.url.partition(":")[2]) / first.file, 0.0) as database:
        assert database is not None
        assert process.delete([first], writing_epoch=1) == (first,)
    assert process.delete([first], writing_epoch=1) == ()


def test_an_error_is_raised_here(pieces: RocksPieces, process: MaintenanceWorker) -> None:
    """As if it had been met here: of the same class, naming the file; and the process serves on."""
    first, _ = two(pieces)
    database = Path(pieces.url.partition(":")[2]) / first.file
    current = (database / "CURRENT").read_bytes()
    (database / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with pytest.raises(CorruptionError, match="MANIFEST-999999"):
        process.delete([first], writing_epoch=1)
    one = pid_of(process)
    (database / "CURRENT").write_bytes(current)
    assert process.delete([first], writing_epoch=1) == ()
    assert pid_of(process) == one


def test_a_killed_process_is_replaced(
    pieces: RocksPieces, process: MaintenanceWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """All that it was asked for counts as held, and a line says so; the next request finds another one."""
    first, second = two(pieces)
    assert process.delete([first], writing_epoch=1) == ()
    dead = pid_of(process)
    freeze(dead)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_when_asked, process)
        assert process.delete([second], writing_epoch=1) == (second,)
        killing.result()
    assert "has ended (-9): the next window asks again" in caplog.text
    assert process.delete([second], writing_epoch=1) == ()
    assert pid_of(process) != dead


def test_killed_when_it_has_merged(
    pieces: RocksPieces, process: MaintenanceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of the new piece: it is asked for again, and what lies there is an orphan like others."""
    refs = tuple(appended(pieces, window) for window in range(2))
    monkeypatch.setenv(failpoints.ENVIRONMENT, "compact.merged=kill")
    assert process.merge(CompactionTask(refs, STORE_ID, 1, None, None)) is None
    assert len(lying(pieces)) == 3
    monkeypatch.delenv(failpoints.ENVIRONMENT)
    one = process.merge(CompactionTask(refs, STORE_ID, 1, None, None))
    assert one is not None
    assert (one.first_window, one.last_window, one.entries) == (0, 1, 2)
    assert len(lying(pieces)) == 4
    assert one.name in lying(pieces)


def test_it_makes_place_for_another(
    pieces: RocksPieces, process: MaintenanceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many requests, so that what it has allocated is bounded; none is lost."""
    monkeypatch.setattr(housekeeping_process, "_REQUESTS", 2)
    first, second = two(pieces)
    third = pieces.append(shard=0, epoch=1, name="third", data=b"3")
    ids = []
    for piece in (first, second, third):
        assert process.delete([piece], writing_epoch=1) == ()
        ids.append(pid_of(process))
    assert ids[0] == ids[1] != ids[2]
    assert not Path("/proc", str(ids[0])).exists()
    assert lying(pieces) == []


def test_what_is_printed_there_is_no_answer(
    pieces: RocksPieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python, C and raw writes to stdout, from before the first request to the last answer, go to stderr."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes, os, threading\n"
        "puts, flush = ctypes.CDLL(None).puts, ctypes.CDLL(None).fflush\n"
        "def chatter():\n"
        "    while True:\n"
        "        print('by Python', flush=True)\n"
        "        os.write(1, b'raw \\x80\\x04.\\n')\n"
        "        puts(b'by C')\n"
        "        flush(None)\n"
        "threading.Thread(target=chatter, daemon=True).start()\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first, second = two(pieces)
    process = MaintenanceWorker(pieces.url)
    try:
        assert process.delete([first], writing_epoch=1) == ()
        assert process.delete([second], writing_epoch=1) == ()
    finally:
        process.close()
    assert lying(pieces) == []
    printed = capfd.readouterr()
    assert printed.out == ""
    assert all(text in printed.err for text in ("by Python", "raw", "by C"))


def test_it_does_not_hear_an_interrupt(pieces: RocksPieces, process: MaintenanceWorker) -> None:
    """Ctrl-C goes to all of a terminal's group; the driver finishes its window first."""
    first, second = two(pieces)
    assert process.delete([first], writing_epoch=1) == ()
    one = pid_of(process)
    os.kill(one, signal.SIGINT)
    assert process.delete([second], writing_epoch=1) == ()
    assert pid_of(process) == one


def test_it_does_not_hear_an_interrupt_while_its_interpreter_starts(
    pieces: RocksPieces, process: MaintenanceWorker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of ours runs there yet: it would die with a traceback. The driver hears interrupts as before."""
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.send_signal(signal.SIGINT)
            started.append(self.pid)

    monkeypatch.setattr(housekeeping_process.subprocess, "Popen", Interrupted)
    first, _ = two(pieces)
    assert process.delete([first], writing_epoch=1) == ()
    assert started == [pid_of(process)]
    assert capfd.readouterr().err == ""
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_closing_ends_it_for_good(pieces: RocksPieces, process: MaintenanceWorker) -> None:
    """No process is left, and none is begun any more."""
    first, second = two(pieces)
    assert process.delete([first], writing_epoch=1) == ()
    one = pid_of(process)
    process.close()
    assert not Path("/proc", str(one)).exists()
    assert process.delete([second], writing_epoch=1) == (second,)
    assert process._process is None
    process.close()


def test_it_ends_with_its_driver(tmp_path: Path) -> None:
    """Also with one that was killed and could tell nobody."""
    code = (
        "import sys, time\n"
        "from bucket_store.maintenance.worker_process import MaintenanceWorker\n"
        f"process = MaintenanceWorker('rocksdb:{tmp_path / 'state'}')\n"
        "process.delete(())\n"
        "print(process._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_for_end(child)


def test_it_gets_the_database_that_its_owner_keeps_open(pieces: RocksPieces, process: MaintenanceWorker) -> None:
    """The owner closes it before a request: nothing is held."""
    kept = [pieces.append(shard=0, epoch=1, name=f"kept-{at}", data=b"1" * 100, stays_open=True) for at in range(2)]
    assert process.delete(kept[:1], writing_epoch=1) == ()
    again = pieces.append(shard=0, epoch=1, name="again", data=b"2" * 100, stays_open=True)
    assert again.file == kept[0].file
    assert process.delete([kept[1], again], writing_epoch=1) == ()
    assert lying(pieces) == []
