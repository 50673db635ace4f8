"""The plan of the first job of a window, the only one that Catalyst makes: read, parse, keys, digest.

No number of one window is a literal in it: it would end up in the text of generated code, and every window would pay
for compiling and warming up its own. Expressions that are the same in every window are made once: each takes dozens of
calls to the JVM, and a small window would take longer to plan than to judge.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deduper.config.kafka.sections import KafkaSource
from deduper.config.model import Config
from deduper.config.query import QueryConfig
from deduper.core.clock import ClockRules, domain_ends, guard_bound
from deduper.core.verdict import Admission
from deduper.sources.digest_columns import fast_digest, secure_digest
from deduper.sources.frames import FramePlan
from deduper.sources.kafka.stream import RECORD, sent_columns
from deduper.sources.parsing import key_columns, record_column
from deduper.sources.record_layout import record_layout
from deduper.spark.columns import Added, Selected
from deduper.tasks.layout import ADMISSION, EXPIRY, HI, LO, PARTITION, RAW, TOPIC, parsed


class ReadPlan:
    """The plan for the tuples of every window: keys, digests, and the columns for the reading tasks."""

    def __init__(self, session: SparkSession, config: Config, salt: bytes) -> None:
        columns = [(record_column(column), column.type.text) for column in config.key_columns]
        hi, lo = (fast_digest if config.digest == "fast" else secure_digest)(columns, salt)
        self._added = Added(session, {**key_columns(config), HI: hi, LO: lo})
        made = {parsed(number): record_column(column) for number, column in enumerate(config.source.parsed_columns)}
        if config.topic_ports:
            made |= sent_columns(*(F.col(f"{RECORD}.{part}") for part in ("key", "value", "headers", "timestamp")))
        place = (TOPIC, PARTITION) if isinstance(config.source, KafkaSource) else ()
        names = (*record_layout(config).schema.names, *place)
        self._given = Selected(session, [made.get(name, F.col(name)).alias(name) for name in names])

    def records(self, tuples: DataFrame, clock: ClockRules | None) -> DataFrame:
        """The columns of every record that the reading tasks get; see `tasks.layout`."""
        raw = F.when(_may_be_error(clock), F.col(RAW))
        return self._given.of(self._added.to(tuples).withColumn(RAW, raw))


Plan: TypeAlias = ReadPlan | FramePlan
"""How the rows of a window become records."""


def read_plan(session: SparkSession, config: Config, salt: bytes) -> Plan:
    """The plan of a job, or of a `Deduper`."""
    return FramePlan(session, config, salt) if isinstance(config, QueryConfig) else ReadPlan(session, config, salt)


def _may_be_error(clock: ClockRules | None) -> Column:
    """Whether the guards may still make an error of a record, or the parser has: its raw text is kept for those only.

    The bound is an element of an array, whose place depends on the row: a number of its own would be new code for
    every window.
    """
    is_error = F.col(ADMISSION) != int(Admission.ADMITTED)
    if clock is None:
        return is_error
    bound = guard_bound(clock)
    if bound is None:
        return F.lit(True)
    if bound == domain_ends(float_domain=clock.float_domain)[1]:
        return is_error
    kind = "array<double>" if clock.float_domain else "array<bigint>"
    bounds = F.from_json(F.lit(json.dumps([bound] * 2)), kind)
    return is_error | (F.col(EXPIRY) > F.element_at(bounds, F.when(is_error, 1).otherwise(2)))
