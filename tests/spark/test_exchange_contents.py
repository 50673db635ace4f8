"""The records of windows of any size, read and judged in every way, hold against the files they were read from.

Windows write over each other's exchange files: by tasks of one job and by the driver, in turns.
The tier `night` takes many windows and large ones.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests import tiers
from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

_ALL = tiers.is_night()
_SEED = tiers.seed()
_WINDOWS = 18 if _ALL else 5
_SIZES = [3, 500, 20_000, 60_000, 120_000] if _ALL else [3, 500, 5_000, 30_000]


def table_of(number: int, rows: int, is_plain: bool) -> pa.Table:
    """Records of a file: keys that repeat, some null, payload of many lengths, lists."""
    ids = np.random.default_rng(1_000 * _SEED + number).integers(0, rows * 4, rows)
    table = pa.table(
        {
            "k": pa.array([f"key{i}" if i % 97 else None for i in ids]),
            "n": pa.array(ids),
            "p": pa.array(["x" * int(i % 61) + str(i) for i in ids]),
            "l": pa.array([[str(i)] * int(i % 3) if i % 5 else None for i in ids], pa.list_(pa.string())),
            "x": pa.array(ids * 0.5),
        }
    )
    return table if is_plain else table.set_column(4, "x", table.column("x").cast(pa.float32()))


@pytest.mark.night
def test_every_record_is_that_of_its_file(new_job: Callable[..., Job], ways: Counter[str]) -> None:
    """Each leaves once, with the values that its file has at its place, and by the port a plain set of keys names."""
    rnd = random.Random(_SEED)
    source = {
        "file_format": "parquet",
        "schema": "k string, n bigint, p string, l array<string>, x double",
        "max_files_per_batch": 2,
    }
    job = new_job(source=source, expiry={"by": "never"})
    files: list[tuple[Path, pa.Table]] = []
    for number in range(2 * _WINDOWS):
        # Each way is met, whatever the seed: the first two windows are large and small.
        rows = [max(_SIZES)] * 2 + [3] * 2 if number < 4 else []
        table = table_of(number, rows[number] if rows else rnd.choice(_SIZES), number != 4 and rnd.random() > 0.12)
        files.append((job.add_table(table), table))
    job.run()
    expected = verdicts(files)
    columns = {str(path): table.to_pydict() for path, table in files}
    seen: set[tuple[str, int]] = set()
    for port in PORTS:
        for row in job.rows(port):
            dedup = row.pop("_dedup")
            place = (dedup["source"], dedup["position"])
            assert place not in seen
            seen.add(place)
            assert row == {name: values[place[1]] for name, values in columns[place[0]].items()}, place
            assert port == expected[place], place
    assert seen == set(expected)
    assert set(ways) == {"driver", "tasks"}, f"seed {_SEED}: {ways}"


def verdicts(files: list[tuple[Path, pa.Table]]) -> dict[tuple[str, int], str]:
    """The port of every record, by its place."""
    known: set[str] = set()
    found = {}
    for path, table in files:
        for position, key in enumerate(table.column("k").to_pylist()):
            found[str(path), position] = "error" if key is None else "duplicate" if key in known else "unique"
            known.add(key)
    return found
