"""Files that Spark writes in its old calendar are read by tables as Spark reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deduper.table.batch import FileBatch, source_files

pytestmark = [pytest.mark.spark, pytest.mark.night]

_FIRST, _LAST = -1_100_000, 20_000
"""Days from the year -1041 to 2024."""
_DAY_US = 86_400_000_000


@pytest.mark.parametrize("form", ["TIMESTAMP_MICROS", "TIMESTAMP_MILLIS", "INT96"])
@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
def test_dates_and_times_are_those_of_spark(session: SparkSession, tmp_path: Path, form: str, mode: str) -> None:
    """All days of random years, and nested ones."""
    random = np.random.default_rng(7)
    us = random.integers(_FIRST * _DAY_US, _LAST * _DAY_US, 20_000) // 1000 * 1000
    days = random.integers(_FIRST, _LAST, 20_000)
    file = str(tmp_path / "numbers")
    (tmp_path / "numbers").mkdir()
    pq.write_table(pa.table({"id": np.arange(20_000), "us": us, "days": days}), f"{file}/a.parquet")
    kinds = ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite")
    wanted = {**{f"spark.sql.parquet.{kind}": mode for kind in kinds}, "spark.sql.parquet.outputTimestampType": form}
    before = {name: session.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            session.conf.set(name, value)
        rows = session.read.parquet(file).select(
            "id", F.date_from_unix_date(F.col("days").cast("int")).alias("d"), F.timestamp_micros("us").alias("t")
        )
        nested = F.array(F.struct("d", "t")).alias("n")
        rows.select("*", nested).coalesce(1).write.parquet(str(tmp_path / "in"))
    finally:
        for name, value in before.items():
            session.conf.set(name, value)
    of_spark = session.read.parquet(str(tmp_path / "in")).select(
        "id", F.unix_date("d").alias("d"), F.unix_micros("t").alias("t"), F.unix_micros(F.col("n")[0]["t"]).alias("n")
    )
    batch = FileBatch(source_files(tmp_path / "in"))
    found = pa.Table.from_batches(batch.batches(batch.schema.names), batch.schema).sort_by("id")
    nested_times = pc.struct_field(pc.list_flatten(found["n"]), "t")
    expected = of_spark.toArrow().sort_by("id")
    assert found["d"].cast(pa.int32()).equals(expected["d"])
    assert found["t"].cast(pa.int64()).equals(expected["t"])
    assert nested_times.cast(pa.int64()).equals(expected["n"])
    assert expected["t"].to_pylist() == us.tolist()
