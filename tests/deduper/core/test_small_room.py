"""State larger than the room for its tables and for copies of its pieces: slower, never wrong, never dead."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bucket_store.tables.matches import TableLayout
from bucket_store.tables.table_file import capacity_for, file_bytes
from deduper.testing import Row, Settings
from tests.deduper.core.test_oracle_random import check
from tests.deduper.engine import Engine, Shape
from tests.deduper.store_memory import StoreMemory
from tests.deduper.streams import Stream, Window

pytestmark = pytest.mark.slow

SHARDS, PERIOD, TABLES = 2, 12, 2
TABLE_BYTES = file_bytes(TableLayout(True, False, True, one_table=False), capacity_for(16))


def stream_over_all_buckets(seed: int) -> Stream:
    """Each window has keys of the whole period, which moves on; two of three keys have been there before."""
    draw = random.Random(seed)
    settings = Settings("ordered", period=PERIOD, span=1)
    windows = []
    for window in range(5):
        latest = 100 + 3 * window
        times = [latest - draw.randrange(PERIOD + 2) for _ in range(60)]
        partitions = [[Row((f"{at * 7919 % 5}",), at) for at in times[part::2]] for part in range(2)]
        windows.append(Window(partitions, now_us=window))
    return Stream(settings, False, ["string"], windows)


@pytest.mark.parametrize("scheme", ["file", "rocksdb", "objects"])
@pytest.mark.parametrize("tables", [0, TABLES])
def test_a_few_tables_for_many_buckets(tmp_path: Path, scheme: str, tables: int) -> None:
    """26 tables would be needed, and 2 have room in memory, 2 on disk; or none at all."""
    seed = 11
    stream = stream_over_all_buckets(seed)
    shape = Shape(shards=SHARDS, seed=seed)
    rules = Engine(stream.settings, stream.types, shape).rules
    memory = StoreMemory(tmp_path, rules, seed, scheme=scheme, room=tables * TABLE_BYTES)
    check(stream, shape, memory)
    assert max(each.resident_bytes for each in memory.counters) <= 2 * tables * TABLE_BYTES
    assert sum(each.misses for each in memory.counters) > PERIOD * SHARDS
    if tables:
        assert sum(each.evicted for each in memory.counters) > PERIOD * SHARDS
    else:
        assert sum(each.merged for each in memory.counters) > PERIOD * SHARDS
    fetched = sum(each.fetched_bytes for each in memory.counters)
    assert (fetched > 0) == (scheme == "objects")
    used = [path.stat().st_size for path in (tmp_path / "tables" / "disk" / "pieces").rglob("*") if path.is_file()]
    assert sum(used) <= tables * TABLE_BYTES * 17 // 16
