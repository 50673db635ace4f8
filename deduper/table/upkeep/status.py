"""The state of a table and its index, by names and sizes of files alone: no rows are read, no lock is taken.

Beside a running load the parts of the answer may be of different moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from bucket_store.errors import CorruptionError, UnknownFormatError
from deduper.as_json import AsJson
from deduper.table.columns import KeyColumn, KeyColumns
from deduper.table.formats.open import open_table
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.reading import rows_of
from deduper.table.index.state import REBUILDING, STATE, index_folder, read_state
from deduper.table.settings import LoadConfig, LoadedLoad
from deduper.table.write.plan import read_plan, staged_loads


class Condition(Enum):
    """An index beside the files of its table. All but DAMAGED, of which some loads fail, need no action."""

    PRESENT = "present"
    BEHIND = "behind"
    AHEAD = "ahead"
    ABSENT = "absent"
    OTHER_KEY = "other_key"
    UNREADABLE = "unreadable"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class IndexStatus(AsJson):
    """An index. `added` files of the table it lacks, `removed` files it has that the table has no more.

    `keys` are its entries: a key of two files counts twice, those of removed files count until they are merged away.
    `why`: for states that are not about files.
    """

    json_names: ClassVar[tuple[str, ...]] = (
        *("state", "why", "added", "removed", "pieces", "keys", "size_bytes", "bytes_a_key"),
    )
    state: Condition
    why: str | None
    added: int
    removed: int
    pieces: int = 0
    keys: int = 0
    size_bytes: int = 0

    @property
    def bytes_a_key(self) -> float | None:
        """Bytes on disk a key; None without keys."""
        return self.size_bytes / self.keys if self.keys else None


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
    """A table: `version` -1 without one. `rows` as its log or its footers have them.

    `rebuilding`: keys of a new index, whose making runs or was interrupted; None when there is none.
    """

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
    found = table.snapshot()
    folder = index_folder(table.root)
    anew = read_state(folder, REBUILDING)
    return TableStatus(
        version=found.version,
        rows=sum(rows_of(table.root, found.files)) if found.rows is None else found.rows,
        files=len(found.files),
        index=_index(folder, config, found),
        rebuilding=None if anew is None else sum(ref.entries for ref in anew.pieces),
        pending=tuple(_pending(table.root, load) for load in staged_loads(table.root)),
    )


def is_of_key(columns: KeyColumns, config: LoadConfig) -> bool:
    """Whether an index of these columns is of a configuration's key; by names, the types are those of a batch."""
    key, by = (tuple(column.name for column in of) for of in (columns.key, columns.partition_by))
    return (key, by, columns.scope) == (config.key, config.partition_by, config.scope)


def _index(folder: Path, config: LoadConfig, found: Snapshot) -> IndexStatus:
    files = {file.identity for file in found.files}
    try:
        state = read_state(folder)
    except (CorruptionError, UnknownFormatError) as error:
        return IndexStatus(Condition.UNREADABLE, f"{error}; the next load builds the index", len(files), 0)
    if state is None:
        return IndexStatus(Condition.ABSENT, "the next load builds the index from the table", len(files), 0)
    indexed = {file.identity for file in state.files}
    added, removed = len(files - indexed), len(indexed - files)
    why = None
    if not is_of_key(state.columns, config):
        kind, why = Condition.OTHER_KEY, "it is of another key or scope, and the next load builds it anew"
    elif wrong := [ref.file for ref in state.pieces if _size(folder / ref.file) != ref.length]:
        kind, why = Condition.DAMAGED, f"{folder / wrong[0]} is gone or cut; delete {folder}, the next load builds it"
    elif added:
        kind = Condition.BEHIND
    else:
        kind = Condition.AHEAD if removed else Condition.PRESENT
    return IndexStatus(
        kind,
        why,
        added,
        removed,
        pieces=len(state.pieces),
        keys=sum(ref.entries for ref in state.pieces),
        size_bytes=(_size(folder / STATE) or 0) + sum(ref.length for ref in state.pieces),
    )


def _pending(root: Path, load: str) -> PendingLoad:
    plan = read_plan(root, load)
    files = () if plan is None else plan.commit.files
    removed = 0 if plan is None else len(plan.commit.removed)
    return PendingLoad(load, plan is not None, len(files), sum(file.rows for file in files), removed)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
