"""Loads, upserts and deletes of a batch, and the plans of upserts and deletes, which write nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from deduper.config.apart import clashes
from deduper.table.batch import Batch, Keep, KeepRule, require_rule
from deduper.table.columns import key_columns
from deduper.table.errors import SettingError
from deduper.table.formats.protocol import Snapshot
from deduper.table.index.protocol import TableIndex, index_of
from deduper.table.operations.judge import Kind
from deduper.table.operations.receipts import ChangePlan, WriteReceipt, change_plan
from deduper.table.operations.rewriting import Filling
from deduper.table.operations.staging import require_free_names
from deduper.table.operations.target import batch_of, of_one_version, target_of_keys, target_of_rows, target_with
from deduper.table.operations.write import Write, WriteSteps, locked
from deduper.table.settings import TARGET_FILE_BYTES, LoadConfig, LoadedLoad

_WAIT_S = 60.0


def load(
    rows: Any,
    table: str | Path,
    *,
    key: Sequence[str],
    partition_by: Sequence[str] = (),
    table_format: str = "delta",
    scope: str = "partition",
    index: str | TableIndex = "exact",
    keep: str | Keep = "first",
    duplicates: str | Path | None = None,
    errors: str | Path | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES,
    lock_timeout_s: float = _WAIT_S,
) -> WriteReceipt:
    """Adds the rows whose keys the table does not have; all others are duplicates or errors.

    `rows`: an Arrow table, anything that exports one (`__arrow_c_stream__`: pandas, Polars, DuckDB), or a `Batch`.
    `index`: its kind by name, or one that `index_of` made. `target_file_bytes`: about the size of new files.

    Raises:
        TableUsageError: columns, settings or a table that do not fit; nothing was written.
        TableHeldError: another write has held the table for `lock_timeout_s`.
        TableChangedError: other writers were faster, five times.
        TableError, CorruptionError: see their classes; the table is as its last commit left it.

    Example:
        >>> rows = pa.table({"day": ["mon", "mon", "mon"], "id": [1, 2, 1]})
        >>> receipt = load(rows, "clicks", key=["id"], partition_by=["day"])
        >>> receipt.inserted, receipt.repeats
        (2, 1)
        >>> load(rows, "clicks", key=["id"], partition_by=["day"]).found
        3
    """
    batch = batch_of(rows)
    columns = key_columns(batch.schema, key, partition_by, scope)
    rule = keep if isinstance(keep, Keep) else Keep(cast(KeepRule, keep))
    require_rule(rule, batch)
    require_free_names(batch)
    kind = index_of(index, {}) if isinstance(index, str) else index
    target = target_with(table, table_format, columns, kind)
    ports = _folders(duplicates=duplicates, errors=errors)
    for clash in clashes({"table": target.table.root, **ports}):
        raise SettingError(clash.name, clash.what, clash.write)
    return _run(Write("load", batch, target, rule, ports, target_file_bytes), lock_timeout_s)


def upsert(rows: Any, loaded: LoadedLoad, *, lock_timeout_s: float = _WAIT_S) -> WriteReceipt:
    """Replaces the rows whose keys the table has, and adds all others; of repeats the one that `keep` chooses.

    `rows`: as for `load`. Only the files that hold a key are written again, and small ones that new rows fill.

    Raises:
        ConfigError: a setting does not fit the columns.
        TableUsageError, TableHeldError, TableChangedError, TableError, CorruptionError: as `load`.

    Example:
        >>> receipt = upsert(pa.table({"id": [1, 3], "price": [11, 30]}), table_config("load.yaml"))
        >>> receipt.updated, receipt.inserted
        (1, 1)
    """
    return _run(_write("upsert", batch_of(rows), loaded), lock_timeout_s)


def delete(keys: Any, loaded: LoadedLoad, *, lock_timeout_s: float = _WAIT_S) -> WriteReceipt:
    """Removes all rows with these keys. Keys that the table does not have are counted.

    `keys`: as for `read`; a row with a null in them is an error. Only the files that hold a key are written again.

    Raises:
        ConfigError: there is no table, or `keys` lacks a column.
        TableUsageError, TableHeldError, TableChangedError, TableError, CorruptionError: as `load`.

    Example:
        >>> receipt = delete(pa.table({"id": [1, 3]}), table_config("load.yaml"))
        >>> receipt.deleted, receipt.absent
        (1, 1)
    """
    return _run(_write("delete", batch_of(keys), loaded), lock_timeout_s)


def plan_upsert(rows: Any, loaded: LoadedLoad) -> ChangePlan:
    """What an upsert of these rows would do now; nothing is written, no lock is taken.

    Raises: as `upsert`.
    """
    return _planned(_write("upsert", batch_of(rows), loaded))


def plan_delete(keys: Any, loaded: LoadedLoad) -> ChangePlan:
    """What a delete of these keys would do now; nothing is written, no lock is taken.

    Raises: as `delete`.
    """
    return _planned(_write("delete", batch_of(keys), loaded))


def run_load(loaded: LoadedLoad) -> WriteReceipt:
    """Loads the files of a configuration.

    Raises:
        ConfigError: there are no files, or a setting does not fit their columns.
        TableError, CorruptionError: as `load`.
    """
    with loaded.placing_errors():
        return _run(_write("load", loaded.config.source.batch(loaded.config.key), loaded), _WAIT_S)


def run_change(kind: Literal["upsert", "delete"], loaded: LoadedLoad, *, execute: bool) -> ChangePlan | WriteReceipt:
    """Upserts the files of a configuration, or deletes their keys; without `execute`, the plan.

    Raises:
        ConfigError: there are no files, a setting does not fit their columns, or there is no table to delete from.
        TableError, CorruptionError: as `load`.
    """
    with loaded.placing_errors():
        batch = loaded.config.source.batch(loaded.config.key)
    write = _write(kind, batch, loaded)
    return _run(write, _WAIT_S) if execute else _planned(write)


def _write(kind: Kind, batch: Batch, loaded: LoadedLoad) -> Write:
    """A write of a configuration."""
    config = loaded.config
    target = target_of_keys(batch, loaded) if kind == "delete" else target_of_rows(batch, loaded)
    with loaded.placing_errors():
        require_free_names(batch)
    return Write(
        kind=kind,
        batch=batch,
        target=target,
        keep=Keep() if kind == "delete" else config.rule,
        ports=_folders(duplicates=None if kind == "delete" else config.duplicates, errors=config.errors),
        target_bytes=config.target_file_bytes,
        moves=config.update_partition_path,
        filling=_filling(config) if kind == "upsert" else None,
    )


def _filling(config: LoadConfig) -> Filling | None:
    return None if config.small_file_bytes is None else Filling(config.small_file_bytes, config.target_file_bytes)


def _folders(**ports: str | Path | None) -> Mapping[str, Path]:
    return {name: Path(folder).resolve() for name, folder in ports.items() if folder is not None}


def _run(write: Write, lock_timeout_s: float) -> WriteReceipt:
    with locked(write.root, lock_timeout_s):
        return WriteSteps(write).run()


def _planned(write: Write) -> ChangePlan:
    """The plan of a change of the table's present version; no lock is taken."""

    def planned(found: Snapshot) -> ChangePlan:
        keys = write.target.keys(found)
        write.require_fit(found)
        return change_plan(write.root, found, write.work(keys))

    return of_one_version(write.target.table, planned)
