"""Where a job on Kafka begins, what it takes, and what it says of records that are gone; on a real broker."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from deduper.errors import DeduperError, IntegrityError, exit_code_of
from deduper.sources.kafka import batch as kafka_batch
from deduper.sources.kafka import broker_watch
from deduper.sources.kafka.batch import KafkaBatch
from deduper.window.jobs import local
from deduper.window.progress import BatchProgress, RunSummary
from tests.services.kafka_broker import Broker
from tests.services.kafka_connection import Connection
from tests.services.kafka_jobs import KafkaJob
from tests.services.kafka_traffic import Record, committed_offsets, forget_before, recreate_topic, send
from tests.spark.harness import PORTS, read_rows

pytestmark = [pytest.mark.services, pytest.mark.spark]

_RUN_DEADLINE_S = 120.0

Topics = Callable[..., str]
Origin = tuple[str, int, int]


class Stream:
    """A job from topics to files, and what was sent to the topics: every record has a key of its own but repeats."""

    def __init__(self, broker: Broker, session: SparkSession, directory: Path, **source: Any) -> None:
        self.broker = broker
        self.sent: dict[Origin, Record] = {}
        self._number = 0
        sections: dict[str, Any] = {
            "source": {
                "format": "kafka",
                "bootstrap_servers": broker.bootstrap,
                "value": {"format": "json", "schema": "k string"},
                "group": "off",
                **source,
            },
            "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
            "trigger": "50ms",
        }
        self.sections = sections
        self.job = KafkaJob(directory, session, sections)

    def send(self, topic: str, count: int, **record: Any) -> list[Record]:
        """Records with new keys."""
        first, self._number = self._number, self._number + count
        made = [
            Record(json.dumps({"k": f"k{number}"}).encode(), key=str(number).encode(), **record)
            for number in range(first, first + count)
        ]
        return self.send_all(topic, made)

    def send_all(self, topic: str, records: Sequence[Record]) -> list[Record]:
        """These records."""
        done = send(self.broker.plain(), topic, records)
        self.sent |= {(topic, record.partition or 0, record.offset or 0): record for record in done}
        return done

    def run(self, after_window: Callable[[BatchProgress], None] | None = None, **how: Any) -> RunSummary:
        """The job; `after_window` is called in the middle of it, after each window."""
        script = _Script(after_window or (lambda _: None))
        self.job.progress = script
        return self.job.run(**how)

    def run_until(self, rows: int, after_window: Callable[[BatchProgress], None] = lambda _: None) -> None:
        """The job, on and on, until it has judged so many rows in all its runs, or the deadline is over."""
        judged = len(self.keys())

        def act(progress: BatchProgress) -> None:
            nonlocal judged
            judged += progress.rows
            after_window(progress)
            if judged >= rows:
                os.kill(os.getpid(), signal.SIGTERM)

        deadline = threading.Timer(_RUN_DEADLINE_S, os.kill, (os.getpid(), signal.SIGTERM))
        deadline.start()
        try:
            self.run(act, once=False)
        finally:
            deadline.cancel()

    def verdicts(self) -> dict[Origin, str]:
        """The port by which each record left: one, or the test fails."""
        seen: dict[Origin, str] = {}
        for port in PORTS:
            for row in self.job.rows(port):
                topic, _, partition = row["_dedup"]["source"].rpartition("-")
                origin = (topic, int(partition), row["_dedup"]["position"])
                assert origin not in seen, f"{origin} left by {seen[origin]} and by {port}"
                seen[origin] = port
        return seen

    @property
    def sent_keys(self) -> list[str]:
        """The keys of all records that were sent, of topics that are gone too; see `keys`."""
        return sorted(f"k{number}" for number in range(self._number))

    def keys(self) -> list[str]:
        """The keys of all rows, for where offsets come again."""
        return sorted(row["k"] for port in PORTS for row in self.job.rows(port))

    def rows(self) -> dict[Origin, dict[str, Any]]:
        """All rows of all ports by their origin."""
        found = {}
        for port in PORTS:
            for row in self.job.rows(port):
                topic, _, partition = row["_dedup"]["source"].rpartition("-")
                found[topic, int(partition), row["_dedup"]["position"]] = row
        return found

    def has_all_but(self, *missing: Record) -> bool:
        """Whether everything that was sent was judged, but for these."""
        absent = {id(record) for record in missing}
        expected = {origin for origin, record in self.sent.items() if id(record) not in absent}
        assert set(self.verdicts()) == expected
        return True


class _Script(list[BatchProgress]):
    """The progress of a run, with something to do after each window."""

    def __init__(self, act: Callable[[BatchProgress], None]) -> None:
        super().__init__()
        self._act = act

    def append(self, progress: BatchProgress) -> None:
        super().append(progress)
        self._act(progress)


@pytest.fixture
def stream(broker: Broker, session: SparkSession, tmp_path: Path) -> Callable[..., Stream]:
    """`stream(topics=[...])`: a job with these settings of the source."""
    return lambda **source: Stream(broker, session, tmp_path, **source)


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The offsets reported as lost."""
    return [
        record.getMessage().removeprefix("source: lost, and the job continues: ")
        for record in caplog.records
        if record.levelno == logging.ERROR and record.name == kafka_batch.__name__
    ]


