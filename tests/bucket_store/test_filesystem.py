"""How bytes become durable and names are taken once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from bucket_store.filesystem import (
    LOCAL,
    LocalFile,
    LocalFileSystem,
    is_temporary,
    make_directories,
    place_new,
    read_at,
    remove_tree,
    replace_whole,
    stage,
    write_at,
)
from tests.bucket_store.faulty_files import FaultyFiles


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_placed_file_is_synced_before_it_has_its_name_and_the_name_after(tmp_path: Path) -> None:
    """File sync, link, directory sync, in this order; the temporary name is gone."""
    files = FaultyFiles()
    place_new(files, tmp_path / "a", b"one")  # type: ignore[arg-type]
    assert [name for name, _ in files.calls] == ["write_file", "link", "fsync_dir", "remove"]
    assert (tmp_path / "a").read_bytes() == b"one"
    assert names(tmp_path) == ["a"]


def test_a_taken_name_is_never_overwritten(tmp_path: Path) -> None:
    """The first file stays as it is, the second leaves nothing."""
    place_new(LOCAL, tmp_path / "a", b"one")
    with pytest.raises(FileExistsError):
        place_new(LOCAL, tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("failing", ["write_file", "link", "fsync_dir", "replace"])
def test_no_error_leaves_a_temporary_file(tmp_path: Path, failing: str) -> None:
    """Nor half of the real one."""
    files: Any = FaultyFiles(lambda index, name, path: "before" if name == failing else None)
    with pytest.raises(OSError, match="injected"):
        (replace_whole if failing == "replace" else place_new)(files, tmp_path / "a", b"one")
    assert names(tmp_path) == (["a"] if failing == "fsync_dir" else [])


def test_an_error_of_the_clean_up_hides_nothing(tmp_path: Path) -> None:
    """The file is placed though its temporary name stays."""
    files: Any = FaultyFiles(lambda index, name, path: "before" if name == "remove" else None)
    place_new(files, tmp_path / "a", b"one")
    assert [is_temporary(name) for name in names(tmp_path)] == [True, False]


def test_replacing_shows_the_old_or_the_new_file_and_syncs_nothing(tmp_path: Path) -> None:
    """One rename over the old name."""
    files: Any = FaultyFiles()
    replace_whole(files, tmp_path / "a", b"one")
    replace_whole(files, tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [name for name, _ in files.calls] == ["write_file", "replace"] * 2
    assert names(tmp_path) == ["a"]


def test_made_directories_are_durable_in_their_parents(tmp_path: Path) -> None:
    """Every directory that is new is synced into its parent, and so is the last one that is there."""
    files: Any = FaultyFiles()
    make_directories(files, tmp_path / "a" / "b")
    made = [
        ("fsync_dir", tmp_path.parent),
        ("mkdir", tmp_path / "a"),
        ("fsync_dir", tmp_path),
        ("mkdir", tmp_path / "a" / "b"),
        ("fsync_dir", tmp_path / "a"),
    ]
    assert [call for call in files.calls if call[0] != "exists"] == made
    files.calls.clear()
    make_directories(files, tmp_path / "a" / "b")
    assert [call for call in files.calls if call[0] != "exists"] == made[-1:]


def test_only_our_own_temporary_names_are_temporary(tmp_path: Path) -> None:
    """They begin with a dot, so that readers of a directory pass over them."""
    temporary = stage(LOCAL, tmp_path, "part-0.parquet", b"")
    assert is_temporary(temporary.name)
    assert not any(is_temporary(name) for name in ("part-0.parquet", ".hidden", "a.tmp", "00000000000000000001"))


def test_the_local_files_do_what_the_protocol_says(tmp_path: Path) -> None:
    """Reading, syncing, removing twice, times in µs, absent files; and they pickle."""
    files = pickle.loads(pickle.dumps(LOCAL))
    assert isinstance(files, LocalFileSystem)
    path = tmp_path / "a"
    files.write_file(path, b"x" * 100_000, sync=True)
    with pytest.raises(FileExistsError):
        files.write_file(path, b"", sync=False)
    with files.open(path) as file:
        file.sync()
    os.utime(path, ns=(0, 1_234_567_000))
    assert (files.modified_us(path), len(files.read(path)), files.exists(path)) == (1_234_567, 100_000, True)
    files.mkdir(tmp_path / "d")
    files.mkdir(tmp_path / "d")
    assert sorted(files.listdir(tmp_path)) == ["a", "d"]
    assert [files.is_dir(tmp_path / name) for name in ("a", "d", "absent")] == [False, True, False]
    files.write_file(tmp_path / "d" / "b", b"", sync=False)
    with pytest.raises(OSError, match="not empty"):
        files.rmdir(tmp_path / "d")
    remove_tree(files, tmp_path / "d")
    files.rmdir(tmp_path / "d")
    assert not files.exists(tmp_path / "d")
    files.remove(path)
    files.remove(path)
    assert not files.exists(path)
    with pytest.raises(FileNotFoundError):
        files.read(path)
    with pytest.raises(FileNotFoundError):
        files.listdir(path)


@pytest.mark.parametrize(("files", "is_gone"), [(1, True), (5, True), (100, False)])
def test_what_is_added_to_a_directory_while_it_is_removed_goes_too(tmp_path: Path, files: int, is_gone: bool) -> None:
    """A task that outlives its job makes a file or two; who never ends is an error, not an endless loop."""
    left = iter(range(files))

    class Busy(type(LOCAL)):  # type: ignore[misc]
        def rmdir(self, path: Path) -> None:
            for number in left:
                (path / str(number)).touch()
                break
            super().rmdir(path)

    (tmp_path / "d" / "e").mkdir(parents=True)
    if is_gone:
        remove_tree(Busy(), tmp_path / "d")
        assert not (tmp_path / "d").exists()
    else:
        with pytest.raises(OSError, match="not empty"):
            remove_tree(Busy(), tmp_path / "d")


def test_an_open_file_is_one_call_for_one(tmp_path: Path) -> None:
    """Sizes, ranges; one lock for all who ask, until it is closed."""
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        LOCAL.open(path, write=True)
    with LOCAL.open(path, create=True) as file, LOCAL.open(path) as other:
        write_at(file, b"0123456789", 0)
        write_at(file, memoryview(b"ab"), 12)
        assert file.size() == 14
        assert read_at(other, 20, 8) == b"89\0\0ab"
        file.sync()
        assert (file.try_lock(), file.try_lock(), other.try_lock()) == (True, True, False)
    with LOCAL.open(path, create=True) as file, LOCAL.open(path) as other:
        assert other.try_lock()
        assert not file.try_lock()


def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path) -> None:
    """A system call may do less than it was asked for."""

    class Short(LocalFile):
        def pread(self, length: int, at: int) -> bytes:
            return super().pread(min(length, 3), at)

        def pwrite(self, data: bytes | memoryview, at: int) -> int:
            return super().pwrite(data[:3], at)

    with Short(os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)) as file:
        write_at(file, b"0123456789", 5)
        assert read_at(file, 10, 5) == b"0123456789"
        assert read_at(file, 10, 10) == b"56789"


def _race(directory: Path, racer: int, start: Any, results: Any) -> None:
    start.wait()
    won = []
    for number in range(30):
        try:
            place_new(LOCAL, directory / str(number), b"%d" % racer)
            won.append(number)
        except FileExistsError:
            continue
    results.put((racer, won))


@pytest.mark.slow
def test_of_eight_racing_processes_one_gets_each_name(tmp_path: Path) -> None:
    """And the file is the winner's."""
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path, racer, start, results)) for racer in range(8)]
    for racer in racers:
        racer.start()
    start.set()
    winners = {number: racer for racer, won in (results.get(timeout=60) for _ in racers) for number in won}
    for racer in racers:
        racer.join(timeout=60)
    assert sorted(winners) == list(range(30))
    assert {number: int((tmp_path / str(number)).read_bytes()) for number in range(30)} == winners
    assert len(names(tmp_path)) == 30
