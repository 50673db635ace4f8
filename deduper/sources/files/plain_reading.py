"""Whether a job's files can be read without Spark, and how; see `tasks.readers`."""

from __future__ import annotations

import logging
from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from deduper.config.expiry import CategoryExpiry, EventTimeExpiry, OrderedExpiry
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.core.digest_kernels import has_array_digest
from deduper.spark_promises import TIME_ZONE, store_settings
from deduper.tasks.readers.declared import Declared, DeclaredColumn, ExpiryKind, arrow_type
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.reading_tasks import PlainReading
from deduper.tasks.readers.text import TextReading
from deduper.text.values import time_zone
from deduper.units import UNIT_US

logger = logging.getLogger(__name__)

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HARMLESS = frozenset(
    ("spark.sql.parquet.compression.codec", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
)
"""Of Spark's settings for reading and computing, those that do not change the result here."""


def plain_reading(config: Config, salt: bytes) -> PlainReading | None:
    """How a job's files are read; None when by Spark, and then the log says why."""
    source = config.source
    if not isinstance(source, FilesSource):
        return None
    obstacle = _obstacle(config)
    kind = _expiry_kind(config)
    if obstacle is not None or kind is None:
        logger.info("all files are read by Spark: %s", obstacle or "the expiry key needs a cast of Spark's")
        return None
    types = arrow_types(source)
    columns = [
        DeclaredColumn(column.name, column.type, arrow)
        for column, arrow in zip(source.parsed_columns, types, strict=True)
    ]
    numbers = {column.name: number for number, column in enumerate(columns)}
    unit = config.expiry.unit if isinstance(config.expiry, EventTimeExpiry) else None
    declared = Declared(
        columns=tuple(columns),
        key=tuple(numbers[column.name] for column in config.key_columns),
        expiry=None if config.expiry_column is None else numbers[config.expiry_column.name],
        expiry_kind=kind,
        unit_us=1 if unit is None else UNIT_US[unit],
        null_is_error=config.null_keys == "error",
        keeps_records=bool(config.file_ports),
        salt=salt,
        folder=source.folder,
    )
    if source.is_text:
        delimiter = source.delimiter if source.file_format == "csv" else None
        return TextReading(declared, store_settings(config.spark)[TIME_ZONE], delimiter, source.header)
    return ParquetReading(declared)


def arrow_types(source: FilesSource) -> list[pa.DataType]:
    """How Arrow has the declared columns."""
    if all(column.type.is_scalar for column in source.parsed_columns):
        return [arrow_type(column.type) for column in source.parsed_columns]
    # Only Spark's parser knows nested types.
    struct = cast(StructType, StructType.fromDDL(source.columns))
    return [to_arrow_type(field.dataType, timezone="UTC") for field in struct]


def _obstacle(config: Config) -> str | None:
    """Why the columns and keys of a job need Spark's expressions; None when they do not."""
    if config.digest != "fast":
        return "digest is secure"
    for name in sorted(config.spark.keys() - _HARMLESS):
        if name.startswith(("spark.sql.", "spark.hadoop.")):
            return f"{name} may change what is read"
    is_text = config.source.is_text if isinstance(config.source, FilesSource) else False
    zone = store_settings(config.spark)[TIME_ZONE]
    if is_text and time_zone(zone) is None:
        return f"only Java knows the zone {zone}"
    for column in config.source.parsed_columns:
        if is_text and not column.type.is_scalar:
            return f"column {column.name} is of type {column.type.text}"
        # A dot would be read as a way into a nested column.
        if "." in column.name:
            return f"column {column.name} has a dot in its name"
    for key in config.key_columns:
        if not has_array_digest(key.type):
            return f"key column {key.name} is of type {key.type.text}"
    return None


def _expiry_kind(config: Config) -> ExpiryKind | None:
    """What an expiry key is made of; None where Spark's casts are needed."""
    column, expiry = config.expiry_column, config.expiry
    if column is None:
        return "none"
    name = column.type.name
    if isinstance(expiry, CategoryExpiry):
        return "category" if name == "string" else None
    if isinstance(expiry, EventTimeExpiry):
        if expiry.unit is not None:
            return "whole" if name in _WHOLE else None
        return "time" if name == "timestamp" else None
    if isinstance(expiry, OrderedExpiry) and (name == "double" or name in _WHOLE):
        return "float" if name == "double" else "whole"
    return None
