"""Spark's Python worker daemon, with the kernels and the tasks of a window loaded before it forks.

Set as `spark.python.daemon.module`. A new worker then answers its first kernel call in well under a millisecond
instead of most of a second. It must be importable by the Python of every executor.

Two waits that Spark's own daemon leaves in every task are taken away here, 80 ms of a task that does nothing:

- After each task a worker collects garbage. What it was forked with is exempt: going through all those modules took
  40 ms, and copied their pages for every worker.
- The JVM sends a task in two pieces, and the second, of 8 bytes, waits until the first is acknowledged (Nagle), which
  the kernel puts off for 40 ms in case there is an answer to send along. So it is told to acknowledge at once.
"""

from __future__ import annotations

import gc
import socket

import pyspark.daemon

import deduper.array_digests
import deduper.batch
import deduper.clock
import deduper.crew
import deduper.parquet_records
import deduper.read_task
import deduper.shard_task
import deduper.write_task
from bucket_store import kernels
from deduper.allocation import keep_heap

kernels.warm()
deduper.array_digests.warm()
deduper.batch.warm()
deduper.clock.warm()
deduper.read_task.warm()

_spark_worker = pyspark.daemon.worker


def _worker(sock: socket.socket, authenticated: bool) -> int:
    """One task. The kernel goes back to putting off after some packets, so it is told anew each time."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _spark_worker(sock, authenticated)


if __name__ == "__main__":
    pyspark.daemon.worker = _worker
    keep_heap()
    gc.freeze()
    pyspark.daemon.manager()
