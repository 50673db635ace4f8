"""What a change has to do: its verdicts, the files that hold its keys, the small files that its new rows fill.

An upsert or a delete of one batch: what it asks of its table, and what becomes of the rows.

A load into a table: the rows whose keys the table does not have are added to it.

A change of a table: its plan, which writes nothing, and its execution.

An upsert: rows whose key the table has replace those that it has, all others are added.

A delete: the rows of the table that have some keys go.

Loads, upserts and deletes from a config file; what does not fit the files has a place in the config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from deduper.config.apart import clashes
from deduper.table.batch import ArrowBatch, Batch, FileBatch, Keep, KeepRule, TextBatch, require_rule
from deduper.table.columns import KeyColumn, KeyColumns, key_columns
from deduper.table.errors import SettingError, TableUsageError, UnsupportedTableError
from deduper.table.formats.protocol import Snapshot, Table, open_table
from deduper.table.index.protocol import KeyIndex, TableIndex, VersionKeys, index_of
from deduper.table.operations.judge import Verdict, judge, judge_changes
from deduper.table.operations.receipts import (
    ChangePlan,
    ChangeReceipt,
    Kind,
    LoadReceipt,
    change_plan,
    change_receipt,
    load_receipt,
)
from deduper.table.operations.rewriting import Destination, FileRewrite, Filling, Workload, workload
from deduper.table.operations.staging import Work, require_free_names
from deduper.table.operations.target import batch_of, of_one_version, present_keys, question_of, target_of_keys
from deduper.table.operations.write import WriteSteps, locked
from deduper.table.schema import require_same
from deduper.table.settings import TARGET_FILE_BYTES, LoadConfig, LoadedLoad


@dataclass(frozen=True, slots=True)
class Change:
    """See `Operation`. The batch of a delete has keys, and may lack all other columns; it has no `filling`."""

    kind: Kind
    batch: Batch
    root: Path
    columns: KeyColumns
    keep: Keep
    update_partition_path: bool
    filling: Filling | None

    def require_fit(self, before: Snapshot) -> None:
        """See `Operation`."""
        if before.no_changes is not None:
            raise UnsupportedTableError(f"{self.root}: {before.no_changes}; nothing was written")
        if self.kind == "upsert":
            if before.schema is not None:
                require_same(self.root, before.schema, self.batch.schema)
            return
        if before.schema is None:
            raise TableUsageError(f"{self.root}: there is no table any more")
        wanted = pa.schema([before.schema.field(column.name) for column in self._asked])
        require_same(self.root, wanted, pa.schema([self.batch.schema.field(name) for name in wanted.names]))

    def judge(self, index: KeyIndex, before: Snapshot) -> Work:
        """See `Operation`."""
        version = index.version(self.root, before.files)
        work = self.workload(version)
        rewrite = None
        if work.removed:
            assert before.schema is not None
            place = Destination(self.root, before.schema, self.columns, self.update_partition_path)
            rewrite = FileRewrite(place, work, version.salt)
        is_upsert = self.kind == "upsert"
        return Work(
            verdict=work.verdicts.verdict,
            file=work.verdicts.first_files(),
            paths={number: file.path for number, file in version.files.items()},
            to_table=frozenset({Verdict.NEW, Verdict.IN_TABLE} if is_upsert else ()),
            to_duplicates=frozenset({Verdict.SAME_LOAD} if is_upsert else ()),
            new=work.verdicts.new if is_upsert else None,
            rewrite=rewrite,
        )

    def workload(self, version: VersionKeys) -> Workload:
        """The batch against a version of the table."""
        verdicts = judge_changes(self.batch, self.columns, self.keep, version, self._asked)
        return workload(self.root, self.batch, self.columns, verdicts, version, self.filling)

    @property
    def _asked(self) -> Sequence[KeyColumn]:
        return self.columns.all if self.kind == "upsert" else self.columns.digested


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
    lock_timeout_s: float = 60.0,
) -> LoadReceipt:
    """Adds the rows whose keys the table does not have; all others are duplicates or errors.

    `index`: its kind by name, or one that `index_of` made. `target_file_bytes`: about the size of new files.

    `rows`: an Arrow table, anything that exports one (`__arrow_c_stream__`: pandas, Polars, DuckDB), or a `Batch`.

    Raises:
        TableUsageError: columns, settings or a table that do not fit; nothing was written.
        TableHeldError: another load has held the table for `lock_timeout_s`.
        TableChangedError: other writers were faster, five times.
        TableError, CorruptionError: see their classes; the table is as its last commit left it.
    """
    batch: Batch = rows if isinstance(rows, ArrowBatch | FileBatch | TextBatch) else ArrowBatch(rows)
    columns = key_columns(batch.schema, key, partition_by, scope)
    rule = keep if isinstance(keep, Keep) else Keep(cast(KeepRule, keep))
    require_rule(rule, batch)
    require_free_names(batch)
    ports = {"duplicates": duplicates, "errors": errors}
    folders = {name: Path(folder).resolve() for name, folder in ports.items() if folder is not None}
    kind = index_of(index, {}) if isinstance(index, str) else index
    opened = open_table(table, table_format, columns.partition_by)
    for clash in clashes({"table": opened.root} | folders):
        raise SettingError(clash.name, clash.what, clash.write)
    operation = _Load(batch, opened.root, columns, rule)
    with locked(opened.root, lock_timeout_s):
        steps = WriteSteps(batch, opened, columns, kind, operation, folders, target_file_bytes)
        return load_receipt(steps.run())


@dataclass(frozen=True, slots=True)
class _Load:
    """New rows are added; see `Operation`."""

    batch: Batch
    root: Path
    columns: KeyColumns
    keep: Keep

    def require_fit(self, before: Snapshot) -> None:
        """See `Operation`."""
        if before.schema is not None:
            require_same(self.root, before.schema, self.batch.schema)

    def judge(self, index: KeyIndex, before: Snapshot) -> Work:
        """See `Operation`."""
        version = index.version(self.root, before.files)
        verdicts = judge(self.batch, self.columns, self.keep, version)
        return Work(
            verdict=verdicts.verdict,
            file=verdicts.file,
            paths={number: file.path for number, file in version.files.items()},
            to_table=frozenset({Verdict.NEW}),
            to_duplicates=frozenset({Verdict.SAME_LOAD, Verdict.IN_TABLE}),
            new=verdicts.new,
        )


def plan_change(kind: Kind, batch: Batch, table: Table, columns: KeyColumns, config: LoadConfig) -> ChangePlan:
    """What the change would do to the table's present version. It takes no lock and writes nothing.

    Raises:
        TableUsageError: batch and table do not fit each other.
        TableError: the table or its index cannot be read.
    """
    change = _change(kind, batch, table, columns, config)

    def planned(found: Snapshot) -> ChangePlan:
        keys = present_keys(table, found, columns, config.table_index)
        change.require_fit(found)
        return change_plan(kind, table.root, found, change.workload(keys))

    return of_one_version(table, planned)


def run_change(
    kind: Kind, batch: Batch, table: Table, columns: KeyColumns, config: LoadConfig, lock_timeout_s: float
) -> ChangeReceipt:
    """The change.

    Raises: as `load.load`.
    """
    change = _change(kind, batch, table, columns, config)
    ports = {"errors": config.errors, "duplicates": config.duplicates if kind == "upsert" else None}
    folders = {name: Path(folder).resolve() for name, folder in ports.items() if folder is not None}
    with locked(table.root, lock_timeout_s):
        steps = WriteSteps(batch, table, columns, config.table_index, change, folders, config.target_file_bytes)
        return change_receipt(kind, steps.run())


def _change(kind: Kind, batch: Batch, table: Table, columns: KeyColumns, config: LoadConfig) -> Change:
    filling = None
    if kind == "upsert" and config.small_file_bytes is not None:
        filling = Filling(config.small_file_bytes, config.target_file_bytes)
    return Change(
        kind=kind,
        batch=batch,
        root=table.root,
        columns=columns,
        keep=config.rule if kind == "upsert" else Keep(),
        update_partition_path=config.update_partition_path,
        filling=filling,
    )


def plan_upsert(rows: Any, loaded: LoadedLoad) -> ChangePlan:
    """What an upsert of these rows would do now; nothing is written, no lock is taken.

    Raises: as `upsert`.
    """
    asked = question_of(rows, loaded)
    return plan_change("upsert", asked.batch, asked.table, asked.columns, loaded.config)


def upsert(rows: Any, loaded: LoadedLoad, *, lock_timeout_s: float = 60.0) -> ChangeReceipt:
    """Replaces the rows whose keys the table has, and adds all others; of repeats the one that `keep` chooses.

    `rows`: as for `load`. Only the files that hold a key are written again, and small ones that new rows fill.

    Raises:
        ConfigError: a setting does not fit the columns.
        TableUsageError: columns or a table that do not fit; nothing was written.
        TableHeldError: another write has held the table for `lock_timeout_s`.
        TableChangedError: other writers were faster, five times.
        TableError, CorruptionError: see their classes; the table is as its last commit left it.
    """
    asked = question_of(rows, loaded)
    with loaded.placing_errors():
        require_free_names(asked.batch)
    return run_change("upsert", asked.batch, asked.table, asked.columns, loaded.config, lock_timeout_s)


def plan_delete(keys: Any, loaded: LoadedLoad) -> ChangePlan:
    """What a delete of these keys would do now; nothing is written, no lock is taken.

    Raises: as `delete`.
    """
    batch = batch_of(keys)
    target = target_of_keys(batch, loaded)
    return plan_change("delete", batch, target.table, target.columns, loaded.config)


def delete(keys: Any, loaded: LoadedLoad, *, lock_timeout_s: float = 60.0) -> ChangeReceipt:
    """Removes all rows with these keys. Keys that the table does not have are counted.

    `keys`: as for `read`; a row with a null in them is an error. Only the files that hold a key are written again.

    Raises:
        ConfigError: there is no table, or `keys` lacks a column.
        TableUsageError, TableHeldError, TableChangedError, TableError, CorruptionError: as `upsert`.
    """
    batch = batch_of(keys)
    target = target_of_keys(batch, loaded)
    with loaded.placing_errors():
        require_free_names(batch)
    return run_change("delete", batch, target.table, target.columns, loaded.config, lock_timeout_s)


def run_load(loaded: LoadedLoad) -> LoadReceipt:
    """Loads the files of a configuration.

    Raises:
        ConfigError: there are no files, or a setting does not fit their columns.
        TableError, CorruptionError: as `load`.
    """
    config = loaded.config
    with loaded.placing_errors():
        return load(
            config.source.batch(),
            config.table.path,
            key=config.key,
            partition_by=config.partition_by,
            table_format=config.table.format,
            scope=config.scope,
            index=config.table_index,
            keep=config.rule,
            duplicates=config.duplicates,
            errors=config.errors,
            target_file_bytes=config.target_file_bytes,
        )


def run_upsert(loaded: LoadedLoad, *, execute: bool) -> ChangePlan | ChangeReceipt:
    """Upserts the files of a configuration; without `execute`, the plan.

    Raises:
        ConfigError: there are no files, or a setting does not fit their columns.
        TableError, CorruptionError: as `upsert`.
    """
    batch = _batch(loaded)
    return upsert(batch, loaded) if execute else plan_upsert(batch, loaded)


def run_delete(loaded: LoadedLoad, *, execute: bool) -> ChangePlan | ChangeReceipt:
    """Deletes the keys in the files of a configuration; without `execute`, the plan.

    Raises: as `run_upsert`; ConfigError if there is no table.
    """
    batch = _batch(loaded)
    return delete(batch, loaded) if execute else plan_delete(batch, loaded)


def _batch(loaded: LoadedLoad) -> Batch:
    with loaded.placing_errors():
        return loaded.config.source.batch()
