"""Parquet files with flipped bits are read, or unreadable; nothing else happens.

The tier `night` flips many more.
"""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.arrow_columns import DeclaredColumn, arrow_type
from deduper.core.digests import key_type
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.layout import RecordLayout
from deduper.tasks.readers.declared import Declared
from deduper.tasks.readers.file_parts import UnreadableFile
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.path_columns import PathRule
from tests import tiers
from tests.deduper.digest_cases import SALT

_SEED = tiers.seed()
_FILES = 5_000 if tiers.is_night() else 100
_ROWS = 300
_TABLE = pa.table(
    {
        "k": [f"key{at % 50}" if at % 7 else None for at in range(_ROWS)],
        "t": pa.array(range(_ROWS), pa.int64()),
        "d": pa.array([Decimal("1.25") * at for at in range(_ROWS)], pa.decimal128(9, 2)),
    }
).replace_schema_metadata({"org.apache.spark.version": "3.5.0"})
"""With the mark of Spark's, by which more of a footer is read."""
_CONVERTED = pa.table(
    {
        "K": _TABLE["k"].cast(pa.binary()).dictionary_encode(),
        "t": pa.array([None, *range(1, _ROWS)], pa.uint64()),
        "D": _TABLE["d"].cast(pa.decimal128(18, 4)),
    }
)
"""The same values by other types."""
_KINDS: list[dict[str, Any]] = [
    {"compression": "none"},
    {"compression": "snappy"},
    {"compression": "snappy", "row_group_size": 100, "store_schema": False},
    {"compression": "none", "use_dictionary": False, "data_page_version": "2.0"},
    {"compression": "zstd", "use_dictionary": False, "store_schema": False},
]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table", [_TABLE, _CONVERTED], ids=["as declared", "converted"])
@pytest.mark.parametrize("kind", range(len(_KINDS)))
def test_flipped_bits(tmp_path: Path, kind: int, table: pa.Table) -> None:
    """In the footer or the pages: no exception but the one over the file."""
    columns = [(name, key_type(text)) for name, text in (("k", "string"), ("t", "bigint"), ("d", "decimal(9,2)"))]
    plain = tuple(DeclaredColumn(name, column, arrow_type(column)) for name, column in columns)
    layout = RecordLayout.of(pa.int64(), [column.arrow for column in plain])
    reading = ParquetReading(Declared(plain, (0,), None, "none", 1, True, layout, SALT, PathRule(tmp_path)))
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, **_KINDS[kind])
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rnd = random.Random(f"{_SEED} {kind}")
    outcomes = {"read": 0, "unreadable": 0}
    for _ in range(_FILES):
        data = bytearray(whole)
        at = rnd.randrange(footer, len(data)) if rnd.random() < 0.6 else rnd.randrange(footer)
        for _ in range(rnd.choice([1, 1, 1, 2, 4])):
            data[min(len(data) - 1, at)] ^= 1 << rnd.randrange(8)
            at += rnd.randrange(3)
        path.write_bytes(data)
        files = stat_files([ListedFile(str(path), path.stat().st_mtime_ns // 1_000_000)])
        try:
            part = reading.part(0, files[0])
            for _ in () if part is None else reading.records(part):
                pass
            outcomes["read"] += 1
        except UnreadableFile:
            outcomes["unreadable"] += 1
    assert all(outcomes.values()), f"seed {_SEED}: {outcomes}"
