"""The store's tools after a real job from a topic to topics and files: verify, gc, status, inspect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from ruamel.yaml import YAML
from typer.testing import CliRunner

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.admin import status as source_lag
from deduper.cli.main import app
from deduper.testing import differences
from tests.services.kafka_broker import Broker
from tests.services.kafka_jobs import KafkaJob, records, settings
from tests.services.kafka_traffic import recreate_topic, send

pytestmark = [pytest.mark.services, pytest.mark.spark]

# Only for the first copies' places to be in the pieces, and so their positions, which begin at an offset beyond 0.
STORE = {"url": "file:state", "shards": 2, "first_seen": True}
OF_MACHINE = ("spool", "tables")
"""Garbage of all stores whose jobs ran on this machine."""


def answer(file: Path, *words: str, exit_code: int = 0) -> Any:
    """What a command says in JSON."""
    done = CliRunner().invoke(app, [words[0], str(file), *words[1:], "--json"])
    assert done.exit_code == exit_code, (words, done.output, done.exception)
    return json.loads(done.stdout)


@pytest.mark.night
def test_the_tools_after_a_job_to_topics_and_files(
    broker: Broker,
    session: SparkSession,
    new_topic: Callable[..., str],
    topics: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sound with and without rows, nothing lying about, lag by partition; a piece is rebuilt from the files."""
    monkeypatch.setattr(source_lag, "_ANSWER_S", 60.0)  # however busy this machine is
    source = new_topic("in", partitions=3)
    job = KafkaJob(tmp_path, session, settings(broker, source, topics, store=STORE))
    for port in ("unique", "expired"):
        job.settings["sinks"][port] = {"format": "parquet", "path": f"out/{port}"}
    file = tmp_path / "job.yaml"
    with file.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(written(job), stream)
    read: dict[tuple[str, int], Any] = {}
    for first in (0, 300):
        for record in send(broker.plain(), source, records(300, first=first)):
            is_sound = record.value is not None and record.value != b"{torn"
            read[f"{source}-{record.partition}", record.offset] = json.loads(record.value) if is_sound else None
        assert job.run().rows == 300
    sent = len(send(broker.plain(), source, records(7, first=600)))

    report = answer(file, "verify")
    assert report["findings"] == []
    assert {left["kind"] for left in report["orphans"]} <= {"intent"}  # of the first run
    assert {"outputs.missing", "outputs.bytes", "log.counts"} <= {
        check["check"] for check in report["checks"] if check["ran"]
    }
    log = CommitLog.open(local_place(tmp_path / "state"))
    assert differences(file, read) == []

    lag = answer(file, "status", "--last=1")["lag"]
    assert (lag["total"], lag["error"], len(lag["partitions"])) == (sent, None, 3)
    assert sum(place["end"] for place in lag["partitions"]) == 607
    assert sum(place["judged"] for place in lag["partitions"]) == 600
    reported = CliRunner().invoke(app, ["status", str(file)], env={"COLUMNS": "200"}).stdout
    assert "7 offsets over 3 partitions" in reported

    # Jobs of other stores that die on this machine meanwhile leave their exchange folders and tables.
    found = answer(file, "gc", "--grace=0s")["garbage"]
    own = [item for item in found if item["kind"] not in OF_MACHINE or log.manifest.store_id in item["path"]]
    assert {item["kind"] for item in own} <= {"intent"}
    outputs = answer_window(file, 1)["outputs"]
    assert {output["port"] for output in outputs if output["topic"]} in ({"error"}, {"duplicate", "error"})
    assert {output["topic"] for output in outputs} <= {topics["duplicate"], topics["error"], None}

    spoil_a_piece_of_the_second_window(tmp_path)
    assert {finding["check"] for finding in answer(file, "verify", exit_code=4)["findings"]} == {"pieces.bytes"}

    recreate_topic(broker, source, partitions=3)
    lag = answer(file, "status", "--last=1")["lag"]
    assert (lag["total"], [place["lag"] for place in lag["partitions"]]) == (None, [None] * 3)


def written(job: KafkaJob) -> dict[str, Any]:
    """The job's configuration as a file would have it."""
    sections = {"name": "test", "key": "k", **job.settings}
    sections["source"] = {name: value for name, value in sections["source"].items() if value is not None}
    return sections


def answer_window(file: Path, window: int) -> Any:
    """`status --window`."""
    done = CliRunner().invoke(app, ["status", str(file), "--window", str(window), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def spoil_a_piece_of_the_second_window(directory: Path) -> None:
    """One byte in the middle of the last piece is another."""
    state = CommitLog.open(local_place(directory / "state")).state
    piece = max((ref for refs in state.pieces.values() for ref in refs), key=lambda ref: ref.first_window)
    assert piece.first_window > 0
    path = directory / "state" / piece.file
    data = bytearray(path.read_bytes())
    data[piece.offset + piece.length // 2] ^= 0xFF
    path.write_bytes(data)
