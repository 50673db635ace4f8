"""What publishing exactly once costs: staged rows to a topic, window by window, by the service's own publisher.

    python -m tests.bench.bench_publish [--windows N]

Starts a broker. Two tables: windows of 1,000 and of 200,000 rows with one, two and four slots, and 200,000 rows of one
slot with fewer and fewer headers. Keys have 16 bytes, values 200. A topic has as many partitions as there are slots, in
the second table two. The first windows of each line do not count: they make the producers. The CPU time is that of the
client's process, all its threads, without the broker.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from tests.services import kafka_traffic
from tests.services.kafka_broker import Broker
from tests.services.staged_windows import FIRST_TIME_MS, STAGED, Job, Staged

SMALL, LARGE = 1_000, 200_000
HEADERS = {
    "all": {"dedup-verdict": b"unique", "dedup-window": b"123456", "dedup-origin": b"kafka:clicks/0/123456789"},
    "[verdict, window]": {"dedup-verdict": b"unique", "dedup-window": b"123456"},
    "[origin]": {"dedup-origin": b"kafka:clicks/0/123456789"},
    "[]": {},
}
WARMING = 3


def main() -> None:
    """Both tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--windows", type=int, default=15, help="windows of 200,000 rows a line; of 1,000, ten times so many"
    )
    windows = parser.parse_args().windows
    with tempfile.TemporaryDirectory() as name, Broker(Path(name), heap="768m", fast_start=False) as broker:
        directory = Path(name)
        _seconds(broker, directory / "warm", LARGE, 2, "all", windows)  # the broker compiles its code while it is used
        print(f"| slots | {SMALL:,} rows, p50 / p95 | rows/s in windows of {LARGE:,} | CPU of the client a row |")
        print("|---|---|---|---|")
        for slots in (1, 2, 4):
            small, _ = _seconds(broker, directory / f"small-{slots}", SMALL, slots, "all", 10 * windows)
            large, cpu = _seconds(broker, directory / f"large-{slots}", LARGE, slots, "all", windows)
            middle, late = np.percentile(small, (50, 95)) * 1000
            print(
                f"| {slots} | {middle:.0f} / {late:.0f} ms | {LARGE / np.median(large):,.0f} | {cpu:.1f} µs |",
                flush=True,
            )
        print("\n| `dedup_headers` | rows/s | CPU of the client a row |\n|---|---|---|")
        for wanted in HEADERS:
            seconds, cpu = _seconds(
                broker, directory / f"headers-{len(wanted)}", LARGE, 1, wanted, windows, partitions=2
            )
            print(f"| `{wanted}` | {LARGE / np.median(seconds):,.0f} | {cpu:.1f} µs |", flush=True)
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def _seconds(
    broker: Broker, directory: Path, rows: int, slots: int, headers: str, windows: int, partitions: int | None = None
) -> tuple[Sequence[float], float]:
    """Seconds of each counted window, and µs of this process' CPU a row."""
    directory.mkdir()
    files = {slot: [_staged(directory / f"{slot}.parquet", rows // slots, slot, headers)] for slot in range(slots)}
    topic = broker.create_topic(directory.name, partitions or slots)
    # The same rows in every window: what is sent does not depend on what was sent.
    job = Job(Staged(directory, (files,) * (WARMING + windows), ()), broker.bootstrap, topic)
    publisher = job.publisher(keep_order=False)
    taken: list[float] = []
    cpu = 0.0
    try:
        for window in range(WARMING + windows):
            if window == WARMING:
                cpu = time.process_time()
            began = time.perf_counter()
            job.publish(publisher, [window])
            taken.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
    finally:
        publisher.close()
    sent = sum(kafka_traffic.end_offsets(broker, topic).values())
    assert sent >= rows * len(taken), f"{topic}: {sent} of {rows * len(taken)}"
    return taken[WARMING:], cpu / (windows * rows) * 1e6


def _staged(path: Path, rows: int, slot: int, headers: str) -> Place:
    """A file of rows that do not repeat."""
    rng = np.random.default_rng(slot)
    pairs = [{"key": name, "value": value} for name, value in HEADERS[headers].items()]
    letters = rng.integers(97, 123, (rows, 200), np.uint8)
    table = pa.table(
        {
            "key": pa.array([b"%016d" % number for number in range(rows)], pa.binary()),
            "value": pa.array([line.tobytes() for line in letters], pa.binary()),
            "headers": pa.array([pairs] * rows, STAGED.field("headers").type),
            "timestamp_ms": pa.array(FIRST_TIME_MS + np.arange(rows)),
            "slot": pa.array(np.full(rows, slot, np.int32)),
        },
        schema=STAGED,
    )
    parquet.write_table(table, path)
    return local_place(path)


if __name__ == "__main__":
    main()
