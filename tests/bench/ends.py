"""Both ends of a lane: where its contender reads the rows of a workload, and where it writes them.

All lanes of a workload share its rows. Of files each lane has hard links in a directory of its own. Of a topic all
lanes read the same records: a round's batches are sent when its first lane begins, and each lane drains the topic.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from deduper.config.sections import PORTS
from tests.bench.contenders import Contender
from tests.bench.topics import Topics
from tests.bench.workload import SCHEMA, Workload

_COLUMNS = ("k", "ts", "payload")


class Rows(Protocol):
    """The rows of a workload, for all its lanes; `work` is a lane's directory."""

    def give(self, numbers: range, work: Path) -> None:
        """Put these batches where the lane reads; they are all that it has not read."""

    def section(self, work: Path, batch_rows: int) -> dict[str, Any]:
        """The section `source` of the service's config."""

    def stream(self, session: SparkSession, work: Path, batch_rows: int) -> DataFrame:
        """The workload's columns, as a stream of Spark's; of records also `key` and `value`."""


class FileRows:
    """Rows in files, which are written once into `inputs`."""

    def __init__(self, workload: Workload, inputs: Path) -> None:
        self._workload = workload
        self._inputs = inputs

    def give(self, numbers: range, work: Path) -> None:
        """See `Rows`."""
        (work / "in").mkdir(parents=True, exist_ok=True)
        self._inputs.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            for path in self._workload.write(self._inputs, number):
                os.link(path, work / "in" / path.name)

    def section(self, work: Path, batch_rows: int) -> dict[str, Any]:  # of `Rows`
        """See `Rows`; a batch is a number of files."""
        return {
            "format": "files",
            "path": str(work / "in"),
            "file_format": self._file_format,
            "schema": SCHEMA,
            "max_files_per_batch": self._workload.files_a_batch,
        }

    def stream(self, session: SparkSession, work: Path, batch_rows: int) -> DataFrame:  # of `Rows`
        """See `Rows`."""
        return (
            session.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", self._workload.files_a_batch)
            .format(self._file_format)
            .load(str(work / "in"))
        )

    @property
    def _file_format(self) -> str:
        return self._workload.format.removesuffix(".gz")


class TopicRows:
    """Rows in a topic."""

    def __init__(self, workload: Workload, topics: Topics, partitions: int) -> None:
        self._workload = workload
        self._topics = topics
        self._topic = topics.create("source", partitions)
        self._sent: set[int] = set()

    def give(self, numbers: range, work: Path) -> None:  # of `Rows`
        """See `Rows`."""
        for number in numbers:
            if number not in self._sent:
                self._topics.send(self._topic, *self._workload.records(number))
                self._sent.add(number)

    def section(self, work: Path, batch_rows: int) -> dict[str, Any]:  # of `Rows`
        """See `Rows`."""
        return topic_section(self._topics.bootstrap, self._topic, SCHEMA, batch_rows)

    def stream(self, session: SparkSession, work: Path, batch_rows: int) -> DataFrame:  # of `Rows`
        """See `Rows`."""
        records = topic_stream(session, self._topics.bootstrap, self._topic, SCHEMA, batch_rows)
        return records.select("key", "value", *(F.col(f"record.{name}").alias(name) for name in _COLUMNS))


def topic_section(bootstrap: str, topic: str, schema: str, batch_rows: int) -> dict[str, Any]:
    """The section `source` of the service's config, for a topic of JSON."""
    return {
        "format": "kafka",
        "bootstrap_servers": bootstrap,
        "topics": [topic],
        "value": {"format": "json", "schema": schema},
        "max_offsets_per_batch": batch_rows,
    }


def topic_stream(session: SparkSession, bootstrap: str, topic: str, schema: str, batch_rows: int) -> DataFrame:
    """`key`, `value` and the parsed `record` of a topic, as a stream of Spark's own source."""
    return (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .load()
        .select("key", "value", F.from_json(F.col("value").cast("string"), schema).alias("record"))
    )


class Outputs(Protocol):
    """Where one lane writes."""

    def sections(self, contender: Contender) -> dict[str, dict[str, Any]]:
        """The section `sinks` of the service's config."""

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """Spark's sink, for a contender of Spark's."""

    def forget(self) -> None:
        """Delete the rows, and leave all that the next batch needs."""


class FileOutputs:
    """Parquet files in the lane's directory."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def sections(self, contender: Contender) -> dict[str, dict[str, Any]]:
        """See `Outputs`."""
        return _with(contender, {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS})

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """See `Outputs`."""
        wanted = rows.drop("key", "value")
        return wanted.writeStream.format("parquet").option("path", str(self._work / "out"))

    def forget(self) -> None:
        """Delete published and written rows; the marks and logs beside them stay."""
        for path in (self._work / "out").rglob("*"):
            hidden = any(part.startswith(("_", ".")) for part in path.relative_to(self._work).parts)
            if path.is_file() and not hidden:
                path.unlink()


class TopicOutputs:
    """A topic for each port, and Spark's sink for contenders of Spark's, which have one output."""

    def __init__(
        self, contender: Contender, topics: Topics, partitions: int, settings: Mapping[str, str] | None = None
    ) -> None:
        self._topics = topics
        ports = [port for port in PORTS if contender.is_service or port == "unique"]
        self.names = {port: topics.create(port, partitions, settings) for port in ports}

    def sections(self, contender: Contender) -> dict[str, dict[str, Any]]:
        """See `Outputs`."""
        return _with(contender, {port: {"format": "kafka", "topic": topic} for port, topic in self.names.items()})

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """See `Outputs`."""
        return (
            rows.select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._topics.bootstrap)
            .option("topic", self.names["unique"])
        )

    def forget(self) -> None:
        """See `Outputs`."""
        for topic in self.names.values():
            self._topics.forget(topic)


def _with(contender: Contender, sections: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The sinks, with a contender's own settings."""
    for port, sink in contender.settings.get("sinks", {}).items():
        sections[port] = dict(sink) if sink.get("format") == "none" else {**sections[port], **sink}
    return sections
