"""Whether a job's files can be read without Spark, and how; see `tasks.readers`."""

from __future__ import annotations

import logging

from deduper.arrow_columns import DeclaredColumn
from deduper.config.expiry import CategoryExpiry, EventTimeExpiry, OrderedExpiry
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.core.digest_kernels import has_array_digest
from deduper.sources.record_layout import arrow_types, record_layout
from deduper.spark_promises import TIME_ZONE, store_settings
from deduper.tasks.readers.declared import Declared, ExpiryKind
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
    """How a job's files are read; None when by Spark, and then the log says why, unless it always does."""
    source = config.source
    if not isinstance(source, FilesSource) or source.file_format not in ("parquet", "json"):
        return None
    obstacle = _obstacle(config)
    kind = _expiry_kind(config)
    if obstacle is not None or kind is None:
        logger.info("all files are read by Spark: %s", obstacle or "the expiry key needs a cast of Spark's")
        return None
    types = arrow_types(source.parsed_columns)
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
        layout=record_layout(config),
        salt=salt,
        folder=source.folder,
    )
    if source.is_text:
        return TextReading(declared, store_settings(config.spark)[TIME_ZONE])
    return ParquetReading(declared)


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
