"""A job of files in one process without Spark: real readers, judge, writers, log and pieces, in small windows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml
from pyspark.sql import SparkSession

from bucket_store.pieces.open import open_backend
from bucket_store.tables.generation import table_folder
from deduper.admin.open_store import open_store
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.sources.open import open_files
from deduper.window import recovery
from deduper.window.attempt import WindowJudge
from deduper.window.jobs.local import SparkJobs
from deduper.window.runner import WindowInput, WindowRunner
from deduper.window.table_folder import table_settings
from tests.bucket_store.maintenance.in_process import InProcess

_NOW_US = 1_790_000_000_000_000


class PlainJob:
    """A job's folder. Each `run` is one process, from its claim to the end of its source."""

    def __init__(self, root: Path, sections: Mapping[str, Any]) -> None:
        self.root = root
        self.sections = dict(sections)
        (root / "in").mkdir(parents=True)

    @property
    def config_file(self) -> Path:
        """The config file, as it is now."""
        path = self.root / "job.yaml"
        store = {"url": "file:state", "shards": 2, "tables": str(self.root / "tables")}
        sections = {"name": "plain", "store": store, **self.sections}
        path.write_text(yaml.safe_dump(sections))
        return path

    @property
    def config(self) -> Config:
        """The configuration."""
        return load_config(self.config_file, environment={})

    @property
    def memory(self) -> Path:
        """The folder of its tables in memory."""
        config = self.config
        store_id = open_store(str(self.config_file)).log.manifest.store_id
        return self.root / "memory" / table_folder(store_id, config.store.place)

    def run(self) -> None:
        """Judge all new files, each window in small ones of its own."""
        config = self.config
        log = recovery.open_or_create(config, _NOW_US)
        log.claim_epoch("plain:1", _NOW_US)
        tables = replace(table_settings(config), memory_dir=str(self.root / "memory"))
        session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
        with contextlib.closing(open_backend(config.store.url)) as pieces:
            recovery.recover(config, recovery.Ownership(log, pieces))
            files, to_fold = open_files(config, cast(Any, config.source), log)
            with (
                contextlib.closing(SparkJobs(cast(SparkSession, session), config)) as jobs,
                contextlib.closing(WindowJudge(jobs, config, log, pieces, tables)) as judge,
                contextlib.closing(
                    WindowRunner(
                        config,
                        log,
                        InProcess(pieces),
                        judge.judge,
                        lambda: _NOW_US,
                        in_background=lambda do: do(),
                        files=to_fold,
                    )
                ) as runner,
            ):
                files.list_new()
                number = log.state.next_window
                while (batch := files.next_batch()) is not None:
                    runner.run(WindowInput("", number, batch))
                    number += 1
                runner.wait_until_published()

    def rows(self, port: str) -> list[dict[str, Any]]:
        """The rows of a port of Parquet files, by window, source and position."""
        from pyarrow import parquet

        found: list[dict[str, Any]] = []
        for file in sorted((self.root / "out" / port).glob("[0-9a-f]*.parquet")):
            found += parquet.ParquetFile(file).read().to_pylist()
        return sorted(
            found, key=lambda row: (row["_dedup"]["window"], row["_dedup"]["source"], row["_dedup"]["position"])
        )

    def reasons(self) -> Iterator[tuple[str, str]]:
        """(id, reason) of all rows but unique ones."""
        for port in ("duplicate", "expired", "error"):
            for row in self.rows(port):
                yield row["id"], row["_dedup"]["reason"]
