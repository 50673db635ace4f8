"""The rows of a DataFrame that is plainly a scan of Parquet files of this machine, read here without a job of Spark's.

Spark would make rows of columns, columns of rows for Arrow, and send these through its blocks: several times the work
of reading the files. What counts is the physical plan, so a filter, a mask, a cache or a sample is never left out.
Everything else, bad rows too, is left to Spark, which has the rules and messages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from deduper.ranges.batch.plain_sides import GoodRows, OnlySpark, ParquetSide, Piece
from deduper.ranges.batch.work import ID_HI, ID_LO
from deduper.spark_promises import is_this_machine
from deduper.tasks.readers.plain_file import FileFault

logger = logging.getLogger(__name__)

_MOST_FILES = 1000
"""Their names come from the JVM one by one."""
_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_INDEX = "org.apache.spark.sql.execution.datasources.InMemoryFileIndex"
_READ_AS_WRITTEN = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""By other values Spark moves times of old calendars, or finds columns by other marks than their names."""


def rows_of_scan(
    rows: DataFrame,
    columns: Sequence[str],
    keys: Sequence[str],
    points: tuple[str, ...],
    *,
    longest_us: int | None,
    salt: bytes,
    most_rows: int,
) -> pa.Table | None:
    """These columns and the ids' words; None if Spark has to read, if there are no rows, or more than `most_rows`."""
    if not most_rows:
        return None  # before Spark plans anything
    wanted = {*columns, *keys}
    schema = {field.name: field.dataType for field in rows.schema}
    try:
        if any(isinstance(schema[name], T.StringType | T.BinaryType) for name in columns):
            raise OnlySpark("texts are measured before they are collected")
        if longest_us is not None and not isinstance(schema[points[0]], T.TimestampType | T.TimestampNTZType):
            raise OnlySpark("a greatest length of other times than timestamps")
        cores = rows.sparkSession.sparkContext.defaultParallelism
        side = ParquetSide.of(_scanned_files(rows), cores, wanted)
        if not 0 < side.rows <= most_rows:
            return None
        found = {column.name: column for column in side.columns}
        if any(from_arrow_type(found[name].arrow) != schema[name] for name in wanted):
            raise OnlySpark("Spark has the columns by other types than their files")
        good = GoodRows(tuple(keys), tuple(found[name].kind for name in keys), points, longest_us, salt)

        def read(piece: Piece) -> list[pa.RecordBatch]:
            batches = (good.of(batch) for batch in side.batches(piece, list(wanted)))
            return [batch.select(_names(batch, columns)) for batch in batches]

        with ThreadPoolExecutor(cores, thread_name_prefix="ranges") as pool:
            table = pa.Table.from_batches(chain.from_iterable(pool.map(read, side.pieces)))
        if table.num_rows != side.rows:
            raise OnlySpark("files have other rows than their footers say")
        return table
    except (OnlySpark, FileFault, OSError) as exc:
        logger.info("Spark reads the rows of the index: %s", exc)
        return None


def _names(batch: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    return [*columns, *(name for name in (ID_HI, ID_LO) if name in batch.schema.names)]


def _scanned_files(rows: DataFrame) -> list[str]:
    """The files of this machine that are all of a DataFrame.

    Raises:
        OnlySpark: it is not known to be just that.
    """
    session = rows.sparkSession
    if not is_this_machine(str(session.sparkContext.master)):
        raise OnlySpark("executors are on other machines")
    for name, value in _READ_AS_WRITTEN.items():
        if (found := session.conf.get(name)) != value:
            raise OnlySpark(f"{name} is {found}")
    plan: Any = rows._jdf.queryExecution().sparkPlan()
    if _class(plan) != _SCAN:
        raise OnlySpark("there is more than a scan of files")
    if not all(part.isEmpty() for part in (plan.partitionFilters(), plan.dataFilters(), plan.optionalBucketSet())):
        raise OnlySpark("the scan leaves out rows")
    relation = plan.relation()
    if (_class(relation.fileFormat()), _class(relation.location())) != (_FORMAT, _INDEX):
        raise OnlySpark("files are of another format, or listed by a catalog")
    if not relation.partitionSchema().isEmpty() or not relation.options().removed("path").isEmpty():
        raise OnlySpark("folders are columns, or the reader has options")
    uris = relation.location().inputFiles()
    if len(uris) > _MOST_FILES:
        raise OnlySpark(f"there are more than {_MOST_FILES} files")
    parts = [urlsplit(uri) for uri in uris]
    if any(part.scheme != "file" or part.netloc for part in parts):
        raise OnlySpark("files are on other machines")
    return [unquote(part.path) for part in parts]


def _class(of_jvm: Any) -> str:
    return str(of_jvm.getClass().getName())
