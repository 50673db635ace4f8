"""What a window costs the driver beside Spark, by shards: its CPU, a task's closure, the record, a start.

    python -m tests.bench.bench_driver [--shards 8,100,1000] [--pieces 50] [--windows 20] [--directory DIR]

The windows are those of the service, but nothing is judged: every shard's receipt names a piece of its own that has no
bytes. A store begins with that many live pieces a shard. CPU is that of the process in seconds, the medians of all
windows but the first two, without that of pickling, which is done as Spark does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from pyspark.cloudpickle import dumps

from bucket_store.log.commit_log import CommitLog
from deduper.tasks.judge import judge
from tests.deduper.window.many_shards import ManyShards


def measure(directory: Path, shards: int, pieces: int, windows: int) -> str:
    """One line of the table."""
    job = ManyShards(directory, shards=shards, pieces=pieces)
    cpu, pickled = [], []
    for _ in range(windows):
        began = time.process_time()
        job.run()
        ran = time.process_time()
        sizes = [len(dumps(view)) for view in job.views]
        cpu.append(ran - began)
        pickled.append(time.process_time() - ran)
    task = len(dumps(partial(judge, job.task))) + max(sizes)
    began = time.process_time()
    CommitLog.open(job.log.root)
    start = time.process_time() - began
    records = [entry.size for entry in (job.log.root / "log").entries()]
    job.close()
    figures = (
        f"{1e3 * statistics.median(cpu[2:]):.1f}",
        f"{1e3 * max(cpu[2:]):.1f}",
        f"{1e3 * statistics.median(pickled[2:]):.1f}",
        f"{task / 1024:.1f}",
        f"{statistics.median(records) / 1024:.0f}",
        f"{start:.2f}",
    )
    return "| " + " | ".join((str(shards), *figures)) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", default="8,100,1000")
    parser.add_argument("--pieces", type=int, default=50)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    print("| shards | CPU a window, ms | most | pickling | a task, KiB | a record, KiB | a start, CPU s |")
    print("|---|---|---|---|---|---|---|")
    for shards in map(int, args.shards.split(",")):
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            print(measure(Path(directory), shards, args.pieces, args.windows), flush=True)


if __name__ == "__main__":
    main()
