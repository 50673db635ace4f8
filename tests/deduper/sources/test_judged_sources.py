"""Which files were judged: through windows, folds, restarts, moves and changes."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord, DeletionRecord
from bucket_store.log.sources_archive import SourcesReader, left_files, remove_left
from bucket_store.log.sources_file import remove_unnamed, write_sources
from bucket_store.places.local import local_place
from deduper.config.files import FilesSource
from deduper.sources.files.batch import FileBatches, SourceFileBatch
from deduper.sources.files.folding import FilesToFold, SourceFolding
from deduper.sources.files.judged import KnownFiles
from deduper.sources.files.listing import list_files
from tests.deduper.unread import UNREAD

DAY_US = 86_400_000_000
BEGIN_US = 1_700_000_000_000_000


class Windows:
    """A store whose windows read files and remember nothing: what a job does around judging."""

    def __init__(self, root: Path, *, most: int = 1, fold_windows: int = 4, snapshot_every: int = 5) -> None:
        self.root = root
        self.folder = root / "in"
        self.folder.mkdir(exist_ok=True)
        self.most = most
        self.fold_windows = fold_windows
        self.snapshot_every = snapshot_every
        self.now_us = BEGIN_US
        self.read: list[str] = []
        self.start()

    def start(self) -> None:
        """A new process."""
        store = self.root / "state"
        raw = {"format": "files", "path": str(self.folder), "file_format": "json", "schema": "k string"}
        self.source = FilesSource.model_validate(
            {**raw, "max_files_per_batch": self.most}, context={"base_dir": self.root}
        )
        if (store / "manifest").exists():
            self.log = CommitLog.open(local_place(store))
        else:
            self.log = CommitLog.create(local_place(store), {}, wall_us=self.now_us, snapshot_every=self.snapshot_every)
        epoch = self.log.claim_epoch("me", self.now_us)
        remove_unnamed(self.log.root, state=self.log.state, below_epoch=epoch)
        self.known = KnownFiles(self.source, self.log)
        self.batches = FileBatches(self.source, self.known, UNREAD)
        to_fold = FilesToFold(self.known, str(self.source.folder), lambda: list_files(self.source))
        self.folding = SourceFolding(self.log, to_fold, lambda do: do(), fold_windows=self.fold_windows)

    def drain(self) -> list[str]:
        """The names of the files that were read now, window by window."""
        self.batches.list_new()
        if self.known.has_moved:
            self.folding.at_once()
        names = []
        while (batch := self.batches.next_batch()) is not None:
            self.commit(batch)
            names += [Path(partition.name).name for partition in batch.partitions]
        return names

    def commit(self, batch: SourceFileBatch) -> None:
        before = self.log.state
        window = before.next_window
        partitions = [partition.judged(0) for partition in batch.partitions]
        ref = write_sources(self.log.root, window=window, epoch=before.epoch, attempt=0, partitions=partitions)
        self.log.place(commit_record(window, before.epoch, self.now_us, ref, batch.extra()))
        self.log.forget_outputs(window)
        self.known.add(partitions)
        self.folding.record()
        self.folding.begin()
        remove_left(self.log.root, left_files(before, self.log.state))

    def fold_after(self, days: int) -> None:
        """Fold `days` after the beginning; the clock of a fold is the last record's."""
        self.now_us = BEGIN_US + days * DAY_US
        self.log.place(DeletionRecord((), wall_us=self.now_us, through_window=-1))
        self.folding.at_once()

    def put(self, name: str, text: str = "x\n") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


