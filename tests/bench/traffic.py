"""Load on a topic at a steady rate, and what comes out at the other end, each in a process of its own.

    python -m tests.bench.traffic send BOOTSTRAP TOPIC --rate 1000 --seconds 60 [--late 0.02] [--repeats 0.2]
    python -m tests.bench.traffic follow BOOTSTRAP TOPIC... --result FILE.npz [--seconds 60] [--counts]

A record is JSON of about 170 bytes that begins with its number (plus 10^11, for JSON has no leading zeros) and the
moment of its sending, which is also its CreateTime, at fixed places, so that following 20,000 of them a second costs
little:

    {"n":100000000042,"s":1790000000000000000,"k":"user-…","ts":"2026-…","p":"…"}

`ts` is the moment of sending, or for a late record an hour before; a repeat has the key of one of the last thousands.
A sender that falls behind its rate says so and does not catch up by more than a second.
"""

from __future__ import annotations

import argparse
import random
import signal
import string
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

SCHEMA = "n long, s long, k string, ts timestamp, p string"
PAYLOAD_BYTES = 60
_LETTERS = "".join(random.Random(1).choices(string.ascii_letters, k=1 << 20))
MALFORMED_EVERY = 1009
_STEP_S = 0.01
_FIRST = 10**11
_NUMBER, _SENT = slice(5, 17), slice(22, 41)


def value_of(number: int, sent_ns: int, key: str, event_s: float) -> bytes:
    """The bytes of one record; every MALFORMED_EVERY-th ends too early and is an error."""
    moment = datetime.fromtimestamp(event_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    place = number * 7919 % (len(_LETTERS) - PAYLOAD_BYTES)
    payload = _LETTERS[place : place + PAYLOAD_BYTES]
    text = f'{{"n":{_FIRST + number},"s":{sent_ns:019d},"k":"{key}","ts":"{moment}Z","p":"{payload}"}}'
    return text[:-9].encode() if number % MALFORMED_EVERY == MALFORMED_EVERY - 1 else text.encode()


def key_of(number: int) -> str:
    """The key of a fresh record, never two alike."""
    return f"user-{number:012d}-{number * 7919 % 1_000_003}"


def records(first: int, count: int, *, repeats: float, late: float, seed: int) -> Iterator[tuple[str, bytes, int]]:
    """Keys, values and the moment in ms, which is now."""
    dice = random.Random(seed + first)
    for number in range(first, first + count):
        repeated = number > 100 and dice.random() < repeats
        source = number - dice.randrange(1, min(number, 20_000)) if repeated else number
        sent_ns = time.time_ns()
        event_s = sent_ns / 1e9 - (3600 if dice.random() < late else 0)
        key = key_of(source)
        yield key, value_of(number, sent_ns, key, event_s), sent_ns // 1_000_000


def send(
    bootstrap: str, topic: str, rate: float, seconds: float, *, first: int, repeats: float, late: float, seed: int
) -> int:
    """Send at a steady rate until the time is over or SIGTERM comes; gives how many were sent and acknowledged.

    Records are numbered from `first` on.
    """
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "partitioner": "murmur2_random"}
    )
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    failed: list[Any] = []
    began, sent, slipped = time.perf_counter(), 0, 0.0
    while not ending and (passed := time.perf_counter() - began - slipped) < seconds:
        due = int(passed * rate) - sent
        if due > rate:
            slipped += 1.0
            continue
        for key, value, sent_ms in records(first + sent, due, repeats=repeats, late=late, seed=seed):
            producer.produce(
                topic,
                value,
                key,
                timestamp=sent_ms,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        sent += due
        producer.poll(0)
        time.sleep(_STEP_S)
    producer.flush(60)
    if slipped:
        sys.stderr.write(f"the sender was {slipped:.0f} s behind its rate\n")
    if failed or len(producer):
        raise SystemExit(f"{len(failed)} records were refused, {len(producer)} are unacknowledged: {failed[:1]}")
    return sent


def follow(bootstrap: str, topics: list[str], result: Path, seconds: float, *, only_counts: bool = False) -> None:
    """Read committed records until the time is over or SIGTERM comes; write `result`, renamed into place.

    It has for every record read: `topic` (its place among `topics`), `number`, `sent_ns`, `appended_ms` (its own
    timestamp), `seen_ns`. With `only_counts` it has `counts`, how often each number was read from each topic: 4 bytes a
    record of four topics, since an hour of load has hundreds of millions of them.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-follower",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    places = {topic: position for position, topic in enumerate(topics)}
    assigned = []
    for topic in topics:
        listed = consumer.list_topics(topic, timeout=20).topics[topic]
        assigned += [TopicPartition(topic, number, 0) for number in listed.partitions]
    consumer.assign(assigned)
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    # Parts are packed as they come: a soak has tens of millions of records.
    parts: list[np.ndarray[Any, Any]] = []
    counts = np.zeros((1 << 20, len(topics)), np.uint8)
    _report("following")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not ending:
        batch = [message for message in consumer.consume(2000, timeout=0.05) if message.error() is None]
        if not batch:
            continue
        now = time.time_ns()
        if only_counts:
            numbers = [int(value[_NUMBER]) - _FIRST for message in batch if (value := message.value()) is not None]
            of_topics = [places[of] for message in batch if (of := message.topic()) is not None]
            if len(counts) <= (greatest := max(numbers)):
                # By an eighth and in place: what is there is never held twice.
                counts.resize((greatest + greatest // 8 + 1, len(topics)), refcheck=False)
            np.add.at(counts, (numbers, of_topics), 1)
            continue
        rows = [
            (places[of], int(value[_NUMBER]) - _FIRST, int(value[_SENT]), message.timestamp()[1], now)
            for message in batch
            if (value := message.value()) is not None and (of := message.topic()) is not None
        ]
        parts.append(np.array(rows, np.int64).reshape(-1, 5))
    consumer.close()
    hidden = result.with_name(f".{result.stem}.part.npz")
    if only_counts:
        np.savez(hidden, counts=counts)
    else:
        seen = np.concatenate(parts) if parts else np.zeros((0, 5), np.int64)
        names = ("topic", "number", "sent_ns", "appended_ms", "seen_ns")
        np.savez(hidden, **dict(zip(names, seen.T, strict=True)))
    hidden.rename(result)


def _report(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sending = commands.add_parser("send")
    sending.add_argument("bootstrap")
    sending.add_argument("topic")
    sending.add_argument("--rate", type=float, required=True)
    sending.add_argument("--seconds", type=float, required=True)
    sending.add_argument("--first", type=int, default=0, help="number of the first record")
    sending.add_argument("--repeats", type=float, default=0.2)
    sending.add_argument("--late", type=float, default=0.0)
    sending.add_argument("--seed", type=int, default=1)
    following = commands.add_parser("follow")
    following.add_argument("bootstrap")
    following.add_argument("topics", nargs="+")
    following.add_argument("--result", type=Path, required=True)
    following.add_argument("--seconds", type=float, default=86_400.0)
    following.add_argument("--counts", action="store_true", help="keep how often each number was read, and no more")
    reported = parser.parse_args()
    if reported.command == "send":
        sent = send(
            reported.bootstrap,
            reported.topic,
            reported.rate,
            reported.seconds,
            first=reported.first,
            repeats=reported.repeats,
            late=reported.late,
            seed=reported.seed,
        )
        _report(sent)
    else:
        follow(reported.bootstrap, reported.topics, reported.result, reported.seconds, only_counts=reported.counts)


if __name__ == "__main__":
    main()
