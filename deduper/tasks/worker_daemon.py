"""Spark's Python worker daemon, with the kernels and the tasks of a window loaded before it forks.

Set as `spark.python.daemon.module`. A new worker then answers its first kernel call in well under a millisecond
instead of most of a second. It must be importable by the Python of every executor.

It removes two delays of Spark's own daemon from every task, 80 ms of a task that does nothing:

- After each task a worker collects garbage. Objects from before the fork are exempt: traversing all those modules took
  40 ms, and copied their pages for every worker.
- The JVM sends a task in two pieces, and the second, of 8 bytes, waits until the first is acknowledged (Nagle), which
  the kernel delays for 40 ms in case there is an answer to send along. TCP_QUICKACK makes it acknowledge at once.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys

import pyspark.daemon

from deduper.spark.allocator import keep_heap

_OF_TASKS = "pyspark.worker"
_spark_worker = pyspark.daemon.worker


def load() -> None:
    """Load the tasks of a window, and the kernels of the job that has started this worker."""
    import deduper.spark.task_pool
    import deduper.tasks.judge
    import deduper.tasks.readers.parquet
    import deduper.tasks.readers.reading_tasks
    import deduper.tasks.readers.text
    import deduper.tasks.write  # noqa: F401  of a task, which would import them after the fork
    from deduper.tasks.warm import JobKernels

    logging.getLogger("bucket_store.compiled").setLevel(logging.ERROR)  # the driver says it
    kernels = JobKernels.of_environment(os.environ)
    if kernels is not None:
        kernels.load()


def _worker(sock: socket.socket, authenticated: bool) -> int:
    """One task. The kernel returns to delayed acknowledgements after some packets, so each task sets the option."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _spark_worker(sock, authenticated)


if __name__ == "__main__":
    if sys.argv[1:2] == [_OF_TASKS]:  # Spark starts its helpers for sources of streams by the same module
        load()
    pyspark.daemon.worker = _worker
    keep_heap()
    gc.freeze()
    pyspark.daemon.manager()
