"""Prints what tables and pieces cost. Run: `python tests/bench/bench_tables.py [--large] [--dir /dev/shm]`.

Workload: uniform random digests (seed 7), one process, one core; batches of 250,000 ascending digests, half of them
in the table; the best and the median of five runs. Tables are freshly mapped for each run, as a task finds them.
`--large` adds a table of 40 million keys (1 GB).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import BucketEntries, Entries, PieceRef
from bucket_store.pieces.store import append_piece
from bucket_store.tables import kernels
from bucket_store.tables.manager import ShardTables, TableLayout, TableSettings
from bucket_store.tables.table_file import TableFile, capacity_for, create_table, file_bytes, open_table
from bucket_store.tables.view import ShardView

SEED = 7
RUNS = 5
BATCH = 250_000
NONCE = bytes(16)
STORE_ID = "00" * 16
PLAIN = TableLayout(has_expiry=False, float_expiry=False, has_origin=False, one_table=False)
FULL = TableLayout(has_expiry=True, float_expiry=False, has_origin=True, one_table=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--dir", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    options = parser.parse_args()
    began = time.perf_counter()
    kernels.warm()
    print(f"python {platform.python_version()}, {os.cpu_count()} cores, seed {SEED}; kernels warm after "
          f"{1e3 * (time.perf_counter() - began):.0f} ms")  # fmt: skip
    rng = np.random.default_rng(SEED)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        table_figures(Path(directory), rng, 5_000_000, PLAIN, "digests alone")
        table_figures(Path(directory), rng, 5_000_000, FULL, "expiry, origin, window")
        if options.large:
            table_figures(Path(directory), rng, 40_000_000, PLAIN, "digests alone")
    with tempfile.TemporaryDirectory() as directory:
        manager_figures(Path(directory), rng, options.dir)


def table_figures(directory: Path, rng: np.random.Generator, keys: int, layout: TableLayout, what: str) -> None:
    path = directory / "bench.table"
    present = ascending(rng, keys)
    table = create_table(path, layout, NONCE, 0, capacity=capacity_for(keys))
    began = time.perf_counter()
    enter(table, entries_of(present, layout), 0)
    built = time.perf_counter() - began
    capacity = table.capacity
    del table
    size = file_bytes(layout, capacity_for(keys))
    print(f"\ntable of {keys:,} keys, {what}: {size / keys:.1f} B a key right after growing, "
          f"built at {keys / built / 1e6:.1f} M entries/s")  # fmt: skip

    batches = []
    for _ in range(RUNS):
        mixed = ascending(rng, BATCH)
        mixed[::2] = present[rng.integers(0, keys, BATCH // 2)]
        batches.append(mixed[np.lexsort((mixed[:, 1], mixed[:, 0]))])
    runs = iter(batches)

    def find() -> None:
        mapped = open_table(path, layout, NONCE, 0)
        assert mapped is not None
        assert mapped.find(next(runs), None).found.any()

    rate("find, freshly mapped", find)
    runs = iter(batches)
    mapped = open_table(path, layout, NONCE, 0)
    assert mapped is not None
    rate("find, mapped before", lambda: mapped.find(next(runs), None))
    fresh = iter([entries_of(ascending(rng, BATCH), layout) for _ in range(RUNS)])

    def apply() -> None:
        mapped = open_table(path, layout, NONCE, 0)
        assert mapped is not None
        enter(mapped, next(fresh), 1)

    rate("apply, freshly mapped", apply)
    assert capacity == mapped.capacity
    path.unlink()


def enter(table: TableFile, entries: BucketEntries, window: int) -> None:
    """All entries into a table that has room for them."""
    for number, first, end in table.rows_of(entries.digests):
        assert table.apply(number, entries, window, first, end) == end


def manager_figures(directory: Path, rng: np.random.Generator, memory: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=memory) as memory_dir:
        settings = TableSettings(memory_dir, str(directory / "tables"), 2 << 30, 2 << 30, FULL)
        for scheme in ("file", "rocksdb"):
            pieces = open_backend(f"{scheme}:{directory / scheme}")
            refs: list[PieceRef] = []
            costs = []
            for window in range(RUNS):
                entries = columns_of(ascending(rng, BATCH))
                began = time.perf_counter()
                refs.append(
                    append_piece(
                        pieces,
                        entries,
                        store_id=bytes(16),
                        shard=0,
                        first_window=window,
                        last_window=window,
                        epoch=1,
                        attempt=0,
                    )
                )
                costs.append(time.perf_counter() - began)
            print(
                f"\n{scheme}: append of {refs[0].length / 1e6:.1f} MB: median {1e3 * statistics.median(costs):.0f} ms"
            )
            began = time.perf_counter()
            pieces.read(refs[-1])
            print(f"{scheme}: read back {1e3 * (time.perf_counter() - began):.1f} ms")

        view = ShardView(STORE_ID, "bench", ((-1, b"bench"),), 0, RUNS, tuple(refs), None, None)
        with ShardTables.open(settings, pieces, view) as tables:
            tables.load(range(4))
            counters = tables.counters
            print(f"\nload of {counters.loaded} tables, {RUNS * BATCH:,} keys: {1e3 * counters.load_seconds:.0f} ms")
        costs = []
        for _ in range(50):
            began = time.perf_counter()
            ShardTables.open(settings, pieces, view).close()
            costs.append(time.perf_counter() - began)
        print(f"opening with nothing to do, 4 resident tables: median {1e3 * statistics.median(costs):.2f} ms")


def ascending(rng: np.random.Generator, count: int) -> NDArray[np.uint64]:
    """Uniform digests in order, made by summing random gaps: sorting 40 million takes longer than all the rest."""
    hi = np.cumsum(rng.integers(1, 2 * ((1 << 64) // (count + count // 50 + 1000)), count, dtype=np.uint64))
    return np.stack([hi, rng.integers(0, 1 << 64, count, dtype=np.uint64)], axis=1)


def entries_of(digests: NDArray[np.uint64], layout: TableLayout) -> BucketEntries:
    column = np.arange(len(digests))
    return BucketEntries(
        0, digests, column if layout.has_expiry else None, column if layout.has_origin else None, None, None
    )


def columns_of(digests: NDArray[np.uint64]) -> Entries:
    """Four buckets of equal size, each with digests from the whole range."""
    count = len(digests)
    column = np.arange(count)
    dealt = np.concatenate([digests[bucket::4] for bucket in range(4)])
    return Entries(np.arange(4), np.arange(5) * (count // 4), dealt, expiry=column, origin=column)


def rate(what: str, action: Callable[[], object]) -> None:
    costs = []
    for _ in range(RUNS):
        began = time.perf_counter()
        action()
        costs.append(time.perf_counter() - began)
    best, median = BATCH / min(costs) / 1e6, BATCH / statistics.median(costs) / 1e6
    print(f"  {what}: best {best:.1f}, median {median:.1f} M/s")


if __name__ == "__main__":
    main()
