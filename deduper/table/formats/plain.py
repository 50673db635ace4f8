"""Plain Parquet files in partition folders: a table without a log, so the durable plan of a write is its commit.

After the plan the new files get their places one by one, then the removed ones go one by one: a reader that lists them
in between sees rows twice, and misses none. A write that dies in between is completed by the next one. Each
write makes a version, which `versions` records; a table that others have made begins with version 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from bucket_store import failpoints
from deduper.table.columns import KeyColumn
from deduper.table.errors import TableError, VersionGoneError
from deduper.table.formats.paths import (
    NO_PART,
    bring_back,
    data_paths,
    is_same_file,
    partition_of,
    place,
    remove,
    require_kept,
    staging_folder,
    unplaced,
)
from deduper.table.formats.protocol import NO_TABLE, Commit, DataFile, Reversal, Snapshot
from deduper.table.formats.versions import (
    difference,
    newest_version,
    prune,
    record_version,
    records_since,
    removed_folder,
)
from deduper.table.schema import one_form
from deduper.table.stored_times import stored_schema


class PlainFiles:
    """A folder of plain Parquet files; see `Table`."""

    format = "parquet"

    def __init__(self, root: Path, partition_by: Sequence[KeyColumn], keep_versions: int) -> None:
        self._root = root
        self._partition_by = partition_by
        self._keep_versions = keep_versions

    @property
    def root(self) -> Path:
        """See `Table`."""
        return self._root

    def snapshot(self) -> Snapshot:
        """See `Table`. The columns are those of the first file by name, and of its folders."""
        version = newest_version(self._root)
        # Readers pass over empty files, which Hive makes.
        files = tuple(file for file in map(self._file, data_paths(self._root)) if file.size)
        if not files:
            return Snapshot(NO_TABLE if version is None else version, None, (), ())
        first = self._root / files[0].path
        try:
            stored = one_form(stored_schema(first))
        except (pa.ArrowException, OSError) as error:
            raise TableError(f"{first}: the footer cannot be read: {error}; {NO_PART}") from error
        names = [column.name for column in self._partition_by]
        fields = [field for field in stored if field.name not in names]
        in_folders = [pa.field(column.name, column.arrow) for column in self._partition_by]
        return Snapshot(version or 0, pa.schema([*fields, *in_folders]), (), files)

    def reversal(self, before: Snapshot, version: int) -> Reversal:
        """See `Table`. Writes of others are in no record: files that they added stay."""
        if not 0 <= version <= before.version:
            raise VersionGoneError(f"{self._root}: there is no version {version}; the present one is {before.version}")
        going, returning = difference(records_since(self._root, version, before.version))
        present = {file.path: file for file in before.files}
        changed = [path for path, was in going.items() if path not in present or _size_and_time(present[path]) != was]
        if changed:
            raise VersionGoneError(
                f"{self._root / changed[0]}: was added after version {version}, and another writer has changed or "
                "removed it, so its rows may be in another file (or the table was copied without its times); nothing "
                "was written"
            )
        kept_in = removed_folder(self._root)
        restored = tuple(
            DataFile(path, size, stamp, partition_of(path, self._partition_by), True)
            for path, (size, stamp) in sorted(returning.items())
        )
        for file in restored:
            if file.path in present or not is_same_file(kept_in / file.path, file):
                raise VersionGoneError(
                    f"{self._root}: version {version} has {file.path}, which was removed and is not kept any more "
                    "(`keep_versions`); choose a later version"
                )
        removed = tuple(present[path] for path in sorted(going))
        return Reversal(restored, removed, kept_in, bool(restored or removed))

    def commit(self, commit: Commit) -> None:
        """See `Table`. The plan is durable, so the write is committed; this completes it."""
        self.finish(commit)

    def finish(self, commit: Commit) -> bool:
        """See `Table`. A write that cannot be completed makes no version."""
        staging, kept_in = staging_folder(self._root, commit.load), removed_folder(self._root)
        unplaced(self._root, commit.files, staging)
        require_kept(self._root, commit.restored, kept_in, commit.load)
        number = record_version(self._root, commit)
        failpoints.hit("table.5.recorded")
        place(self._root, commit.files, staging)
        bring_back(self._root, commit.restored, kept_in)
        remove(self._root, commit.removed, kept_in if self._keep_versions else None)
        prune(self._root, number, self._keep_versions)
        return True

    def is_taken(self, commit: Commit) -> bool:  # noqa: ARG002  of the protocol
        """See `Table`. A plan is a commit."""
        return True

    def _file(self, path: str) -> DataFile:
        status = (self._root / path).stat()
        return DataFile(path, status.st_size, status.st_mtime_ns, partition_of(path, self._partition_by), True)


def _size_and_time(file: DataFile) -> tuple[int, int]:
    return file.size, file.stamp
