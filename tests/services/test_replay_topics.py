"""`replay-errors` and `errors` of topics: every error record goes back once, whatever dies and whenever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from ruamel.yaml import YAML
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.kafka.errors import ProducerFencedError
from deduper.kafka.resend import Resend
from tests.deduper.store_samples import Window, make_store
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, header, records, settings
from tests.services.kafka_traffic import Record, read, send

pytestmark = pytest.mark.services


def answer(file: Path, *words: str, exit_code: int = 0) -> Any:
    """What a command says in JSON, or the line of its error."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == exit_code, (file, words, done.output, done.exception)
    return done.output if exit_code else json.loads(done.stdout)


def config(directory: Path, sections: dict[str, Any]) -> Path:
    """The config file of a job."""
    file = directory / "job.yaml"
    named = {"name": "test", "key": "k", "store": {"url": "file:state", "shards": 2}, **sections}
    named["source"] = {name: value for name, value in named["source"].items() if value is not None}
    with file.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(named, stream)
    return file


def error(number: int, reason: str, window: int, *, source: str, partition: int = 0, replayed: bool = False) -> Record:
    """A record as the job leaves it in the error topic; it has passed an earlier job too."""
    own = [("n", str(number).encode()), ("dedup-origin", b"upstream-0@1"), *([("dedup-replay", b"x")] * replayed)]
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


class Replayed:
    """A store whose error topic has records that a test made."""

    def __init__(self, broker: Broker, directory: Path, source: str, topics: dict[str, str]) -> None:
        self.broker, self.source, self.errors = broker, source, topics["error"]
        self.sections = settings(broker, source, topics)
        self.file = config(directory, self.sections)
        make_store(self.file, [Window(counts={"error": 2}, reasons={"malformed": 2}) for _ in range(9)])

    def put(self, errors: Sequence[Record]) -> None:
        """Into the error topic."""
        send(self.broker.plain(), self.errors, errors)

    def again(self, *words: str, exit_code: int = 0) -> Any:
        """`replay-errors`."""
        return answer(self.file, "replay-errors", str(self.file), *words, exit_code=exit_code)

    def sent(self) -> list[Record]:
        """What the source's topic has."""
        return read(self.broker.plain(), self.source)

    def numbers(self) -> Counter[int]:
        """How often each record was sent."""
        return Counter(int(header(record, "n") or -1) for record in self.sent())


@pytest.fixture
def replayed(broker: Broker, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path) -> Replayed:
    """A source of three partitions."""
    return Replayed(broker, tmp_path, new_topic("in", partitions=3), topics)


def test_records_go_back_as_they_were(replayed: Replayed) -> None:
    """Key, value, headers, timestamp and partition; the headers of an earlier job stay, ours go."""
    replayed.put([error(n, "malformed", 0, source=replayed.source, partition=n % 3) for n in range(6)])
    assert replayed.again("--dry-run")["rows"] == {"malformed": 6}
    assert not replayed.sent()
    report = replayed.again()
    assert (report["rows"], report["left_out"]) == ({"malformed": 6}, {})
    assert replayed.again()["rows"] == {}
    sent = sorted(replayed.sent(), key=lambda record: record.timestamp_ms or 0)
    assert len(sent) == 6
    for number, record in enumerate(sent):
        assert (record.key, record.value) == (f"k{number}".encode(), b"{torn")
        assert record.timestamp_ms == 1_700_000_000_000 + number
        assert record.partition == number % 3
        assert [name for name, _ in record.headers] == ["n", "dedup-origin", "dedup-replay"]
        assert dict(record.headers)["dedup-origin"] == b"upstream-0@1"


