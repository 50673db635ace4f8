"""A job on topics whose store is seeded from files: it goes on as one that had seen those records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deduper.errors import UsageError
from deduper.seeding.run import plan_seed, seed
from deduper.seeding.source import SeedInput
from tests.oracle import Oracle, Row, Settings
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob
from tests.services.kafka_traffic import Record, send
from tests.spark.harness import PORTS

pytestmark = [pytest.mark.services, pytest.mark.spark]

Rows = Sequence[tuple[str, int]]

OLD: Rows = [(f"k{number % 40}", number) for number in range(80)]
NEW: Rows = [(f"k{number % 55}", 60 + number) for number in range(70)] + [("k0", -50)]


def _job(broker: Broker, session: SparkSession, directory: Path, topic: str, **value: Any) -> KafkaJob:
    sections = {
        "source": {
            "format": "kafka",
            "bootstrap_servers": broker.bootstrap,
            "topics": [topic],
            "value": {"format": "json", "schema": "t long", **value},
            "record": {"k": "key"},
            "group": "off",
        },
        "key": "k",
        "expiry": {"by": "ordered", "field": "t", "period": 100, "span": 10, "lookup": "all_live"},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
    }
    return KafkaJob(directory, session, sections)


def _json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"k": k, "t": t}) + "\n" for k, t in OLD), encoding="utf-8")


def _parquet(path: Path) -> None:
    keys, times = zip(*OLD, strict=True)
    pq.write_table(pa.table({"t": pa.array(times), "k": pa.array(keys)}), path)


def _csv(path: Path) -> None:
    # By the order of the columns: the value's, then the record's.
    path.write_text("".join(f"{t},{k}\n" for k, t in OLD), encoding="utf-8")


@pytest.mark.parametrize("file_format", [None, "parquet", "csv"])
def test_a_job_on_topics_knows_the_keys_of_seeded_files(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path, file_format: str | None
) -> None:
    """Columns of the record's parts are columns of the files too; the verdicts are the oracle's of both inputs."""
    job = _job(broker, session, tmp_path, new_topic("in"))
    topic = job.settings["source"]["topics"][0]
    old = tmp_path / "old"
    old.mkdir()
    write = {None: _json_lines, "parquet": _parquet, "csv": _csv}[file_format]
    write(old / "a")
    given = SeedInput("files", str(old), file_format)
    assert plan_seed(job.config, given, None).files == 1

    report = seed(job.config, given, None, session=session)
    assert report.is_executed
    assert report.counts == {"unique": 40, "duplicate": 40, "expired": 0, "error": 0}

    records = [Record(json.dumps({"t": t}).encode(), key=k.encode()) for k, t in NEW]
    send(broker.plain(), topic, records)
    job.run()

    oracle = Oracle(Settings("ordered", period=100, span=10, lookup="all_live"))
    oracle.judge([[Row((k,), t) for k, t in OLD]], 0)
    (expected,) = oracle.judge([[Row((k,), t) for k, t in NEW]], 0)
    found = {row["_dedup"]["position"]: port for port in PORTS for row in job.rows(port)}
    assert [found[position] for position in range(len(NEW))] == [answer[0] for answer in expected]
    assert {"unique", "duplicate", "expired"} <= set(found.values())
    with pytest.raises(UsageError, match="a job has judged windows"):
        plan_seed(job.config, given, None)


def test_values_that_are_no_files_need_a_format(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The message names the columns that the files must have."""
    job = _job(broker, session, tmp_path, new_topic("in"), format="text", schema=None)
    job.settings["source"]["value"].pop("schema")
    job.settings["expiry"] = {"by": "never"}
    with pytest.raises(UsageError, match=r"values in text.*--format json, csv or parquet.*value string, `?k`? string"):
        plan_seed(job.config, SeedInput("files", str(tmp_path)), None)
