"""A delete: the rows of the table that have some keys go."""

from __future__ import annotations

from typing import Any

from deduper.table.change.receipt import ChangePlan, ChangeReceipt
from deduper.table.change.run import plan_change, run_change
from deduper.table.query.present import batch_of, target_of_keys
from deduper.table.settings import LoadedLoad
from deduper.table.write.staging import require_free_names


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
