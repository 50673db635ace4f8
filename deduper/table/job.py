"""Loads, upserts and deletes from a config file; what does not fit the files has a place in the config."""

from __future__ import annotations

from deduper.table.batch import Batch
from deduper.table.change.delete import delete, plan_delete
from deduper.table.change.receipt import ChangePlan, ChangeReceipt
from deduper.table.change.upsert import plan_upsert, upsert
from deduper.table.load import load
from deduper.table.receipt import LoadReceipt
from deduper.table.settings import LoadedLoad


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
            keep_versions=config.keep_versions,
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
