"""The offsets that are told to a consumer group while its coordinator comes and goes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import committed_offsets
from tests.services.staged_windows import ROOT

pytestmark = [pytest.mark.services, pytest.mark.night]

KILLS = 2
# A process of its own: what is looked for ends the process.
COMMITTING = """
import sys, time
from deduper.kafka.cluster import GroupOffsets
from deduper.kafka.offsets import OffsetRange, TopicPartition
bootstrap, group, topic = sys.argv[1:]
offsets = GroupOffsets({"bootstrap.servers": bootstrap}, group)
number = 0
while True:
    number += 1
    offsets.commit([OffsetRange(TopicPartition(topic, 0), "id", 0, number)])
    if number == 1:
        print(number, flush=True)
    time.sleep(0.02)
"""


def test_a_coordinator_that_dies_takes_nobody_along(broker: Broker, new_topic: Callable[..., str]) -> None:
    """The admin client's own way ends the process by an assertion in C; offsets arrive again with the broker."""
    topic = new_topic("in")
    with subprocess.Popen(
        [sys.executable, "-c", COMMITTING, broker.bootstrap, f"lag-{topic}", topic],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            for _ in range(KILLS):
                wait_for_more(broker, topic)
                broker.kill()
                broker.start()
            wait_for_more(broker, topic)
            assert process.poll() is None, f"ended with {process.returncode}"
        finally:
            process.kill()


def wait_for_more(broker: Broker, topic: str) -> None:
    """Until the group's offset moves. A coordinator that has just started may refuse for a moment."""
    until = time.monotonic() + 60
    first: int | None = None
    while time.monotonic() < until:
        with contextlib.suppress(KafkaException):
            offset = committed_offsets(broker, f"lag-{topic}", topic).get(0, 0)
            if first is not None and offset > first:
                return
            first = offset if first is None else first
        time.sleep(0.1)
    pytest.fail(f"the offset stays at {first}")
