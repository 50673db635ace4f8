"""What pages say about Kafka, on a real broker: the example and the how-to, with this broker in their configs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.services.kafka_broker import Broker
from tests.services.test_kafka_example import run, table
from tests.test_docs import ROOT, blocks

pytestmark = [pytest.mark.services, pytest.mark.night]
PORTS = ("unique", "duplicate", "expired", "error")


def deduper(*arguments: str, cwd: Path, **settings: object) -> str:
    """The answer of a command that must end well; `settings` override those of the config, `__` for a dot."""
    overrides = [f"--set={name.replace('__', '.')}={value}" for name, value in settings.items()]
    command = [str(Path(sys.executable).with_name("deduper")), *arguments, *overrides]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_and_the_how_to_run(broker: Broker, tmp_path: Path) -> None:
    """The example's two tables are equal once the source is drained, and the how-to's job reads the same topic."""
    for name, partitions in {"clicks": 4, "unique": 4, "duplicate": 1, "expired": 1, "error": 1}.items():
        broker.create_topic(name, partitions)
    sent = table(run("producer.py", "--bootstrap", broker.bootstrap, "--count", "5000"))
    job = str(ROOT / "examples" / "kafka" / "deduper.yaml")
    own = {"source__bootstrap_servers": broker.bootstrap, "metrics__port": free_port()}
    deduper("run", job, "--once", cwd=tmp_path, **own, store__url=f"rocksdb:{tmp_path}/example")
    arrived = table(run("watch.py", "--bootstrap", broker.bootstrap, "--count", *PORTS))
    assert arrived == {port: sent[port] for port in PORTS}

    page = ROOT / "docs" / "how-to" / "kafka.md"
    (config,) = (block.text for block in blocks(page) if block.language == "yaml")
    assert config.count("localhost:9092") == 1
    text = config.replace("localhost:9092", broker.bootstrap).replace("name: clicks", "name: how-to")
    (tmp_path / "clicks.yaml").write_text(text, encoding="utf-8")
    (python,) = (block.text for block in blocks(page) if block.language == "python")
    one_broker = python.replace("localhost:9092", broker.bootstrap).replace("4, 3, config", "4, 1, config")
    exec(compile(one_broker.replace('"min.insync.replicas": "2"', '"min.insync.replicas": "1"'), str(page), "exec"), {})
    own = {"metrics__port": free_port()}
    deduper("check", "clicks.yaml", cwd=tmp_path, **own)
    deduper("run", "clicks.yaml", "--once", cwd=tmp_path, **own)
    assert "rocksdb:" in deduper("status", "clicks.yaml", cwd=tmp_path)
    topics = [f"clicks-{port}" for port in PORTS]
    arrived = table(run("watch.py", "--bootstrap", broker.bootstrap, "--count", *topics))
    assert arrived == {f"clicks-{port}": sent[port] for port in PORTS}
    deduper("errors", "clicks.yaml", "--window", "0..", "--export", "clicks", cwd=tmp_path)
    deduper("run", "clicks.yaml", "--once", cwd=tmp_path, **own)
    again = table(run("watch.py", "--bootstrap", broker.bootstrap, "--count", "clicks-error"))
    assert again["clicks-error"] == 2 * sent["error"], "nothing was mended: each record is an error once more"
