"""Files over which starts have ended get windows of their own, so that the next end names one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from bucket_store.log.marks import Intent, write_intent
from deduper.sources.files.batch import FileBatch, FileBatches
from deduper.sources.files.suspects import suspects
from tests.deduper.sources.test_judged_sources import Windows


class Starts(Windows):
    """A job whose windows may end it."""

    def start(self) -> None:
        super().start()
        self.batches = FileBatches(self.source, self.known, suspects(self.log))
        self.batches.list_new()

    def begin(self) -> FileBatch | None:
        """The next window, to its intent."""
        batch = self.batches.next_batch()
        if batch is not None:
            state = self.log.state
            files = (state.next_window, state.epoch, "", 0, batch.digests)
            write_intent(self.log.root, Intent(*files, 0, None, state.next_number, "h"))
        return batch

    def ends_over(self, bad: str) -> list[list[str]]:
        """One start: the names of the files of its windows, to the one that ends it."""
        self.start()
        made = []
        while (batch := self.begin()) is not None:
            made.append([Path(name).name for name in batch.names])
            if bad in made[-1]:
                break
            self.commit(batch)
        return made


def put(windows: Windows, *names: str) -> None:
    for name in names:
        os.utime(windows.put(name), (5, 5))


def test_the_file_that_ends_every_start_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From the third start on all before it are judged, and it is alone in its window, until somebody takes it away."""
    windows = Starts(tmp_path, most=3)
    put(windows, "a", "b", "c", "d", "e")
    assert windows.ends_over("none") == [["a", "b", "c"], ["d", "e"]]
    put(windows, "f", "g", "h", "i", "j")
    assert [windows.ends_over("g") for _ in range(2)] == [[["f", "g", "h"]]] * 2
    with caplog.at_level(logging.WARNING):
        assert windows.ends_over("g") == [["f"], ["g"]]
    assert caplog.messages[-1].startswith(f"{windows.folder}/g gets a window of its own")
    assert [windows.ends_over("g") for _ in range(2)] == [[["g"]]] * 2
    (windows.folder / "g").unlink()
    assert windows.ends_over("none") == [["h", "i", "j"]]
    assert windows.ends_over("none") == []


def test_older_files_that_come_meanwhile_are_not_suspected(tmp_path: Path) -> None:
    """They are judged together, before."""
    windows = Starts(tmp_path, most=9)
    put(windows, "a", "b")
    for _ in range(3):
        windows.ends_over("b")
    for name in ("x", "y"):
        os.utime(windows.put(name), (1, 1))
    assert windows.ends_over("b") == [["x", "y"], ["b"]]


def test_starts_without_a_window_suspect_nothing(tmp_path: Path) -> None:
    """A job that is started by a timer, and finds no files."""
    windows = Starts(tmp_path, most=9)
    put(windows, "a", "b")
    assert windows.ends_over("none") == [["a", "b"]]
    for _ in range(5):
        windows.start()
    put(windows, "c", "d")
    assert windows.ends_over("none") == [["c", "d"]]
