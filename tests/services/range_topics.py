"""A range stream between topics of a real broker, and what its ports hold; run here or in a process to kill.

Records of the inputs are sent without transactions to one partition, so their offsets are their numbers, and
`max_offsets_per_batch` cuts windows of so many rows.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from bucket_store import failpoints
from deduper.ranges.stream.job import run
from deduper.ranges.stream.settings import StreamJob
from tests.deduper.ranges.stream.stream_scene import DDL, Row, Scene, written
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Record, read, send

PORTS = ("output", "corrections", "late", "errors")


@dataclass
class TopicScene(Scene):
    """A stream whose inputs and ports are topics."""

    broker: Broker | None = None
    new_topic: Callable[..., str] | None = None
    rows_a_window: int = 6
    topics: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.new_topic is not None
        self.topics = {name: self.new_topic(name) for name in ("events", "ranges", *PORTS)}

    def _input(self, side: str) -> Row:
        assert self.broker is not None
        return {
            "format": "kafka",
            "bootstrap_servers": self.broker.bootstrap,
            "topics": [self.topics[side]],
            "max_offsets_per_batch": self.rows_a_window,
            "value": {"format": "json", "schema": DDL[side]},
        }

    def _output(self, port: str) -> Row:
        return {"format": "kafka", "topic": self.topics[port]}

    def send(self, side: str, rows: Sequence[Row | bytes | None], *, is_aborted: bool | None = None) -> None:
        """Rows, and values that are none, as records: in a transaction that is committed or aborted, or in none."""
        assert self.broker is not None
        values = [
            json.dumps({name: written(value) for name, value in row.items()}).encode() if isinstance(row, dict) else row
            for row in rows
        ]
        if is_aborted is None:
            send(self.broker.plain(), self.topics[side], [Record(value, partition=0) for value in values])
            return
        producer = Producer(self.broker.plain().confluent(transactional_id=f"{self.topics[side]}-sender"))
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topics[side], value, partition=0)
        producer.flush(30)
        (producer.abort_transaction if is_aborted else producer.commit_transaction)(30)

    def records(self, port: str) -> list[Record]:
        """The committed records of a port."""
        assert self.broker is not None
        return read(self.broker.plain(), self.topics[port])

    def rows(self, port: str = "output") -> list[Row]:
        """Their values, in the order of windows."""
        return [defaultdict(lambda: None, json.loads(record.value or b"")) for record in self.records(port)]

    def leftovers(self) -> list[str]:
        """As for folders; staged rows lie in the store."""
        return super().leftovers() + [str(file) for file in (self.store / "_staging").walk()]

    def in_a_process(self, armed: str) -> int:
        """Run to the end in a process with these failpoints armed; its exit code, negative for one that was killed."""
        file = self.root / "points.yaml"
        file.write_text(json.dumps(self.written))
        # A process of the fork server begins with all modules.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "deduper.ranges.stream.topics", "deduper.sinks.topics"])
        process = context.Process(target=_run, args=(file, armed))
        process.start()
        process.join(120)
        assert process.exitcode is not None, f"with {armed} it does not end"
        return process.exitcode


def _run(file: Path, armed: str) -> None:
    failpoints._ARMED.update(failpoints._armed(armed))
    run(StreamJob.load(file, environment={}), once=True, take_over=True, on_progress=lambda *_: None)