@pytest.mark.night
def test_reasons_have_positions_of_their_own(replayed: Replayed) -> None:
    """One reason first, the others later, each record once; what was replayed before only with --again."""
    source = replayed.source
    replayed.put([error(n, ("malformed", "tombstone", "null_key")[n % 3], n // 6, source=source) for n in range(12)])
    replayed.put([error(99, "malformed", 2, source=source, replayed=True)])
    assert replayed.again("--reason", "tombstone")["rows"] == {"tombstone": 4}
    assert replayed.again("--reason", "tombstone")["rows"] == {}
    report = replayed.again()
    assert report["rows"] == {"malformed": 4, "null_key": 4}
    assert report["left_out"] == {"replayed before": 1}
    assert replayed.numbers() == Counter(range(12))
    assert replayed.again("--again")["rows"] == {"malformed": 1}
    assert replayed.again("--again")["rows"] == {}
    assert replayed.numbers() == Counter([*range(12), 99])


@pytest.mark.night
def test_windows_are_sent_from_the_first_one_on(replayed: Replayed) -> None:
    """Up to a window; never past one that waits."""
    replayed.put([error(n, "malformed", n, source=replayed.source) for n in range(6)])
    said = replayed.again("--window", "3..4", exit_code=2)
    assert "errors of window 0 wait before window 3" in " ".join(said.split())
    assert not replayed.sent()
    assert replayed.again("--window", "..2")["rows"] == {"malformed": 3}
    assert replayed.again("--window", "3..4")["rows"] == {"malformed": 2}
    assert replayed.again()["rows"] == {"malformed": 1}
    assert replayed.numbers() == Counter(range(6))


def test_what_cannot_go_back_is_left_out_or_refused(replayed: Replayed, tmp_path: Path) -> None:
    """A topic that the source does not read; an unknown reason; a port without the headers; other ports."""
    replayed.put([error(1, "malformed", 0, source="another")])
    assert replayed.again()["left_out"] == {"of no topic of the source": 1}
    assert "`typo` is no reason" in replayed.again("--reason", "typo", exit_code=2)
    sinks = replayed.sections["sinks"]
    for port, said in (
        ({**sinks["error"], "dedup_headers": ["reason", "origin"]}, "adds no header `dedup-window`"),
        ({**sinks["error"], "bootstrap_servers": "127.0.0.1:1"}, "other brokers than the source"),
        ({"format": "parquet", "path": "out/error"}, "the error port is `parquet`"),
    ):
        config(tmp_path, {**replayed.sections, "sinks": {**sinks, "error": port}})
        assert said in " ".join(replayed.again(exit_code=2).split())
    assert not replayed.sent()


@pytest.mark.night(but=["replay.committed"])
@pytest.mark.parametrize("point", ["replay.sent", "replay.committed"])
def test_a_kill_at_any_step_sends_each_record_once(replayed: Replayed, point: str) -> None:
    """Before the commit nothing is sent, after it everything is; the next call does the rest."""
    replayed.put([error(n, "malformed", 0, source=replayed.source) for n in range(50)])
    command = [sys.executable, "-m", "deduper.cli", "replay-errors", str(replayed.file), "--json"]
    killed = subprocess.run(
        command, env={**os.environ, "BUCKET_STORE_FAILPOINTS": f"{point}=kill"}, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    rows = replayed.again()["rows"]
    assert rows == ({"malformed": 50} if point == "replay.sent" else {})
    assert replayed.numbers() == Counter(range(50))


@pytest.mark.night
def test_a_forgotten_group_sends_nothing_again(replayed: Replayed) -> None:
    """The store's note says how far it came; the other reasons have theirs."""
    source = replayed.source
    replayed.put([error(n, ("malformed", "tombstone")[n % 2], 0, source=source, partition=n % 3) for n in range(20)])
    assert replayed.again("--reason", "malformed")["rows"] == {"malformed": 10}
    prefix = json.loads(CliRunner().invoke(app, ["status", str(replayed.file), "--json"]).stdout)["store_id"][:8]
    group = f"deduper-replay-{prefix}-malformed"
    replayed.broker.admin().delete_consumer_groups([group])[group].result(20)
    assert replayed.again("--dry-run")["rows"] == {"tombstone": 10}
    assert replayed.again()["rows"] == {"tombstone": 10}
    replayed.put([error(20, "malformed", 1, source=source)])
    assert replayed.again()["rows"] == {"malformed": 1}
    assert replayed.numbers() == Counter(range(21))


def test_a_later_call_fences_an_earlier_one(replayed: Replayed) -> None:
    """The earlier one's records stay invisible."""
    replayed.put([error(n, "malformed", 0, source=replayed.source) for n in range(3)])
    client = {"bootstrap.servers": replayed.broker.bootstrap}
    prefix = json.loads(CliRunner().invoke(app, ["status", str(replayed.file), "--json"]).stdout)["store_id"][:8]
    with Resend(client, f"deduper-replay-{prefix}", replayed.errors) as earlier:
        earlier.positions("earlier")
        assert replayed.again()["rows"] == {"malformed": 3}
        with pytest.raises(ProducerFencedError):
            earlier.commit({"earlier": {0: 1}})
    assert replayed.numbers() == Counter(range(3))


def test_errors_are_grouped_from_the_topic(replayed: Replayed) -> None:
    """By reason and detail, with the place of the first; of some windows only."""
    replayed.put([error(n, ("malformed", "tombstone")[n % 2], n // 4, source=replayed.source) for n in range(8)])
    report = answer(replayed.file, "errors", str(replayed.file))
    assert report["origin"] == f"topic {replayed.errors}"
    assert [(group["reason"], group["rows"], group["first_window"]) for group in report["groups"]] == [
        ("malformed", 4, 0),
        ("tombstone", 4, 0),
    ]
    assert report["groups"][0]["place"] == f"{replayed.source}-0@0"
    assert report["taken_rows"] == 10
    assert answer(replayed.file, "errors", str(replayed.file), "--window", "1")["rows"] == 4


@pytest.mark.night
@pytest.mark.spark
def test_a_job_judges_what_comes_back(
    broker: Broker, session: SparkSession, new_topic: Callable[..., str], topics: dict[str, str], tmp_path: Path
) -> None:
    """A real job's errors go back, fail again, are known by their header, and all counts agree."""
    source = new_topic("in", partitions=2)
    job = KafkaJob(tmp_path, session, settings(broker, source, topics, store={"url": "file:state", "shards": 2}))
    file = config(tmp_path, job.settings)
    send(broker.plain(), source, records(300))
    summary = job.run()
    assert summary.error > 0
    assert sum(answer(file, "replay-errors", str(file))["rows"].values()) == summary.error
    second = job.run()
    assert (second.rows, second.error) == (summary.error, summary.error)
    came_back = [one for one in read(broker.plain(), topics["error"]) if header(one, "dedup-replay")]
    assert len(came_back) == summary.error
    assert answer(file, "replay-errors", str(file))["left_out"] == {"replayed before": summary.error}
    numbers = Counter(header(one, "n") for one in read(broker.plain(), topics["error"]))
    assert set(numbers.values()) == {2}
