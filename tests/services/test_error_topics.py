"""`errors` of topics: grouped by the headers, and exported as the records were."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from deduper.cli.main import app
from tests.deduper.store_samples import Window, make_store
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, config_file, header, records, settings
from tests.services.kafka_traffic import Record, read, send

pytestmark = pytest.mark.services
ALL = "--window=0.."


def answer(file: Path, *words: str, exit_code: int = 0) -> Any:
    """What `errors` says in JSON, or the line of its error."""
    done = CliRunner().invoke(app, ["errors", str(file), *words, "--json"])
    assert done.exit_code == exit_code, (file, words, done.output, done.exception)
    return " ".join(done.output.split()) if exit_code else json.loads(done.stdout)


def error(number: int, reason: str, window: int, *, source: str, partition: int = 0) -> Record:
    """A record as the job leaves it in the error topic; it has passed an earlier job too."""
    own = [("n", str(number).encode()), ("dedup-origin", b"upstream-0@1")]
    ours = [
        *(("dedup-verdict", b"error"), ("dedup-reason", reason.encode()), ("dedup-detail", b"the line is no object")),
        *(("dedup-window", str(window).encode()), ("dedup-origin", f"{source}-{partition}@{number}".encode())),
    ]
    return Record(
        None if reason == "tombstone" else b"{torn",
        key=f"k{number}".encode(),
        headers=(*own, *ours),
        timestamp_ms=1_700_000_000_000 + number,
    )


class Errors:
    """A store whose error topic has records that a test made."""

    def __init__(self, broker: Broker, directory: Path, source: str, topics: dict[str, str]) -> None:
        self.broker, self.source, self.topic = broker, source, topics["error"]
        self.sections = settings(broker, source, topics)
        self.file = config_file(directory, self.sections)
        make_store(self.file, [Window(counts={"error": 2}, reasons={"malformed": 2}) for _ in range(9)])

    def put(self, errors: Sequence[Record]) -> None:
        """Into the error topic."""
        send(self.broker.plain(), self.topic, errors)

    def sent(self, topic: str) -> list[Record]:
        """What a topic has, by time."""
        return sorted(read(self.broker.plain(), topic), key=lambda record: record.timestamp_ms or 0)


@pytest.fixture
def errors(broker: Broker, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path) -> Errors:
    """A source of three partitions."""
    return Errors(broker, tmp_path, new_topic("in", partitions=3), topics)


def test_records_go_back_as_they_were(errors: Errors) -> None:
    """Key, value, headers, timestamp and partition; the headers of an earlier job stay, ours go."""
    errors.put([error(n, "malformed", 0, source=errors.source, partition=n % 3) for n in range(6)])
    report = answer(errors.file, ALL, "--export", errors.source)
    assert report == {"to": errors.source, "rows": {"malformed": 6}, "files": 0, "left_out": {}}
    sent = errors.sent(errors.source)
    assert len(sent) == 6
    for number, record in enumerate(sent):
        assert (record.key, record.value) == (f"k{number}".encode(), b"{torn")
        assert (record.timestamp_ms, record.partition) == (1_700_000_000_000 + number, number % 3)
        assert list(record.headers) == [("n", str(number).encode()), ("dedup-origin", b"upstream-0@1")]


def test_another_topic_and_a_selection(errors: Errors, new_topic: Callable[..., str]) -> None:
    """By key, into its partitions; a tombstone has a null."""
    reasons = ("malformed", "tombstone", "null_key")
    errors.put([error(n, reasons[n % 3], n // 6, source=errors.source) for n in range(12)])
    other = new_topic("again", partitions=2)
    report = answer(errors.file, "--export", other, "--window", "1", "--reason", "tombstone", "--reason", "null_key")
    assert report["rows"] == {"tombstone": 2, "null_key": 2}
    sent = errors.sent(other)
    assert [header(record, "n") for record in sent] == ["7", "8", "10", "11"]
    assert [record.value for record in sent] == [None, b"{torn", None, b"{torn"]
    assert not errors.sent(errors.source)


def test_what_cannot_be_exported_is_refused(errors: Errors, tmp_path: Path) -> None:
    """A port of the job; a topic that is not there; an unknown reason; a port without the headers, or of files."""
    errors.put([error(1, "malformed", 0, source=errors.source)])
    assert "is a port of the job" in answer(errors.file, ALL, "--export", errors.topic, exit_code=2)
    assert "no topic deduper-typing-error" in answer(errors.file, ALL, "--export", "deduper-typing-error", exit_code=1)
    assert "`typo` is no reason" in answer(errors.file, ALL, "--export", errors.source, "--reason", "typo", exit_code=2)
    sinks = errors.sections["sinks"]
    for port, said in (
        ({**sinks["error"], "dedup_headers": ["reason", "origin"]}, "adds no header `dedup-window`"),
        ({"format": "parquet", "path": "out/error"}, "the error port is `parquet`"),
    ):
        config_file(tmp_path, {**errors.sections, "sinks": {**sinks, "error": port}})
        assert said in answer(errors.file, ALL, "--export", errors.source, exit_code=2)
    assert not errors.sent(errors.source)


def test_errors_are_grouped_from_the_topic(errors: Errors) -> None:
    """By reason and detail, with the place of the first; of some windows only."""
    errors.put([error(n, ("malformed", "tombstone")[n % 2], n // 4, source=errors.source) for n in range(8)])
    report = answer(errors.file)
    assert report["origin"] == f"topic {errors.topic}"
    assert [(group["reason"], group["rows"], group["first_window"]) for group in report["groups"]] == [
        ("malformed", 4, 0),
        ("tombstone", 4, 0),
    ]
    assert report["groups"][0]["place"] == f"{errors.source}-0@0"
    assert report["taken_rows"] == 10
    assert answer(errors.file, "--window", "1")["rows"] == 4


@pytest.mark.night
@pytest.mark.spark
def test_a_job_judges_what_comes_back(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """A real job's errors go back and fail again, and all counts agree."""
    source = new_topic("in", partitions=2)
    job = KafkaJob(tmp_path, session, settings(broker, source, topics, store={"url": "file:state", "shards": 2}))
    file = config_file(tmp_path, job.settings)
    send(broker.plain(), source, records(300))
    summary = job.run()
    assert summary.error > 0
    assert sum(answer(file, ALL, "--export", source)["rows"].values()) == summary.error
    second = job.run()
    assert (second.rows, second.error) == (summary.error, summary.error)
    numbers = Counter(header(one, "n") for one in read(broker.plain(), topics["error"]))
    assert set(numbers.values()) == {2}
