"""A program as a user writes it: files, a Deduper, a function for unique rows and paths for the others.

`python -m tests.crash.query_program DIRECTORY [--by-tasks]` judges what is in `in/` and ends. Its function writes a
window's rows to a file named by `txn_version`, as Delta would; `calls` tells each call of it. With `--by-tasks` the
tasks of a job judge and write each window, however small.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bucket_store import failpoints
from deduper import Deduper, Never, Window
from deduper.tasks import write as write_task

SCHEMA = "k string, n int"


def main(directory: Path) -> None:
    """Run to the end of what is there."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def tell(what: str, window: Window) -> None:
        with (directory / "calls").open("a") as calls:
            calls.write(json.dumps([what, window.number, window.batch_id, window.replayed]) + "\n")
            calls.flush()
            os.fsync(calls.fileno())

    def write(rows: DataFrame, window: Window) -> None:
        tell("begun", window)
        found = sorted((row.k, row.n) for row in rows.collect())
        failpoints.hit("test.function")
        target = directory / "unique" / f"{window.txn_version}.json"
        target.parent.mkdir(exist_ok=True)
        making = target.with_suffix(".tmp")
        making.write_text(json.dumps(found))
        making.replace(target)
        tell("done", window)

    with Deduper(f"file:{directory}/state", key="k", expiry=Never(), shards=2) as dedup:
        stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory / "in"))
        ports = dedup.into(unique=write, duplicate=directory / "duplicate", expired=None, error=directory / "error")
        query = stream.writeStream.foreachBatch(ports).option("checkpointLocation", str(directory / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    if "--by-tasks" in sys.argv:
        write_task._WRITER_BYTES = 1
    main(Path(sys.argv[1]))
