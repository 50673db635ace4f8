"""Stores that are seeded from files for a job on topics, and from topics: the job goes on as one that had seen it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bucket_store import failpoints
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.verify.run import verify_store
from deduper.errors import UsageError
from deduper.seeding.run import Statement, plan_seed, seed
from deduper.seeding.source import SeedInput
from deduper.testing import Oracle, Row, Settings
from deduper.window.completeness import SEED_OPEN, complete_since
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob
from tests.services.kafka_traffic import Record, send
from tests.spark.harness import PORTS, Job

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


@pytest.mark.night(but=["None"])
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


ROOT = Path(__file__).parent.parent.parent


def _record(k: str, t: int) -> Record:
    return Record(json.dumps({"t": t}).encode(), key=k.encode())


def _begun(broker: Broker, topic: str, name: str, rows: Rows) -> Producer:
    """A transaction with these rows, which is open."""
    producer = Producer(broker.plain().confluent(transactional_id=f"{topic}-{name}"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for k, t in rows:
        record = _record(k, t)
        producer.produce(topic, value=record.value, key=record.key, partition=0)
    producer.flush(30)
    return producer


def _seeded(job: KafkaJob, *words: str, armed: str = "") -> subprocess.CompletedProcess[str]:
    """One run of the command as a process."""
    sections = {"name": "test", "store": {"url": "rocksdb:state", "shards": 2}, **job.settings}
    (job.directory / "job.yaml").write_text(json.dumps(sections), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "tests.crash.seed_driver", "seed", "job.yaml", *words, "--execute", "--json"],
        cwd=job.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), failpoints.ENVIRONMENT: armed},
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=300,
        check=False,
    )


@pytest.mark.night
def test_a_seed_of_a_topic_is_killed_and_ends_where_the_first_run_would_have(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Committed records from the start to the end as it began; a job then gives the oracle's verdicts."""
    job = _job(broker, session, tmp_path, new_topic("in"))
    job.settings["source"]["max_offsets_per_batch"] = 30
    own, old = job.settings["source"]["topics"][0], new_topic("old")
    committed: Rows = [(f"k{number}", 80 + number % 9) for number in range(35, 45)]
    send(broker.plain(), old, [_record(k, t) for k, t in OLD])
    _begun(broker, old, "aborted", [("aborted", 85)] * 5).abort_transaction(30)
    _begun(broker, old, "committed", committed).commit_transaction(30)
    late = _begun(broker, old, "late", [("late", 90)])
    words = ("--topic", old, "--from", '{"0": 10}', "--complete-since", "0")

    killed = _seeded(job, *words, armed="window.4.committed=kill@2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    late.commit_transaction(30)
    send(broker.plain(), old, [_record("later", 91)])
    store = open_store(job.config.store.url)
    assert store.log.state.extra[SEED_OPEN] == f"topic {old}"
    with pytest.raises(UsageError, match="a seed of this store is not over"):
        job.run()
    with pytest.raises(UsageError, match=f"the seed of topic {old} is not over"):
        plan_seed(job.config, SeedInput("topic", own), None)

    resumed = _seeded(job, *words)
    assert resumed.returncode == 0, resumed.stderr
    oracle = Oracle(Settings("ordered", period=100, span=10, lookup="all_live"))
    (before,) = oracle.judge([[Row((k,), t) for k, t in [*OLD[10:], *committed]]], 0)
    expected = [answer[0] for answer in before]
    found = json.loads(resumed.stdout)
    state = open_store(job.config.store.url).log.state
    assert state.totals == {port: expected.count(port) for port in PORTS}
    assert (found["after"]["count"], found["died"]) == (expected.count("unique"), 0)
    # 80 records, 5 and a mark, 10 and a mark; one more would be of the transaction that was open.
    assert found["until"] == {old: {"0": 97}}
    mark = complete_since(state)
    assert mark is not None
    assert mark.point == 0
    assert SEED_OPEN not in state.extra

    again = seed(job.config, SeedInput("topic", old, start='{"0": 10}'), None, session=session)
    assert again.counts == {"unique": 2, "duplicate": 0, "expired": 0, "error": 0}
    assert again.until == {old: {"0": 100}}
    assert again.complete_since == 0
    oracle.judge([[Row(("late",), 90), Row(("later",), 91)]], 0)

    # The job reads the old topic too, from where the seed has ended.
    job.settings["source"] |= {"topics": [own, old], "starting_offsets": again.until, "max_offsets_per_batch": 1000}
    new, behind = [*NEW, ("late", 91), ("aborted", 92)], ("later", 92)
    send(broker.plain(), own, [_record(k, t) for k, t in new])
    send(broker.plain(), old, [_record(*behind)])
    job.run()
    after = oracle.judge([[Row((k,), t) for k, t in new], [Row(behind[:1], behind[1])]], 0)
    rows = [(row["_dedup"], port) for port in PORTS for row in job.rows(port)]
    verdicts = {(dedup["source"], dedup["position"]): port for dedup, port in rows}
    places = [*((f"{own}-0", position) for position in range(len(new))), (f"{old}-0", 100)]
    assert verdicts == dict(zip(places, [answer[0] for part in after for answer in part], strict=True))
    assert verdicts[places[-2]] == "unique"
    assert verdicts[places[-1]] == "duplicate"
    first = {row["_dedup"]["first_seen"]["source"] for row in job.rows("duplicate")}
    assert f"seed:{old}-0" in first
    assert not verify_store(OpenStore(store.url, job.config, open_store(store.url).log, store.pieces)).findings


def test_a_job_on_files_is_seeded_from_a_topic_and_bad_inputs_are_refused(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Its columns are those of the values; what cannot be an input ends before there is a store."""
    job = Job(tmp_path, session, {"source": {"path": "in"}})
    old, empty = new_topic("old", partitions=2), new_topic("empty")
    values = [{"k": f"k{number % 40}", "t": number} for number in range(80)]
    send(broker.plain(), old, [Record(json.dumps(row).encode(), partition=n % 2) for n, row in enumerate(values)])
    given = SeedInput("topic", old, brokers=broker.bootstrap)
    for wrong, reason in (
        (SeedInput("topic", old), "add --brokers"),
        (SeedInput("topic", old, brokers="nowhere"), "write HOST:PORT"),
        (SeedInput("topic", "no topic", brokers=broker.bootstrap), "write the name of one topic"),
        (SeedInput("topic", "absent", brokers=broker.bootstrap), "has no topic of this name"),
        (SeedInput("topic", empty, brokers=broker.bootstrap), "it has no record from earliest on"),
        (SeedInput("topic", old, "parquet", brokers=broker.bootstrap), "--format json or csv"),
        (SeedInput("topic", old, None, "yesterday", broker.bootstrap), "--from yesterday: write `earliest`"),
        (SeedInput("topic", old, None, '{"0": 41}', broker.bootstrap), 'from {"0": 41}: beyond the end'),
        (SeedInput("topic", old, None, '{"7": 1}', broker.bootstrap), "has no partition"),
    ):
        with pytest.raises(UsageError) as refused:
            plan_seed(job.config, wrong, None)
        assert reason in str(refused.value)
    assert not (tmp_path / "state").exists()
    assert plan_seed(job.config, given, None).offsets == 80

    report = seed(job.config, given, Statement(None), session=session)
    assert report.counts == {"unique": 40, "duplicate": 40, "expired": 0, "error": 0}
    assert report.until == {old: {"0": 40, "1": 40}}
    assert report.is_complete
    with pytest.raises(UsageError, match="was seeded from earliest"):
        plan_seed(job.config, SeedInput("topic", old, None, "2025-03-01", broker.bootstrap), None)
    file = job.add_records([{"k": "k39", "t": 1}, {"k": "k40", "t": 2}])
    job.run()
    assert job.verdicts([file]) == [["duplicate", "unique"]]
    (first,) = (row["_dedup"]["first_seen"] for row in job.rows("duplicate"))
    assert (first["source"], first["position"]) == (f"seed:{old}-1", 19)
    store = open_store(job.config.store.url)
    assert not verify_store(OpenStore(store.url, job.config, store.log, store.pieces)).findings


@pytest.mark.night(but=["topic"])
@pytest.mark.parametrize("unique", ["topic", "csv"])
def test_a_lost_store_is_filled_from_what_the_unique_port_has_written(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], tmp_path: Path, unique: str
) -> None:
    """A topic has the records as they were, a file all columns; new records get the oracle's verdicts of both runs."""
    source, topic = new_topic("in"), new_topic("unique")
    job = _job(broker, session, tmp_path, source)
    sink = {"format": "kafka", "topic": topic} if unique == "topic" else {"format": "csv", "path": "out/unique"}
    job.settings["sinks"]["unique"] = sink
    send(broker.plain(), source, [_record(k, t) for k, t in OLD])
    job.run()
    shutil.rmtree(job.config.store.path)
    ends = {source: {"0": len(OLD)}}
    rebuilt = _job(broker, session, tmp_path, source)
    rebuilt.settings["sinks"] = {port: {"format": "parquet", "path": f"out-2/{port}"} for port in PORTS}
    rebuilt.settings |= {"store": {"url": "rocksdb:state-2", "shards": 2}}
    rebuilt.settings["source"] |= {"starting_offsets": ends}
    place = topic if unique == "topic" else str(tmp_path / "out" / "unique")
    given = SeedInput("topic" if unique == "topic" else "files", place, is_of_outputs=True)
    report = seed(rebuilt.config, given, None, session=session)
    oracle = Oracle(Settings("ordered", period=100, span=10, lookup="all_live"))
    (before,) = oracle.judge([[Row((k,), t) for k, t in OLD]], 0)
    assert report.counts["unique"] == [answer[0] for answer in before].count("unique")
    assert report.reasons == {}
    send(broker.plain(), source, [_record(k, t) for k, t in NEW])
    rebuilt.run()
    (after,) = oracle.judge([[Row((k,), t) for k, t in NEW]], 0)
    found = {row["_dedup"]["position"]: port for port in PORTS for row in rebuilt.rows(port)}
    assert [found[len(OLD) + number] for number in range(len(NEW))] == [answer[0] for answer in after]
