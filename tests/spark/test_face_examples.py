"""The examples in the docstrings of what needs Spark, in a process of their own: paths there are relative."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deduper
from deduper import Deduper, Never, PublishedWindows, range_aggregate
from tests.deduper.query.examples import run_examples

pytestmark = [pytest.mark.spark, pytest.mark.night]

_JOB = """
source: {format: files, path: in, file_format: json, schema: id bigint}
key: id
expiry: {by: never}
store: {url: "rocksdb:state/job"}
sinks: {unique: {format: none}, duplicate: {format: none}, expired: {format: none}, error: {format: none}}
"""


def test_examples_run(tmp_path: Path) -> None:
    """Those of `Deduper` and its methods, of the source of windows, and of range aggregates."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.test_face_examples"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _run() -> None:
    """With a session, a stream of clicks, a store of two keys, and a job's file."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    Path("deduper.yaml").write_text(_JOB)
    rows = [("ann", 1, "12:00:00"), ("ann", 2, "12:00:01"), ("bob", 1, "12:00:01"), ("ann", 1, "12:00:09")]
    texts = spark.createDataFrame([(user, number, f"2026-03-01 {time}") for user, number, time in rows])
    texts.selectExpr("_1 as user", "_2 as id", "cast(_3 as timestamp) as ts").write.parquet("clicks")
    with Deduper("rocksdb:state/seen", key="id", expiry=Never()) as dedup:
        ids = spark.createDataFrame([(1,), (2,), (1,)], "id int")
        dedup.into(unique="out/seen", duplicate=None, expired=None, error=None)(ids, 0)
    clicks = spark.readStream.schema("user string, id bigint, ts timestamp").parquet("clicks")
    names = {name: getattr(deduper, name) for name in ("EventTime", "Never", "Window")}
    for of in (Deduper, PublishedWindows, range_aggregate):
        run_examples(of, {"spark": spark, "clicks": clicks, **names})
    spark.stop()


if __name__ == "__main__":
    _run()
