"""A process for the writes of one engine: `python -m tests.bench.table_contenders ENGINE`, a job a line of JSON.

A job has `do` (a method of the engine), `table`, `batch` (a Parquet file, whose reading counts) and what else the
method takes; `index` is None but for Hudi. The answer has `seconds`, `cpu_seconds` (with child processes, of Spark the
JVM), `peak_mb` (resident, of this process alone; pages of files that it maps count as well) and `found`, what the
method gave. Engines get the days of the batch, which bound their `MERGE` and anti-join as a careful user would; ours
finds them itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyarrow.parquet as pq


class Deltalake:
    """The package deltalake, without Spark."""

    def append(self, table: str, batch: str, **_: Any) -> None:
        """The floor: all repeats stay."""
        from deltalake import write_deltalake

        write_deltalake(table, pq.read_table(batch), mode="append")

    def insert(self, table: str, batch: str, *, by: str | None, **_: Any) -> None:
        """A merge that inserts only."""
        self._merge(table, batch, by).when_not_matched_insert_all().execute()

    def upsert(self, table: str, batch: str, *, by: str | None, **_: Any) -> None:
        """A merge."""
        self._merge(table, batch, by).when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self, table: str, batch: str, *, by: str | None, **_: Any) -> None:
        """A merge that deletes only."""
        self._merge(table, batch, by).when_matched_delete().execute()

    def _merge(self, table: str, batch: str, by: str | None) -> Any:
        from deltalake import DeltaTable

        predicate = "s.id = t.id" if by is None else f"s.{by} = t.{by} AND s.id = t.id"
        rows = pq.read_table(batch)
        # Statistics of the source bound what is read of the table.
        return DeltaTable(table).merge(rows, predicate, source_alias="s", target_alias="t", streamed_exec=False)


class Ours:
    """The functions behind the commands."""

    def insert(self, table: str, batch: str, *, by: str | None, **_: Any) -> dict[str, Any]:
        """`deduper table load`."""
        from deduper.table.operations.changes import run_load

        return run_load(self._loaded(table, batch, by)).to_json()

    def upsert(self, table: str, batch: str, *, by: str | None, **_: Any) -> dict[str, Any]:
        """`deduper table upsert --execute`."""
        from deduper.table.operations.changes import run_change

        return run_change("upsert", self._loaded(table, batch, by), execute=True).to_json()

    def delete(self, table: str, batch: str, *, by: str | None, **_: Any) -> dict[str, Any]:
        """`deduper table delete --execute`."""
        from deduper.table.operations.changes import run_change

        return run_change("delete", self._loaded(table, batch, by), execute=True).to_json()

    def build(self, table: str, batch: str, *, by: str | None, **_: Any) -> dict[str, Any]:
        """`deduper table rebuild`."""
        from deduper.table.operations.upkeep import rebuild

        return rebuild(self._loaded(table, batch, by)).to_json()

    def filter(self, table: str, batch: str, *, by: str | None, **_: Any) -> dict[str, Any]:
        """`filter_exists`."""
        from deduper.table.operations.questions import filter_exists

        mask = filter_exists(pq.read_table(batch), self._loaded(table, batch, by))
        return {"rows": len(mask), "new": mask.true_count}

    def _loaded(self, table: str, batch: str, by: str | None) -> Any:
        from deduper.table.settings import load_config

        config = Path(f"{table}.yaml")
        settings = {
            "source": {"path": batch},
            "table": {"path": table},
            "key": ["id"],
            "partition_by": [] if by is None else [by],
            "small_file_bytes": "32MiB",  # or upserts leave a small file a day and round, which merges do not
        }
        config.write_text(json.dumps(settings), encoding="utf-8")
        return load_config(config)


class Delta:
    """Delta Lake on Spark, two cores."""

    def __init__(self) -> None:
        extensions = {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        self._spark = _session("DELTA_JARS", extensions)

    def append(self, table: str, batch: str, **_: Any) -> None:
        """Spark's own append."""
        self._spark.read.parquet(batch).write.format("delta").mode("append").save(table)

    def anti_join(self, table: str, batch: str, *, by: str | None, days: Sequence[str], **_: Any) -> None:
        """A left anti join with the keys of the table, then an append."""
        keys = ["id"] if by is None else ["id", by]
        known = self._spark.read.format("delta").load(table)
        if by is not None:
            known = known.where(f"{by} IN ({_dates(days)})")
        rows = self._spark.read.parquet(batch).dropDuplicates(keys)
        rows.join(known.select(*keys), keys, "left_anti").write.format("delta").mode("append").save(table)

    def insert(self, table: str, batch: str, *, by: str | None, days: Sequence[str], **_: Any) -> None:
        """A MERGE that inserts only."""
        self._merge(table, batch, by, days, "WHEN NOT MATCHED THEN INSERT *")

    def upsert(self, table: str, batch: str, *, by: str | None, days: Sequence[str], **_: Any) -> None:
        """A MERGE."""
        self._merge(table, batch, by, days, "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")

    def delete(self, table: str, batch: str, *, by: str | None, days: Sequence[str], **_: Any) -> None:
        """A MERGE that deletes only."""
        self._merge(table, batch, by, days, "WHEN MATCHED THEN DELETE")

    def _merge(self, table: str, batch: str, by: str | None, days: Sequence[str], clauses: str) -> None:
        same = "t.id = s.id" if by is None else f"t.id = s.id AND t.{by} = s.{by} AND t.{by} IN ({_dates(days)})"
        self._spark.read.parquet(batch).createOrReplaceTempView("s")
        self._spark.sql(f"MERGE INTO delta.`{table}` t USING s ON {same} {clauses}")