def commit_record(window: int, epoch: int, wall_us: int, sources: Any, extra: dict[str, Any]) -> CommitRecord:
    counts = dict.fromkeys(("unique", "duplicate", "expired", "error"), 0)
    return CommitRecord(
        window, epoch, 0, "", window, wall_us, "h", None, None, counts, {}, (), (), (), None, sources, extra
    )


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    return Windows(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fold_windows", [1, 3, 1000])
def test_every_file_is_read_once_whatever_is_folded(tmp_path: Path, fold_windows: int) -> None:
    """Over folds, snapshots and restarts; and the folds leave what they must and nothing else."""
    windows = Windows(tmp_path, fold_windows=fold_windows)
    for number in range(12):
        windows.put(f"{number:03d}")
        if number % 5 == 4:
            windows.start()
        assert windows.drain() == [f"{number:03d}"]
    windows.start()
    assert windows.drain() == []
    state = windows.log.state
    assert len(state.sources) <= fold_windows
    assert (state.judged is not None) == (fold_windows < 1000)
    assert state.archives == (), "no window has keys: no origin can be asked for"
    assert len(list((tmp_path / "state" / "sources").iterdir())) == len(state.sources)
    assert len(list((tmp_path / "state" / "folded").glob("*"))) == (fold_windows < 1000)


def test_a_job_that_is_started_for_every_file_folds_too(tmp_path: Path) -> None:
    """The fold that its one window has begun is recorded at its end."""
    windows = Windows(tmp_path, fold_windows=3)
    for number in range(7):
        windows.start()
        windows.put(f"{number}")
        assert windows.drain() == [f"{number}"]
        windows.folding.finish()
        windows.folding.close()
    state = windows.log.state
    assert state.judged is not None
    assert state.judged.count == 6
    assert len(state.sources) == 1
    windows.start()
    assert windows.drain() == []


def test_the_oldest_files_come_first_in_windows_of_their_size(tmp_path: Path) -> None:
    """By modification time, then path; a file that is rewritten before its window is read as it is then."""
    windows = Windows(tmp_path, most=2)
    for name, second in (("c", 1), ("b", 2), ("a", 2), ("d", 3)):
        os.utime(windows.put(name), (second, second))
    windows.batches.list_new()
    assert windows.batches.pending == 4
    first = windows.batches.next_batch()
    assert first is not None
    assert [Path(partition.name).name for partition in first.partitions] == ["c", "a"]
    later = windows.put("b", "more\n" * 100)
    second = windows.batches.next_batch()
    assert second is not None
    assert [Path(file.path).name for file in second.files] == ["d", "b"]
    assert second.files[1].size_bytes == later.stat().st_size


def test_a_file_that_is_gone_is_forgotten_after_a_while(windows: Windows) -> None:
    """Not before: a mount that is away for a day must not make everything new."""
    for number in range(4):
        windows.put(f"{number}")
        windows.drain()
    (windows.folder / "0").unlink()

    def fold_after(days: int) -> int:
        windows.fold_after(days)
        assert windows.log.state.judged is not None
        return windows.log.state.judged.count

    assert fold_after(1) == 4
    windows.put("0")
    assert windows.drain() == []
    assert fold_after(2) == 4
    (windows.folder / "0").unlink()
    assert fold_after(3) == 4
    assert fold_after(9) == 4
    assert fold_after(10) == 3
    windows.put("0")
    assert windows.drain() == ["0"]


def test_nothing_is_forgotten_when_the_folder_is_away(windows: Windows) -> None:
    """A fold that cannot list the source keeps all."""
    for number in range(4):
        windows.put(f"{number}")
        windows.drain()
    shutil.move(windows.folder, windows.root / "away")
    for days in (1, 30):
        windows.fold_after(days)
    shutil.move(windows.root / "away", windows.folder)
    windows.start()
    assert windows.drain() == []


@pytest.mark.parametrize("fold_windows", [2, 1000])
def test_a_folder_that_was_moved_is_known_again(tmp_path: Path, fold_windows: int) -> None:
    """By place, time and size; what lies at the same place and is another file is read."""
    windows = Windows(tmp_path, fold_windows=fold_windows)
    for name in ("a", "b", "c"):
        os.utime(windows.put(name), (5, 5))
        windows.drain()
    windows.folder.rename(tmp_path / "in2")
    windows.folder = tmp_path / "in2"
    os.utime(windows.put("c", "another file\n"), (5, 5))
    windows.put("new")
    windows.start()
    windows.put("later")
    assert sorted(windows.drain()) == ["c", "later", "new"]
    for _ in range(2):
        windows.start()
        assert windows.drain() == []
    assert windows.log.state.extra["folder"] == str(tmp_path / "in2")


def test_a_move_is_known_after_a_crash_before_its_fold(tmp_path: Path) -> None:
    """Until a fold has the new names, commits name the old folder."""
    windows = Windows(tmp_path, fold_windows=1000)
    for name in ("a", "b"):
        windows.put(name)
        windows.drain()
    windows.folder.rename(tmp_path / "in2")
    windows.folder = tmp_path / "in2"
    windows.put("new")
    windows.start()
    windows.batches.list_new()
    batch = windows.batches.next_batch()
    assert batch is not None
    windows.commit(batch)
    windows.start()
    assert windows.drain() == []


def test_another_folder_with_the_same_names_is_new(windows: Windows) -> None:
    """A changed `source.path` reads what lies there, also where a name is as before."""
    os.utime(windows.put("a"), (5, 5))
    windows.drain()
    windows.folder = windows.root / "other"
    windows.folder.mkdir()
    os.utime(windows.put("a", "one longer line\n"), (5, 5))
    windows.start()
    assert windows.drain() == ["a"]


def test_a_changed_file_is_named_and_not_read_again(windows: Windows, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, counted for the metrics, after a restart too; another time alone is a change."""
    for name in ("a", "b", "c"):
        windows.put(name)
    assert windows.drain() == ["a", "b", "c"]
    with (windows.folder / "a").open("a") as stream:
        stream.write("y\n")
    os.utime(windows.folder / "b", (5, 5))
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            windows.start()
            assert windows.drain() == []
            assert windows.drain() == []
        lines = [record.getMessage() for record in caplog.records]
        told = [line for line in lines if "changed after it was judged" in line]
        assert sorted(Path(line.split()[0]).name for line in told) == ["a", "b"]
        assert windows.batches.changed == 2


def test_a_changed_file_that_was_moved_out_counts_no_more(
    windows: Windows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So that the next one shows; a file of its name is looked at anew. Of very many, some are looked for each time."""
    monkeypatch.setattr("deduper.sources.files.judged._CHECKED_A_LISTING", 2)
    for name in ("a", "b", "c"):
        windows.put(name)
    windows.drain()
    for name in ("a", "b", "c"):
        windows.put(name, "longer\n")
    found = []
    windows.start()
    windows.drain()
    assert windows.batches.changed == 3
    for name in ("a", "b"):
        (windows.folder / name).unlink()
    for _ in range(3):
        windows.drain()
        found.append(windows.batches.changed)
    assert found[-1] == 1
    caplog.clear()
    windows.put("a", "longer still\n")
    for _ in range(3):
        windows.drain()
    assert windows.batches.changed == 2
    assert "a was changed after it was judged" in caplog.text


def test_the_oldest_file_that_waits_had_come_then(windows: Windows) -> None:
    """By its modification time, but after the listing that did not have it: a move keeps old times."""
    now_s = 1000.0
    batches = FileBatches(windows.source, windows.known, UNREAD, 500.0, lambda: now_s)

    def listed(at_s: float, **modified_s: float) -> float | None:
        nonlocal now_s
        now_s = at_s
        for name, seconds in modified_s.items():
            os.utime(windows.put(name), (seconds, seconds))
        batches.list_new()
        return batches.waiting_since_s

    def taken() -> float | None:
        batch = batches.next_batch()
        assert batch is not None
        windows.commit(batch)
        return batches.waiting_since_s

    assert listed(1000, a=3, b=700) == 500, "in the folder before the process"
    assert taken() == 700
    assert taken() is None
    assert listed(1030) is None
    assert listed(1060, c=4, d=1050, e=9999) == 1030, "moved into the folder"
    assert taken() == 1050
    batches.put_off()
    assert batches.waiting_since_s is None
    assert listed(1090) == 1050, "as before the folder was away"
    assert taken() == 1090, "its time is in the future"
    assert taken() is None


def test_changes_are_looked_for_a_few_files_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first listing, so many, the newest among them, and in the end all."""
    monkeypatch.setattr("deduper.sources.files.judged._CHECKED_A_LISTING", 3)
    windows = Windows(tmp_path, most=100)
    for number in range(10):
        windows.put(f"{number}")
    windows.drain()
    windows.drain()
    for number in range(10):
        windows.put(f"{number}", "longer\n")
    found = []
    for _ in range(5):
        windows.batches.list_new()
        found.append(windows.batches.changed)
    assert found[0] in (2, 3)
    assert found[-1] == 10


@pytest.mark.slow
@pytest.mark.parametrize("fold_windows", [1, 1000])
def test_every_start_looks_at_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fold_windows: int
) -> None:
    """A job that is started for every window finds all changes in the end, those of the newest files at once."""
    monkeypatch.setattr("deduper.sources.files.judged._CHECKED_AT_FIRST", 4)
    windows = Windows(tmp_path, most=100, fold_windows=fold_windows)
    for number in range(20):
        os.utime(windows.put(f"{number:02d}"), (number, number))
    windows.drain()
    windows.folding.finish()
    for number in range(20):
        os.utime(windows.put(f"{number:02d}", "longer\n"), (number, number))
    found: set[str] = set()
    for start in range(10):
        caplog.clear()
        windows.start()
        assert windows.drain() == []
        found |= {Path(record.getMessage().split()[0]).name for record in caplog.records}
        if start == 0 and fold_windows == 1:
            assert {"18", "19"} <= found
    assert len(found) == 20


def test_an_empty_text_file_is_read_when_it_has_lines(windows: Windows) -> None:
    """It has no record before: nothing is judged, and nothing is remembered of it."""
    windows.put("a", "")
    assert windows.drain() == []
    assert windows.log.state.next_window == 0
    windows.put("a")
    assert windows.drain() == ["a"]


def test_sources_of_windows_with_keys_stay_in_the_archive(tmp_path: Path) -> None:
    """From the first window of a live piece on; they go when no key can name them."""
    windows = Windows(tmp_path, fold_windows=1000)
    for number in range(6):
        windows.put(f"{number}")
        windows.drain()
    piece = SimpleNamespace(first_window=2)
    state = replace(windows.log.state, pieces={0: (piece,)})  # type: ignore[arg-type]  # no more of it is looked at
    windows.log._state = state
    windows.folding.at_once()
    (archive,) = windows.log.state.archives
    assert (archive.first_window, archive.last_window) == (2, 5)
    reader = SourcesReader(windows.log.root, windows.log.state)
    names = [[Path(part.name).name for part in reader.of(window) or ()] for window in range(6)]
    assert names == [[], [], ["2"], ["3"], ["4"], ["5"]]


def test_a_name_that_is_no_text(windows: Windows) -> None:
    """It is judged once, through restarts and folds, and stands in the store as a text."""
    odd = windows.folder / os.fsdecode(b"\xff.json")
    odd.write_text("x\n")
    windows.put("\u00e9.json")
    windows.batches.list_new()
    names = []
    while (batch := windows.batches.next_batch()) is not None:
        assert all(len(partition.digest) == 16 for partition in batch.partitions)
        windows.commit(batch)
        names += [Path(partition.name).name for partition in batch.partitions]
    assert sorted(names) == ["\\udcff.json", "\u00e9.json"]
    windows.start()
    assert windows.drain() == []
    windows.fold_after(1)
    windows.start()
    assert windows.drain() == []
