"""How the errors of a job are explained, from its configuration; see `tasks.errors.detail`."""

from __future__ import annotations

import pyarrow as pa

from deduper.arrow_columns import DeclaredColumn
from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.sections import EventTimeExpiry, OrderedExpiry
from deduper.core.verdict import Admission
from deduper.sources.declared_columns import path_rule
from deduper.tasks.errors.detail import ErrorDetails, RecordFormat
from deduper.units import format_duration


def error_details(config: Config) -> ErrorDetails:
    """How the errors of a job are explained."""
    source = config.source
    columns = tuple(
        # Nothing here makes values.
        DeclaredColumn.of(column) if column.type.is_scalar else DeclaredColumn(column.name, column.type, pa.null())
        for column in source.parsed_columns
    )
    numbers = {column.name: number for number, column in enumerate(columns)}
    kind: RecordFormat = "parquet"  # as of a query, whose rows are columns too
    delimiter = ","
    record: tuple[str, ...] = ()
    schema_ids: tuple[int, ...] | None = None
    if isinstance(source, FilesSource):
        kind, delimiter = source.file_format, source.delimiter
    elif isinstance(source, KafkaSource):
        kind, delimiter = source.value.format, source.value.delimiter
        record = tuple(part for _, part in source.record_columns)
        schema_ids = source.value.framed_ids
    return ErrorDetails(
        format=kind,
        columns=columns,
        record=record,
        key=tuple(numbers[column.name] for column in config.key_columns),
        expiry=None if config.expiry_column is None else numbers[config.expiry_column.name],
        fixed={int(one): one.detail for one in Admission if one.detail is not None} | _of_expiry(config),
        zone=config.time_zone,
        delimiter=delimiter,
        path_rule=path_rule(source) if isinstance(source, FilesSource) else None,
        unit=config.expiry.unit if isinstance(config.expiry, EventTimeExpiry) else None,
        schema_ids=schema_ids,
    )


def _of_expiry(config: Config) -> dict[int, str]:
    """The details of refused expiry keys: they name the limit of the settings, never the key."""
    column, expiry = config.expiry_column, config.expiry
    if column is None:
        return {}
    name = column.name
    texts: dict[int, str] = {Admission.BAD_EXPIRY: f"{name}: {column.type.text} is NaN or an infinity"}
    if isinstance(expiry, EventTimeExpiry):
        texts[Admission.BAD_EXPIRY] = f"{name}: beyond 64 bits of microseconds since 1970" + (
            f", in {expiry.unit}" if expiry.unit else ""
        )
        if expiry.max_ahead_of_now is not None:
            limit = format_duration(expiry.max_ahead_of_now)
            texts[Admission.AHEAD_OF_NOW] = f"{name}: more than {limit} ahead of the wall clock (max_ahead_of_now)"
    if isinstance(expiry, EventTimeExpiry | OrderedExpiry) and expiry.max_jump is not None:
        jump = format_duration(expiry.max_jump) if isinstance(expiry, EventTimeExpiry) else str(expiry.max_jump)
        texts[Admission.JUMP_TOO_FAR] = f"{name}: more than {jump} ahead of the latest point (max_jump)"
    return texts
