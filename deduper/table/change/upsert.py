"""An upsert: rows whose key the table has replace those that it has, all others are added."""

from __future__ import annotations

from typing import Any

from deduper.table.change.receipt import ChangePlan, ChangeReceipt
from deduper.table.change.run import plan_change, run_change
from deduper.table.query.present import question_of
from deduper.table.settings import LoadedLoad
from deduper.table.write.staging import require_free_names


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
