"""A store and a checkpoint on Kafka that the code of commit e1a5ec4 has written: the job opens them and goes on.

It has three windows of ten records, an hour of event time apart, from topic `clicks` to topic `unique` and to files.
The data of the broker are a part of it: the store knows topics by their ids.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob
from tests.services.kafka_traffic import Record, read, send

pytestmark = [pytest.mark.services, pytest.mark.spark, pytest.mark.night]

KEPT = Path(__file__).parent.parent / "data" / "stores_of_0.1.0-e1a5ec4" / "kafka.tar.gz"


def test_a_kafka_store_of_an_earlier_commit_goes_on(session: SparkSession, tmp_path: Path) -> None:
    """Its offsets, keys, first copies and positions in the output topic count: nothing is judged or sent again."""
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    # The positions are as old as the archive, and a broker would forget them after a week.
    with Broker(tmp_path / "broker", settings={"offsets.retention.minutes": 2**31 - 1}) as broker:
        files = {port: {"format": "json", "path": f"out/{port}"} for port in ("duplicate", "expired", "error")}
        job = KafkaJob(
            tmp_path / "job",
            session,
            {
                "name": "kept",
                "source": {
                    "format": "kafka",
                    "bootstrap_servers": broker.bootstrap,
                    "topics": ["clicks"],
                    "value": {"format": "json", "schema": "k string, t timestamp"},
                },
                "expiry": {"by": "event_time", "field": "t", "period": "24h", "span": "1h"},
                "sinks": {"unique": {"format": "kafka", "topic": "unique"}, **files},
            },
        )
        assert CommitLog.open(local_place(job.config.store.path)).state.next_window == 3
        # Keys live in the bucket of their hour: k0 to k9 were seen at 00:00, in window 0.
        again = [{"k": f"k{n}", "t": f"2024-01-01T00:{n:02d}:30Z"} for n in range(10)]
        values = [*again, {"k": "new", "t": "2024-01-01T02:30:00Z"}]
        send(broker.plain(), "clicks", [Record(json.dumps(value).encode(), partition=0) for value in values])
        assert job.run().windows == 1
        sent = [json.loads(record.value or b"")["k"] for record in read(broker.plain(), "unique")]
    assert sorted(sent) == sorted([f"k{w or ''}{n}" for w in range(3) for n in range(10)] + ["new"])
    assert {port: len(job.rows(port)) for port in files} == {"duplicate": 10, "expired": 0, "error": 0}
    firsts = {row["k"]: row["_dedup"]["first_seen"] for row in job.rows("duplicate")}
    assert {first["window"] for first in firsts.values()} == {0}
    assert [firsts[f"k{n}"]["source"] for n in range(10)] == [f"clicks-{n % 2}" for n in range(10)]
    assert verify_store(open_store(job.config.store.url)).findings == ()
