"""What a window costs its publisher with producers that stay open, and with new ones for each window, as tasks have.

    python -m tests.bench.bench_producers [--slots 12] [--windows 14] [--rows 100,10000]

CPU is that of this process, without the broker's; medians of all windows but the first two. The two ways take turns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

from deduper.sinks.publisher import ThreadPublisher
from tests.services.kafka_broker import Broker
from tests.services.staged_windows import Job, PortPublisher, Staged, stage

_numbers = itertools.count()


def measure(broker: Broker, staged: Staged, *, kept: bool) -> tuple[float, float]:
    """Milliseconds of CPU and of time a window."""
    number = next(_numbers)
    job = Job(staged, broker.bootstrap, broker.create_topic(f"out-{number}", 3), name=f"job-{number}")
    publisher = ThreadPublisher()
    port = PortPublisher(job.publisher().sink, publisher)
    cpu, took = [], []
    for window in range(len(staged.files)):
        began, at = time.process_time(), time.monotonic()
        job.publish(port, [window])
        if not kept:
            publisher.drop_producers()
        cpu.append(time.process_time() - began)
        took.append(time.monotonic() - at)
    publisher.close()
    return 1e3 * statistics.median(cpu[2:]), 1e3 * statistics.median(took[2:])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--windows", type=int, default=14)
    parser.add_argument("--rows", default="100,10000")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deduper-producers-") as folder, Broker(Path(folder, "kafka")) as broker:
        print("| rows a slot | producers | CPU, ms | time, ms | load |\n|---|---|---|---|---|", flush=True)
        for rows in map(int, args.rows.split(",")):
            staged = stage(Path(folder, str(rows)), args.windows, args.slots, rows)
            for kept in (True, False, True, False):
                cpu, took = measure(broker, staged, kept=kept)
                way = "kept" if kept else "new"
                print(f"| {rows} | {way} | {cpu:.0f} | {took:.0f} | {os.getloadavg()[0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
