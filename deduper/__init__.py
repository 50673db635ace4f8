"""Streaming deduplication: every tuple leaves as unique, duplicate, expired or an error, exactly once.

In a program, the names below are all there is to import; the first use of one loads what it needs, so that `import
deduper` alone costs neither PySpark nor NumPy. On the command line it is `deduper`.

    Deduper                                             verdicts for the batches of a query, in its `foreachBatch`
    EventTime, ProcessingTime, Ordered, Category, Never the rules by which it forgets keys
    ParquetSink, JsonSink, TopicSink                    ports with exactly once; Ports and Window, what functions get
    PublishedWindows                                    a source of Spark's: the whole windows of a port
    load, upsert, delete, filter_exists, tag, read      loads of tables without duplicates; questions to them
    range_aggregate                                     what covers each event
    DeduperError, StoreError and their kinds            what a program may catch

The rooms, from the command line down to the verdict (docs/architecture.md draws them):

    cli      what a person types and sees          query    the deduper in your own query
    service  the process that runs a job           admin    looks at a store, checks it, moves it
    table    loads of tables without duplicates
    window   one window, from intent to mark; recovery; policy
    sources  records in                            sinks    rows out
    tasks    what runs in Spark's workers          kafka    how brokers are spoken to
    core     the verdict, pure                     config   settings                 spark  the engine
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
DISTRIBUTION = "stream-deduper"
"""The name to install, as in `pip install stream-deduper`: another project has `deduper` on the package index."""

_MODULES = {
    "Deduper": "deduper.query.dedup",
    "Category": "deduper.query.rules",
    "EventTime": "deduper.query.rules",
    "Never": "deduper.query.rules",
    "Ordered": "deduper.query.rules",
    "ProcessingTime": "deduper.query.rules",
    "JsonSink": "deduper.query.ports",
    "ParquetSink": "deduper.query.ports",
    "Ports": "deduper.query.ports",
    "TopicSink": "deduper.query.ports",
    "Window": "deduper.query.ports",
    "PublishedWindows": "deduper.query.published_windows",
    "load": "deduper.table.operations.changes",
    "Keep": "deduper.table.operations.judge",
    "upsert": "deduper.table.operations.changes",
    "delete": "deduper.table.operations.changes",
    "filter_exists": "deduper.table.operations.questions",
    "tag": "deduper.table.operations.questions",
    "read": "deduper.table.operations.questions",
    "range_aggregate": "deduper.ranges.batch.frames",
    "ConfigError": "deduper.config.problems",
    "CannotWriteError": "deduper.errors",
    "DeduperError": "deduper.errors",
    "IntegrityError": "deduper.errors",
    "NewCheckpointError": "deduper.errors",
    "OldCheckpointError": "deduper.errors",
    "OwnerAliveError": "deduper.errors",
    "UnfinishedWindowError": "deduper.errors",
    "UsageError": "deduper.errors",
    "CorruptionError": "bucket_store.errors",
    "FencedError": "bucket_store.errors",
    "SettingsChangedError": "bucket_store.errors",
    "StoreError": "bucket_store.errors",
    "StoreMissingError": "bucket_store.errors",
    "table_config": "deduper.table.settings:load_config",
}
"""Each name with its module, and behind a colon its name there if it is another."""

__all__ = [
    "DISTRIBUTION",
    "CannotWriteError",
    "Category",
    "ConfigError",
    "CorruptionError",
    "Deduper",
    "DeduperError",
    "EventTime",
    "FencedError",
    "IntegrityError",
    "JsonSink",
    "Keep",
    "Never",
    "NewCheckpointError",
    "OldCheckpointError",
    "Ordered",
    "OwnerAliveError",
    "ParquetSink",
    "Ports",
    "ProcessingTime",
    "PublishedWindows",
    "SettingsChangedError",
    "StoreError",
    "StoreMissingError",
    "TopicSink",
    "UnfinishedWindowError",
    "UsageError",
    "Window",
    "__version__",
    "delete",
    "filter_exists",
    "load",
    "range_aggregate",
    "read",
    "table_config",
    "tag",
    "upsert",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _MODULES[name].partition(":")
    value = globals()[name] = getattr(import_module(module), there or name)
    return value


def __dir__() -> list[str]:
    return __all__
