"""The layout of a job's records, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from deduper.arrow_columns import arrow_type
from deduper.columns import Column
from deduper.config.model import Config
from deduper.tasks.layout import RecordLayout


def record_layout(config: Config) -> RecordLayout:
    """The layout of a job's records. Nested columns need a running Spark."""
    if config.expiry.by == "category":
        expiry = pa.string()
    else:
        expiry = pa.float64() if config.expiry_key_scale.is_float else pa.int64()
    columns = arrow_types(config.source.parsed_columns) if config.file_ports else ()
    return RecordLayout.of(expiry, columns, are_sent=bool(config.topic_ports))


def arrow_types(columns: Sequence[Column]) -> list[pa.DataType]:
    """How Arrow has declared columns."""
    return [arrow_type(column.type) if column.type.is_scalar else _nested(column) for column in columns]


def _nested(column: Column) -> pa.DataType:
    # Only Spark's parser knows nested types.
    struct = cast(StructType, StructType.fromDDL(f"x {column.type.text}"))
    return to_arrow_type(struct["x"].dataType, timezone="UTC")
