"""A job from topic to topics on a real broker, run as a process that can be killed, and what readers must have seen.

The verdict of every record is known when it is made, whatever is killed and wherever windows are cut: copies have the
expiry key of their first, late ones lie further back than any period, and no key is forgotten.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.crash.scene import Scene
from tests.services.kafka_broker import Broker
from tests.services.kafka_cluster import Cluster
from tests.services.kafka_jobs import header
from tests.services.kafka_traffic import Follower, Record, read
from tests.spark.harness import PORTS

PARTITIONS = 3


@dataclass(frozen=True)
class Traffic:
    """Records to send, and by their number the port each must leave by; of copies of a key any may be the unique one.

    `keys` holds the dedup key of every record that is not late and not torn.
    """

    records: list[Record]
    keys: dict[int, str]
    late: set[int]
    torn: set[int]


def made_traffic(count: int, rng: random.Random) -> Traffic:
    """30 % copies, 5 % late, 1 % torn; every tenth without a record key; dealt to the partitions in turn."""
    made, keys, late, torn = [], {}, set[int](), set[int]()
    firsts: list[tuple[str, int]] = []
    for number in range(count):
        kind = rng.random() if number >= 10 * PARTITIONS else 1.0
        value = None
        if kind < 0.30:
            key, t = firsts[-1 - int(len(firsts) * rng.random() ** 2)]
            keys[number] = key
        elif kind < 0.35:
            key, t = f"late{number}", number - 10_000_000
            late.add(number)
        elif kind < 0.36:
            key, t, value = "", 0, b'{"k": "torn", '
            torn.add(number)
        else:
            key, t = f"k{number}", number // 10
            keys[number] = key
            firsts.append((key, t))
        made.append(
            Record(
                value or json.dumps({"k": key, "t": t}).encode(),
                key=None if number % 10 == 0 else f"user{number % 499}".encode(),
                headers=(("n", str(number).encode()),),
                partition=number % PARTITIONS,
            )
        )
    return Traffic(made, keys, late, torn)


@dataclass
class KafkaScene(Scene):
    """One job on a broker."""

    master: str = "local[2,8]"
    broker: Broker | Cluster | None = None
    source: str = "in"
    max_offsets: int = 3000
    preserve_order: bool = True
    options: str = "{}"

    def make(self, windows: int = 0) -> KafkaScene:
        """The directory, the config file, the topics; `windows` is of no meaning here."""
        assert self.broker is not None
        (self.directory / "tmp").mkdir(parents=True)
        self.broker.create_topic(self.source, PARTITIONS)
        sinks = []
        for port in PORTS:
            self.broker.create_topic(self.topic(port), PARTITIONS)
            order = f", preserve_order: {str(self.preserve_order).lower()}" if port == "unique" else ""
            sinks.append(f"  {port}: {{format: kafka, topic: {self.topic(port)}{order}}}")
        self.config_path.write_text(
            f"""\
name: {self.source}
source: {{format: kafka, bootstrap_servers: "{self.broker.bootstrap}", topics: [{self.source}], deadline: 300s,
         max_offsets_per_batch: {self.max_offsets}, value: {{format: json, schema: "k string, t long"}},
         options: {self.options}}}
key: k
expiry: {{by: ordered, field: t, period: 1000000, span: 100000}}
store: {{url: "{self.store}", shards: 2, tables: tables}}
sinks:
{chr(10).join(sinks)}
trigger: 1s
spark:
  spark.master: "{self.master}"
  spark.driver.memory: 1g
  spark.driver.extraJavaOptions: "-Djava.io.tmpdir={self.directory / "tmp"}"
{"".join(f"  {name}: {json.dumps(value)}{chr(10)}" for name, value in self.spark.items())}"""
        )
        return self

    def topic(self, port: str) -> str:
        """The topic of a port."""
        return f"{self.source}-{port}"

    def windows(self) -> int:
        """How many windows are committed; none before there is a store."""
        with contextlib.suppress(FileNotFoundError, Exception):
            return super().windows()
        return 0

    def read(self) -> dict[str, list[Record]]:
        """What a reader of committed records finds in each port's topic now."""
        assert self.broker is not None
        return {port: read(self.broker.plain(), self.topic(port)) for port in PORTS}

    def followers(self) -> dict[str, Follower]:
        """Readers of committed records, to be entered before the job starts."""
        assert self.broker is not None
        return {port: Follower(self.broker.plain(), self.topic(port)) for port in PORTS}


def repeats(records: Iterable[Record]) -> int:
    """How many records are there more than once, each counted as often as it is too much."""
    return sum(count - 1 for count in Counter(header(record, "n") for record in records).values())


def problems(
    sent: list[Record],
    traffic: Traffic,
    seen: Mapping[str, list[Record]],
) -> list[str]:
    """What is wrong with what readers saw: rows lost, repeated, changed, on the wrong port, out of order."""
    found = []
    ports: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for port, records in seen.items():
        for record in records:
            number = int(header(record, "n") or -1)
            ports[number][port] += 1
            original = sent[number]
            origin = f"{original.partition}@{original.offset}"
            if (record.key, record.value) != (original.key, original.value):
                found.append(f"{port}: {number} is changed")
            if not (header(record, "dedup-origin") or "").endswith(f"-{origin}"):
                found.append(f"{port}: {number} of {origin} says {header(record, 'dedup-origin')}")
            if header(record, "dedup-verdict") != port:
                found.append(f"{port}: {number} says {header(record, 'dedup-verdict')}")
    lost = [number for number in range(len(sent)) if number not in ports]
    if lost:
        found.append(f"{len(lost)} lost, as {lost[:3]}")
    several = [number for number, where in ports.items() if len(where) > 1]
    if several:
        found.append(f"{len(several)} on several ports, as {several[0]}: {ports[several[0]]}")
    for port in seen:
        twice = [number for number, where in ports.items() if where[port] > 1]
        if twice:
            found.append(f"{port}: {len(twice)} twice, as {sorted(twice)[:3]}")
    for port, wanted in (("expired", traffic.late), ("error", traffic.torn)):
        got = {number for number, where in ports.items() if where[port]}
        if got != wanted:
            found.append(f"{port}: {len(wanted - got)} missing, {len(got - wanted)} too many")
    unique = Counter(traffic.keys.get(int(header(record, "n") or -1), "none") for record in seen["unique"])
    if unique.keys() != set(traffic.keys.values()):
        found.append(f"unique: {len(set(traffic.keys.values()) - unique.keys())} keys are missing")
    if max(unique.values(), default=1) > 1:
        found.append(f"unique: keys more than once: {unique.most_common(3)}")
    return found + _out_of_order("unique", seen["unique"], sent)


def _out_of_order(port: str, records: list[Record], sent: list[Record]) -> list[str]:
    """In every partition of a topic the records of one source partition come in its order."""
    last: dict[tuple[int | None, int | None], int] = {}
    found = []
    for record in records:
        original = sent[int(header(record, "n") or -1)]
        place = (record.partition, original.partition)
        assert original.offset is not None
        if original.offset <= last.get(place, -1):
            found.append(f"{port}: source partition {original.partition}: {original.offset} after {last[place]}")
        last[place] = original.offset
    return found[:3]


def once_path(scene: Scene, name: str) -> Path:
    """The file that a failpoint with `:once=` makes."""
    return scene.directory / "tmp" / name
