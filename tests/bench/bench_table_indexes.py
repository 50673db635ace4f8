"""Prints what the kinds of table indexes cost. Run: `python -m tests.bench.bench_table_indexes [rows] [files]`.

A plain Parquet table of 2 million rows in 40 files of one partition; keys are 64-bit numbers (seed 7), *in order* (each
file has a range of its own, as ids that grow have) or *random*. Of each kind: CPU seconds to build the index, its bytes
a key, and CPU seconds of `filter_exists` for 1 to 200,000 keys, half of which the table has, all in one file (*near*)
or in any (*far*); the median of three. CPU seconds are those of the process, all threads, and of the Redis server that
`external` asks on this machine; its bytes a key are the server's memory.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deduper.table.operations.questions import filter_exists
from deduper.table.operations.upkeep import rebuild, table_status
from deduper.table.settings import load_config
from tests.services.redis_server import RedisServer

SEED = 7
KINDS = ("exact", "bloom", "simple", "external")
BATCHES = (1, 100, 1_000, 10_000, 100_000, 200_000)


def main() -> None:
    rows, files = (int(word) for word in (sys.argv[1:] + ["2000000", "40"][len(sys.argv) - 1 :]))
    rng = np.random.default_rng(SEED)
    for is_ordered in (True, False):
        with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
            keys = rng.permutation(rows).astype(np.int64) * 2
            if is_ordered:
                keys.sort()
            parts = np.array_split(keys, files)
            make_table(Path(folder), parts)
            print(f"\n{rows:,} keys in {files} files, {'in order' if is_ordered else 'random'}")
            for kind in KINDS:
                index = kind if kind != "external" else f"{{kind: external, options: {{url: '{server.url}'}}}}"
                config = Path(folder) / f"{kind}.yaml"
                config.write_text(
                    f"source: {{path: table}}\ntable: {{path: table, format: parquet}}\nkey: k\nindex: {index}\n",
                    encoding="utf-8",
                )
                loaded = load_config(config, environment={})
                used = server.client.info()["used_memory"]
                began = cpu_seconds(server)
                rebuild(loaded)
                built = cpu_seconds(server) - began
                size = table_status(loaded).index.bytes_a_key
                if kind == "external":
                    size = (server.client.info()["used_memory"] - used) / rows
                print(f"  {kind}: built in {built:.2f} CPU s, {size or 0:.1f} B a key")
                for near in (True, False):
                    costs = [f"{cost(rng, parts, count, near, loaded, server):9.3f}" for count in BATCHES]
                    print(f"    filter, keys {'near' if near else 'far '}: {' '.join(costs)}")


def make_table(folder: Path, parts: list[np.ndarray]) -> None:
    (folder / "table").mkdir()
    for number, part in enumerate(parts):
        values = pa.array(np.arange(len(part)))
        pq.write_table(pa.table({"k": part, "v": values}), folder / f"table/{number}.parquet")


def cpu_seconds(server: RedisServer) -> float:
    """Of this process and of the server."""
    info = server.client.info("cpu")
    return time.process_time() + info["used_cpu_sys"] + info["used_cpu_user"]


def cost(
    rng: np.random.Generator, parts: list[np.ndarray], count: int, near: bool, loaded: object, server: RedisServer
) -> float:
    """CPU seconds of a question."""
    among = parts[len(parts) // 2] if near else np.concatenate(parts)
    asked = rng.choice(among, count)
    asked[count // 2 :] += 1  # odd ones are new
    batch = pa.table({"k": asked})
    costs = []
    for _ in range(3):
        began = cpu_seconds(server)
        found = filter_exists(batch, loaded)  # type: ignore[arg-type]
        costs.append(cpu_seconds(server) - began)
        assert len(found) == count
    return statistics.median(costs)


if __name__ == "__main__":
    main()
