"""The broker that tests run on: what its readers see of transactions, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.processes import is_alive
from tests.services import kafka_traffic
from tests.services.kafka_broker import Broker, BrokerFailed
from tests.services.kafka_traffic import Follower, Record, read, send

pytestmark = pytest.mark.services
ROOT = Path(__file__).parent.parent.parent


def wait_until(is_so: Callable[[], bool], deadline_s: float = 15.0) -> bool:
    """Whether it came true within the deadline."""
    until = time.monotonic() + deadline_s
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)
    return is_so()


def test_only_committed_transactions_are_seen(broker: Broker, new_topic: Callable[..., str]) -> None:
    """read_committed hides an open transaction and all behind it, and an aborted one for good."""
    topic = new_topic()
    producer = Producer(broker.plain().confluent(transactional_id=topic))
    producer.init_transactions(30)

    def values(committed: bool = True, marked_s: float = 10.0) -> list[bytes | None]:
        return [record.value for record in read(broker.plain(), topic, committed=committed, marked_s=marked_s)]

    with Follower(broker.plain(), topic) as follower:
        for admission, value in [("commit", b"1"), ("abort", b"2"), ("commit", b"3")]:
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.flush(30)
            hidden, shown = values(marked_s=0), values(committed=False)
            assert value not in hidden
            assert value in shown
            (producer.commit_transaction if admission == "commit" else producer.abort_transaction)(30)
        send(broker.plain(), topic, [Record(b"4")])
        assert values() == [b"1", b"3", b"4"]
        follower.wait_for(3)
        assert [record.value for record in follower.records] == values()
    # Six records and markers, and the last.
    assert kafka_traffic.end_offsets(broker, topic) == {0: 7}


def test_nothing_outlives_who_started_it(tmp_path: Path) -> None:
    """A test run that is killed, or whose leash is killed, leaves no process behind."""
    leash = ROOT / "tests" / "services" / "leash.py"
    starter = f"""\
import os, subprocess, sys, time
leash = subprocess.Popen([sys.executable, "-I", "-S", {str(leash)!r}, str(os.getpid()), "sleep", "600"],
                         stdout=subprocess.PIPE)
print(leash.pid, int(leash.stdout.readline()), flush=True)
time.sleep(600)
"""
    for victim in ("starter", "leash"):
        with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            leash_pid, command_pid = map(int, run.stdout.readline().split())
            try:
                assert is_alive(command_pid)
                os.kill(run.pid if victim == "starter" else leash_pid, signal.SIGKILL)
                assert wait_until(lambda pid=command_pid: not is_alive(pid)), f"{victim} killed, its command lives"
            finally:
                run.kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command_pid, signal.SIGKILL)


def test_a_taken_port_is_told(broker: Broker, tmp_path: Path) -> None:
    """Who asks for a port that is not free is told so, and no process is started."""
    with pytest.raises(BrokerFailed, match=broker.bootstrap.split(":")[1]):
        Broker(tmp_path, port=int(broker.bootstrap.split(":")[1])).start()
    assert not (tmp_path / "data").exists()


@pytest.mark.night
def test_make_kafka_runs_one_for_a_person(tmp_path: Path) -> None:
    """It says where it is, has the topics asked for, and stops at SIGTERM without a trace of a process."""
    command = [sys.executable, "-m", "tests.services.kafka_broker", "--directory", str(tmp_path), "--port", "0"]
    with subprocess.Popen([*command, "clicks:3"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            said = ""
            while "stops it" not in said:
                line = run.stdout.readline()
                assert line, said
                said += line
            bootstrap = said.split("bootstrap")[1].split()[0]
            topics = Producer({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
            assert len(topics["clicks"].partitions) == 3
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 0
        finally:
            run.kill()
    assert not Path("/proc").joinpath(str(run.pid)).exists()
    holders = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(tmp_path).encode() in _command_line(entry)
    ]
    assert holders == []


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
