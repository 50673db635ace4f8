"""The layout of a job's records, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from deduper.arrow_columns import arrow_type
from deduper.columns import Column
from deduper.config.model import Config
from deduper.config.query import QuerySource
from deduper.tasks.layout import RecordLayout


def record_layout(config: Config) -> RecordLayout:
    """The layout of a job's records."""
    if config.expiry.by == "category":
        expiry = pa.string()
    else:
        expiry = pa.float64() if config.expiry_key_scale.is_float else pa.int64()
    source: object = config.source
    columns = source.arrow if isinstance(source, QuerySource) else arrow_types(config.source.parsed_columns)
    return RecordLayout.of(
        expiry,
        columns if config.has_row_ports else (),
        are_sent=bool(config.topic_ports),
        has_fingerprint=config.has_fingerprint,
    )


def arrow_types(columns: Sequence[Column]) -> list[pa.DataType]:
    """How Arrow has declared columns."""
    return [arrow_type(column.type) for column in columns]
