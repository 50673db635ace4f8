"""Publishing a window's rows to the topics of its ports: step 5 for Kafka, from the staged rows the record names.

Where the rows go, and under which name, is what the commit record says (`TopicPlace`), never what today's
configuration would give: a window that was committed before the job or a topic was renamed would otherwise go out a
second time. How the brokers are reached is today's.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bucket_store.commit_log import CommitLog
from bucket_store.log_values import OutputFile
from deduper.config import Config
from deduper.config_kafka import KafkaSink, KafkaSource
from deduper.errors import UsageError
from deduper.kafka_errors import ProducerFencedError
from deduper.kafka_failures import lasting_error, may_pass
from deduper.kafka_publisher import KafkaPublisher, PublisherSettings
from deduper.kafka_rows import HEADERS, KEY, VALUE
from deduper.output_names import TopicPlace, topic_sinks
from deduper.patience import Patience, Reporter
from deduper.publication import Unknown
from deduper.spark_errors import innermost_cause

logger = logging.getLogger(__name__)

_MOST_FENCED = 5


class KafkaPorts:
    """The Kafka ports of a job, for the owner of its store. Producers stay open from window to window.

    `session` gives the Spark session that writes ports with `delivery: at_least_once`, starting one if need be.
    `unpublished` is the operator's answer for windows of which the cluster has forgotten whether they were published.
    """

    def __init__(
        self,
        config: Config,
        log: CommitLog,
        session: Callable[[], SparkSession],
        unpublished: Unknown = Unknown.REFUSE,
    ) -> None:
        assert isinstance(config.source, KafkaSource)
        self._config = config
        self._deadline_s = config.source.deadline / 1_000_000
        self._log = log
        self._session = session
        self._unpublished = unpublished
        self._reporter = Reporter()
        self._publishers: dict[tuple[str, str, str], KafkaPublisher] = {}

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Publish the rows of a committed window that go to topics. Safe to repeat after any crash.

        Raises:
            FencedError: another owner has taken the store.
            UsageError: a port of the window is no topic any more.
            KafkaSinkError, IntegrityError: see `KafkaPublisher.publish`.
        """
        by_port: defaultdict[str, list[tuple[OutputFile, TopicPlace]]] = defaultdict(list)
        for output in outputs:
            place = TopicPlace.of(output.final)
            if place is not None:
                by_port[output.port].append((output, place))
        sinks = topic_sinks(self._config)
        for port, files in by_port.items():
            if port not in sinks:
                topic = files[0][1].topic
                raise UsageError(
                    f"window {window} was committed for port {port} to go to topic {topic}, and may not be there yet; "
                    f"sinks.{port} is no topic now: put it back, start once, then change it"
                )
            self._publish_port(window, port, sinks[port], files)

    def close(self) -> None:
        """Let the producers go."""
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()

    def _publish_port(
        self, window: int, port: str, sink: KafkaSink, files: Sequence[tuple[OutputFile, TopicPlace]]
    ) -> None:
        topic, job = files[0][1].topic, files[0][1].job
        outputs = [output for output, _ in files]
        if job is None:
            self._publish_at_least_once(window, port, sink, topic, outputs)
            return
        slots: defaultdict[int, list[Path]] = defaultdict(list)
        for output, place in sorted(files, key=lambda pair: Path(pair[0].staged).name):
            for slot in place.slots:
                slots[slot].append(Path(output.staged))
        publisher = self._publisher(port, sink, topic, job)
        for attempt in range(1, _MOST_FENCED + 1):
            try:
                publisher.publish(
                    window, _checksum(window, outputs), slots, age_s=_age_s(outputs), unknown=self._unpublished
                )
                return
            except ProducerFencedError:
                self._log.check_owner()
                if attempt == _MOST_FENCED:
                    raise
                logger.warning("port %s: fenced by a producer of this very store: publishing again", port)

    def _publisher(self, port: str, sink: KafkaSink, topic: str, job: str) -> KafkaPublisher:
        name = (port, topic, job)
        if name not in self._publishers:
            self._publishers[name] = KafkaPublisher(
                job=job,
                store_id=self._log.manifest.store_id,
                port=port,
                topic=topic,
                bootstrap_servers=sink.bootstrap_servers,
                options=sink.options,
                keep_order=sink.preserve_order,
                settings=PublisherSettings(deadline_s=self._deadline_s),
            )
        return self._publishers[name]

    def _publish_at_least_once(
        self, window: int, port: str, sink: KafkaSink, topic: str, outputs: Sequence[OutputFile]
    ) -> None:
        """By Spark's sink, which knows no transactions: a crash before the mark, or a failure, sends rows again."""
        subject = f"port {port}, topic {topic}, window {window}"
        patience = Patience(subject, self._deadline_s, self._reporter)
        while True:
            try:
                self._send_by_spark(sink, topic, outputs)
            except (PySparkException, Py4JJavaError) as exc:
                lasting = lasting_error(exc, subject)
                if lasting is not None:
                    raise lasting from exc
                if not may_pass(exc):
                    raise
                self._log.check_owner()
                patience.wait("the brokers, to send it again", innermost_cause(exc))
            else:
                return

    def _send_by_spark(self, sink: KafkaSink, topic: str, outputs: Sequence[OutputFile]) -> None:
        rows = self._session().read.parquet(*[output.staged for output in outputs]).select(KEY, VALUE, HEADERS)
        (
            rows.write.format("kafka")
            .options(**{name: value for name, value in sink.options.items() if name.startswith("kafka.")})
            .option("kafka.bootstrap.servers", sink.bootstrap_servers)
            .option("includeHeaders", "true")
            .option("topic", topic)
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
