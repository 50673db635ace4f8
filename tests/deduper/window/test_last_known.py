"""While a storage is away, `status` has the newest window that this machine knows."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bucket_store.errors import StorageAwayError
from bucket_store.log.commit_log import CommitLog
from bucket_store.places.place import Place
from deduper.cli.main import app
from deduper.window.last_known import last_known, noting
from deduper.window.progress import BatchProgress

URL = "objects:///nowhere/state"


def progress(window: int) -> BatchProgress:
    """A window of four ports."""
    return BatchProgress(
        window=window,
        batch_id=window,
        rows=1234,
        unique=1200,
        duplicate=30,
        expired=3,
        error=1,
        seconds=1.0,
        rows_per_second=1234.0,
        latest_point=None,
        phases={},
        tables={},
        leaks=None,
        errors=(),
        causes=(),
        left=None,
    )


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_status_shows_the_newest_window_beside_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this store alone."""
    given: list[int] = []
    for window in (6, 7):
        noting(URL, lambda done: given.append(done.window))(progress(window))
    assert given == [6, 7]
    assert last_known(f"{URL}2") is None

    def away(root: Place) -> CommitLog:
        raise StorageAwayError.of(errno.EIO, "the object store cannot be reached", root.url)

    monkeypatch.setattr(CommitLog, "open", away)
    told = CliRunner().invoke(app, ["status", URL])
    assert told.exit_code == 1
    text = " ".join(told.output.split())
    assert f"{URL}: the object store cannot be reached; the last that this machine knows: window 7 was pub" in text
    assert "(1,200 unique, 30 duplicate, 3 expired, 1 error)" in text


def test_a_note_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """Nor does one that cannot be read."""
    (tmp_path / "deduper-tables").write_text("no folder")
    given: list[int] = []
    noting(URL, lambda done: given.append(done.window))(progress(1))
    assert given == [1]
    assert last_known(URL) is None
