"""Signals before, while and after there is a window to finish, and a disk that Spark only says it could not use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deduper.spark.failures import cannot_write

_STARTING = """
import sys, time
from deduper.service.stop import Stop
stop = Stop()
stop.end_at_once(lambda number: print("cleaned", number.name, flush=True))
print("ready", flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_the_start_ends_the_process_whatever_catches_exceptions(number: signal.Signals, code: int) -> None:
    """A call into the JVM would catch the exception that a signal becomes, and go on."""
    process = subprocess.Popen([sys.executable, "-c", _STARTING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"cleaned {number.name}\n"
    assert process.wait(10) == code


@pytest.mark.parametrize(
    ("flags", "available", "reason"),
    [(os.ST_RDONLY, 10, "Read-only file system"), (0, 0, "No space left on device"), (0, 10, None)],
)
def test_the_file_system_is_asked_when_java_tells_no_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: int, available: int, reason: str | None
) -> None:
    """A directory that could not be made; of a place that is not there, the one above it."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags, f_bavail=available))
    error = RuntimeError("java.io.IOException: Mkdirs failed to create file:/x")
    found = cannot_write(error, "the outputs", tmp_path / "out" / "unique")
    if reason is None:
        assert found is None
    else:
        assert reason in str(found)
    for data in ("anything else", "Malformed CSV record: No space left on device", "column Mkdirs failed"):
        assert cannot_write(RuntimeError(data), "the outputs", tmp_path) is None
