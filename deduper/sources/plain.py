"""A job's records for readers without Spark: declared columns, keys, expiry key; or why only Spark can read them.

`tasks.readers` has the readers of files, `sources.kafka` that of topics.
"""

from __future__ import annotations

from pathlib import Path

from deduper.arrow_columns import DeclaredColumn
from deduper.config.expiry import CategoryExpiry, EventTimeExpiry, OrderedExpiry
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.core.digest_kernels import has_array_digest
from deduper.sources.record_layout import arrow_types, record_layout
from deduper.tasks.readers.declared import Declared, ExpiryKind
from deduper.text.values import time_zone
from deduper.units import UNIT_US

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HARMLESS = frozenset(
    ("spark.sql.parquet.compression.codec", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
)
"""Of Spark's settings for reading and computing, those that do not change the result here."""


class OnlySpark(Exception):
    """A job whose records only Spark can read; the text says why, for the log."""


def declared(config: Config, salt: bytes) -> Declared:
    """The columns of a job's source, and what judging takes from them.

    Raises:
        OnlySpark: they need Spark's expressions.
    """
    _check(config)
    source = config.source
    columns = [
        DeclaredColumn(column.name, column.type, arrow)
        for column, arrow in zip(source.parsed_columns, arrow_types(source.parsed_columns), strict=True)
    ]
    numbers = {column.name: number for number, column in enumerate(columns)}
    unit = config.expiry.unit if isinstance(config.expiry, EventTimeExpiry) else None
    return Declared(
        columns=tuple(columns),
        key=tuple(numbers[column.name] for column in config.key_columns),
        expiry=None if config.expiry_column is None else numbers[config.expiry_column.name],
        expiry_kind=_expiry_kind(config),
        unit_us=1 if unit is None else UNIT_US[unit],
        null_is_error=config.null_keys == "error",
        layout=record_layout(config),
        salt=salt,
        folder=source.folder if isinstance(source, FilesSource) else Path(),
    )


def _check(config: Config) -> None:
    """Raises OnlySpark."""
    if config.digest != "fast":
        raise OnlySpark("digest is secure")
    for name in sorted(config.spark.keys() - _HARMLESS):
        if name.startswith(("spark.sql.", "spark.hadoop.")):
            raise OnlySpark(f"{name} may change what is read")
    source = config.source
    is_text = source.is_text if isinstance(source, FilesSource) else True
    if is_text and time_zone(config.time_zone) is None:
        raise OnlySpark(f"only Java knows the zone {config.time_zone}")
    for column in source.parsed_columns:
        if is_text and not column.type.is_scalar:
            raise OnlySpark(f"column {column.name} is of type {column.type.text}")
        # A dot would be read as a way into a nested column.
        if "." in column.name:
            raise OnlySpark(f"column {column.name} has a dot in its name")
    for key in config.key_columns:
        if not has_array_digest(key.type):
            raise OnlySpark(f"key column {key.name} is of type {key.type.text}")


def _expiry_kind(config: Config) -> ExpiryKind:
    """What an expiry key is made of.

    Raises:
        OnlySpark: it needs a cast of Spark's.
    """
    column, expiry = config.expiry_column, config.expiry
    if column is None:
        return "none"
    name = column.type.name
    if isinstance(expiry, CategoryExpiry) and name == "string":
        return "category"
    if isinstance(expiry, EventTimeExpiry):
        if expiry.unit is not None and name in _WHOLE:
            return "whole"
        if expiry.unit is None and name == "timestamp":
            return "time"
    elif isinstance(expiry, OrderedExpiry) and (name == "double" or name in _WHOLE):
        return "float" if name == "double" else "whole"
    raise OnlySpark("the expiry key needs a cast of Spark's")
