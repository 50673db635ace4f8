"""The versions of a plain Parquet table: what each write added and removed, and the removed files that are kept.

    <table>/_deduper/versions/<number>       a framed file: magic "BSTABVER", version 1, `VersionRecord` as its body
    <table>/_deduper/removed/<path>.removed  a file that a write removed, as it was

A file is in the table or among the removed ones, in one place at a time; a rename moves it, which keeps its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bucket_store.filesystem import LOCAL, is_temporary, listed, make_directories, place_new, remove_tree
from bucket_store.framing import frame
from bucket_store.wire import encode
from deduper.table.errors import VersionGoneError
from deduper.table.formats.paths import kept_path
from deduper.table.formats.protocol import PRIVATE, Commit, NewFile, RemovedFile
from deduper.table.framed import read_framed

_MAGIC = b"BSTABVER"
_VERSION = 1
_MOST_RECORDS = 100
"""So many records stay at least: of versions that only added files, nothing else is needed to return."""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """What the write `load` made of the version before: (path, size, time in ns) of files added, and removed."""

    load: str
    added: tuple[tuple[str, int, int], ...]
    removed: tuple[tuple[str, int, int], ...]


def removed_folder(root: Path) -> Path:
    """The folder of removed files, each at its `kept_path`."""
    return root / PRIVATE / "removed"


def newest_version(root: Path) -> int | None:
    """The number of the newest record; None without any."""
    numbers = _numbers(root)
    return numbers[-1] if numbers else None


def read_version(root: Path, number: int) -> VersionRecord | None:
    """A record; None when it is not there any more.

    Raises:
        CorruptionError, UnknownFormatError: it cannot be read.
    """
    return read_framed(
        VersionRecord, _place(root, number), magic=_MAGIC, version=_VERSION, what="record of a table's version"
    )


def record_version(root: Path, commit: Commit) -> int:
    """Records the write of a commit and gives its number, which is the first free one. Safe to repeat."""
    more: tuple[NewFile | RemovedFile, ...] = (*commit.files, *commit.restored)
    added = tuple((file.path, file.size, file.stamp) for file in more)
    removed = tuple((file.path, file.size, file.stamp) for file in commit.removed)
    data = frame(_MAGIC, _VERSION, encode(VersionRecord(commit.load, added, removed)))
    make_directories(LOCAL, _folder(root))
    number = commit.after + 1
    while True:
        found = read_version(root, number)
        if found is None:
            place_new(LOCAL, _place(root, number), data)
            return number
        if found.load == commit.load:
            return number
        number += 1


def records_since(root: Path, version: int, newest: int) -> list[VersionRecord]:
    """The records of all later versions, the newest first.

    Raises:
        VersionGoneError: one is not there any more.
        CorruptionError, UnknownFormatError: one cannot be read.
    """
    records = []
    for number in range(newest, version, -1):
        found = read_version(root, number)
        if found is None:
            oldest = next((one - 1 for one in _numbers(root) if one > number), newest)
            raise VersionGoneError(
                f"{root}: what was written after version {version} is not recorded any more; choose {oldest} or later"
            )
        records.append(found)
    return records


Files = dict[str, tuple[int, int]]
"""(Size, time in ns) by path."""


def difference(records: Iterable[VersionRecord]) -> tuple[Files, Files]:
    """The files that go and those that return if these writes, the newest first, are undone. PURE."""
    going: Files = {}
    returning: Files = {}
    for record in records:
        for path, size, stamp in record.added:
            if returning.pop(path, None) is None:  # else a later write removed it: it is neither here nor there
                going[path] = (size, stamp)
        for path, size, stamp in record.removed:
            if going.pop(path, None) is None:  # else a later rollback brought it back
                returning[path] = (size, stamp)
    return going, returning


def prune(root: Path, newest: int, keep_versions: int) -> None:
    """Deletes removed files that none of the newest `keep_versions` writes removed, and old records. Safe to repeat."""
    if not keep_versions:
        remove_tree(LOCAL, removed_folder(root))
    elif removed_folder(root).is_dir():
        kept = [read_version(root, number) for number in range(max(0, newest - keep_versions + 1), newest + 1)]
        needed = {removed_folder(root) / kept_path(path) for record in kept if record for path, _, _ in record.removed}
        for path in removed_folder(root).rglob("*"):
            if path.is_file() and path not in needed:
                LOCAL.remove(path)
    for number in _numbers(root):
        if number <= newest - max(_MOST_RECORDS, keep_versions):
            LOCAL.remove(_place(root, number))


def _folder(root: Path) -> Path:
    return root / PRIVATE / "versions"


def _place(root: Path, number: int) -> Path:
    return _folder(root) / f"{number:020d}"


def _numbers(root: Path) -> list[int]:
    return [int(name) for name in listed(LOCAL, _folder(root)) if not is_temporary(name)]