# ---- where it begins


def test_earliest_and_the_next_run_goes_on(stream: Callable[..., Stream], new_topic: Topics) -> None:
    """Everything there is; then what came since."""
    topic = new_topic("in", partitions=3)
    it = stream(topics=[topic])
    it.send(topic, 30)
    assert it.run().rows == 30
    it.send(topic, 10)
    assert it.run().rows == 10
    assert it.has_all_but()


@pytest.mark.night
def test_latest_begins_at_the_end_and_not_at_the_next_start(stream: Callable[..., Stream], new_topic: Topics) -> None:
    """Also what comes between two runs of which the first found nothing."""
    topic = new_topic("in", partitions=2)
    it = stream(topics=[topic], starting_offsets="latest")
    old = it.send(topic, 20)
    assert it.run().rows == 0
    it.send(topic, 10)
    assert it.run().rows == 10
    assert it.has_all_but(*old)


@pytest.mark.night
def test_a_time_begins_at_the_first_record_of_it(stream: Callable[..., Stream], new_topic: Topics) -> None:
    """In each partition; one that has none so late begins at its end."""
    topic = new_topic("in", partitions=2)
    it = stream(topics=[topic], starting_offsets={"time": "2025-03-01T00:00:10Z"})
    begin = 1_740_787_200_000
    old = it.send(topic, 3, partition=0, timestamp_ms=begin + 9_999)
    it.send(topic, 2, partition=0, timestamp_ms=begin + 10_000)
    old += it.send(topic, 4, partition=1, timestamp_ms=begin)
    assert it.run().rows == 2
    it.send(topic, 1, partition=1, timestamp_ms=begin)
    assert it.run().rows == 1
    assert it.has_all_but(*old)


@pytest.mark.night
def test_named_offsets_begin_there_and_others_at_the_earliest(stream: Callable[..., Stream], new_topic: Topics) -> None:
    """One that no partition has is refused, with where it ends."""
    topic = new_topic("in", partitions=2)
    it = stream(topics=[topic], starting_offsets={topic: {"1": 99}})
    it.send(topic, 4, partition=0)
    old = it.send(topic, 5, partition=1)
    with pytest.raises(DeduperError, match=f"{topic}-1 at 99, it ends at 5"):
        it.run()
    it.sections["source"]["starting_offsets"] = {topic: {"7": 1}}
    with pytest.raises(DeduperError, match=f"no partition {topic}-7"):
        it.run()
    it.sections["source"]["starting_offsets"] = {topic: {"1": 3}}
    assert it.run().rows == 6
    assert it.has_all_but(*old[:3])


# ---- what it takes


@pytest.mark.night
def test_topics_of_a_pattern_are_read_whenever_they_are_made(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics
) -> None:
    """Between two runs and while one goes on; a name that only holds the pattern is none of them."""
    first = new_topic("pat")
    it = stream(topic_pattern=f"{first}(-.*)?")
    it.send(first, 5)
    assert it.run().rows == 5
    between, during = f"{first}-between", f"{first}-during"
    broker.create_topic(between)
    broker.create_topic(f"my-{first}")
    it.send(between, 4)
    assert it.run().rows == 4

    def make(progress: BatchProgress) -> None:
        if progress.window == 2:
            broker.create_topic(during)
            it.send(during, 3)
            it.send(first, 2)

    it.send(first, 1)
    it.run_until(15, make)
    assert it.has_all_but()


