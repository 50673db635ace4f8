"""The rows of the benchmark: the same for all contenders, whenever and wherever they are made."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.bench.workload import FORMATS, PERIOD_HOURS, START_US, Workload, key_texts

SMALL = Workload(batch_rows=1000, state_keys=5000, duplicates=0.2, payload_bytes=10, batches_a_turn=3, seed=7)
HOUR_US = 3_600_000_000


def keys_of(rows: pa.Table) -> list[int]:
    return [int(text.split("-")[1]) for text in rows.column("k").to_pylist()]


def test_a_batch_is_a_function_of_the_workload_and_its_number() -> None:
    """Equal seeds give equal rows, another seed other ones, and no batch depends on those made before it."""
    again = Workload(batch_rows=1000, state_keys=5000, duplicates=0.2, payload_bytes=10, batches_a_turn=3, seed=7)
    assert SMALL.rows(3).equals(again.rows(3))
    other = replace(SMALL, seed=8).rows(3)
    for column in ("k", "payload"):
        assert not SMALL.rows(3).column(column).equals(other.column(column))
    assert SMALL.rows(2).num_rows == SMALL.batch(2).rows


def test_loading_gives_every_key_of_the_state_once() -> None:
    """And as many as it should have, rounded up to whole batches."""
    loaded = [key for number in range(SMALL.load_batches) for key in keys_of(SMALL.rows(number))]
    assert sorted(loaded) == list(range(SMALL.loaded_keys))
    assert SMALL.loaded_keys == 5000
    assert Workload(state_keys=0).load_batches == 0


@pytest.mark.parametrize("duplicates", [0.0, 0.2, 0.9])
def test_a_measured_batch_repeats_its_share_and_the_rest_is_new(duplicates: float) -> None:
    """Over two rounds no new key comes twice; what is repeated has been there before."""
    workload = replace(SMALL, duplicates=duplicates)
    seen = set(range(workload.loaded_keys))
    for number in [*workload.turn(0), *workload.turn(1)]:
        keys = keys_of(workload.rows(number))
        new = [key for key in keys if key not in seen]
        assert len(new) == len(set(new)) == workload.batch(number).new_keys
        assert len(keys) - len(new) == int(len(keys) * duplicates)
        seen.update(new)
    assert [workload.batch(number).kind for number in workload.turn(1)] == ["restart", "measured", "measured"]


def test_an_empty_state_has_nothing_to_repeat() -> None:
    """Every row is new then."""
    workload = replace(SMALL, state_keys=0)
    assert len(set(keys_of(workload.rows(1)))) == 1000


def test_times_are_a_function_of_the_key_and_spread_over_the_hours() -> None:
    """A repeated key has the time of its first copy; a state of 20 hours fills 20 buckets; a batch moves on 10 min."""
    times = SMALL.times_us(np.arange(SMALL.loaded_keys + 800))
    assert (np.diff(times) >= 0).all()
    assert times[0] == START_US
    assert len(set((times[: SMALL.loaded_keys] // HOUR_US).tolist())) == 20
    ends = SMALL.times_us(np.array([SMALL.loaded_keys, SMALL.loaded_keys + 800]))
    assert ends[1] - ends[0] == 600_000_000


def test_nothing_is_repeated_that_may_have_expired() -> None:
    """With three hours of event time a batch, the oldest keys die; what is repeated is still remembered."""
    workload = replace(SMALL, batch_minutes=180.0)
    for round_number in range(4):
        for number in workload.turn(round_number):
            times = workload.times_us(np.array(keys_of(workload.rows(number))))
            assert times.max() - times.min() < PERIOD_HOURS * HOUR_US


def test_files_are_in_source_order_and_made_once(tmp_path: Path) -> None:
    """All contenders read the very files that were written first."""
    paths = SMALL.write(tmp_path, 5)
    written = [(path.stat().st_ino, path.stat().st_mtime) for path in paths]
    assert [moment for _, moment in written] == sorted({moment for _, moment in written})
    assert SMALL.write(tmp_path, 5) == paths
    assert [(path.stat().st_ino, path.stat().st_mtime) for path in paths] == written
    assert pa.concat_tables([parquet.read_table(path) for path in paths]).num_rows == 1000


def test_a_key_looks_as_it_is_meant_to() -> None:
    """Spark makes the same text when a large state is written straight into a store."""
    assert key_texts(np.array([7, 123_456_789_012])).to_pylist() == [
        "user-000000000007-55433",
        f"user-123456789012-{123_456_789_012 * 7919 % 1_000_003}",
    ]


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "kafka"])
def test_files_of_every_kind_hold_the_same_rows(tmp_path: Path, kind: str) -> None:
    """Only the bytes differ; the rows of a batch stand in its files in their order."""
    workload = replace(SMALL, format=kind, payload="random")
    paths = workload.write(tmp_path, 5)
    assert [path.name for path in paths] == [f"00005-{part}.{kind}" for part in range(workload.files_a_batch)]
    rows = [row for path in paths for row in rows_of(path)]
    expected = SMALL.rows(5).drop_columns("payload").to_pylist()
    assert [{"k": row["k"], "ts": row["ts"]} for row in rows] == expected
    assert len({row["payload"] for row in rows}) == len(rows)


def rows_of(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    if path.suffix == ".csv":
        found = [dict(zip(("k", "ts", "payload"), row, strict=True)) for row in csv.reader(text.splitlines())]
    else:
        found = [json.loads(line) for line in text.splitlines()]
    return [row | {"ts": datetime.fromisoformat(str(row["ts"]))} for row in found]


def test_a_share_of_lines_is_malformed() -> None:
    """The same lines at every call; of JSON they end too early, of CSV they have no time."""
    workload = replace(SMALL, format="kafka", bad_lines=0.1)
    keys, values = workload.records(5)
    assert (keys, values) == workload.records(5)
    assert len(keys) == len(values) == 1000
    torn = [value for value in values if not value.endswith(b'"}')]
    assert 50 < len(torn) < 200
    assert {json.loads(value)["k"] for value in values if value not in torn} <= {key.decode() for key in keys}
    assert all(value.endswith(b'"}') for value in SMALL.records(5)[1])


def test_bad_lines_of_csv_have_no_time(tmp_path: Path) -> None:
    """Their other fields are whole."""
    workload = replace(SMALL, format="csv", bad_lines=0.1)
    rows = [row for path in workload.write(tmp_path, 5) for row in csv.reader(path.open())]
    assert {len(row) for row in rows} == {3}
    assert 50 < sum(row[1] == "no time" for row in rows) < 200
