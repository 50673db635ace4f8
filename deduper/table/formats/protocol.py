"""A table as a write sees it: versions, each a set of files, and commits that add files and remove files.

Opens a table by its folder and format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from deduper.table.columns import KeyColumn, PartitionValue
from deduper.table.errors import SettingError, UnsupportedTableError

FileIdentity = tuple[str, int, int]
"""Path, size and stamp of a file."""

PRIVATE = "_deduper"
"""The folder of ours in a table's folder; readers of tables skip names that begin with an underscore."""

_LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"

NO_TABLE = -1
"""The version of a table that is not there yet."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. `path` is relative to its folder; two files with equal fields are the same bytes.

    `stamp` tells apart files that have had this path and size. `may_change`: others may change it in place; then it is
    the time of the last change in ns.
    """

    path: str
    size: int
    stamp: int
    partition: tuple[PartitionValue, ...]
    may_change: bool = False

    @property
    def identity(self) -> FileIdentity:
        """What an index compares files by."""
        return self.path, self.size, self.stamp


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table. `schema` is in the one form, partition columns included; None: a batch decides it.

    `required` are columns that are declared to have no nulls. `rows`: as the table's log has it, None if it does not.
    `no_changes`: why rows that are there must not be changed or removed by us; None when they may.
    """

    version: int
    schema: pa.Schema | None
    required: tuple[str, ...]
    files: tuple[DataFile, ...]
    rows: int | None = None
    no_changes: str | None = None


@dataclass(frozen=True, slots=True)
class NewFile:
    """A staged file of a write: where it is, and the path that it is to have in the table, or in the folder of a port.

    `staged` is relative to the staging folder of its write, which may move with the table before the next write.
    `stamp`: the time of its last change in ns, which a rename keeps.
    `partition`: (column, value as text, None for null). `statistics`: as Delta has them, in JSON.
    """

    staged: str
    path: str
    size: int
    stamp: int
    rows: int
    partition: tuple[tuple[str, str | None], ...]
    statistics: str


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that a write removes: as `DataFile`, with its partition as `NewFile` has it.

    `tail`: the checksum of its last bytes, by which a file that may change is known in a copy with other times.
    """

    path: str
    size: int
    stamp: int
    partition: tuple[tuple[str, str | None], ...]
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """What a write does to a table, on top of the version `after`. `load` names it; `schema` is Arrow's own form."""

    load: str
    after: int
    schema: bytes
    partition_by: tuple[str, ...]
    files: tuple[NewFile, ...]
    removed: tuple[RemovedFile, ...]

    @property
    def is_empty(self) -> bool:
        """True when there is nothing for the table."""
        return not self.files and not self.removed


def objects_in(part: Any) -> Iterator[dict[str, Any]]:
    """All objects of a part of a schema in Spark's JSON, at any depth: types, fields and their metadata."""
    if isinstance(part, dict):
        yield part
    if isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from objects_in(inner)


def declared_lengths(part: Any) -> list[str]:
    """The types with declared lengths in a part of a schema in Spark's JSON, as `varchar(3)` or `array<char(4)>`.

    Such a column is a text here, and its type stands in its metadata. Spark refuses longer values, and fills those of
    CHAR(n) with blanks, in the file too.
    """
    return [str(found[_LENGTHS]) for found in objects_in(part) if _LENGTHS in found]


class Table(Protocol):
    """A table in a folder of this machine. Not for several threads."""

    @property
    def root(self) -> Path:
        """Its folder."""

    @property
    def format(self) -> str:
        """The name of its format."""

    def snapshot(self) -> Snapshot:
        """Called with or without the table's lock, beside writes. Gives the newest version, whole.

        Raises:
            UnsupportedTableError: it has a feature that writes do not honour.
            TableUsageError: it is partitioned by other columns than the settings say.
            TableError: it cannot be read.
        """

    def commit(self, commit: Commit) -> int:
        """Called under the lock, once, when the staged files and the plan are durable. Gives the version that it makes.

        Adds and removes files on top of exactly the version `commit.after`; visible and durable on return. Not safe to
        repeat: `finish` is.

        Raises:
            ConflictError: the table is beyond that version, and nothing of this commit is visible.
            CommitRefusedError: it was not taken.
        """

    def finish(self, commit: Commit) -> bool:
        """Called under the lock for a write that has died after its plan.

        Completes its commit if it was taken; else removes its files, and gives False. Safe to repeat.

        Raises:
            StagedFileGoneError: a file is neither staged nor at its path; nothing was written.
        """

    def is_taken(self, commit: Commit) -> bool:
        """Called under the lock for a write that has died after its plan. Whether it is committed; writes nothing."""


_FORMATS = {
    "delta": "deduper.table.formats.delta:DeltaFiles",
    "parquet": "deduper.table.formats.folder:FolderTable",
}


def open_table(path: str | Path, table_format: str, partition_by: Sequence[KeyColumn]) -> Table:
    """The table in a folder, which need not exist yet.

    Raises:
        SettingError: another format.
        TableUsageError: the package of Delta tables is not installed.
        UnsupportedTableError: the folder holds a Delta table and the format is another, or it is on another storage.
    """
    if "://" in str(path):
        raise UnsupportedTableError(f"{path}: tables lie on this machine in this release; write a path")
    if table_format not in _FORMATS:
        write = f"write {' or '.join(_FORMATS)}"
        raise SettingError("table.format", f"`{table_format}` is not a valid choice", write)
    root = Path(path).resolve()
    if table_format == "parquet" and (root / "_delta_log").is_dir():
        raise UnsupportedTableError(f"{root}: is a Delta table; write `format: delta`")
    module, _, name = _FORMATS[table_format].partition(":")
    opened: Table = getattr(import_module(module), name)(root, partition_by)
    return opened
