"""A streaming source of Spark whose batches this process plans: Spark's `MemoryStream`, one row for each part.

A source in Python would do as well. Spark starts four processes for it at the start of a query, which takes 4 s of CPU,
ends the query if one of them does not connect within 10 s, and asks another one at every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class PlannedBatches:
    """The source of one query. A batch's rows are its source partitions, as texts: for tools that show the query."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        self._jvm = jvm
        memory_stream = jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        texts = jvm.org.apache.spark.sql.Encoders.STRING()
        self._stream = memory_stream(0, session._jsparkSession, jvm.scala.Option.empty(), texts)
        self.rows = DataFrame(self._stream.toDF(), session).toDF("part")
        """A streaming DataFrame with the column `part`."""

    def add(self, parts: Sequence[str]) -> None:
        """The next batch. Spark begins it at its next trigger, so the one before must be over."""
        rows = self._jvm.java.util.ArrayList()
        for part in parts:
            rows.add(part)
        self._stream.addData(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(rows).toSeq())
