"""Values in Avro, decoded in Catalyst by Spark's own avro module.

Spark reads one datum and says nothing of what follows it, and a datum it cannot read it makes a record of nulls, which
may be a sound one. So a mark, made from the value, is put behind the value, and a field for it behind the schema's: the
field holds the mark when and only when the value was one whole datum. A datum cut short runs into the mark; one with
something behind it, as with Confluent's header in front, leaves that in the field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from deduper.columns import Column as SourceColumn
from deduper.config.kafka.sections import KafkaValue
from deduper.errors import UsageError
from deduper.spark.kafka_jars import AVRO_MODULE
from deduper.spark.schemas import spark_schema

MARK = "_dedup_mark"
_MARK_BYTES = 8
_HEADER_BYTES = 5
_TO_THE_END = 2**31 - 1


def avro_record(value: Column, settings: KafkaValue) -> Column:
    """The record of a value, with the field MARK; `is_whole` says whether it is one.

    Raises:
        UsageError: Spark has no avro module.
    """
    assert settings.avro_schema is not None
    datum = F.substring(value, _HEADER_BYTES + 1, _TO_THE_END) if settings.confluent_header else value
    schema = json.loads(settings.avro_schema)
    fixed = {"type": "fixed", "name": "Mark", "namespace": "deduper", "size": _MARK_BYTES}
    schema["fields"] = [*schema["fields"], {"name": MARK, "type": fixed}]
    try:
        return from_avro(F.concat(datum, _mark(value)), json.dumps(schema), {"mode": "PERMISSIVE"})
    except TypeError as exc:  # what Py4J makes of a class that is not there
        raise UsageError(
            f"values in Avro need Spark's module {AVRO_MODULE}, and this Spark has none: add it to the `spark.jars` or "
            "`spark.jars.packages` of the `spark` section, or leave both out and run `deduper jars`"
        ) from exc


def is_whole(record: Column, value: Column, settings: KafkaValue) -> Column:
    """Whether a value, which `record` was made from, was one whole datum (behind its header)."""
    whole = record.getField(MARK).eqNullSafe(_mark(value))
    if not settings.confluent_header:
        return whole
    return whole & (F.length(value) > _HEADER_BYTES) & F.startswith(value, F.lit(b"\0"))


def has_valid_text(record: Column, columns: Sequence[SourceColumn]) -> Column:
    """Whether all text in a record is UTF-8; Avro's libraries write what they are given."""
    checks = _checks(record, spark_schema(columns))
    return F.coalesce(reduce(Column.__and__, checks, F.lit(True)), F.lit(True))


def _checks(value: Column, kind: T.DataType) -> list[Column]:
    """A column for each place that can hold text, true or null where it is UTF-8."""
    if isinstance(kind, T.StringType):
        return [F.coalesce(F.is_valid_utf8(value), F.lit(True))]
    if isinstance(kind, T.StructType):
        return [check for field in kind.fields for check in _checks(value.getField(field.name), field.dataType)]
    if isinstance(kind, T.ArrayType):
        return _checks_of_each(value, kind.elementType)
    if isinstance(kind, T.MapType):
        return _checks_of_each(F.map_keys(value), kind.keyType) + _checks_of_each(F.map_values(value), kind.valueType)
    return []


def _checks_of_each(values: Column, kind: T.DataType) -> list[Column]:
    if not _can_hold_text(kind):
        return []
    every = F.forall(values, lambda value: reduce(Column.__and__, _checks(value, kind), F.lit(True)))
    return [F.coalesce(every, F.lit(True))]


def _can_hold_text(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_can_hold_text(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _can_hold_text(kind.elementType)
    return isinstance(kind, T.StringType | T.MapType)


def _mark(value: Column) -> Column:
    return F.unhex(F.lpad(F.hex(F.xxhash64(value)), 2 * _MARK_BYTES, "0"))
