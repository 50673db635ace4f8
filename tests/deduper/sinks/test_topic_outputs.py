"""Rows that are sent to topics, as the store's tools see them: staged until their window is marked, gone after it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord, OutputFile
from bucket_store.log.sources_file import SourcePartition, write_sources
from bucket_store.places.local import local_place
from deduper.admin import gc
from deduper.admin.open_store import OpenStore, open_store
from deduper.admin.orphans import OrphanKind, orphans
from deduper.admin.status import store_status
from deduper.admin.verify.findings import Check
from deduper.admin.verify.run import Verification, verify_store
from deduper.cli.main import app
from deduper.config.load import load_config
from deduper.kafka.offsets import ENDS, End, TopicPartition, ends_to_wire
from deduper.sinks import staging
from deduper.sinks.names import STAGING, Attempt, TopicPlace
from deduper.window import table_folder
from deduper.window.policy import fixed_settings, settings_hash
from deduper.window.publishing import mark_published
from tests.deduper.staged_file import described

CONFIG = """\
name: clicks
source: {format: kafka, bootstrap_servers: "127.0.0.1:9", topics: [in], value: {format: json, schema: "k string"}}
key: k
expiry: {by: never}
store: {url: "file:state", shards: 1, tables: tables}
sinks:
  unique: {format: kafka, topic: uni}
  duplicate: {format: parquet, path: out/duplicate}
  expired: {format: none}
  error: {format: kafka, topic: err}
"""
WALL_US = 1_700_000_000_000_000
ERROR, DUPLICATE = 3, 2


class Mixed:
    """A store with one committed window: errors for a topic, duplicates for files; `counts` is what it says."""

    def __init__(self, directory: Path, **counts: int) -> None:
        counts = {"unique": 0, "duplicate": DUPLICATE, "expired": 0, "error": ERROR} | counts
        self.file = directory / "clicks.yaml"
        self.file.write_text(CONFIG, encoding="utf-8")
        self.config = load_config(self.file)
        self.log = CommitLog.create(local_place(self.config.store.path), fixed_settings(self.config), wall_us=WALL_US)
        self.log.claim_epoch("somebody:1", WALL_US)
        self.attempt = Attempt(0, 1, 1)
        staging.make_port_directories(self.config)
        mark_published(self.config, self.log, -1)
        self.outputs = self._staged()
        sources = write_sources(
            self.log.root,
            window=0,
            epoch=1,
            attempt=1,
            partitions=[SourcePartition("in-0", "topic", 100, 110, sum(counts.values()), bytes(16))],
        )
        record = CommitRecord(
            window=0,
            epoch=1,
            attempt=1,
            query_id="q",
            batch_id=0,
            wall_us=WALL_US,
            settings_hash=settings_hash(self.config),
            latest_point=None,
            latest_moved_us=None,
            counts=counts,
            reasons={"same_window": counts["duplicate"], "malformed": counts["error"]},
            pieces=(),
            outputs=self.outputs,
            buckets=(),
            timestamp=None,
            sources=sources,
            extra={ENDS: ends_to_wire({TopicPartition("in", 0): End("topic", 110)})},
        )
        self.log.place(record)

    def _staged(self) -> tuple[OutputFile, ...]:
        home = staging.staging_home(self.config) / STAGING / self.attempt.folder
        made = {}
        for port, rows, slots in (("error", ERROR, (0, 2)), ("duplicate", DUPLICATE, ())):
            home.local.mkdir(parents=True, exist_ok=True)
            path = home.local / f"{port}-0.parquet"
            table = pa.table({"key": pa.array([b"k"] * rows), "slot": pa.array([0] * rows, pa.int32())})
            parquet.write_table(table, path)
            made[port] = [described(port, path, rows, slots)]
        return staging.make_durable(self.config, self.log.manifest.store_id, self.attempt, made)

    def publish(self) -> None:
        """Steps 5 and 6, without a broker: files are renamed, the mark is put; staged rows of the topic stay."""
        staging.publish([output for output in self.outputs if TopicPlace.of(output.final) is None])
        mark_published(self.config, self.log, 0)

    @property
    def sent(self) -> Path:
        """The staged file of the topic's rows."""
        (output,) = [output for output in self.outputs if output.port == "error"]
        assert TopicPlace.of(output.final) is not None
        return Path(output.staged)

    def open(self) -> OpenStore:
        """As a command opens it."""
        return open_store(str(self.file))

    def found(self) -> list[Check]:
        """The checks that `verify` has findings of."""
        return [finding.check for finding in self.verified().findings]

    def verified(self) -> Verification:
        """What `verify` says."""
        return verify_store(self.open())


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mixed:
    """One committed window that is not published; its gc has another clock, and leaves this machine's tables alone."""
    monkeypatch.setattr(table_folder, "SHARED_MEMORY", tmp_path / "shm")
    return Mixed(tmp_path)


@pytest.mark.slow
def test_what_waits_to_be_sent_is_neither_missing_nor_garbage(mixed: Mixed) -> None:
    """Before the mark: no finding, no orphan, nothing for gc, whatever the grace; and a note says so."""
    report = mixed.verified()
    assert report.findings == ()
    assert any("not yet marked" in note for note in report.notes)
    assert [left for left in orphans(mixed.open()) if left.kind is OrphanKind.STAGING] == []
    mixed.log.claim_epoch("somebody:2", WALL_US)
    gc.collect(mixed.open(), grace_us=0, delete=True, now_us=2 * WALL_US)
    assert mixed.sent.is_file()
    assert mixed.found() == []


