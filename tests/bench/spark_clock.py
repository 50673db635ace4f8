"""What Kafka's benchmarks take of Spark: a batch's time by its own clock, settings for a while, a store's tables.

The benchmark on files is `deduper bench`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from bucket_store.log.commit_log import CommitLog
from deduper.config.model import Config
from deduper.window.table_folder import table_folders

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_SPARK_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


class Durations(StreamingQueryListener):
    """`triggerExecution` of every batch that did something, in ms."""

    def __init__(self) -> None:
        self.milliseconds: list[int] = []

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.durationMs.get("addBatch"):
            self.milliseconds.append(event.progress.durationMs["triggerExecution"])

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def tables_of(config: Config) -> list[Path]:
    """Where the resident tables of a job's store lie."""
    return table_folders(config, CommitLog.open(config.store.path).manifest.store_id)


def remove_tables(config: Config) -> None:
    """Remove the resident tables of a job's store."""
    for directory in tables_of(config):
        shutil.rmtree(directory, ignore_errors=True)


def with_settings(session: SparkSession, settings: dict[str, str], action: Callable[[], None]) -> None:
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        action()
    finally:
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)
