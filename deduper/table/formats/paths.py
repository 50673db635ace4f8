"""Paths of data files: the values of partitions that they name, and how staged files get their places."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import xxhash

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, listed, make_directories
from deduper.table.columns import KeyColumn
from deduper.table.errors import ConflictError, StagedFileGoneError, TableError, TableUsageError
from deduper.table.folder_names import NO_VALUE, folder_values
from deduper.table.formats.protocol import PRIVATE, DataFile, NewFile, PartitionValue, RemovedFile

NO_PART = "if it is no part of the table, give it a name that begins with `_` or `.`, or move it"
"""What to do about a file that is no Parquet: every name that is not hidden is a part of a plain table."""
_EPOCH = date(1970, 1, 1)
_DATE, _INTEGER = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), re.compile(r"[+-]?[0-9]+")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
PLAN = "plan"
"""The name of a write's plan in its staging folder."""
_THREADS = 8
_TAIL_BYTES = 64 << 10


def staging_folder(table: Path, load: str) -> Path:
    """The folder of a write in its table's; its last name is the write's."""
    return _staging(table) / load


def staged_loads(table: Path) -> list[str]:
    """The writes that have staged something: dead ones, and the one that runs."""
    return listed(LOCAL, _staging(table))


def is_under_way(table: Path, load: str) -> bool:
    """Whether a write has a plan, and is not done."""
    return LOCAL.exists(staging_folder(table, load) / PLAN)


def _staging(table: Path) -> Path:
    return table / PRIVATE / "staging"


def place(root: Path, files: Sequence[NewFile], staging: Path) -> None:
    """Gives staged files their paths below a folder; one that is gone from staging has it already.

    Durable on return, with all folders. Safe to repeat.

    Raises:
        StagedFileGoneError: as `unplaced`; no file was moved.
    """
    waiting = unplaced(root, files, staging)
    touched = {(root / file.path).parent for file in files}
    _make(touched)
    for file in waiting:
        LOCAL.replace(staging / file.staged, root / file.path)
        failpoints.hit("table.placed")
    _sync(touched)


def unplaced(root: Path, files: Iterable[NewFile], staging: Path) -> list[NewFile]:
    """The files that are still staged; all others have their paths, which no other file has: their names have the load.

    Raises:
        StagedFileGoneError: one is neither here nor there.
    """
    files = list(files)
    lost = first_lost(root, files, staging)
    if lost is not None:
        raise StagedFileGoneError(
            f"{root / lost.path}: a write that died has put {lost.rows:,} rows into this file, and it is neither there "
            f"nor at {staging / lost.staged}; {give_up(staging.name)}"
        )
    return [file for file in files if LOCAL.exists(staging / file.staged)]


def first_lost(root: Path, files: Iterable[NewFile], staging: Path) -> NewFile | None:
    """The first file that is neither staged nor at its path."""
    there = (file for file in files if not LOCAL.exists(staging / file.staged) and not LOCAL.exists(root / file.path))
    return next(there, None)


def give_up(load: str) -> str:
    """The next step after a file of a dead write was lost."""
    return (
        "bring it back from where the folder was moved or copied from, and try again; or, to do without what that "
        f"write has not yet done, delete `{PRIVATE}/staging/{load}` in the table's folder; nothing was written"
    )


def _make(folders: Iterable[Path]) -> None:
    """Makes folders that are not there, and syncs those above all: a process may have died before it did.

    As `make_directories`, which syncs the folder above anew for each of them.
    """
    above = set()
    for folder in folders:
        if not LOCAL.exists(folder):
            make_directories(LOCAL, folder)
        above.add(folder.parent)
    _sync(above)


def unplace(root: Path, files: Iterable[NewFile]) -> None:
    """Removes files that no version of the table has. Safe to repeat."""
    for file in files:
        LOCAL.remove(root / file.path)


def kept_path(path: str) -> str:
    """The path of a removed file among those that are kept; patterns of readers, as `**/*.parquet`, do not name it."""
    return f"{path}.removed"


def remove(root: Path, files: Iterable[RemovedFile], kept_in: Path | None) -> None:
    """Removes files of a plain table, or moves them below a folder; one that is another by now stays.

    Durable on return. Safe to repeat.
    """
    touched: set[Path] = set()
    for file in files:
        path = root / file.path
        touched.add(path.parent)  # also of a file that is gone: an earlier try may have died before this point
        kept = None if kept_in is None else kept_in / kept_path(file.path)
        if kept is not None:
            touched.add(kept.parent)
        if not is_same_file(path, file):
            continue
        if kept is None:
            LOCAL.remove(path)
        else:
            make_directories(LOCAL, kept.parent)
            LOCAL.replace(path, kept)
        failpoints.hit("table.removed")
    _sync(folder for folder in touched if folder.is_dir())


def require_kept(root: Path, files: Iterable[RemovedFile], kept_in: Path, load: str) -> None:
    """All files that a dead rollback brings back are kept, or are back.

    Raises:
        StagedFileGoneError: one is not.
    """
    for file in files:
        kept = kept_in / kept_path(file.path)
        if not LOCAL.exists(kept) and not LOCAL.exists(root / file.path):
            raise StagedFileGoneError(
                f"{root / file.path}: a rollback that died brings this file back, and it is neither there nor at "
                f"{kept}; {give_up(load)}"
            )