def test_rows_that_are_gone_before_they_were_sent_are_damage(mixed: Mixed) -> None:
    """Nobody could send them any more."""
    mixed.sent.unlink()
    assert mixed.found() == [Check.OUTPUTS_MISSING]


def test_rows_that_changed_before_they_were_sent_are_damage(mixed: Mixed) -> None:
    """Other rows would be sent than were judged."""
    data = bytearray(mixed.sent.read_bytes())
    data[len(data) // 2] ^= 1
    mixed.sent.write_bytes(data)
    assert mixed.found() == [Check.OUTPUTS_BYTES]


@pytest.mark.slow
def test_after_the_mark_what_was_staged_goes(mixed: Mixed) -> None:
    """A crash between mark and clean-up leaves it: sound, an orphan, and gc deletes it; sound after that too."""
    mixed.publish()
    report = mixed.verified()
    assert report.findings == ()
    assert {left.kind for left in report.orphans} == {OrphanKind.STAGING}
    mixed.log.claim_epoch("somebody:2", WALL_US)
    gc.collect(mixed.open(), grace_us=0, delete=True, now_us=2 * WALL_US)
    assert not mixed.sent.exists()
    assert mixed.found() == []
    assert orphans(mixed.open()) == ()


def test_a_port_of_files_is_checked_beside_a_topic(mixed: Mixed) -> None:
    """Its file must be staged or published, whole; readers may take it after the mark."""
    (output,) = [output for output in mixed.outputs if output.port == "duplicate"]
    kept = Path(output.staged).read_bytes()
    Path(output.staged).unlink()
    assert mixed.found() == [Check.OUTPUTS_MISSING]
    Path(output.staged).write_bytes(kept)
    mixed.publish()
    final = Path(output.final)
    final.write_bytes(kept[:-1])
    assert mixed.found() == [Check.OUTPUTS_BYTES]
    final.unlink()
    report = mixed.verified()
    assert report.findings == ()
    assert any("readers have taken" in note for note in report.notes)


@pytest.mark.parametrize("port", ["error", "duplicate"])
def test_counts_are_held_against_rows_of_topics_too(tmp_path: Path, port: str) -> None:
    """A record that counts one row more than its staged files hold, on a topic's port and on a port of files."""
    assert Mixed(tmp_path, **{port: 1 + {"error": ERROR, "duplicate": DUPLICATE}[port]}).found() == [Check.LOG_COUNTS]


def test_the_marks_of_ports_are_checked_without_any_file_port(tmp_path: Path) -> None:
    """With topics alone the store's mark is there, and may not be ahead of the log."""
    file = tmp_path / "clicks.yaml"
    mixed = Mixed(tmp_path)
    text = CONFIG.replace("{format: parquet, path: out/duplicate}", "{format: kafka, topic: dup}")
    file.write_text(text, encoding="utf-8")
    mark_published(load_config(file), mixed.log, 5)
    report = mixed.verified()
    assert {finding.check for finding in report.findings} == {Check.MARKS_AHEAD}
    assert Check.OUTPUTS_MISSING in report.ran


@pytest.mark.slow
def test_commands_answer_for_a_store_with_topics(mixed: Mixed) -> None:
    """`status --window` names topic and slots; verify and gc end with 0 while the brokers are down."""
    reported = CliRunner().invoke(app, ["status", str(mixed.file), "--window", "0", "--json"])
    assert reported.exit_code == 0
    outputs = {output["port"]: output for output in json.loads(reported.stdout)["outputs"]}
    assert (outputs["error"]["topic"], outputs["error"]["slots"]) == ("err", [0, 2])
    assert (outputs["duplicate"]["topic"], outputs["duplicate"]["slots"]) == (None, None)
    for words in (["verify"], ["gc"]):
        done = CliRunner().invoke(app, [*words, str(mixed.file)])
        assert done.exit_code == 0, (words, done.output)


@pytest.mark.night
def test_status_shows_how_far_it_has_come_while_the_brokers_are_down(mixed: Mixed) -> None:
    """Within its few seconds, with what is not known and why; it never fails for it."""
    began = time.monotonic()
    lag = store_status(mixed.open(), last=1).to_json()["lag"]
    assert time.monotonic() - began < 40  # a client that nobody bounds waits a minute
    assert (lag["total"], "topics" in lag["error"]) == (None, True)
    assert lag["partitions"] == [
        {"topic": "in", "partition": 0, "judged": 110, "end": None, "lag": None, "held_back": False}
    ]
    reported = CliRunner().invoke(app, ["status", str(mixed.file)], env={"COLUMNS": "200"})
    assert reported.exit_code == 0
    assert "lag" in reported.stdout
    assert "not known: the topics of the source" in reported.stdout


def test_an_output_is_told_by_its_record_not_by_the_config_of_today(mixed: Mixed) -> None:
    """A port that was a topic and is files now: its old windows are still the topic's."""
    text = CONFIG.replace("{format: kafka, topic: err}", "{format: parquet, path: out/error}")
    mixed.file.write_text(text, encoding="utf-8")
    assert mixed.found() == []
    mixed.sent.unlink()
    assert mixed.found() == [Check.OUTPUTS_MISSING]
