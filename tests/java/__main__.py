"""Writes the archives of Java's classes that are missing: runs each kind of process once, in order to its end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.java import BROKER, CLASSES, DATANODE, NAMENODE, SPARK, archive, start_sessions_soon, to_write
from tests.services.conftest import end_jvm
from tests.services.hdfs import Hdfs
from tests.services.jars import broker_jars, hadoop_jars
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import Record, read, send
from tests.spark.harness import Job

_DEADLINE_S = 300.0


def _spark(directory: Path) -> None:
    start_sessions_soon()
    job = Job(directory, None, {"source": {"max_files_per_batch": 1}})
    for number in range(2):
        job.add_records([{"k": f"{key}", "t": number} for key in range(10)])
    job.run()
    end_jvm(_DEADLINE_S)


def _broker(directory: Path) -> None:
    broker = Broker(directory)
    broker.start()
    topic = broker.create_topic("classes", 1)
    send(broker.plain(), topic, [Record(b"x", partition=0)])
    read(broker.plain(), topic)
    broker.stop(_DEADLINE_S)


def _hdfs(directory: Path) -> None:
    cluster = Hdfs(directory)
    cluster.start()
    for server in (*cluster.datanodes, cluster.namenode):
        server.stop(_DEADLINE_S)


_RUNS: dict[tuple[str, ...], Callable[[Path], None]] = {
    (BROKER,): _broker,
    (NAMENODE, DATANODE): _hdfs,
    (SPARK,): _spark,
}


def main() -> None:
    """Nothing is done for a kind whose archive is there; the seconds that all of them took are left beside them."""
    CLASSES.mkdir(exist_ok=True)
    broker_jars()
    hadoop_jars()
    began = time.monotonic()  # what a network takes says nothing about the machine
    wrote = 0
    for kinds, run in _RUNS.items():
        if all(archive(of).is_file() for of in kinds):
            continue
        with tempfile.TemporaryDirectory(dir=CLASSES) as directory:
            to_write.update({of: Path(directory, f"{of}.jsa") for of in kinds})
            data = Path(directory, "data")
            data.mkdir()
            run(data)
            for of in kinds:
                to_write.pop(of).replace(archive(of))
        wrote += 1
    if wrote == len(_RUNS):
        (CLASSES / "seconds").write_text(f"{time.monotonic() - began:.0f}\n", encoding="ascii")


if __name__ == "__main__":
    main()
