#!/usr/bin/env python3
"""Sends click events as real producers do: with retries, some late, some broken. Says what the job must make of them.

    python examples/kafka/producer.py --count 100000              as fast as it goes
    python examples/kafka/producer.py --count 0 --rate 1000       until Ctrl-C

The same --seed and --start give the same records. An event is keyed by its user, so that its retries follow it in its
partition. Needs confluent-kafka (the extra `kafka`).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, Producer

RETRIED, LATE, EXPIRED, BROKEN = 0.25, 0.03, 0.01, 0.002
PERIOD = timedelta(hours=24)
USERS = 5_000
RETRY_WITHIN = 500
NO_EXPIRED_BEFORE = 500
"""A record is expired by what came before it in its partition: at first there is nothing."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record to send, and the port on which it must come out."""

    key: str
    value: bytes | None
    trace: str
    port: str


def messages(seed: int, start: datetime, interval: timedelta) -> Iterator[Message]:
    """The stream without end: event times go on by the interval from one record to the next."""
    chance = random.Random(seed)
    first_id = int(start.timestamp()) * 1_000_000
    retries: list[tuple[int, int, Message]] = []
    for position in itertools.count():
        if retries and retries[0][0] <= position:
            yield heapq.heappop(retries)[2]
            continue
        user = f"user-{chance.randrange(USERS)}"
        kind = chance.random()
        at, port = start + position * interval, "unique"
        if kind < BROKEN:
            # Cut off in the middle, without its id, or a tombstone.
            broken = [f'{{"user": "{user}", "id": 1'.encode(), json.dumps({"user": user}).encode(), None]
            yield Message(user, chance.choice(broken), f"trace-{position}", "error")
            continue
        if kind < BROKEN + EXPIRED and position >= NO_EXPIRED_BEFORE:
            at, port = at - PERIOD - timedelta(minutes=chance.randrange(60, 600)), "expired"
        elif kind < BROKEN + EXPIRED + LATE:
            at -= timedelta(minutes=chance.randrange(60))
        event = {
            "user": user,
            "id": first_id + position,
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "page": f"/page/{chance.randrange(200)}",
        }
        message = Message(user, json.dumps(event).encode(), f"trace-{position}", port)
        yield message
        if port == "unique" and chance.random() < RETRIED:
            # Its acknowledgement was lost: the same again, a little later, with a trace id of its own.
            due = position + chance.randrange(1, RETRY_WITHIN)
            again = Message(message.key, message.value, f"{message.trace}-retry", "duplicate")
            heapq.heappush(retries, (due, position, again))


def main() -> int:
    """Sends, and prints what was sent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="clicks")
    parser.add_argument("--count", type=int, default=100_000, help="records to send, 0: until Ctrl-C")
    parser.add_argument("--rate", type=float, default=0, help="records a second, 0: as fast as it goes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=datetime.fromisoformat, help="first event time; default: so that they end now")
    arguments = parser.parse_args()
    interval = timedelta(seconds=1 / arguments.rate) if arguments.rate else timedelta(milliseconds=1)
    now = datetime.now(UTC).replace(microsecond=0)
    start = arguments.start or (now if arguments.rate else now - arguments.count * interval)
    start = start if start.tzinfo else start.replace(tzinfo=UTC)

    # Idempotent: what librdkafka itself sends again arrives once, so the counts are exact.
    producer = Producer({"bootstrap.servers": arguments.bootstrap, "enable.idempotence": True, "linger.ms": 10})
    if arguments.topic not in producer.list_topics(timeout=10).topics:
        print(f"{arguments.topic} is no topic of {arguments.bootstrap}", file=sys.stderr)
        return 2
    arrived: Counter[str] = Counter()
    failed: list[KafkaError] = []
    began = time.monotonic()
    stream = messages(arguments.seed, start, interval)
    try:
        for number, message in enumerate(itertools.islice(stream, arguments.count or None)):
            if arguments.rate:
                time.sleep(max(0.0, began + number / arguments.rate - time.monotonic()))

            def acknowledged(error: KafkaError | None, _: object, port: str = message.port) -> None:
                if error is None:
                    arrived[port] += 1
                else:
                    failed.append(error)

            while True:
                try:
                    producer.produce(
                        arguments.topic,
                        message.value,
                        message.key,
                        headers={"trace-id": message.trace},
                        on_delivery=acknowledged,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
    except KeyboardInterrupt:
        pass
    producer.flush(60)
    total = arrived.total()
    print(f"seed {arguments.seed}, start {start.isoformat()}: {total:,} records in {time.monotonic() - began:.1f} s")
    for port in ("unique", "duplicate", "expired", "error"):
        print(f"  {port:10}{arrived[port]:>12,}{arrived[port] / max(total, 1):>9.2%}")
    if failed or len(producer):
        print(f"not acknowledged: {len(failed) + len(producer)}; {failed[:1]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
