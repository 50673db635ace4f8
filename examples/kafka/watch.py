#!/usr/bin/env python3
"""Shows the committed records of topics as they come, a line each; with --count only how many there are, and ends.

    python examples/kafka/watch.py unique duplicate
    python examples/kafka/watch.py --count unique duplicate expired error

It reads from the beginning and sees what a consumer with isolation.level=read_committed sees.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition


def main() -> int:
    """Reads until Ctrl-C, or with --count to the ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--count", action="store_true", help="print the number of records of each topic, and end")
    parser.add_argument("topics", nargs="+")
    arguments = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            # librdkafka wants a name; nothing is committed to the group.
            "group.id": "watch",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    known = consumer.list_topics(timeout=10).topics
    absent = [topic for topic in arguments.topics if topic not in known]
    if absent:
        print(f"no topics of {arguments.bootstrap}: {', '.join(absent)}", file=sys.stderr)
        return 2
    partitions = [TopicPartition(topic, number) for topic in arguments.topics for number in known[topic].partitions]
    for partition in partitions:
        partition.offset = OFFSET_BEGINNING
    consumer.assign(partitions)
    counts: Counter[str | None] = Counter()
    at_end: set[tuple[str | None, int | None]] = set()
    try:
        while not (arguments.count and len(at_end) == len(partitions)):
            for message in consumer.consume(1000, timeout=0.5):
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        at_end.add((message.topic(), message.partition()))
                    elif not error.retriable():
                        raise KafkaException(error)
                    continue
                counts[message.topic()] += 1
                if not arguments.count:
                    print(_line(message), flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()
    if arguments.count:
        for topic in arguments.topics:
            print(f"{topic:20}{counts[topic]:>12,}")
    return 0


def _line(message: Any) -> str:
    """Place, key, value, then the headers."""
    headers = " ".join(f"{name}={_text(value)}" for name, value in message.headers() or ())
    place = f"{message.topic()}-{message.partition()}@{message.offset()}"
    return f"{place}  {_text(message.key())}  {_text(message.value())}  {headers}"


def _text(data: bytes | None) -> str:
    return "null" if data is None else data.decode("utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
