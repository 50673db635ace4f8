"""The plan of the first job of a window, the only one that Catalyst makes: read, parse, keys, digest.

No number of one window is a literal in it: it would end up in the text of generated code, and every window would pay
for compiling and warming up its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from deduper.clock import ClockRules
from deduper.config import Config
from deduper.digest_columns import fast_digest, secure_digest
from deduper.kafka_source import RECORD
from deduper.output_names import file_sinks, topic_sinks
from deduper.parse import CATEGORY, EXPIRY, FATE, ORDER, RAW, record_column, with_keys
from deduper.source_batch import SourceBatch
from deduper.verdict import INT64_MAX, INT64_MIN, Fate

HI, LO = "_hi", "_lo"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Tuples of a window before the clock: REC, RAW, FATE, ORDER, HI, LO and EXPIRY or CATEGORY."""

    frame: DataFrame
    rows_in: Observation


def prepare(session: SparkSession, config: Config, salt: bytes, batch: SourceBatch) -> Prepared:
    """Read, parse and digest a batch.

    `rows_in` counts the rows in the same pass, as `rows`.
    """
    counted = Observation()
    frame = batch.tuples(session).observe(counted, F.count(F.lit(1)).alias("rows"))
    keyed = with_keys(frame, config)
    columns = [(record_column(column), column.type.text) for column in config.key_columns]
    hi, lo = (fast_digest if config.digest == "fast" else secure_digest)(columns, salt)
    return Prepared(keyed.withColumn(HI, hi).withColumn(LO, lo), counted)


def to_read(config: Config, prepared: DataFrame, clock: ClockRules | None) -> DataFrame:
    """What the reading tasks get of every record: what judging needs, then what the ports get."""
    key = CATEGORY if config.expiry.by == "category" else EXPIRY
    columns = [F.col(HI), F.col(LO), F.col(ORDER), F.col(FATE), F.col(key)]
    columns.append(F.when(_may_be_error(clock), F.col(RAW)).alias(RAW))
    if file_sinks(config):
        columns += [record_column(column).alias(column.name) for column in config.source.parsed_columns]
    if topic_sinks(config):
        columns.append(F.col(RECORD))
    return prepared.select(*columns)


def _may_be_error(clock: ClockRules | None) -> Column:
    """Whether the guards may still make an error of a record, or the parser has: its raw text is kept for those only.

    The bound is an element of an array, whose place depends on the row: a number of its own would be new code for
    every window.
    """
    is_error = F.col(FATE) != int(Fate.ADMITTED)
    bounds = [] if clock is None else _guards(clock)
    if clock is None or bounds is None:
        return is_error if clock is None else F.lit(True)
    if not bounds:
        return is_error
    kind = "array<double>" if clock.float_domain else "array<bigint>"
    bound = F.from_json(F.lit(json.dumps([min(bounds)] * 2)), kind)
    return is_error | (F.col(EXPIRY) > F.element_at(bound, F.when(is_error, 1).otherwise(2)))


def _guards(rules: ClockRules) -> list[int | float] | None:
    """Beyond what expiry keys the guards may object; None when to any."""
    bounds: list[int | float] = []
    if rules.max_ahead_of_now_us is not None:
        bounds.append(rules.now_us + rules.max_ahead_of_now_us)
    if rules.max_jump is not None:
        if rules.latest is None:
            return None
        bounds.append(rules.latest + rules.max_jump)
    return [min(max(bound, INT64_MIN), INT64_MAX) for bound in bounds]


def dedup_type(config: Config) -> str:
    """The DDL of the struct `_dedup`."""
    first = f", first_seen: struct<window: bigint, source: string, position: bigint, expiry: {_expiry_ddl(config)}>"
    return (
        "struct<verdict: string, reason: string, window: bigint, source: string, position: bigint, raw: string"
        f"{first if config.store.first_seen else ''}>"
    )


def _expiry_ddl(config: Config) -> str:
    scale = config.point_scale
    if scale.is_time:
        return "timestamp"
    if scale.is_float:
        return "double"
    return f"decimal(18,{scale.scale})" if scale.scale else "bigint"


def expiry_type(config: Config) -> pa.DataType:
    """What an expiry key is in `_dedup.first_seen`."""
    scale = config.point_scale
    if scale.is_time:
        return pa.timestamp("us", "UTC")
    if scale.is_float:
        return pa.float64()
    return pa.decimal128(18, scale.scale) if scale.scale else pa.int64()
