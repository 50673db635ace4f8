"""A change of a table: its plan, which writes nothing, and its execution."""

from __future__ import annotations

from pathlib import Path

from deduper.table.batch import Batch
from deduper.table.change.change import Change, Kind
from deduper.table.change.receipt import ChangePlan, ChangeReceipt, change_plan, change_receipt
from deduper.table.change.workload import Filling
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import Snapshot, Table
from deduper.table.judge import Keep
from deduper.table.query.present import of_one_version, present_keys
from deduper.table.settings import LoadConfig
from deduper.table.write.lock import locked
from deduper.table.write.steps import WriteSteps


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
        return change_plan(change, found, change.workload(keys))

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
