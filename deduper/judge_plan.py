"""The plan of the first job of a window, the only one that Catalyst makes: read, parse, keys, digest.

No number of one window is a literal in it: it would end up in the text of generated code, and every window would pay
for compiling and warming up its own. What is the same in every window is made once: an expression is dozens of calls
to the JVM, and a small window would take longer to plan than to judge.
"""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.clock import ClockRules
from deduper.config import Config
from deduper.config_kafka import KafkaSource
from deduper.digest_columns import fast_digest, secure_digest
from deduper.kafka_source import PARTITION, TOPIC, sent_columns
from deduper.output_names import file_sinks, topic_sinks
from deduper.parse import CATEGORY, EXPIRY, FATE, ORDER, RAW, key_columns, record_column
from deduper.prepared_columns import Added, Selected
from deduper.verdict import INT64_MAX, INT64_MIN, Fate

_HI, _LO = "_hi", "_lo"


class ReadPlan:
    """What is done to the tuples of every window: keys, digests, and which columns the reading tasks get."""

    def __init__(self, session: SparkSession, config: Config, salt: bytes) -> None:
        columns = [(record_column(column), column.type.text) for column in config.key_columns]
        hi, lo = (fast_digest if config.digest == "fast" else secure_digest)(columns, salt)
        self._added = Added(session, {**key_columns(config), _HI: hi, _LO: lo})
        key = CATEGORY if config.expiry.by == "category" else EXPIRY
        given = [F.col(name) for name in (_HI, _LO, ORDER, FATE, key, RAW)]
        if file_sinks(config):
            # Called by their number: a name of theirs may be one of ours, or hold any sign.
            parsed = enumerate(config.source.parsed_columns)
            given += [record_column(column).alias(f"_{number}") for number, column in parsed]
        if topic_sinks(config):
            given += sent_columns()
        if isinstance(config.source, KafkaSource):
            given += [F.col(TOPIC), F.col(PARTITION)]
        self._given = Selected(session, given)

    def records(self, tuples: DataFrame, clock: ClockRules | None) -> DataFrame:
        """What the reading tasks get of every record: what judging needs, then what the ports get."""
        raw = F.when(_may_be_error(clock), F.col(RAW))
        return self._given.of(self._added.to(tuples).withColumn(RAW, raw))


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
