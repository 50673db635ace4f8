"""The layout of a job's records; the columns, keys and expiry key that its readers take from them.

`tasks.readers` has the readers of files, `sources.kafka` that of topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from deduper.arrow_columns import DeclaredColumn, arrow_type
from deduper.columns import Column
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.config.query import QuerySource
from deduper.config.sections import CategoryExpiry, EventTimeExpiry, SourceConfig
from deduper.tasks.layout import RecordLayout
from deduper.tasks.readers.declared import Declared, ExpiryKind
from deduper.tasks.readers.parquet import ParquetReading
from deduper.tasks.readers.path_columns import PathRule
from deduper.tasks.readers.reading_tasks import FileReading
from deduper.tasks.readers.text import TextReading
from deduper.units import UNIT_US


def record_layout(config: Config) -> RecordLayout:
    """The layout of a job's records."""
    if config.expiry.by == "category":
        expiry = pa.string()
    else:
        expiry = pa.float64() if config.expiry_key_scale.is_float else pa.int64()
    return RecordLayout.of(
        expiry,
        _arrow_of(config) if config.has_row_ports else (),
        are_sent=bool(config.topic_ports),
        has_fingerprint=config.has_fingerprint,
    )


def _arrow_of(config: Config) -> Sequence[pa.DataType]:
    source: object = config.source
    return source.arrow if isinstance(source, QuerySource) else arrow_types(config.source.parsed_columns)


def arrow_types(columns: Sequence[Column]) -> list[pa.DataType]:
    """How Arrow has declared columns."""
    return [arrow_type(column.type) for column in columns]


def declared(config: Config, salt: bytes) -> Declared:
    """The columns of a job's source, and what judging takes from them."""
    source = config.source
    columns = [
        DeclaredColumn(column.name, column.type, arrow)
        for column, arrow in zip(source.parsed_columns, _arrow_of(config), strict=True)
    ]
    numbers = {column.name: number for number, column in enumerate(columns)}
    unit = config.expiry.unit if isinstance(config.expiry, EventTimeExpiry) else None
    return Declared(
        columns=tuple(columns),
        key=tuple(numbers[column.name] for column in config.key_columns),
        is_secure=config.digest == "secure",
        expiry=None if config.expiry_column is None else numbers[config.expiry_column.name],
        expiry_kind=_expiry_kind(config),
        unit_us=1 if unit is None else UNIT_US[unit],
        null_is_error=config.null_keys == "error",
        layout=record_layout(config),
        salt=salt,
        path_rule=path_rule(source),
        zone=config.time_zone,
        payload=config.payload,
        keeps_text=config.may_refuse_conflicts,
    )


def path_rule(source: SourceConfig) -> PathRule:
    """The parts of a file's path that give columns; records of a topic have none."""
    return PathRule(source.folder, source.name_pattern) if isinstance(source, FilesSource) else PathRule(Path())


def _expiry_kind(config: Config) -> ExpiryKind:
    """The kind of value that an expiry key is made of."""
    column = config.expiry_column
    if column is None:
        return "none"
    if isinstance(config.expiry, CategoryExpiry):
        return "category"
    kinds: dict[str, ExpiryKind] = {"timestamp": "time", "double": "float", "decimal": "decimal"}
    return kinds.get(column.type.name, "whole")


def file_reading(config: Config, source: FilesSource, salt: bytes) -> FileReading:
    """The reader of the files of a source, for a store with this salt."""
    columns = declared(config, salt)
    if source.is_text:
        return TextReading(columns, source.file_format, source.delimiter, source.header)
    return ParquetReading(columns)
