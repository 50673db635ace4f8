"""Error records of topics as they came, produced to a topic of the source's brokers; see `export`.

A record has the key, value, headers and timestamp that it came with, without the headers that the job has appended.
Into the topic that it came from it goes to its own partition, into another one to that of its key. The producer is
idempotent and not transactional: an export that is broken off has sent some of the records, and is made again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from deduper.admin.errors.rows import WindowRange
from deduper.config.kafka.options import connection_options, librdkafka_options
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.kafka.values import DEDUP_HEADERS
from deduper.config.model import Config
from deduper.errors import UsageError
from deduper.kafka.sending import Headers, Sending
from deduper.kafka.topic_ends import committed_ranges
from deduper.sources.kafka.fetching import TopicRecord, records_of, whole_topic

_NEEDED = ("reason", "window", "origin")
_ORIGIN = re.compile(r"(.+)-(\d+)@\d+")


def export_topic(
    config: Config, source: KafkaSource, port: KafkaSink, windows: WindowRange, reasons: Collection[str], topic: str
) -> dict[str, int]:
    """Send the error records of these windows and reasons to a topic; how many by reason.

    Raises:
        UsageError: the records lack a header, or the topic is a port of the job.
        BrokerUnavailableError, KafkaDeniedError, TopicMissingError, RecordRefusedError: by the brokers.
    """
    missing = [name for name in _NEEDED if name not in port.dedup_headers]
    if missing:
        raise UsageError(
            f"the error port adds no header `dedup-{missing[0]}`: take `{missing[0]}` into sinks.error.dedup_headers; "
            "records that are there already cannot be exported"
        )
    if any(sink.topic == topic for sink in config.topic_ports.values()):
        raise UsageError(f"{topic}: is a port of the job: name a topic of the source, or another one")
    is_same = port.bootstrap_servers == source.bootstrap_servers
    options = port.options if is_same else connection_options(source.options)
    writer = librdkafka_options(source.bootstrap_servers, options)
    reader = librdkafka_options(port.bootstrap_servers, connection_options(port.options))
    committed_ranges(writer, topic)  # a name with a typing error makes no topic
    sent, sending = Counter[str](), Sending(writer, topic)
    for part, batch in whole_topic(reader, port.topic):
        for record in records_of(part, batch):
            reason, window = record.header("dedup-reason"), int(record.header("dedup-window") or -1)
            if reason is not None and (not reasons or reason in reasons) and window in windows:
                sending.send(
                    record.key, record.value, _own_headers(record, port), _partition(record, topic), record.timestamp_ms
                )
                sent[reason] += 1
    sending.finish()
    return dict(sent)


def _partition(record: TopicRecord, topic: str) -> int | None:
    """The partition of the topic that the record came from; None if it came from another topic."""
    origin = _ORIGIN.fullmatch(record.header("dedup-origin") or "")
    return int(origin[2]) if origin and origin[1] == topic else None


def _own_headers(record: TopicRecord, sink: KafkaSink) -> Headers:
    """The headers without those that this job has appended, which are the last ones, each name once."""
    ours = {f"dedup-{name.replace('_', '-')}" for name in sink.dedup_headers or DEDUP_HEADERS}
    headers: Headers = list(record.headers)
    while headers and headers[-1][0] in ours:
        ours.discard(headers.pop()[0])
    return headers
