"""A file that cannot be found is gone only if its folder is there; else no file is judged or written off."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bucket_store.log.sources_archive import SourcesReader
from bucket_store.log.sources_file import GONE
from deduper.core.verdict import Admission
from deduper.errors import SourceAwayError
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.listing import list_files
from deduper.sources.files.source_file import SourceFile
from deduper.tasks.readers.declared import Noted
from deduper.tasks.readers.file_parts import FileReason
from deduper.tasks.readers.reading_tasks import PartRead
from tests.deduper.sources.test_judged_sources import Windows
from tests.deduper.unread import UNREAD

Refuse = Callable[[Path, int], None]


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    return Windows(tmp_path, most=1)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Every look at a path, or at what lies below, fails with a number of the system's; 0 ends that."""
    failing: dict[str, int] = {}

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **more: Any) -> Any:
            for refused, code in failing.items():
                if code and isinstance(path, str | Path) and f"{path}/".startswith(f"{refused}/"):
                    raise OSError(code, os.strerror(code), str(path))
            return real(path, *arguments, **more)

        return call

    monkeypatch.setattr(os, "stat", guarded(os.stat))
    monkeypatch.setattr(os, "scandir", guarded(os.scandir))
    monkeypatch.setattr("builtins.open", guarded(open))

    def set_(path: Path, code: int) -> None:
        failing[str(path)] = code

    return set_


def next_files(windows: Windows) -> tuple[SourceFile, ...]:
    """The files of the next window, which is committed."""
    batch = windows.batches.next_batch()
    assert batch is not None
    windows.commit(batch)
    return batch.files


def away(windows: Windows) -> None:
    windows.folder.rename(windows.root / "away")


def unmounted(windows: Windows) -> None:
    away(windows)
    windows.folder.mkdir()


def back(windows: Windows) -> None:
    if windows.folder.exists():
        windows.folder.rmdir()
    (windows.root / "away").rename(windows.folder)


