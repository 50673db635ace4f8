"""A streaming source of Spark whose batches this process begins: Spark's `MemoryStream`, one row a batch.

A source in Python would do as well. Spark starts four processes for it at the start of a query, which takes 4 s of CPU,
ends the query if one of them does not connect within 10 s, and asks another one at every batch.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession


class PlannedBatches:
    """The source of one query. Its rows say nothing: what a batch holds is known here."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        memory_stream = jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        texts = jvm.org.apache.spark.sql.Encoders.STRING()
        self._stream = memory_stream(0, session._jsparkSession, jvm.scala.Option.empty(), texts)
        self.rows = DataFrame(self._stream.toDF(), session)
        """A streaming DataFrame."""
        rows = jvm.java.util.ArrayList()
        rows.add("a batch")
        self._row = jvm.scala.jdk.javaapi.CollectionConverters.asScala(rows).toSeq()  # a call of the JVM takes a ms

    def add(self) -> None:
        """The next batch. Spark begins it at its next trigger, so the one before must be over."""
        self._stream.addData(self._row)
