"""Spark's Python worker daemon, with the kernels and the tasks of a window loaded before it forks.

Set as `spark.python.daemon.module`. A new worker then answers its first kernel call in well under a millisecond
instead of most of a second. It must be importable by the Python of every executor.
"""

from __future__ import annotations

import deduper.batch
import deduper.clock
import deduper.read_task
import deduper.shard_task
import deduper.write_task
from bucket_store import kernels

kernels.warm()
deduper.batch.warm()
deduper.clock.warm()

if __name__ == "__main__":
    # Last, because importing Spark's daemon closes nothing but the kernels must be compiled or loaded by now.
    import pyspark.daemon

    pyspark.daemon.manager()
