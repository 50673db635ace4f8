"""Spark's Python workers as our daemon makes them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import vectorized_udf
from pyspark.util import PythonEvalType

pytestmark = pytest.mark.spark


# Functions for workers stand inside the tests: of others only the name would travel, and workers know no tests.


def test_modules_are_no_garbage_to_look_through(session: SparkSession) -> None:
    """After every task a worker collects garbage: all that was loaded before it was forked is exempt."""

    def looked_at(_: int) -> list[str]:
        found = {id(one) for one in gc.get_objects()}  # the exempt are not among them
        loaded = ("deduper.tasks.judge", "deduper.tasks.write", "numpy", "pyarrow")
        return [name for name in loaded if id(sys.modules[name]) in found]

    assert session.sparkContext.parallelize([0], 1).map(looked_at).collect() == [[]]


def test_one_daemon_serves_all_jobs_of_a_window(session: SparkSession) -> None:
    """Workers of SQL's functions are those of RDDs too: not twice as many processes as cores."""

    def daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": pa.array([os.getppid()])})

    of_rdds = session.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()
    # As `window.jobs` does it, without pandas.
    function: Any = vectorized_udf(daemon, "daemon long", PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = session.range(1, numPartitions=1)._jdf.mapInArrow(function("id")._jc, False, None)
    assert of_rdds == [row.daemon for row in DataFrame(mapped, session).collect()]
