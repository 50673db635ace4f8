"""The columns, keys and expiry key that a job's readers take from records.

`tasks.readers` has the readers of files, `sources.kafka` that of topics.
"""

from __future__ import annotations

from pathlib import Path

from deduper.arrow_columns import DeclaredColumn
from deduper.config.files import FilesSource
from deduper.config.model import Config
from deduper.config.sections import CategoryExpiry, EventTimeExpiry, SourceConfig
from deduper.sources.record_layout import arrow_types, record_layout
from deduper.tasks.readers.declared import Declared, ExpiryKind
from deduper.tasks.readers.path_columns import PathRule
from deduper.units import UNIT_US


def declared(config: Config, salt: bytes) -> Declared:
    """The columns of a job's source, and what judging takes from them."""
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
