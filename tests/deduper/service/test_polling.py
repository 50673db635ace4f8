"""How a job goes through a source of files: one window a trigger, to the end of what there is, or until a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deduper.errors import DeduperError, SourceAwayError
from deduper.service.file_loop import FileLoop
from deduper.service.stop import Stop
from deduper.service.windows import Reports, Windows
from deduper.sources.files.batch import FileBatches


class Listing:
    """A source whose listings are given; `between` is called before a batch is handed out."""

    def __init__(self, *listings: list[str] | OSError) -> None:
        self.listings = list(listings)
        self.files: list[str] = []
        self.between: Callable[[], None] = lambda: None
        self.changed = 0

    place = "/in"

    @property
    def pending(self) -> int:
        return len(self.files)

    def put_off(self) -> None:
        self.files = []

    def list_new(self) -> None:
        found = self.listings.pop(0) if self.listings else []
        if isinstance(found, OSError):
            raise found
        self.files = list(found)

    def next_batch(self) -> str | None:
        self.between()
        return self.files.pop(0) if self.files else None


class Polled(Windows):
    """A job without Spark and store: its windows are the names of their files."""

    def __init__(self, source: Listing, *, trigger_s: float = 0.0) -> None:
        self.source = source
        self.taken: list[str] = []
        self.moves_written = 0
        self.owner_checks = 0
        self.stop = Stop()
        self._trigger_s = trigger_s
        log = SimpleNamespace(state=SimpleNamespace(next_window=0), check_owner=lambda: None, root=Path("state"))
        runner = SimpleNamespace(fold_moved=self._write_move)
        super().__init__(*cast(Any, (log, runner, Reports(lambda _: None), self.stop, None)))

    def _write_move(self) -> None:
        self.moves_written += 1

    def check_owner(self) -> None:
        self.owner_checks += 1

    def make(self, batch: Any, *_: object) -> None:
        self.taken.append(batch)
        if batch == "last":
            self.stop.request("max_batches")

    def go(self, *, drain: bool) -> list[str]:
        FileLoop(cast(FileBatches, self.source), self, self.stop, self._trigger_s).run(drain=drain)
        return self.taken


def test_a_source_is_drained_of_what_it_had_at_the_start() -> None:
    """What comes meanwhile is for the next run."""
    job = Polled(Listing(["a", "b"], ["c"]))
    assert job.go(drain=True) == ["a", "b"]
    assert job.moves_written == 1


def test_a_running_job_lists_again_when_nothing_is_left() -> None:
    """Not before: a folder of many files is listed once for many windows."""
    source = Listing(["a", "b"], [], ["c", "last"])
    assert Polled(source, trigger_s=0.01).go(drain=False) == ["a", "b", "c", "last"]
    assert source.listings == []


def test_a_window_begins_at_each_trigger() -> None:
    """Not sooner, and the owner is checked meanwhile."""
    began = time.monotonic()
    job = Polled(Listing(["a", "b", "last"]), trigger_s=0.05)
    job.go(drain=False)
    assert time.monotonic() - began >= 0.1
    assert job.owner_checks >= 2


def test_an_idle_job_checks_its_owner_however_short_the_trigger() -> None:
    """Another may have taken the store while this one was frozen, and no file may ever come."""
    job = Polled(Listing(), trigger_s=0.001)
    check = job.check_owner

    def stop_after_some() -> None:
        check()
        if job.owner_checks == 20:
            job.stop.request("fenced")

    job.check_owner = stop_after_some  # type: ignore[method-assign]
    too_late = threading.Timer(5, job.stop.request, ("too late",))
    too_late.start()
    job.go(drain=False)
    too_late.cancel()
    assert job.stop.reason == "fenced"


def test_a_stop_between_two_windows_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes while files are looked at: nothing of them is judged, and it is no failure."""
    source = Listing(["a", "b"])
    job = Polled(source)
    source.between = lambda: job.stop.request("signal") if job.taken else None
    assert job.go(drain=True) == ["a"]
    assert job.failure is None


def test_a_failure_of_a_window_ends_it() -> None:
    """It is kept for who ends the run."""
    job = Polled(Listing(["a", "b"]))

    def fails(batch: Any, batch_id: int, query_id: str = "") -> None:
        raise ValueError(batch)

    job.make = fails  # type: ignore[method-assign]
    job.go(drain=True)
    assert isinstance(job.failure, ValueError)
    assert job.source.pending == 1


def test_a_folder_that_is_away_is_waited_for_and_ends_a_run_that_drains(caplog: pytest.LogCaptureFixture) -> None:
    """A mount may come back. No move is written down by a listing that saw nothing."""
    away = FileNotFoundError(2, "No such file or directory", "/in")
    job = Polled(Listing(away, ["last"]), trigger_s=0.01)
    assert job.go(drain=False) == ["last"]
    assert job.moves_written == 1
    assert "the source cannot be listed" in caplog.text
    with pytest.raises(DeduperError, match="cannot be listed"):
        Polled(Listing(away)).go(drain=True)


@pytest.mark.parametrize("where", ["next_batch", "window"])
def test_files_that_are_away_are_waited_for_and_end_a_run_that_drains(
    caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Before their window or in it: what is listed is put off, the source is listed again. It is no failure."""

    def job_of(*listings: list[str]) -> Polled:
        source = Listing(*listings)
        job = Polled(source, trigger_s=0.01)
        left = [SourceAwayError("/in: it is away")]
        make = job.make

        def once_away(*given: Any) -> None:
            if job.taken and left:
                raise left.pop()
            if given:
                make(*given)

        if where == "window":
            job.make = once_away  # type: ignore[method-assign]
        else:
            source.between = once_away
        return job

    job = job_of(["a", "b", "c"], ["b", "last"])
    assert job.go(drain=False) == ["a", "b", "last"]
    assert job.failure is None
    assert "/in: it is away" in caplog.text
    job = job_of(["a", "b", "c"])
    with pytest.raises(SourceAwayError):
        job.go(drain=True)
    assert job.taken == ["a"]
