"""Times of INT96 that Arrow takes for others."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.tasks.readers import int96
from deduper.tasks.readers.parquet_values import ValueFault
from tests import tiers

_EPOCH, _DAY_US = 2_440_588, 86_400_000_000


def test_every_day_and_nanosecond() -> None:
    """Days and nanoseconds of any sign, to the ends of 64 bits of µs; nanoseconds are cut off towards zero."""
    rnd = random.Random(tiers.seed())
    times = [
        *((_EPOCH, ns) for ns in (0, 1, -1, -999, -1_000, -1_001, 86_400 * 10**9, 2**63 - 1, -(2**63))),
        *((day, 0) for day in (0, -1, -(2**31), 2**31 - 1)),
        *((_EPOCH + 106_751_991, ns) for ns in (14_454_775_807_000, 14_454_775_808_000)),
        *((_EPOCH - 106_751_992, ns) for ns in (71_945_224_192_000, 71_945_224_191_999, 71_945_224_191_000)),
        *((_EPOCH - 106_751_991, ns) for ns in (-14_454_775_808_999, -14_454_775_809_000)),
        *((rnd.randint(-(2**31), 2**31 - 1), rnd.randint(-(2**63), 2**63 - 1)) for _ in range(200)),
        *((_EPOCH + rnd.randint(-(10**6), 10**6), rnd.randint(-(10**14), 10**14)) for _ in range(200)),
    ]
    raw = pa.array([None, *(struct.pack("<qi", ns, day) for day, ns in times)], pa.binary(12)).slice(1)
    found, faults = int96.times(raw)
    assert found.type == pa.timestamp("us", "UTC")
    assert faults is not None
    for (day, ns), us, fault in zip(times, found.view(pa.int64()).to_pylist(), faults.tolist(), strict=True):
        exact = (day - _EPOCH) * _DAY_US + (abs(ns) // 1_000) * (-1 if ns < 0 else 1)
        fits = -(2**63) <= exact < 2**63
        assert (us, fault) == ((exact, ValueFault.NONE) if fits else (None, ValueFault.FAR)), (day, ns)


def footer_of(path: Path) -> bytes:
    """The footer, in Thrift's form."""
    data = path.read_bytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False}, {"store_schema": False}, {"data_page_version": "2.0", "compression": "zstd"}],
    ids=str,
)
def test_a_footer_that_says_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    """At any depth, beside any columns: the same pages give the bytes of each INT96, and all else as before."""
    old = datetime(1930, 5, 1, 3, 2, 1, 7, tzinfo=UTC)
    columns = {
        "k": ["a", "b", "c"],
        "t": pa.array([old, None, datetime(1970, 1, 1, tzinfo=UTC)], pa.timestamp("us")),
        "s": [{"x": 1, "t": old, "y": "z"}, None, {"x": None, "t": None, "y": None}],
        "l": [[old, None], [], None],
        **{f"c{number}": [number] * 3 for number in range(20)},
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, **options)
    as_bytes = parquet.ParquetFile(path, metadata=int96.as_bytes(footer_of(path)))
    given = parquet.read_table(path)
    (batch,) = as_bytes.iter_batches()
    for name in given.schema.names:
        if name not in "tsl":
            assert batch.column(name).equals(given[name].combine_chunks())
    struct_of, list_of = batch.column("s"), batch.column("l")
    assert struct_of.field("x").to_pylist() == [1, None, None]
    for raw, wanted in (
        (batch.column("t"), [old, None, datetime(1970, 1, 1, tzinfo=UTC)]),
        (struct_of.field("t"), [old, None, None]),
        (list_of.values, [old, None]),
    ):
        found, faults = int96.times(raw)
        assert (found.to_pylist(), faults) == (wanted, None)


def test_a_damaged_footer_is_an_error(tmp_path: Path) -> None:
    """Cut off, or with bits flipped: an error of Arrow's or ours, and no other."""
    path = tmp_path / "a.parquet"
    table = pa.table({"k": ["a"], "t": pa.array([1], pa.timestamp("us"))})
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    footer = footer_of(path)
    rnd = random.Random(tiers.seed())
    damaged = [footer[:size] for size in range(len(footer))]
    for _ in range(500):
        data = bytearray(footer)
        data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)
        damaged.append(bytes(data))
    for data in damaged:
        try:
            int96.as_bytes(data)
        except (ValueError, OSError, pa.ArrowException):
            continue
