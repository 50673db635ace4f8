"""Times of Parquet files beyond 64 bits of µs: an error of their records, never another time."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.core.verdict import INT64_MAX
from tests.spark.harness import Job

pytestmark = pytest.mark.spark

_FAR = INT64_MAX // 1000 + 1


def test_times_in_ms_beyond_us(new_job: Callable[..., Job]) -> None:
    """As an expiry key `bad_expiry`, elsewhere `malformed`; the other records are judged."""
    ms = pa.timestamp("ms", "UTC")
    times = pa.array([1000, _FAR, -_FAR, None, 2000, _FAR - 1], ms)
    others = pa.array([1, 2, None, 4, _FAR, 6], ms)
    source = {"file_format": "parquet", "schema": "k string, t timestamp, u timestamp"}
    expiry = {"by": "event_time", "field": "t", "period": "24h", "span": "1h", "max_ahead_of_now": "off"}
    job = new_job(source=source, expiry=expiry)
    job.add_table(pa.table({"k": list("abcdef"), "t": times, "u": others}))
    job.run()
    rows = []
    for port, sink in job.config.file_ports.items():
        for file in sink.path.glob("*.parquet"):
            # Neither of the other columns: Python has no times as far as theirs.
            table = parquet.read_table(file, columns=["k", "t", "_dedup"])
            micros = table["t"].cast(pa.int64()).to_pylist()
            reasons = table.select(["_dedup"]).flatten()["_dedup.reason"].to_pylist()
            keys = table["k"].to_pylist()
            rows += [(*one, us) for *one, us in zip(keys, [port] * len(keys), reasons, micros, strict=True)]
    assert sorted(rows) == [
        ("a", "unique", None, 1_000_000),
        ("b", "error", "bad_expiry", None),
        ("c", "error", "bad_expiry", None),
        ("d", "error", "null_expiry", None),
        ("e", "error", "malformed", 2_000_000),
        ("f", "unique", None, (_FAR - 1) * 1000),
    ]


@pytest.mark.night
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_whole_numbers_with_a_unit(new_job: Callable[..., Job], kind: str) -> None:
    """Seconds that have no µs in 64 bits are `bad_expiry`, either way from 1970."""
    far = INT64_MAX // 1_000_000 + 1
    records = [{"k": "a", "t": 1}, {"k": "b", "t": far}, {"k": "c", "t": -far}, {"k": "d", "t": 2**63 - 1}]
    source = {"file_format": kind, "schema": "k string, t bigint"}
    job = new_job(source=source, expiry={"by": "event_time", "field": "t", "unit": "s", "period": "24h", "span": "1h"})
    if kind == "json":
        job.add_records(records)
    else:
        job.add_table(pa.Table.from_pylist(records))
    job.run()
    assert [row["k"] for row in job.rows("unique")] == ["a"]
    assert sorted((row["k"], row["_dedup"]["reason"]) for row in job.rows("error")) == [
        (key, "bad_expiry") for key in "bcd"
    ]
