"""CPU time of a benchmark's processes, between two batches of a turn."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil

from deduper.service.process_memory import summed_by_process


def cpu_us() -> dict[str, int]:
    """µs of CPU so far of this process (`driver`), its `maintenance` worker, Spark's `jvm`, and Python's `workers`.

    `driver.send` is the part of the driver's threads that publish to topics, and of the Kafka client's own.
    """
    return {**summed_by_process(_of_process), "driver.send": _sending_us()}


class CpuMarks:
    """CPU time from the end of a turn's first batch to the end of its last one."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._ended = 0
        self._marks: list[dict[str, int]] = []

    def batch_ended(self) -> None:
        """Called after every batch; reads the processes twice only, because that takes milliseconds."""
        self._ended += 1
        if self._ended in (1, self._batches):
            self._marks.append(cpu_us())

    def per_row(self, rows: int) -> dict[str, float]:
        """µs a row by process; empty unless both marks are there."""
        if len(self._marks) != 2 or not rows:
            return {}
        first, last = self._marks
        return {name: round((last[name] - first[name]) / rows, 4) for name in last}


def _of_process(process: psutil.Process) -> int:
    """With its children that have ended: Python's workers come and go."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0
    return round((times.user + times.system + times.children_user + times.children_system) * 1e6)


def _sending_us() -> int:
    publishing = {thread.native_id for thread in threading.enumerate() if thread.name.startswith(_PUBLISHING)}
    spent = 0.0
    for thread in psutil.Process().threads():
        if thread.id in publishing or _thread_name(thread.id).startswith(_KAFKA_CLIENT):
            spent += thread.user_time + thread.system_time
    return round(spent * 1e6)


def _thread_name(number: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{number}/comm").read_text(encoding="utf-8", errors="replace")
    return ""


_PUBLISHING = "kafka"
"""Names of the threads of `sinks.topics`; the Kafka client names its own by itself."""
_KAFKA_CLIENT = "rdk:"
