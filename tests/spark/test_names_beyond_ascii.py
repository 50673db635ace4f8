"""Columns whose names Spark takes in backquotes alone, declared with and without them, on every way into DDL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark


def put(path: Path, text: str) -> None:
    """A file of this text, in folders that may be new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_wider_numbers_and_a_port_of_json(new_job: Callable[..., Job]) -> None:
    """A Parquet file is read by another type than declared, and Spark makes the port: no column's name stops either."""
    job = new_job(
        source={"file_format": "parquet", "schema": "größe int, `1st` int, s struct<größe:int>"},
        key=["größe"],
        sinks={"unique": {"format": "json", "path": "out/unique"}},
    )
    nested = pa.array([{"größe": 5}] * 3, pa.struct([("größe", pa.int32())]))
    for kind, last in ((pa.int32(), 2), (pa.int64(), 2**31)):
        columns = {"größe": pa.array([1, 2, last], kind), "1st": pa.array([1, 2, 3], kind), "s": nested}
        job.add_table(pa.table(columns))
    job.run()
    assert [len(job.rows(port)) for port in PORTS] == [2, 3, 0, 1]
    assert [(row["größe"], row["1st"], row["s"]) for row in sorted(job.rows("unique"), key=lambda row: row["1st"])] == [
        (1, 1, {"größe": 5}),
        (2, 2, {"größe": 5}),
    ]
    assert [row["_dedup"]["reason"] for row in job.rows("error")] == ["malformed"]


@pytest.mark.parametrize("kind", ["json", pytest.param("csv", marks=pytest.mark.night)])
def test_keys_of_lines_and_folders(new_job: Callable[..., Job], kind: str) -> None:
    """With a decimal, a secure digest, and a folder whose value is not written as Spark writes it."""
    job = new_job(
        source={"file_format": kind, "schema": "größe int, k decimal(5,2), день date"},
        key=["größe", "день", "k"],
        digest="secure",
    )
    records: list[dict[str, Any]] = [{"größe": 1, "k": 1.5}, {"größe": 2, "k": 1.5}]
    lines = [json.dumps(one) if kind == "json" else f"{one['größe']},{one['k']}" for one in records]
    for day in ("2024-01-05", "2024-1-5"):
        put(job.directory / "in" / f"день={day}" / f"a.{kind}", "".join(f"{line}\n" for line in lines))
    job.run()
    assert [len(job.rows(port)) for port in PORTS] == [2, 2, 0, 0]


@pytest.mark.night
def test_a_torn_file_beside_others(new_job: Callable[..., Job]) -> None:
    """It leaves as one error, with the columns of the source."""
    job = new_job(source={"file_format": "parquet", "schema": "größe int"}, key=["größe"])
    path = job.add_table(pa.table({"größe": pa.array([1, 2], pa.int32())}))
    torn = job.add_file([], "torn.parquet")
    torn.write_bytes(path.read_bytes()[:-1])
    os.utime(torn, (1_700_000_000, 1_700_000_000))  # a young one may be unfinished
    job.run()
    assert [len(job.rows(port)) for port in PORTS] == [2, 0, 0, 1]
