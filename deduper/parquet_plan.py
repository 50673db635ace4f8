"""Whether a job's files can be read without Spark, and what is made of their records then; see `parquet_records`."""

from __future__ import annotations

from deduper.array_digests import has_array_digest
from deduper.config import CategoryExpiry, Config, EventTimeExpiry, FilesSource, OrderedExpiry
from deduper.output_names import file_sinks
from deduper.parquet_records import ExpiryKind, ParquetReading, arrow_type
from deduper.parse import UNIT_US

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HARMLESS = frozenset(
    ("spark.sql.parquet.compression.codec", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
)
"""Of the settings that tell Spark how to read or compute, those that change nothing of what is read here."""


def parquet_reading(config: Config, salt: bytes) -> ParquetReading | None:
    """How a job's files are read; None when by Spark: no Parquet, or something of it needs Spark's expressions."""
    source = config.source
    if not isinstance(source, FilesSource) or source.file_format != "parquet" or config.digest != "fast":
        return None
    if any(name.startswith(("spark.sql.", "spark.hadoop.")) for name in config.spark.keys() - _HARMLESS):
        return None
    declared = tuple((column.name, column.type) for column in source.parsed_columns)
    # A dot would be read as a way into a nested column.
    if any(arrow_type(kind) is None or "." in name for name, kind in declared):
        return None
    kind = _expiry_kind(config)
    if kind is None or not all(has_array_digest(column.type) for column in config.key_columns):
        return None
    numbers = {name: number for number, (name, _) in enumerate(declared)}
    unit = config.expiry.unit if isinstance(config.expiry, EventTimeExpiry) else None
    return ParquetReading(
        columns=declared,
        key=tuple(numbers[column.name] for column in config.key_columns),
        expiry=None if config.expiry_column is None else numbers[config.expiry_column.name],
        expiry_kind=kind,
        unit_us=1 if unit is None else UNIT_US[unit],
        null_is_error=config.null_keys == "error",
        keeps_records=bool(file_sinks(config)),
        salt=salt,
    )


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
