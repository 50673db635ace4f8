"""Publishing a window's rows to the topics of its ports: step 5 for Kafka, from the staged rows the record names."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash
from pyspark.sql import SparkSession

from bucket_store.commit_log import CommitLog
from bucket_store.log_values import OutputFile
from deduper.config import Config
from deduper.config_kafka import KafkaSink, KafkaSource
from deduper.kafka_errors import ProducerFencedError
from deduper.kafka_publisher import KafkaPublisher, PublisherSettings
from deduper.kafka_rows import HEADERS, KEY, VALUE
from deduper.output_names import TopicPlace, topic_sinks

logger = logging.getLogger(__name__)

_MOST_FENCED = 5


class KafkaPorts:
    """The Kafka ports of a job, for the owner of its store. Producers stay open from window to window.

    `session` gives the Spark session that writes ports with `delivery: at_least_once`, starting one if need be.
    """

    def __init__(self, config: Config, log: CommitLog, session: Callable[[], SparkSession]) -> None:
        assert isinstance(config.source, KafkaSource)
        self._config = config
        self._source = config.source
        self._log = log
        self._session = session
        self._publishers: dict[str, KafkaPublisher] = {}

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Publish the rows of a committed window that go to topics. Safe to repeat after any crash.

        Raises:
            FencedError: another owner has taken the store.
            KafkaSinkError, IntegrityError: see `KafkaPublisher.publish`.
        """
        by_port: defaultdict[str, list[OutputFile]] = defaultdict(list)
        for output in outputs:
            if TopicPlace.of(output.final) is not None:
                by_port[output.port].append(output)
        sinks = topic_sinks(self._config)
        for port, files in by_port.items():
            sink = sinks[port]
            if sink.delivery == "exactly_once":
                self._publish_once(window, port, sink, files)
            else:
                self._publish_at_least_once(sink, files)

    def close(self) -> None:
        """Let the producers go."""
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()

    def _publish_once(self, window: int, port: str, sink: KafkaSink, files: Sequence[OutputFile]) -> None:
        slots: defaultdict[int, list[Path]] = defaultdict(list)
        for output in sorted(files, key=lambda output: Path(output.staged).name):
            place = TopicPlace.of(output.final)
            assert place is not None
            for slot in place.slots:
                slots[slot].append(Path(output.staged))
        for attempt in range(1, _MOST_FENCED + 1):
            try:
                self._publisher(port, sink).publish(window, _checksum(window, files), slots, age_s=_age_s(files))
                return
            except ProducerFencedError:
                self._log.check_owner()
                if attempt == _MOST_FENCED:
                    raise
                logger.warning("port %s: fenced by a producer of this very store: publishing again", port)

    def _publisher(self, port: str, sink: KafkaSink) -> KafkaPublisher:
        if port not in self._publishers:
            self._publishers[port] = KafkaPublisher(
                job=self._config.name,
                store_id=self._log.manifest.store_id,
                port=port,
                topic=sink.topic,
                bootstrap_servers=sink.bootstrap_servers,
                options=sink.options,
                keep_order=sink.preserve_order,
                settings=PublisherSettings(deadline_s=self._source.deadline / 1_000_000),
            )
        return self._publishers[port]

    def _publish_at_least_once(self, sink: KafkaSink, files: Sequence[OutputFile]) -> None:
        """By Spark's sink, which knows no transactions: a crash before the mark sends the window again."""
        rows = self._session().read.parquet(*[output.staged for output in files]).select(KEY, VALUE, HEADERS)
        (
            rows.write.format("kafka")
            .options(**{name: value for name, value in sink.options.items() if name.startswith("kafka.")})
            .option("kafka.bootstrap.servers", sink.bootstrap_servers)
            .option("includeHeaders", "true")
            .option("topic", sink.topic)
            .save()
        )


def _checksum(window: int, files: Sequence[OutputFile]) -> int:
    """What tells this publication from another under the same number: the bytes of all that is sent."""
    digest = xxhash.xxh3_64(window.to_bytes(8, "little"))
    for checksum in sorted(output.checksum for output in files):
        digest.update(checksum.to_bytes(8, "little"))
    return digest.intdigest()


def _age_s(files: Sequence[OutputFile]) -> float:
    """How long ago the window was staged, which is a little more than how long ago it was committed."""
    times = [Path(output.staged).stat().st_mtime for output in files if Path(output.staged).exists()]
    return max(0.0, time.time() - min(times)) if times else 0.0
