"""The real job from topic to topics on a real broker."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.sources_archive import files_of
from bucket_store.pieces.open import open_backend
from bucket_store.places.local import local_place
from deduper.admin.open_store import OpenStore
from deduper.admin.verify.run import verify_store
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, header, records, settings
from tests.services.kafka_traffic import committed_offsets, read, send

pytestmark = [pytest.mark.services, pytest.mark.spark, pytest.mark.query]


def test_every_record_leaves_by_one_topic_as_it_came(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """Key, value, headers and timestamp are kept; verdict, reason, window and origin are told."""
    source = new_topic("in", partitions=3)
    sent = send(broker.plain(), source, records(500))
    job = KafkaJob(tmp_path, session, settings(broker, source, topics))
    summary = job.run()
    assert summary.rows == 500
    seen: Counter[str] = Counter()
    by_number = {header(record, "n"): record for record in sent}
    for port, topic in topics.items():
        arrived = read(broker.plain(), topic)
        assert arrived, f"nothing left by {port}: what is held against it below proves nothing"
        for record in arrived:
            number = header(record, "n")
            assert number is not None
            seen[number] += 1
            original = by_number[number]
            assert (record.key, record.value, record.timestamp_ms) == (
                original.key,
                original.value,
                original.timestamp_ms,
            )
            assert header(record, "dedup-verdict") == port
            assert header(record, "dedup-origin") == f"{source}-{original.partition}@{original.offset}"
            assert (header(record, "dedup-first-seen") is not None) == (port == "duplicate")
    assert set(seen.values()) == {1}
    assert len(seen) == 500
    assert committed_offsets(broker, "test", source) == {
        number: sum(record.partition == number for record in sent) for number in range(3)
    }
    assert job.run().rows == 0
    send(broker.plain(), source, records(60, first=500))
    assert job.run().rows == 60
    total = sum(len(read(broker.plain(), topic)) for topic in topics.values())
    assert total == 560


@pytest.mark.night
def test_sources_files_go_with_their_keys(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """A job that runs for years names those windows that keys of are remembered, and no record comes again."""
    source = new_topic("in", partitions=3)
    send(broker.plain(), source, records(1000))
    expiry = {"by": "ordered", "field": "t", "period": 20, "span": 5}
    sections = settings(broker, source, topics, expiry=expiry)
    sections["source"]["max_offsets_per_batch"] = 40
    job = KafkaJob(tmp_path, session, sections)
    minutes = itertools.count(0)

    def clock() -> int:
        """Five minutes later whenever somebody looks: what is dead is soon beyond its grace.

        It is deleted beside the windows, which would be over before the first deletion is.
        """
        time.sleep(0.1)
        return 1_800_000_000_000_000 + next(minutes) * 300_000_000

    windows = job.run(clock=clock).windows
    assert windows >= 25
    state = CommitLog.open(local_place(job.config.store.path)).state
    named = [window for window in range(state.next_window) if state.sources_of(window) is not None]
    assert 0 < len(named) <= windows // 2
    assert min(ref.first_window for refs in state.pieces.values() for ref in refs) >= min(named)
    folders = (job.config.store.path / name for name in ("sources", "folded"))
    lying = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    assert lying == {job.config.store.path / path for path in files_of(state)}
    log = CommitLog.open(local_place(job.config.store.path))
    report = verify_store(OpenStore(job.config.store.url, job.config, log, open_backend(job.config.store.url)))
    assert report.findings == ()
    assert any("sources file are gone" in why for why in report.skipped.values())
    assert job.run(clock=clock).rows == 0
    send(broker.plain(), source, records(60, first=1000))
    assert job.run(clock=clock).rows == 60
    found = [header(record, "n") for topic in topics.values() for record in read(broker.plain(), topic)]
    assert sorted(map(int, filter(None, found))) == list(range(1060))
