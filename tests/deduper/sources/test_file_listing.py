"""Which files a source has: folders, partition folders, patterns, hidden names."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deduper.config.files import FilesSource
from deduper.sources.files.listing import Listing, list_files

FILES = (
    "a.json",
    "b.json",
    "c.csv",
    "_hidden.json",
    ".hidden.json",
    "d.json._COPYING_",
    "day=1/a.json",
    "day=1/hour=2/b.json",
    "_day=3/c.json",
    ".day=4/c.json",
    "sub/e.json",
    "sub/day=5/f.json",
    "_sub/g.json",
    "x[1]*.json",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    return tmp_path / "in"


def listed(folder: Path, path: str) -> list[str]:
    """The source's files, below the folder."""
    raw = {"format": "files", "path": str(folder / path) if path else f"{folder}/", "file_format": "json"}
    source = FilesSource.model_validate({**raw, "schema": "k string"}, context={"base_dir": folder.parent})
    return sorted(name.removeprefix(f"{folder}/") for name in list_files(source))


PARTITIONS = ["_day=3/c.json", "day=1/a.json", "day=1/hour=2/b.json"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", [*PARTITIONS[:1], "a.json", "b.json", "c.csv", *PARTITIONS[1:], "x[1]*.json"]),
        ("*.json", ["a.json", "b.json", "x[1]*.json"]),
        ("[^b].json", ["a.json"]),
        ("{a,c}.*", ["a.json", "c.csv"]),
        ("?.json", ["a.json", "b.json"]),
        ("sub", ["sub/day=5/f.json", "sub/e.json"]),
        ("s*", ["sub/day=5/f.json", "sub/e.json"]),
        ("day=*", ["day=1/a.json", "day=1/hour=2/b.json"]),
        ("day=1/*/b.json", ["day=1/hour=2/b.json"]),
        ("x\\[1\\]\\*.json", ["x[1]*.json"]),
        ("nothing*", []),
        ("a.json", ["a.json"]),
    ],
)
def test_a_source_has_what_spark_would_list(folder: Path, path: str, expected: list[str]) -> None:
    """Files right in the folder and in partition folders, patterns as Hadoop has them, nothing hidden."""
    assert listed(folder, path) == sorted(expected)


def test_a_folder_that_is_gone_is_an_error_and_a_pattern_without_a_match_is_not(folder: Path) -> None:
    """A mount that is away must not look like an empty folder."""
    with pytest.raises(FileNotFoundError):
        listed(folder, "away")


def test_only_files_count(folder: Path) -> None:
    """A link to a file is one; a link to nothing, and a folder with a file's name, are none."""
    (folder / "link.json").symlink_to(folder / "a.json")
    (folder / "dangling.json").symlink_to(folder / "nothing.json")
    (folder / "folder.json").mkdir()
    assert listed(folder, "*.json") == ["a.json", "b.json", "link.json", "x[1]*.json"]


def source_of(folder: Path) -> FilesSource:
    raw = {"format": "files", "path": f"{folder}/", "file_format": "json", "schema": "k string"}
    return FilesSource.model_validate(raw, context={"base_dir": folder.parent})


def settle(folder: Path) -> None:
    """As if nothing had been changed for a minute."""
    for path in (folder, *folder.rglob("*/")):
        os.utime(path, (time.time() - 60, time.time() - 60))


def test_a_folder_that_was_not_changed_is_not_read_again(folder: Path) -> None:
    """However many files it has; one that was changed is read, at any depth, and so is one that is new."""
    listing = Listing(source_of(folder))
    settle(folder)
    assert len(listing.changed()) == 7
    assert listing.changed() == []
    (folder / "day=1" / "hour=2" / "new.json").touch()
    names = sorted(name.removeprefix(f"{folder}/") for name in listing.changed())
    assert names == ["day=1/hour=2/b.json", "day=1/hour=2/new.json"]
    (folder / "day=9").mkdir()
    (folder / "day=9" / "first.json").touch()
    assert f"{folder}/day=9/first.json" in listing.changed()
    shutil.rmtree(folder / "day=1")
    assert not [name for name in listing.changed() if "day=1" in name]


def test_a_folder_that_was_changed_just_now_is_read_again(folder: Path) -> None:
    """Its next change may have the same time."""
    listing = Listing(source_of(folder))
    assert sorted(listing.changed()) == sorted(listing.changed())


def test_every_folder_is_read_from_time_to_time(folder: Path) -> None:
    """A change that its time does not show is found then; and after a folder could not be read."""
    now = [0.0]
    listing = Listing(source_of(folder), clock=lambda: now[0])
    settle(folder)
    before = listing.changed()
    was = folder.stat().st_mtime_ns
    (folder / "new.json").touch()
    os.utime(folder, ns=(was, was))
    assert listing.changed() == []
    now[0] = 61.0
    assert sorted(listing.changed()) == sorted([*before, f"{folder}/new.json"])
    folder.rename(folder.with_name("away"))
    with pytest.raises(FileNotFoundError):
        listing.changed()
    folder.with_name("away").rename(folder)
    assert len(listing.changed()) == len(before) + 1


def test_a_link_in_a_circle_is_a_name_and_no_more(folder: Path) -> None:
    """Hidden or a partition's, it is skipped; otherwise the next check of it reports it. The others are listed."""
    for name in ("circle", ".circle", "_circle", "_x=1", "x=1"):
        (folder / name).symlink_to(name)
    assert listed(folder, "") == sorted([*PARTITIONS, "a.json", "b.json", "c.csv", "x[1]*.json", "circle", "x=1"])
    assert listed(folder, "c*") == ["c.csv"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_partition_folder_that_cannot_be_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """It has files of its own: the source cannot be listed."""
    (folder / "day=7").symlink_to("elsewhere")
    real = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name = entry.name
            self.is_file = entry.is_file
            self._entry = entry

        def is_dir(self) -> bool:
            if self.name == "day=7":
                raise OSError(code, os.strerror(code), self.name)
            return self._entry.is_dir()

    @contextmanager
    def entries(path: str) -> Iterator[list[Entry]]:
        with real(path) as given:
            yield [Entry(entry) for entry in given]

    monkeypatch.setattr(os, "scandir", entries)
    with pytest.raises(OSError, match=os.strerror(code)):
        listed(folder, "")


def test_a_pattern_in_a_folder_that_is_gone_is_an_error(folder: Path) -> None:
    """As without a pattern: a mount that is away."""
    with pytest.raises(FileNotFoundError):
        listed(folder, "away/*.json")