class Hudi:
    """Hudi on Spark 3.5, two cores; tables are copied on write. Old files are left to the caller, as of all engines.

    First tables are made by `bulk_insert` without sorting, as Hudi advises for a first load: rows come by partitions
    already, so each has one file. What the table of metadata gathers by default (statistics of columns and partitions)
    takes a task a core, not up to 200.
    """

    _INDEXES: ClassVar = {
        "simple": {"hoodie.index.type": "SIMPLE"},
        "bloom": {"hoodie.index.type": "BLOOM"},
        "record": {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"},
    }

    def __init__(self) -> None:
        settings = {
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
            "spark.driver.memory": "6g",  # a record index of ten million keys is made at once
        }
        self._spark = _session("HUDI_JARS", settings)

    def create(self, table: str, batch: str, *, by: str | None, index: str, **_: Any) -> None:
        """The first table, of all Parquet files in the folder `batch`; those of `simple` and `bloom` are alike."""
        self._write(table, batch, by, index, "bulk_insert", "overwrite")

    def insert(self, table: str, batch: str, *, by: str | None, index: str, **_: Any) -> None:
        """An insert that drops what the table has."""
        self._write(table, batch, by, index, "insert", "append")

    def upsert(self, table: str, batch: str, *, by: str | None, index: str, **_: Any) -> None:
        """Hudi's own upsert."""
        self._write(table, batch, by, index, "upsert", "append")

    def rows(self, table: str, batch: str, **_: Any) -> None:
        """Ids and versions of the table, as Parquet files in the folder `batch`."""
        self._spark.read.format("hudi").load(table).select("id", "version").write.parquet(batch)

    def _write(self, table: str, batch: str, by: str | None, index: str, operation: str, mode: str) -> None:
        options = {
            "hoodie.table.name": "rows",
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.precombine.field": "version",
            "hoodie.datasource.write.partitionpath.field": by or "",
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.datasource.insert.dup.policy": "drop" if operation == "insert" else "none",
            "hoodie.bulkinsert.sort.mode": "NONE",
            "hoodie.metadata.enable": "true",
            "hoodie.metadata.index.column.stats.parallelism": "2",
            "hoodie.metadata.index.partition.stats.parallelism": "2",
            "hoodie.metadata.record.preparation.parallelism": "2",
            "hoodie.clean.automatic": "false",
            "hoodie.parquet.compression.codec": "snappy",
        }
        rows = self._spark.read.parquet(batch)
        rows.write.format("hudi").options(**options, **self._INDEXES[index]).mode(mode).save(table)


ENGINES: dict[str, type[Any]] = {
    "append": Deltalake,
    "deltalake": Deltalake,
    "ours": Ours,
    "delta": Delta,
    "hudi": Hudi,
}


def _session(jars: str, settings: dict[str, str]) -> Any:
    """A session of two cores with the jars of a folder, which an environment variable names."""
    from pyspark.sql import SparkSession

    common = {
        "spark.jars": ",".join(map(str, sorted(Path(os.environ[jars]).glob("*.jar")))),
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in (common | settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _dates(days: Sequence[str]) -> str:
    return ", ".join(f"DATE '{day}'" for day in days)


def _cpu_seconds() -> float:
    children = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in children)


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def main() -> None:
    """Answers jobs until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what engines print is no answer
    engine = ENGINES[sys.argv[1]]()
    for line in sys.stdin:
        job = json.loads(line)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        cpu, began = _cpu_seconds(), time.perf_counter()
        found = getattr(engine, job.pop("do"))(**job)
        seconds = time.perf_counter() - began
        answer = {"seconds": seconds, "cpu_seconds": _cpu_seconds() - cpu, "peak_mb": _peak_mb(), "found": found}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
