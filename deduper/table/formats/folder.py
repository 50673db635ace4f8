"""Folder tables: Parquet files in partition folders, without a log, so the durable plan of a write is its commit.

After the plan the new files get their places one by one, then the removed ones go one by one: a reader that lists them
in between sees rows twice, and misses none. While a plan is there, `snapshot` gives the version before or the new one,
whole. A write that dies in between is completed by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bucket_store.filesystem import LOCAL
from deduper.table.columns import KeyColumn, partition_of
from deduper.table.errors import TableChangedError, TableError, UnsupportedTableError
from deduper.table.formats.files import (
    NO_PART,
    data_paths,
    place,
    remove,
    staged_loads,
    staging,
    staging_folder,
)
from deduper.table.formats.plan import is_done, planned
from deduper.table.formats.protocol import NO_TABLE, Commit, DataFile, Snapshot, declared_lengths
from deduper.table.schema import one_form
from deduper.table.stored_times import StoredTimes
from deduper.tasks.readers.file_parts import FileGone, UnreadableFile
from deduper.tasks.readers.parquet import opened_parquet

_LOOKS = 10
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


@dataclass(frozen=True, slots=True)
class _Moving:
    """The write that moves files, if one does. `is_placed`: all its new files have their places; then the others go.

    `staged_ns`: when a write last began or ended. `done`: those that have moved all their files, and are still there.
    While all is the same, files move in one direction alone.
    """

    staged_ns: int | None
    done: tuple[str, ...] = ()
    commit: Commit | None = None
    is_placed: bool = False


class FolderTable:
    """A folder of Parquet files; see `Table`. It has one version, the files that are there: version 0."""

    format = "parquet"

    def __init__(self, root: Path, partition_by: Sequence[KeyColumn]) -> None:
        self._root = root
        self._partition_by = partition_by

    @property
    def root(self) -> Path:
        """See `Table`."""
        return self._root

    def snapshot(self) -> Snapshot:
        """See `Table`. The columns are those of the first file by name, and of its folders.

        Raises:
            TableChangedError: files came and went at each look.
        """
        for _ in range(_LOOKS):
            before = self._moving()
            try:
                files = self._of_version(before)
                schema = self._schema_of(files[0]) if files else None
            except FileNotFoundError:
                continue  # it went since the listing
            if self._moving() == before:
                return Snapshot(0 if files else NO_TABLE, schema, (), files)
        raise TableChangedError(
            f"{self._root}: files came and went while they were listed, {_LOOKS} times; repeat it when writers rest"
        )

    def commit(self, commit: Commit) -> int:
        """See `Table`. The plan is durable, so the write is committed; this completes it."""
        self.finish(commit)
        return 0

    def finish(self, commit: Commit) -> bool:
        """See `Table`. A write that cannot be completed changes nothing."""
        place(self._root, commit.files, staging_folder(self._root, commit.load))
        remove(self._root, commit.removed)
        return True

    def is_taken(self, commit: Commit) -> bool:  # noqa: ARG002  of the protocol
        """See `Table`. A plan is a commit."""
        return True

    def _moving(self) -> _Moving:
        try:
            staged_ns = staging(self._root).stat().st_mtime_ns
        except FileNotFoundError:
            return _Moving(None)
        loads = staged_loads(self._root)
        commit = next((plan.commit for plan in (planned(self._root, load) for load in loads) if plan is not None), None)
        done = tuple(load for load in loads if is_done(self._root, load))  # after the plans: one becomes the other
        if commit is None:
            return _Moving(staged_ns, done)
        return _Moving(staged_ns, done, commit, all(LOCAL.exists(self._root / file.path) for file in commit.files))

    def _of_version(self, moving: _Moving) -> tuple[DataFile, ...]:
        """The files of the version, also while a write moves files."""
        # Readers pass over empty files, which Hive makes.
        files = (file for file in map(self._file, data_paths(self._root)) if file.size)
        if moving.commit is None:
            return tuple(files)
        # Removals begin when all new files have their places: until then, the version before is whole.
        others = moving.commit.removed if moving.is_placed else moving.commit.files
        left_out = {(file.path, file.size) for file in others}  # a copied folder may have other times
        return tuple(file for file in files if (file.path, file.size) not in left_out)

    def _schema_of(self, file: DataFile) -> pa.Schema:
        path = self._root / file.path
        try:
            with opened_parquet(str(path)) as opened:
                stored, notes = one_form(StoredTimes(opened, path).schema), opened.footer.metadata or {}
        except FileGone as error:
            raise FileNotFoundError(path) from error
        except UnreadableFile as error:
            raise TableError(f"{path}: the footer cannot be read: {error}; {NO_PART}") from error
        if found := _noted_lengths(notes):
            raise UnsupportedTableError(
                f"{path}: was written for a table with {', '.join(found)}, whose lengths a write does not honour; "
                "change it by your engine, or make a table with texts of any length"
            )
        names = [column.name for column in self._partition_by]
        fields = [field for field in stored if field.name not in names]
        in_folders = [pa.field(column.name, column.arrow) for column in self._partition_by]
        return pa.schema([*fields, *in_folders])

    def _file(self, path: str) -> DataFile:
        try:
            status = (self._root / path).stat()
        except FileNotFoundError:
            if (self._root / path).is_symlink():
                raise TableError(
                    f"{self._root / path}: is a link to {(self._root / path).readlink()}, which is not there; remove it"
                ) from None
            raise
        return DataFile(path, status.st_size, status.st_mtime_ns, partition_of(path, self._partition_by), True)


def _noted_lengths(notes: dict[bytes, bytes]) -> list[str]:
    """Types with declared lengths, by the key-value metadata of a footer; none without Spark's note."""
    try:
        return declared_lengths(json.loads(notes[_SPARK_SCHEMA]))
    except (KeyError, ValueError):
        return []