def bring_back(root: Path, files: Iterable[RemovedFile], kept_in: Path) -> None:
    """Gives removed files their places again; one that is not kept has it already. Durable. Safe to repeat."""
    touched: set[Path] = set()
    for file in files:
        target = root / file.path
        make_directories(LOCAL, target.parent)
        touched.add(target.parent)
        if LOCAL.exists(kept_in / kept_path(file.path)):
            LOCAL.replace(kept_in / kept_path(file.path), target)
            failpoints.hit("table.returned")
    _sync(touched)


def _sync(folders: Iterable[Path]) -> None:
    """Makes the entries of folders durable, side by side: one after another, each waits for the disk."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="folders") as pool:
        list(pool.map(LOCAL.fsync_dir, folders))


def is_same_file(path: Path, file: RemovedFile | DataFile) -> bool:
    """Whether a file is there, with the size and time that it had; of a removed one the last bytes stand for the time.

    A copied folder may have other times, and rows of a file that stays are there twice.
    """
    try:
        status = path.stat()
        if status.st_size != file.size:
            return False
        tail = file.tail if isinstance(file, RemovedFile) else None
        return status.st_mtime_ns == file.stamp or (tail is not None and _tail(path, file.size) == tail)
    except FileNotFoundError:
        return False


def removed_file(root: Path, file: DataFile, partition: tuple[tuple[str, str | None], ...]) -> RemovedFile:
    """A file that a write removes.

    Raises:
        ConflictError: it has changed, or is gone.
    """
    tail = None
    if file.may_change:
        try:
            tail = _tail(root / file.path, file.size)
        except FileNotFoundError as error:
            raise ConflictError(f"{root / file.path}: went before it could be removed") from error
        if not is_same_file(root / file.path, file):  # after the reading: else these may be the bytes of another one
            raise ConflictError(f"{root / file.path}: changed before it could be removed")
    return RemovedFile(file.path, file.size, file.stamp, partition, tail)


def _tail(path: Path, size: int) -> int:
    """The checksum of a file's last bytes: of a Parquet file those of its footer, and of small files all of them."""
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return xxhash.xxh3_64_intdigest(file.read(_TAIL_BYTES))


def other_partitions(where: str, found: Sequence[str], wanted: Sequence[str]) -> str:
    """The refusal of a table, or a file of one, with other partition columns than those of the settings."""
    of_table, of_settings = (", ".join(names) or "nothing" for names in (found, wanted))
    write = f"write `partition_by: [{of_table}]`" if found else "leave `partition_by` out"
    return f"{where}: is partitioned by {of_table}, and the load's partition_by is {of_settings}; {write}"


def partition_of(path: str, columns: Sequence[KeyColumn]) -> tuple[PartitionValue, ...]:
    """The values of partition columns that the folders of a path name.

    Raises:
        TableUsageError: they name other columns, or a value is not of its column's type.
    """
    values = folder_values(path)
    found, wanted = [name for name, _ in values], [column.name for column in columns]
    if found != wanted:
        raise TableUsageError(other_partitions(path, found, wanted))
    return tuple(_value_of(text, column, path) for (_, text), column in zip(values, columns, strict=True))


def is_hidden(name: str) -> bool:
    """Whether readers of tables pass over a file or folder of this name.

    Source: Spark's HadoopFSUtils.shouldFilterOutPathName; `_p=1` is the folder of a column `_p`.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def data_paths(root: Path) -> list[str]:
    """The files of a folder, and of all folders in it, that are not hidden: relative, sorted. Links are followed.

    Names need no ending: Hive's are `000000_0`.

    Raises:
        TableError: a folder cannot be read, or a name is no text.
    """

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise TableError(f"{error.filename}: cannot be read: {error.strerror}") from error

    found = []
    for folder, folders, names in os.walk(root, onerror=refused, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        above = os.path.relpath(folder, root)
        found += [name if above == "." else f"{above}/{name}" for name in names if not is_hidden(name)]
    for path in found:
        if not path.isascii() and any("\ud800" <= sign <= "\udfff" for sign in path):
            raise TableError(f"{root}: the name {path!a} in it has bytes that are not UTF-8; rename it")
    return sorted(found)


def text_of(value: PartitionValue, column: KeyColumn) -> str | None:
    """The value of a partition column as text, None for null."""
    if column.type == "date" and isinstance(value, int):
        return (_EPOCH + timedelta(days=value)).isoformat()
    return None if value is None else str(value)


def _value_of(text: str, column: KeyColumn, path: str) -> PartitionValue:
    if text == NO_VALUE:
        return None
    try:
        if column.type == "string":
            return text
        # Python takes more for numbers and dates than readers do, as `1_0` and `20240101`.
        if column.type == "date":
            return (date.fromisoformat(_matched(_DATE, text)) - _EPOCH).days
        value, most = int(_matched(_INTEGER, text)), 1 << (_BITS[column.type] - 1)
        if not -most <= value < most:
            raise ValueError(text)
        return value
    except ValueError as error:
        raise TableUsageError(
            f"{path}: `{text}` is no {column.type}, which the batch's column `{column.name}` is"
        ) from error


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(text)
    return text