@pytest.mark.night
def test_added_partitions_are_read_from_their_beginning(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics
) -> None:
    """Made between two runs, or while one goes on."""
    topic = new_topic("grows")
    it = stream(topics=[topic])
    it.send(topic, 5)
    assert it.run().rows == 5
    broker.add_partitions(topic, 2)
    it.send(topic, 3, partition=1)
    assert it.run().rows == 3

    def add(progress: BatchProgress) -> None:
        if progress.window == 2:
            broker.add_partitions(topic, 4)
            it.send(topic, 4, partition=3)
            it.send(topic, 2, partition=0)

    it.send(topic, 1, partition=1)
    it.run_until(15, add)
    assert it.has_all_but()


def test_many_small_windows_say_what_one_large_one_says(
    broker: Broker, session: SparkSession, new_topic: Topics, tmp_path: Path
) -> None:
    """`max_offsets_per_batch`, with keys that come again and late records; and another number of shards."""
    topic = new_topic("many", partitions=2)
    records = [
        Record(json.dumps({"k": f"k{number % 17}", "t": number // 3 - (200 if number % 19 == 0 else 0)}).encode())
        for number in range(120)
    ]
    # A key stays in its partition, as keyed records do: otherwise the windows decide which copy comes first.
    sent = [Record(record.value, partition=number % 17 % 2) for number, record in enumerate(records)]
    found = []
    for name, limit, shards in (("one", 500, 1), ("many", 30, 4)):
        it = Stream(
            broker,
            session,
            tmp_path / name,
            topics=[topic],
            value={"format": "json", "schema": "k string, t long"},
            max_offsets_per_batch=limit,
        )
        it.sections["store"] = {"url": "rocksdb:state", "shards": shards}
        it.sections["expiry"] = {"by": "ordered", "field": "t", "period": 50, "span": 10}
        (tmp_path / name).mkdir()
        if not found:
            it.send_all(topic, sent)
        summary = it.run()
        assert summary.rows == 120
        assert summary.windows == 1 if name == "one" else summary.windows >= 4
        found.append(it.verdicts())
    assert found[0] == found[1]
    assert set(found[0].values()) == {"unique", "duplicate", "expired"}


# ---- what is lost


@pytest.mark.night
def test_offsets_that_aged_out_are_told_exactly(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """`fail` stops with exit code 4; with `continue` they are reported once, and what is still there is judged once."""
    topic = new_topic("ages", partitions=2)
    it = stream(topics=[topic])
    it.send(topic, 10, partition=0)
    it.send(topic, 10, partition=1)
    assert it.run().rows == 20
    gone = it.send(topic, 25, partition=0)[:20]
    it.send(topic, 5, partition=1)
    forget_before(broker, topic, {0: 30})
    what = f"{topic}-0: 20 offsets, from 10 to 29: older than what the broker still keeps"
    with pytest.raises(IntegrityError) as caught:
        it.run()
    assert f"offsets are gone that were not judged: {what}. Find out why" in str(caught.value)
    assert "set `source.data_loss: continue`" in str(caught.value)
    assert exit_code_of(caught.value) == 4
    it.sections["source"]["data_loss"] = "continue"
    assert it.run().rows == 10
    assert lost(caplog) == [what]
    assert it.run().rows == 0
    assert lost(caplog) == [what]
    assert it.has_all_but(*gone)


@pytest.mark.night(but=["fail"])
@pytest.mark.parametrize("data_loss", ["fail", "continue"])
def test_records_that_vanish_while_they_are_read_are_noticed(
    broker: Broker,
    stream: Callable[..., Stream],
    new_topic: Topics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    data_loss: str,
) -> None:
    """After the check and before they are read."""
    topic = new_topic("vanishes", partitions=2)
    it = stream(topics=[topic], data_loss=data_loss)
    gone = it.send(topic, 10, partition=0)[:6]
    it.send(topic, 10, partition=1)
    real = KafkaBatch.records

    def too_late(*arguments: Any) -> Any:
        forget_before(broker, topic, {0: 6})
        return real(*arguments)

    monkeypatch.setattr(KafkaBatch, "records", too_late)
    what = f"{topic}-0: 6 offsets, from 0 to 5: older than what the broker still keeps"
    if data_loss == "fail":
        with pytest.raises(IntegrityError, match=what):
            it.run()
        assert it.verdicts() == {}
        return
    assert it.run().rows == 14
    assert lost(caplog) == [what]
    assert it.has_all_but(*gone)


@pytest.mark.night
def test_a_batch_of_which_nothing_is_left_is_a_window_that_says_so(
    broker: Broker,
    stream: Callable[..., Stream],
    new_topic: Topics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its loss stands in the commit record, so that no later start tells it again."""
    topic = new_topic("empty")
    it = stream(topics=[topic], data_loss="continue")
    gone = it.send(topic, 5)
    real = kafka_batch.KafkaBatches.begin

    def too_late(source: kafka_batch.KafkaBatches, *, drain: bool) -> None:
        real(source, drain=drain)
        forget_before(broker, topic, {0: 5})

    monkeypatch.setattr(kafka_batch.KafkaBatches, "begin", too_late)
    summary = it.run()
    assert (summary.windows, summary.rows) == (1, 0)
    it.send(topic, 2)
    assert it.run().rows == 2
    assert lost(caplog) == [f"{topic}-0: 5 offsets, from 0 to 4: older than what the broker still keeps"]
    assert it.has_all_but(*gone)


@pytest.mark.night
@pytest.mark.parametrize("again", [20, 33])
def test_a_recreated_topic_is_read_from_its_beginning(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics, caplog: pytest.LogCaptureFixture, again: int
) -> None:
    """With as many and more records than were judged of the old one: no number is taken for a judged one."""
    topic = new_topic("anew", partitions=2)
    it = stream(topics=[topic])
    it.send(topic, 20, partition=0)
    it.send(topic, 3, partition=1)
    assert it.run().rows == 23
    recreate_topic(broker, topic, partitions=1)
    it.send(topic, again)
    why = "the topic was deleted and recreated; what followed in the old one is unknown"
    with pytest.raises(
        IntegrityError, match=f"{topic}-0, from offset 20 on: {why}; {topic}-1, from offset 3 on: {why}"
    ):
        it.run()
    it.sections["source"]["data_loss"] = "continue"
    assert it.run().rows == again
    assert lost(caplog) == [f"{topic}-0, from offset 20 on: {why}", f"{topic}-1, from offset 3 on: {why}"]
    it.send(topic, 5)
    assert it.run().rows == 5
    assert len(lost(caplog)) == 2
    assert it.keys() == it.sent_keys


@pytest.mark.night
def test_a_topic_recreated_while_the_job_runs_is_read_from_its_beginning(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark goes on at the old one's offset; what lies before it is read all the same."""
    topic, other = new_topic("anew"), new_topic("stays")
    it = stream(topics=[topic, other], data_loss="continue")
    it.send(topic, 5)

    def recreate(progress: BatchProgress) -> None:
        if progress.window == 0:
            recreate_topic(broker, topic)
            it.send(topic, 12)
            it.send(other, 3)

    it.run_until(20, recreate)
    assert [loss.partition(": ")[0] for loss in lost(caplog)] == [f"{topic}-0, from offset 5 on"]
    assert it.keys() == it.sent_keys


@pytest.mark.night
def test_a_topic_that_is_gone_is_told_and_the_others_go_on(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    """`fail` names it; with `continue` it may even come again. Deleted between two runs, and while one goes on."""
    gone, stays = new_topic("gone"), new_topic("stays")
    it = stream(topics=[gone, stays])
    it.send(gone, 5)
    it.send(stays, 5)
    assert it.run().rows == 10
    broker.delete_topic(gone)
    what = f"{gone}-0, from offset 5 on: the topic is gone, and what may have followed with it"
    with pytest.raises(IntegrityError, match=what):
        it.run()
    it.sections["source"]["data_loss"] = "continue"
    it.send(stays, 2)
    assert it.run().rows == 2
    broker.create_topic(gone)
    it.send(gone, 4)
    assert it.run().rows == 4

    def delete(progress: BatchProgress) -> None:
        if progress.rows == 3:
            broker.delete_topic(gone)
            it.send(stays, 7)

    it.send(stays, 3)
    it.run_until(26, delete)
    assert lost(caplog) == [what, what.replace("offset 5", "offset 4")]
    assert it.keys() == it.sent_keys


def test_a_topic_deleted_under_a_job_that_may_lose_nothing_stops_it_with_our_words(
    broker: Broker, stream: Callable[..., Stream], new_topic: Topics
) -> None:
    """Not with Spark's, which are about its own state."""
    topic = new_topic("gone")
    it = stream(topics=[topic])
    it.send(topic, 5)
    with pytest.raises(IntegrityError, match=f"{topic}-0, from offset 5 on: the topic is gone"):
        it.run_until(6, lambda _: broker.delete_topic(topic))


def test_a_topic_that_never_was_is_a_mistake_in_the_configuration(stream: Callable[..., Stream]) -> None:
    """Whatever `data_loss` says."""
    with pytest.raises(DeduperError, match="the cluster has no topic no-such-topic"):
        stream(topics=["no-such-topic"], data_loss="continue").run()


# ---- what a record is


def test_columns_from_all_of_a_record(stream: Callable[..., Stream], new_topic: Topics) -> None:
    """Key as text and as bytes, a header that is repeated, null or absent, timestamp, topic, partition, offset."""
    topic = new_topic("in")
    it = stream(
        topics=[topic],
        record={
            "user": "key",
            "bytes": "key_binary",
            "trace": "header:trace-id",
            "arrived": "timestamp",
            "t": "topic",
            "p": "partition",
            "o": "offset",
        },
    )
    it.sections["key"] = "bytes"
    value = b'{"k": "x"}'
    it.send_all(
        topic,
        [
            Record(value, b"a", (("trace-id", b"1"), ("other", b"9"), ("trace-id", b"2")), 1_740_787_200_123),
            Record(value, b"b", (("trace-id", b"1"), ("trace-id", None)), 1_740_787_200_000),
            Record(value, b"", (), 1_740_787_200_000),
            Record(value, None, (("trace-id", b""),), 1_740_787_200_000),
            Record(value, b"\xff", (), 1_740_787_200_000),
            Record(value, b"c", (("trace-id", b"\xff\xfe"),), 1_740_787_200_000),
            Record(value, b"a", (), 1_740_787_200_000),
        ],
    )
    assert it.run().rows == 7
    rows = it.rows()
    seen = [rows[topic, 0, offset] for offset in range(7)]
    assert [row["_dedup"]["verdict"] for row in seen] == [
        *("unique", "unique", "unique", "error", "error", "error", "duplicate")
    ]
    assert [row["_dedup"]["reason"] for row in seen[3:6]] == ["null_key", "invalid_utf8", "invalid_utf8"]
    assert [row["trace"] for row in seen[:4]] == ["2", None, None, ""]
    assert [row["user"] for row in seen[:4]] == ["a", "b", "", None]
    assert [row["bytes"] for row in seen[:5]] == [b"a", b"b", b"", None, b"\xff"]
    assert seen[0]["arrived"].timestamp() == 1_740_787_200.123
    assert [(row["t"], row["p"], row["o"]) for row in seen] == [(topic, 0, offset) for offset in range(7)]


@pytest.mark.parametrize("tombstones", ["error", "judge"])
def test_a_tombstone_is_no_empty_value(stream: Callable[..., Stream], new_topic: Topics, tombstones: str) -> None:
    """By policy an error, or judged by what is outside the value; an empty value is text, and no JSON."""
    topic = new_topic("in")
    it = stream(topics=[topic], value={"format": "text"}, record={"user": "key"}, tombstones=tombstones)
    it.sections["key"] = "user"
    values = (b"v", None, None, b"", b"\xff", None)
    keys = (b"a", b"b", b"b", b"c", b"d", None)
    it.send_all(topic, [Record(value, key) for value, key in zip(values, keys, strict=True)])
    assert it.run().rows == 6
    rows = it.rows()
    seen = [rows[topic, 0, offset] for offset in range(6)]
    empty = "tombstone" if tombstones == "error" else None
    assert [row["_dedup"]["reason"] for row in seen] == [
        *(None, empty, empty if empty else "same_window", None, "invalid_utf8", empty or "null_key")
    ]
    assert [row["value"] for row in seen[:4]] == ["v", None, None, ""]
    assert seen[4]["_dedup"]["raw"] == "/w=="


@pytest.mark.night
def test_values_in_avro_are_one_whole_datum_or_malformed(
    broker: Broker, session: SparkSession, new_topic: Topics, tmp_path: Path
) -> None:
    """Cut short, with bytes behind it, or with text that is no UTF-8: an error with its bytes. All null is a record."""
    inner = {"type": "record", "name": "In", "fields": [{"name": "tags", "type": {"type": "array", "items": "string"}}]}
    schema = {
        "type": "record",
        "name": "Click",
        "namespace": "shop",
        "fields": [{"name": "k", "type": ["null", "string"]}, {"name": "at", "type": ["null", inner]}],
    }
    (tmp_path / "click.avsc").write_text(json.dumps(schema))
    rows = [("a", (["x", "y"],)), ("b", None), (None, None)]
    frame = session.createDataFrame(rows, "k string, at struct<tags: array<string>>").coalesce(1)
    made = [bytes(row[0]) for row in frame.select(to_avro(F.struct("k", "at"), json.dumps(schema))).collect()]
    a, b, nulls = made
    bad_text = a.replace(b"x", b"\xff")
    values = [*made, a[:-2], b + b"\0", b"\xff\xff", b"", None, bad_text, a]
    topic, framed = new_topic("avro"), new_topic("framed")
    source = {"format": "avro", "avro_schema": "click.avsc"}
    it = Stream(broker, session, tmp_path, topics=[topic], value=source)
    it.sections["null_keys"] = "allow"
    it.send_all(topic, [Record(value) for value in values])
    assert it.run().rows == len(values)
    seen = [it.rows()[topic, 0, offset] for offset in range(len(values))]
    malformed = ["malformed"] * 4
    assert [row["_dedup"]["reason"] for row in seen] == [
        *(None, None, None, *malformed, "tombstone", "invalid_utf8", "same_window")
    ]
    assert [(row["k"], row["at"]) for row in seen[:4]] == [
        *[("a", {"tags": ["x", "y"]}), ("b", None), (None, None), (None, None)]
    ]
    assert [row["_dedup"]["raw"] for row in seen[3:9]] == [
        None if value is None else base64.b64encode(value).decode() for value in values[3:9]
    ]
    it.sections["source"] |= {"topics": [framed], "value": {**source, "avro_schema": schema, "schema_ids": "any"}}
    it.sections["store"] = {"url": "rocksdb:other", "shards": 1}
    it.sections["sinks"] = {port: {"format": "parquet", "path": f"framed/{port}"} for port in PORTS}
    header = b"\0\0\0\0\7"
    it.send_all(framed, [Record(value) for value in (header + a, a, b"\1" + header[1:] + a, header, header + nulls)])
    assert it.run().rows == 5
    reasons = {
        row["_dedup"]["position"]: row["_dedup"]["reason"]
        for port in ("unique", "error")
        for row in read_rows(tmp_path / "framed" / port)
    }
    assert reasons == {0: None, 1: "malformed", 2: "malformed", 3: "malformed", 4: None}


@pytest.mark.night(but=["driver"])
@pytest.mark.parametrize("by", ["driver", "tasks"])
def test_a_broker_that_stands_still_changes_no_verdict(
    broker: Broker,
    session: SparkSession,
    new_topic: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    by: str,
) -> None:
    """For 4 s amid a window, where 2 are silence, read by the driver or by tasks: the same reader reads it again."""
    monkeypatch.setattr(broker_watch, "SILENCE_S", 2.0)
    topic = new_topic("still", partitions=2)
    rows = [(200, "01"), (-56, "02"), (1, "03"), (2, "no time"), (1, "04")]
    values = [json.dumps({"k": k, "ts": f"2024-01-{day}", "note": str(k)}).encode() for k, day in rows]
    send(broker.plain(), topic, [Record(value, partition=number % 2) for number, value in enumerate(values)])
    if by == "tasks":
        monkeypatch.setattr(local, "is_small", lambda _: False)

    def judged(name: str) -> dict[Origin, tuple[str, Any, Any]]:
        (tmp_path / name).mkdir()
        value = {"format": "json", "schema": "k tinyint, ts timestamp, note string"}
        it = Stream(broker, session, tmp_path / name, topics=[topic], value=value)
        it.sections["expiry"] = {"by": "event_time", "field": "ts", "period": "60d", "span": "1d", "lookup": "all_live"}
        assert it.run().rows == len(values)
        return {at: (row["_dedup"]["verdict"], row["_dedup"]["reason"], row["k"]) for at, row in it.rows().items()}

    undisturbed = judged("undisturbed")
    records, timers = KafkaBatch.records, list[threading.Timer]()

    def standing_still(batch: KafkaBatch) -> Any:
        if not timers:
            timers.append(threading.Timer(4, broker.thaw))
            broker.freeze()
            timers[0].start()
        return records(batch)

    monkeypatch.setattr(KafkaBatch, "records", standing_still)
    try:
        assert judged("still") == undisturbed
    finally:
        for timer in timers:
            timer.join()
    assert any("judged again" in text and "no record in 2 s" in text for text in caplog.messages)
    assert {verdict for verdict, _, _ in undisturbed.values()} == {"unique", "duplicate", "error"}


@pytest.mark.night
@pytest.mark.parametrize("shards", [1, 4])
def test_of_equal_keys_the_first_by_topic_partition_and_offset_is_unique(
    broker: Broker, session: SparkSession, new_topic: Topics, tmp_path: Path, shards: int
) -> None:
    """Whenever they were sent, whatever their timestamps, and whichever task reads them."""
    prefix = new_topic("order")
    topics = [f"{prefix}.a", f"{prefix}.b"]
    for topic in topics:
        broker.create_topic(topic, 11)
    it = Stream(broker, session, tmp_path, topics=topics)
    it.sections["store"] = {"url": "rocksdb:state", "shards": shards}
    places = [(topics[1], 0), (topics[0], 10), (topics[0], 2)]
    for topic, partition in places:
        same = [Record(json.dumps({"k": f"k{number}"}).encode(), partition=partition) for number in range(20)]
        it.send_all(topic, [*same, *same])
    assert it.run().windows == 1
    unique = {origin for origin, port in it.verdicts().items() if port == "unique"}
    assert unique == {(topics[0], 2, offset) for offset in range(20)}
    assert it.has_all_but()


@pytest.mark.night
def test_a_window_compiles_no_code_of_its_own(
    session: SparkSession, stream: Callable[..., Stream], new_topic: Topics
) -> None:
    """No number of a window is a literal in what Spark generates code for: later windows find it made."""
    topic = new_topic("in", partitions=2)
    it = stream(topics=[topic], max_offsets_per_batch=4)
    jvm: Any = session.sparkContext._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = []
    it.send(topic, 24)
    it.run(lambda _: counts.append(compiled.getCount()))
    assert len(counts) >= 5
    assert counts[-1] == counts[2], counts


# ---- who may read


@pytest.mark.night
def test_a_job_that_shows_who_it_is_needs_no_more_rights_than_these(
    secure_broker: Broker, session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SASL inside TLS, and TLS with a certificate: Read on the topic and on the group. No message holds a secret."""
    caplog.set_level(logging.DEBUG)
    topic = secure_broker.create_topic("locked", 2)  # no name that another test gives a right to
    said = []

    def job(connection: Connection, name: str) -> Stream:
        options = {key: value for key, value in connection.spark().items() if key != "kafka.bootstrap.servers"}
        (tmp_path / name).mkdir(exist_ok=True)
        it = Stream(secure_broker, session, tmp_path / name, topics=[topic], options=options, group=f"of-{name}")
        it.sections["source"]["bootstrap_servers"] = connection.bootstrap
        return it

    alice = secure_broker.sasl_tls("alice")
    with pytest.raises(DeduperError) as wrong:
        job(secure_broker.sasl_tls("alice", "not-the-password"), "alice").run()
    with pytest.raises(DeduperError) as denied:
        job(alice, "alice").run()
    said += [str(wrong.value), str(denied.value)]
    send(secure_broker.plain(), topic, [Record(json.dumps({"k": f"k{number}"}).encode()) for number in range(20)])
    for name, user, connection in (("alice", "alice", alice), ("cert", "deduper", secure_broker.tls())):
        for kind, what in ((ResourceType.TOPIC, topic), (ResourceType.GROUP, f"of-{name}")):
            right = AclBinding(
                *(kind, what, ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.READ),
                AclPermissionType.ALLOW,
            )
            secure_broker.admin().create_acls([right])[right].result(20)
        it = job(connection, name)
        assert it.run().rows == 20
        assert sum(committed_offsets(secure_broker, f"of-{name}", topic).values()) == 20
    said += [record.getMessage() for record in caplog.records]
    for secret in ("secret-of-alice", "not-the-password"):
        assert not [text for text in said if secret in text]
    assert topic in said[1]
