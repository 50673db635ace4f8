"""Plain Parquet files in partition folders: a table without a log, so the durable plan of a write is its commit.

After the plan the new files get their places one by one, then the removed ones go one by one: a reader that lists them
in between sees rows twice, and misses none. A write that dies in between is completed by the next one. There
are no versions: a table with files has version 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.columns import KeyColumn
from deduper.table.errors import TableError
from deduper.table.formats.paths import data_paths, partition_of, place, remove
from deduper.table.formats.protocol import NO_TABLE, Commit, DataFile, Snapshot
from deduper.table.schema import one_form


class PlainFiles:
    """A folder of plain Parquet files; see `Table`."""

    format = "parquet"

    def __init__(self, root: Path, partition_by: Sequence[KeyColumn]) -> None:
        self._root = root
        self._partition_by = partition_by

    @property
    def root(self) -> Path:
        """See `Table`."""
        return self._root

    def snapshot(self) -> Snapshot:
        """See `Table`. The columns are those of the first file by name, and of its folders."""
        paths = data_paths(self._root)
        if not paths:
            return Snapshot(NO_TABLE, None, (), ())
        files = tuple(self._file(path) for path in paths)
        first = self._root / paths[0]
        try:
            stored = one_form(pq.read_schema(first))
        except (pa.ArrowException, OSError) as error:
            raise TableError(f"{first}: the footer cannot be read: {error}") from error
        names = [column.name for column in self._partition_by]
        fields = [field for field in stored if field.name not in names]
        in_folders = [pa.field(column.name, column.arrow) for column in self._partition_by]
        return Snapshot(0, pa.schema([*fields, *in_folders]), (), files)

    def commit(self, commit: Commit) -> None:
        """See `Table`. The plan is durable, so the write is committed; this completes it."""
        self.finish(commit)

    def finish(self, commit: Commit) -> bool:
        """See `Table`."""
        place(self._root, commit.files)
        remove(self._root, commit.removed)
        return True

    def _file(self, path: str) -> DataFile:
        status = (self._root / path).stat()
        return DataFile(path, status.st_size, status.st_mtime_ns, partition_of(path, self._partition_by))
