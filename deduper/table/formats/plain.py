"""Plain Parquet files in partition folders: a table without a log, so the durable plan of a write is its commit.

After the plan a version is recorded, then the new files get their places one by one, then the removed ones go one by
one: a reader that lists them in between sees rows twice, and misses none. With the record, `snapshot` gives the version
before or the new one, whole. A write that dies in between is completed by the next one. A table that others have made
begins with version 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL
from deduper.table.columns import KeyColumn
from deduper.table.errors import TableChangedError, TableError, UnsupportedTableError, VersionGoneError
from deduper.table.formats.paths import (
    NO_PART,
    bring_back,
    data_paths,
    is_same_file,
    is_under_way,
    kept_path,
    partition_of,
    place,
    remove,
    require_kept,
    staged_loads,
    staging_folder,
    unplaced,
)
from deduper.table.formats.protocol import NO_TABLE, Commit, DataFile, Reversal, Snapshot
from deduper.table.formats.spark_schema import noted_lengths
from deduper.table.formats.versions import (
    VersionRecord,
    difference,
    newest_version,
    prune,
    read_version,
    record_version,
    records_since,
    removed_folder,
)
from deduper.table.schema import one_form
from deduper.table.stored_times import StoredTimes

_LOOKS = 10


@dataclass(frozen=True, slots=True)
class _Standing:
    """The number of the newest recorded write, and the write itself while it moves files.

    `is_placed`: whether all its new files have their places; then the others go.
    """

    number: int | None
    write: VersionRecord | None = None
    is_placed: bool = False


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
        """See `Table`. The columns are those of the first file by name, and of its folders.

        Raises:
            TableChangedError: files came and went at each look.
        """
        for _ in range(_LOOKS):
            try:
                before = self._standing()
                files = self._of_version(before)
                schema = self._schema_of(files[0]) if files else None
            except FileNotFoundError:
                continue  # it went since the listing
            if self._standing() == before:
                return Snapshot(self._number(before, files), schema, (), files)
        raise TableChangedError(
            f"{self._root}: files came and went while they were listed, {_LOOKS} times; repeat it when writers rest"
        )

    def _standing(self) -> _Standing:
        """Where the newest write stands. While it is the same, files move in one direction alone."""
        number = newest_version(self._root)
        under_way = [load for load in staged_loads(self._root) if is_under_way(self._root, load)]
        write = read_version(self._root, number) if under_way and number is not None else None
        if write is None or write.load not in under_way:
            return _Standing(number)
        return _Standing(number, write, all(LOCAL.exists(self._root / path) for path, _, _ in write.added))

    def _of_version(self, standing: _Standing) -> tuple[DataFile, ...]:
        """The files of the version, also while the write that makes the next one, or this one, moves files."""
        # Readers pass over empty files, which Hive makes.
        files = (file for file in map(self._file, data_paths(self._root)) if file.size)
        if standing.write is None:
            return tuple(files)
        # Removals begin when all new files have their places: until then, the version before is whole.
        others = standing.write.removed if standing.is_placed else standing.write.added
        left_out = {(path, size) for path, size, _ in others}  # a copied folder may have other times
        return tuple(file for file in files if (file.path, file.size) not in left_out)

    def _number(self, standing: _Standing, files: Sequence[DataFile]) -> int:
        if standing.number is None:
            return 0 if files else NO_TABLE
        return standing.number if standing.write is None or standing.is_placed else standing.number - 1

    def _schema_of(self, file: DataFile) -> pa.Schema:
        path = self._root / file.path
        try:
            with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as opened:
                stored, notes = one_form(StoredTimes(opened, path).schema), opened.metadata.metadata or {}
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise TableError(f"{path}: the footer cannot be read: {error}; {NO_PART}") from error
        if found := noted_lengths(notes):
            raise UnsupportedTableError(
                f"{path}: was written for a table with {', '.join(found)}, whose lengths a write does not honour; "
                "change it by your engine, or make a table with texts of any length"
            )
        names = [column.name for column in self._partition_by]
        fields = [field for field in stored if field.name not in names]
        in_folders = [pa.field(column.name, column.arrow) for column in self._partition_by]
        return pa.schema([*fields, *in_folders])

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
        kept_in = removed_folder(self._root).relative_to(self._root)
        restored = tuple(
            DataFile(path, size, stamp, partition_of(path, self._partition_by), True)
            for path, (size, stamp) in sorted(returning.items())
        )
        kept = tuple(replace(file, path=str(kept_in / kept_path(file.path))) for file in restored)
        for file, old in zip(restored, kept, strict=True):
            if file.path in present or not is_same_file(self._root / old.path, file):
                raise VersionGoneError(
                    f"{self._root}: version {version} has {file.path}, which was removed and is not kept any more "
                    "(`keep_versions`); choose a later version"
                )
        removed = tuple(present[path] for path in sorted(going))
        return Reversal(restored, removed, kept, bool(restored or removed))

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