@pytest.mark.parametrize("leave", [away, unmounted])
def test_a_folder_that_is_away_for_a_moment_costs_no_file(windows: Windows, leave: Callable[[Windows], None]) -> None:
    """Also when an empty one of its name is there meanwhile, as below a mount; all is read when it is back."""
    for name in ("a", "b", "c"):
        windows.put(name)
    windows.batches.list_new()
    next_files(windows)
    leave(windows)
    with pytest.raises(SourceAwayError):
        windows.batches.next_batch()
    windows.batches.put_off()
    assert windows.batches.pending == 0
    back(windows)
    assert windows.drain() == ["b", "c"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_a_look_that_fails_tells_nothing(windows: Windows, refuse: Refuse, code: int, whole: bool) -> None:
    """Between listing and window: the file is not gone, and it is read at the next listing that finds it."""
    file = windows.put("a")
    windows.batches.list_new()
    refuse(windows.folder if whole else file, code)
    with pytest.raises(SourceAwayError, match=os.strerror(code)):
        windows.batches.next_batch()
    windows.batches.put_off()
    refuse(windows.folder if whole else file, 0)
    assert windows.drain() == ["a"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_look_that_fails_while_the_source_is_listed(windows: Windows, refuse: Refuse, code: int) -> None:
    """The source cannot be listed: a run that drains it must not end as if there were nothing."""
    file = windows.put("a")
    windows.put("b")
    refuse(file, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        windows.batches.list_new()
    refuse(file, 0)
    assert windows.drain() == ["a", "b"]


def test_a_folder_that_may_not_be_searched_cannot_be_listed(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names can be read, and no file of it: no such file is passed over for a reason of its own."""
    windows.put("a")
    real = os.stat

    def may_not(path: Any, **more: Any) -> Any:
        if f"{path}".startswith(f"{windows.folder}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", may_not)
        with pytest.raises(SourceAwayError, match="Permission denied"):
            windows.batches.list_new()
    assert windows.drain() == ["a"]


def test_a_file_that_leads_where_one_may_not_go_is_passed_over(
    windows: Windows, refuse: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    """With one warning, its neighbours are judged, and it is read when it can be."""
    windows.put("a")
    link = windows.folder / "link"
    link.symlink_to("circle")
    (windows.folder / "circle").symlink_to("link")
    refuse(windows.put("private"), errno.EACCES)
    with caplog.at_level(logging.WARNING):
        assert windows.drain() == ["a"]
        windows.put("b")
        assert windows.drain() == ["b"]
    told = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert sorted(Path(line.split()[0]).name for line in told) == ["circle", "link", "private"]
    assert str(link) in list_files(windows.source), "no fold may take it for gone"
    refuse(windows.folder / "private", 0)
    link.unlink()
    windows.put("link")
    (windows.folder / "circle").unlink()
    assert sorted(windows.drain()) == ["link", "private"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_moved_file_that_cannot_be_looked_at_is_not_new(windows: Windows, refuse: Refuse, code: int) -> None:
    """It is known by its place, time and size, which cannot be seen now: no move is written down without it."""
    windows.put("a")
    windows.drain()
    windows.folder.rename(windows.root / "in2")
    windows.folder = windows.root / "in2"
    windows.start()
    refuse(windows.folder / "a", code)
    with pytest.raises(OSError, match=os.strerror(code)):
        windows.batches.list_new()
    refuse(windows.folder / "a", 0)
    assert windows.drain() == []


def test_a_file_that_is_gone_is_an_error_and_is_read_when_it_is_back(windows: Windows) -> None:
    """Rotation: a new file may get the name of one that was renamed before it was read. After a restart, too."""
    for name in ("a", "b"):
        os.utime(windows.put(name), (5, 5))
    windows.batches.list_new()
    (windows.folder / "a").rename(windows.root / "a")
    (gone,) = next_files(windows)
    assert (gone.admission, gone.problem) == (Admission.FILE_MISSING, "no such file any more")
    next_files(windows)
    (partition,) = SourcesReader(windows.log.root, windows.log.state).of(0) or ()
    assert (partition.name, partition.version) == (gone.path, GONE)
    (windows.root / "a").rename(windows.folder / "a")
    windows.start()
    assert windows.drain() == ["a"]
    windows.fold_after(1)
    windows.start()
    assert windows.drain() == []


def test_a_folder_that_is_gone_with_its_files(windows: Windows) -> None:
    """Somebody deletes a whole day: its files are gone, and the source is there."""
    for day in ("day=1", "day=2"):
        (windows.folder / day).mkdir()
        windows.put(f"{day}/a")
    windows.batches.list_new()
    shutil.rmtree(windows.folder / "day=1")
    assert [next_files(windows)[0].admission for _ in range(2)] == [Admission.FILE_MISSING, Admission.ADMITTED]


def test_a_file_that_became_a_folder_is_gone(windows: Windows) -> None:
    """Spark would read whatever lies in it."""
    windows.put("a").unlink()
    windows.put("a")
    windows.batches.list_new()
    (windows.folder / "a").unlink()
    (windows.folder / "a").mkdir()
    (file,) = next_files(windows)
    assert file.admission is Admission.FILE_MISSING


def test_a_file_that_is_emptied_waits_for_its_lines(windows: Windows) -> None:
    """Between listing and window: were it judged, what comes would never be read."""
    windows.put("a")
    windows.put("b")
    windows.batches.list_new()
    windows.put("a", "")
    (file,) = next_files(windows)
    assert Path(file.path).name == "b"
    assert windows.batches.next_batch() is None
    windows.put("a")
    assert windows.drain() == ["a"]


@pytest.mark.parametrize("below", [True, False], ids=["pattern", "folder"])
def test_a_mount_below_a_pattern(tmp_path: Path, below: bool) -> None:
    """The folders between the source's and a file's are held against the listing too; without its own, it is away."""
    windows = Windows(tmp_path, most=1)
    (windows.folder / "m").mkdir()
    windows.put("m/a")
    windows.source = windows.source.model_copy(update={"path": f"{windows.folder}/{'*/a' if below else 'm'}"})
    windows.batches = type(windows.batches)(windows.source, windows.known, UNREAD)
    windows.batches.list_new()
    (windows.folder / "m").rename(tmp_path / "away")
    (windows.folder / "m").mkdir()
    with pytest.raises(SourceAwayError, match="another folder"):
        windows.batches.next_batch()
    shutil.rmtree(windows.folder)
    with pytest.raises(OSError, match="No such file"):
        windows.batches.list_new()


def listed(windows: Windows, *names: str) -> SourceFileBatch:
    """A window of files that are there."""
    for name in names:
        windows.put(name)
    windows.source = windows.source.model_copy(update={"max_files_per_batch": len(names)})
    windows.batches = type(windows.batches)(windows.source, windows.known, UNREAD)
    windows.batches.list_new()
    batch = windows.batches.next_batch()
    assert batch is not None
    return batch


def fault(admission: Admission) -> PartRead:
    """What a task has found of a file."""
    return PartRead(noted=Noted(1), fault=FileReason(admission, "for a test"))


@pytest.mark.parametrize("admission", [Admission.FILE_MISSING, Admission.FILE_UNREADABLE, Admission.FILE_HEADER])
@pytest.mark.parametrize("leave", [away, unmounted])
def test_a_folder_that_goes_away_while_it_is_read(
    windows: Windows, leave: Callable[[Windows], None], admission: Admission
) -> None:
    """Tasks find no file, or another one: none of them is written off."""
    batch = listed(windows, "a", "b")
    leave(windows)
    with pytest.raises(SourceAwayError):
        batch.as_read([PartRead(), fault(admission)])


def test_a_file_that_vanishes_while_it_is_read(windows: Windows) -> None:
    """It is gone if its folder is there; and one that is back is read later."""
    batch = listed(windows, "a", "b")
    found = [PartRead(), fault(Admission.FILE_MISSING)]
    with pytest.raises(SourceAwayError, match="away now and then"):
        batch.as_read(found)
    (windows.folder / "b").unlink()
    read = batch.as_read(found)
    assert [file.admission for file in read.files] == [Admission.ADMITTED, Admission.FILE_MISSING]
    assert [partition.version == GONE for partition in read.partitions] == [False, True]


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_leave_to_read_is_missing(windows: Windows, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """For one file: it leaves as unreadable. For its folder: nothing is written off."""
    batch = listed(windows, "a", "b")
    found = [fault(Admission.FILE_UNREADABLE), PartRead()]

    def may_not(*_: object) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a")

    monkeypatch.setattr("deduper.sources.files.seen_folders.open", may_not, raising=False)
    if whole:
        monkeypatch.setattr(os, "scandir", may_not)
        with pytest.raises(SourceAwayError, match="Permission denied"):
            batch.as_read(found)
    else:
        read = batch.as_read(found)
        assert [file.admission for file in read.files] == [Admission.FILE_UNREADABLE, Admission.ADMITTED]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_file_that_cannot_be_opened_is_not_written_off(
    windows: Windows, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Whatever a task has said of it."""
    batch = listed(windows, "a")

    def failing(*_: object) -> Any:
        raise OSError(code, os.strerror(code), "a")

    monkeypatch.setattr("deduper.sources.files.seen_folders.open", failing, raising=False)
    with pytest.raises(SourceAwayError, match=os.strerror(code)):
        batch.as_read([fault(Admission.FILE_UNREADABLE)])
