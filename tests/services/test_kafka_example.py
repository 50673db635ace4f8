"""The example for Kafka says the truth about what it sends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Record, read

pytestmark = pytest.mark.services
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "kafka"
PERIOD = timedelta(hours=24)


def run(script: str, *arguments: str) -> str:
    """What a script of the example says."""
    command = [sys.executable, str(EXAMPLE / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def judged(records: list[Record]) -> Counter[str]:
    """A dozen lines of what the job does: one clock for each partition, keys in the order of the records."""
    ports: Counter[str] = Counter()
    seen: set[tuple[str, int]] = set()
    latest: dict[int | None, datetime] = {}
    for record in records:
        try:
            event = json.loads(record.value or b"")
            key, at = (event["user"], event["id"]), datetime.fromisoformat(event["ts"])
        except (ValueError, KeyError):
            ports["error"] += 1
            continue
        latest[record.partition] = max(at, latest.get(record.partition, at))
        if at <= latest[record.partition] - PERIOD:
            ports["expired"] += 1
        else:
            ports["duplicate" if key in seen else "unique"] += 1
            seen.add(key)
    return ports


def table(text: str) -> dict[str, int]:
    """The numbers by their names."""
    return {name: int(number.replace(",", "")) for name, number in re.findall(r"^\s*(\S+) +([\d,]+)\b", text, re.M)}


def test_the_producer_says_what_it_sent(broker: Broker, new_topic: Callable[..., str]) -> None:
    """Its table is what a simple model of the job finds in the topic, and every port has some."""
    topic = new_topic("clicks", partitions=4)
    said = run("producer.py", "--bootstrap", broker.bootstrap, "--topic", topic, "--count", "20000", "--seed", "7")
    ports = judged(read(broker.plain(), topic))
    assert {port: table(said)[port] for port in ports} == ports, said
    assert min(ports[port] for port in ("unique", "duplicate", "expired", "error")) > 10
    assert table(run("watch.py", "--bootstrap", broker.bootstrap, "--count", topic)) == {topic: 20_000}


@pytest.mark.night
def test_a_seed_gives_the_same_records_again(broker: Broker, new_topic: Callable[..., str]) -> None:
    """The same seed and start: the same keys, values and headers in the same partitions."""
    sent = []
    for _ in range(2):
        topic = new_topic("clicks", partitions=2)
        where = ["--bootstrap", broker.bootstrap, "--topic", topic]
        run("producer.py", *where, "--count", "2000", "--start", "2026-01-02T03:04:05")
        sent.append([(r.partition, r.offset, r.key, r.value, r.headers) for r in read(broker.plain(), topic)])
    assert len(sent[0]) == 2000
    assert sent[0] == sent[1]
