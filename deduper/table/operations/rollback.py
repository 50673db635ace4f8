"""A return of a Delta table to an older version, as a new version on top; its index is brought to the same files.

The steps have the numbers of `write`: 1 the table is locked, dead writes are completed or removed · 2 the version is
read, and the way back · 5 the commit · 7 the index reads the files that it lacks. Nothing is staged, so there is no
plan; an index counts the files of the present version alone, so a death between 5 and 7 does no harm.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bucket_store import failpoints
from deduper.as_json import AsJson
from deduper.table.columns import KeyColumns, key_columns
from deduper.table.errors import (
    ConflictError,
    FileVanishedError,
    SettingError,
    TableChangedError,
    UnsupportedTableError,
    VersionGoneError,
)
from deduper.table.formats.plan import finish_all
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.reading import rows_of
from deduper.table.operations.target import table_of
from deduper.table.operations.write import WriteStage, completed_without_index, locked, reached
from deduper.table.settings import LoadedLoad

if TYPE_CHECKING:  # deltalake need not be installed
    from deduper.table.formats.delta import DeltaFiles, Reversal


@dataclass(frozen=True, slots=True)
class RollbackPlan(AsJson):
    """What a rollback of the table's `version` would do: some files go, others return.

    `removed_rows`: None if one of the files is gone from the disk. `is_needed`: False if the table is as it was in the
    version `to`.
    """

    version: int
    to: int
    removed_files: int
    removed_rows: int | None
    removed_bytes: int
    restored_files: int
    restored_rows: int
    restored_bytes: int
    is_needed: bool


@dataclass(frozen=True, slots=True)
class RollbackReceipt(RollbackPlan):
    """A rollback that is done, or was not needed. `version`: the present one, and all others as in the plan.

    `read_files` were read afterwards, of those that the index lacked; `began_anew` says why it had to be built.
    `completed` earlier writes had died after their commit.
    """

    load: str
    read_files: int
    began_anew: str | None
    completed: int
    seconds: float


def plan_rollback(loaded: LoadedLoad, version: int) -> RollbackPlan:
    """What a rollback to the version would do now; nothing is written, no lock is taken.

    Raises: as `rollback`.
    """
    table = _delta_table(loaded)
    before, way, _ = _way(table, loaded, version)
    return RollbackPlan(before.version, version, **_counts(table.root, way))


def rollback(loaded: LoadedLoad, version: int, *, lock_timeout_s: float = 60.0) -> RollbackReceipt:
    """Returns the table and its index to a version.

    Raises:
        ConfigError: a setting does not fit the table as that version has it, or it is a folder table, which has one
            version; nothing was written.
        VersionGoneError: there is no such version, or it is not whole any more; nothing was written.
        UnsupportedTableError, TableUsageError: the table must not be changed by us, as it is or as that version has it;
            nothing was written.
        TableHeldError: another write has held the table for `lock_timeout_s`.
        TableChangedError: another writer was faster; nothing was written.
        TableError, CorruptionError: see their classes; the table is as its last commit left it.
    """
    began = time.monotonic()
    config = loaded.config
    table = _delta_table(loaded)
    ports = {"duplicates": config.duplicates, "errors": config.errors}
    folders = {name: Path(folder).resolve() for name, folder in ports.items() if folder is not None}
    load = secrets.token_hex(8)
    with locked(table.root, lock_timeout_s):
        failpoints.hit("table.1.locked")
        completed = finish_all(table, folders)
        before, way, columns = _way(table, loaded, version)
        counts = _counts(table.root, way)
        made = before.version
        if way.is_needed:
            reached(WriteStage.COMMITTING)
            try:
                made = table.restore(load, before.version, version)
            except ConflictError as error:
                what = f"{error}: another writer was faster; nothing was rolled back, look at the plan again"
                raise TableChangedError(what) from error
            reached(WriteStage.COMMITTED)
        read, began_anew = _caught_up(table, loaded, columns)
        failpoints.hit("table.7.index")
        return RollbackReceipt(
            made,
            version,
            **counts,
            load=load,
            read_files=read,
            began_anew=began_anew,
            completed=completed,
            seconds=time.monotonic() - began,
        )


def _delta_table(loaded: LoadedLoad) -> DeltaFiles:
    with loaded.placing_errors():
        if loaded.config.table.format != "delta":
            what = "a folder of Parquet files has no versions to return to"
            raise SettingError("table.format", what, "restore it from a copy; of a `delta` table all versions stay")
        return cast("DeltaFiles", table_of(loaded))


def _way(table: DeltaFiles, loaded: LoadedLoad, version: int) -> tuple[Snapshot, Reversal, KeyColumns]:
    """Step 2: the present version, the way back, and the key in that version. Refuses all that no write could go on."""
    before = table.snapshot()
    if before.version < 0:
        raise VersionGoneError(f"{table.root}: there is no table yet, and no version to return to; check `table.path`")
    way = table.reversal(before, version)
    if way.is_needed and before.no_changes is not None:
        raise UnsupportedTableError(f"{table.root}: {before.no_changes}; nothing was written")
    if way.is_needed and way.to.no_changes is not None:
        raise UnsupportedTableError(
            f"{table.root}: in version {version} {way.to.no_changes}, so that the rollback could not be rolled back; "
            "choose another version, or go there by a RESTORE of your engine; nothing was written"
        )
    assert way.to.schema is not None
    config = loaded.config
    with loaded.placing_errors():
        try:
            columns = key_columns(way.to.schema, config.key, config.partition_by, config.scope)
        except SettingError as error:
            raise SettingError(error.setting, f"in version {version} {error.what}", error.write) from error
    return before, way, columns


def _caught_up(table: DeltaFiles, loaded: LoadedLoad, columns: KeyColumns) -> tuple[int, str | None]:
    """Step 7: (files read, why the index had to be built)."""
    read, began_anew = 0, None
    with completed_without_index(table.root):
        index = loaded.config.table_index.open(table.root, columns)
        read, began_anew = index.catch_up(table.root, table.snapshot().files), index.began_anew
    return read, began_anew


def _counts(root: Path, way: Reversal) -> dict[str, Any]:
    try:
        removed_rows = sum(rows_of(root, way.removed))
    except FileVanishedError:
        removed_rows = None  # a reason to go back, and not to stay
    return {
        "removed_files": len(way.removed),
        "removed_rows": removed_rows,
        "removed_bytes": sum(file.size for file in way.removed),
        "restored_files": len(way.restored),
        "restored_rows": sum(rows_of(root, way.restored)),
        "restored_bytes": sum(file.size for file in way.restored),
        "is_needed": way.is_needed,
    }
