"""The state of a table and its index, and an index built again.

The state is by names and sizes of files alone: no rows are read, no lock is taken. Beside a running write the parts of
the answer may be of different moments.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from deduper.as_json import AsJson
from deduper.table.columns import KeyColumn
from deduper.table.formats.files import staged_loads
from deduper.table.formats.plan import read_plan
from deduper.table.formats.protocol import Snapshot, Table, open_table
from deduper.table.index.protocol import IndexStatus, Rebuilt
from deduper.table.index.reading import rows_of
from deduper.table.operations.target import Target, of_one_version, target_of
from deduper.table.operations.write import locked
from deduper.table.settings import LoadedLoad


@dataclass(frozen=True, slots=True)
class PendingLoad(AsJson):
    """A write that has staged something: it runs, or has died. `files` and `rows` for the table, once planned.

    `removed_files` of the table they take the place of.
    """

    load: str
    is_planned: bool
    files: int
    rows: int
    removed_files: int


@dataclass(frozen=True, slots=True)
class TableStatus(AsJson):
    """A table in the folder `path`: `version` -1 without one. `rows` as its log or its footers have them.

    `rebuilding`: keys of a new index, whose making runs or was interrupted; None when there is none.
    """

    path: str
    version: int
    rows: int
    files: int
    index: IndexStatus
    rebuilding: int | None
    pending: tuple[PendingLoad, ...]


def table_status(loaded: LoadedLoad) -> TableStatus:
    """The state of a configuration's table; the files of its source need not be there.

    Raises:
        TableError: the table cannot be read, or is partitioned by other columns.
        CorruptionError, UnknownFormatError: the plan of a dead load, or the state of a new index, cannot be read.
    """
    config = loaded.config
    # Their types are those of a batch, and nothing here asks for values of partitions.
    by = [KeyColumn(name, "string") for name in config.partition_by]
    table = open_table(config.table.path, config.table.format, by)
    return of_one_version(table, lambda found: _status(loaded, table, found))


def _status(loaded: LoadedLoad, table: Table, found: Snapshot) -> TableStatus:
    config = loaded.config
    index = config.table_index.status(table.root, config.names, found.files)
    return TableStatus(
        path=str(table.root),
        version=found.version,
        rows=sum(rows_of(table.root, found.files)) if found.rows is None else found.rows,
        files=len(found.files),
        index=index,
        rebuilding=index.rebuilding,
        pending=tuple(_pending(table.root, load) for load in staged_loads(table.root)),
    )


def _pending(root: Path, load: str) -> PendingLoad:
    plan = read_plan(root, load)
    files = () if plan is None else plan.commit.files
    removed = 0 if plan is None else len(plan.commit.removed)
    return PendingLoad(load, plan is not None, len(files), sum(file.rows for file in files), removed)


@dataclass(frozen=True, slots=True)
class RebuildReceipt(AsJson):
    """The new index is of the table's `version`. `is_continued`: an interrupted rebuild had begun it."""

    json_names: ClassVar[tuple[str, ...]] = (
        *("version", "files", "read_files", "keys", "size_bytes", "is_continued", "seconds"),
    )
    version: int
    files: int
    read_files: int
    keys: int
    size_bytes: int
    is_continued: bool
    seconds: float


def rebuild(loaded: LoadedLoad, *, lock_timeout_s: float = 60.0) -> RebuildReceipt:
    """Builds the index of a configuration's table again, in place of any that is there.

    1 the table is locked · 2 the keys of its files are read, step by step, into an index beside the old one · 3 the
    new state replaces the old one, whole · 4 the old one's files are deleted. Interrupted before 3, the old index
    counts, and the next call continues.

    Raises:
        ConfigError: there is no table, or a setting does not fit its columns.
        TableHeldError: a load has held the table for `lock_timeout_s`.
        TableChangedError: other writers removed files each time while they were read.
        TableError: a file of the table cannot be read.
    """
    began = time.monotonic()
    target = target_of(loaded)
    with locked(target.table.root, lock_timeout_s):
        found, built = of_one_version(target.table, lambda found: (found, _rebuilt(target, loaded, found)))
        return RebuildReceipt(
            version=found.version,
            files=len(found.files),
            read_files=built.read_files,
            keys=built.keys,
            size_bytes=built.size_bytes,
            is_continued=built.is_continued,
            seconds=time.monotonic() - began,
        )


def _rebuilt(target: Target, loaded: LoadedLoad, found: Snapshot) -> Rebuilt:
    return loaded.config.table_index.rebuild(target.table.root, target.columns, found.files)
