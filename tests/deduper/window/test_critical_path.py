"""The files of a store that a window makes, which of them it waits for, and how often it looks at others."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import DeletionRecord
from bucket_store.places.local import LocalNames
from bucket_store.places.place import Entry, Place, Prepared
from bucket_store.threads import on_a_thread
from tests.deduper.window.last_moment import when_waited_for
from tests.deduper.window.many_shards import ManyShards


@dataclass(frozen=True, slots=True)
class Watched(LocalNames):
    """A storage that notes what is written in it, and whether on the thread that judges; and what is looked at."""

    scheme: str = "elsewhere"
    written: list[tuple[str, bool]] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """Noted."""
        self._note(path)
        LocalNames.create(self, path, data, failpoint=failpoint)

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """Noted once it is done: the first intent of a store finds no folder."""
        LocalNames.replace(self, path, data)
        self._note(path)

    def prepare(self, path: PurePosixPath, data: bytes, *, epoch: int, is_durable: bool = False) -> Prepared:
        """Noted."""
        self._note(path)
        return LocalNames.prepare(self, path, data, epoch=epoch, is_durable=is_durable)

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """Noted."""
        self._note(path)
        LocalNames.touch(self, path, data)

    def read(self, path: PurePosixPath) -> bytes:
        """Noted."""
        return self._look("read", path) or LocalNames.read(self, path)

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """Noted."""
        return self._look("look", path) or LocalNames.read_range(self, path, start, length)

    def stat(self, path: PurePosixPath) -> Entry:
        """Noted."""
        return self._look("stat", path) or LocalNames.stat(self, path)

    def exists(self, path: PurePosixPath) -> bool:
        """Noted."""
        return self._look("exists", path) or LocalNames.exists(self, path)

    def listed(self, path: PurePosixPath, *, after: str = "") -> list[str]:
        """Noted."""
        return self._look("list", path) or LocalNames.listed(self, path, after=after)

    def entries(self, path: PurePosixPath) -> list[Entry]:
        """Noted."""
        return self._look("list", path) or LocalNames.entries(self, path)

    def _look(self, how: str, path: PurePosixPath) -> None:
        self.looked.append(f"{how} {path.parent.name}/{path.name}")

    def _note(self, path: PurePosixPath) -> None:
        self.written.append(("/".join(path.parts[-2:]), threading.current_thread() is threading.main_thread()))


@pytest.mark.parametrize("scheme", ["elsewhere", "file"])
def test_a_window_waits_for_one_new_file_its_record(tmp_path: Path, scheme: str) -> None:
    """The list of its sources is in the record, the profile comes every ten seconds. On a store elsewhere the intent is
    written beside the judging, before the record, and the mark beside the next window; a file of this machine takes
    less time than a thread."""
    names = Watched(scheme=scheme)
    root = Place(names, PurePosixPath(tmp_path / "state"))
    with closing(ManyShards(tmp_path, shards=2, pieces=1, root=root, in_background=on_a_thread)) as job:
        for _ in range(3):
            record = f"log/{job.log.state.next_number:020d}"
            names.written.clear()
            job.run()
            job.wait_until_published()
            assert [name for name, _ in names.written] == ["intents/000001", record, "state/published"]
            assert [name for name, is_waited_for in names.written if is_waited_for] == (
                [record] if scheme == "elsewhere" else [name for name, _ in names.written]
            )


def test_an_intent_is_written_before_the_record_of_its_window(tmp_path: Path) -> None:
    """However slow the storage is: after a crash the window is judged again by the clock of its intent."""
    names = Watched()
    root = Place(names, PurePosixPath(tmp_path / "state"))
    with closing(ManyShards(tmp_path, shards=2, pieces=1, root=root, in_background=when_waited_for)) as job:
        record = f"log/{job.log.state.next_number:020d}"
        names.written.clear()
        job.run()
        assert [name for name, _ in names.written] == ["intents/000001", record]


def test_an_intent_that_cannot_be_written_ends_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error of the writing, and before the record; the next window writes its own."""

    def fail(names: Watched, path: PurePosixPath, data: bytes) -> None:
        raise OSError("no room")

    root = Place(Watched(), PurePosixPath(tmp_path / "state"))
    with closing(ManyShards(tmp_path, shards=2, pieces=1, root=root, in_background=when_waited_for)) as job:
        before = job.log.state.next_number
        with monkeypatch.context() as patch:
            patch.setattr(Watched, "replace", fail)
            with pytest.raises(OSError, match="no room"):
                job.run()
        assert CommitLog.open(root).state.next_number == before
        job.run()
        assert CommitLog.open(root).state.next_number == before + 1


def test_an_intent_follows_that_of_a_window_which_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are one file: of two that are written at once the earlier one could be left."""

    def fail(*_: object) -> None:
        raise ValueError("the judging fails")

    names = Watched()
    root = Place(names, PurePosixPath(tmp_path / "state"))
    with closing(ManyShards(tmp_path, shards=2, pieces=1, root=root, in_background=when_waited_for)) as job:
        names.written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(job._runner, "_judge", fail)
            with pytest.raises(ValueError, match="the judging fails"):
                job.run()
        assert names.written == []
        record = f"log/{job.log.state.next_number:020d}"
        job.run()
        assert [name for name, _ in names.written] == ["intents/000001", "intents/000001", record]


@pytest.mark.parametrize("records", [0, 300])
def test_a_window_lists_nothing_and_looks_at_seven_records(tmp_path: Path, records: int) -> None:
    """However long the log is: two before it, one behind its record, two before its rows are public and its mark each.

    A check beside the windows makes two more.
    """
    names = Watched()
    root = Place(names, PurePosixPath(tmp_path / "state"))
    with closing(ManyShards(tmp_path, shards=2, pieces=1, root=root, in_background=on_a_thread)) as job:
        for _ in range(records):
            job.log.place(DeletionRecord((), wall_us=job.log.state.last_wall_us, through_window=-1))
        job.run()  # the first one after a start makes a folder, and cleans the log
        job.wait_until_published()
        number = job.log.state.next_number
        names.looked.clear()
        job.run()
        job.wait_until_published()
        at_the_end = [number + 1, number]
        looked = [number, number - 1, number - 1, *at_the_end, *at_the_end]
        assert names.looked == [f"look log/{one:020d}" for one in looked]
        names.looked.clear()
        job.log.check_owner()
        assert names.looked == [f"look log/{one:020d}" for one in at_the_end]
        names.looked.clear()
        assert CommitLog.open(root).state == job.log.state
        assert "list state/log" in names.looked
