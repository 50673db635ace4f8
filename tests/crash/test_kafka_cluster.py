"""Exactly once on three brokers of which one at a time is killed or frozen: leaders and coordinators move."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import notes
from tests.crash import ledger
from tests.crash.kafka_scene import KafkaScene, made_traffic, problems
from tests.crash.scene import wait_until
from tests.services.kafka_broker import Broker
from tests.services.kafka_cluster import Cluster
from tests.services.kafka_traffic import Follower, send
from tests.spark.harness import PORTS

pytestmark = [pytest.mark.crash, pytest.mark.services, pytest.mark.night, pytest.mark.timeout(900)]

RECORDS = 40_000
DEADLINE_S = 300.0
_FROZEN_S = 12.0
"""Longer than a session: another leads meanwhile, and the one that wakes still believes that it does."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers to be ill-treated."""
    with Cluster(tmp_path_factory.mktemp("kafka-cluster")) as three:
        yield three


def test_any_one_broker_may_go(cluster: Cluster, tmp_path: Path) -> None:
    """Killed, frozen, killed, each time another: the job goes on by itself, and nothing is lost or there twice."""
    rng = random.Random(ledger.SEED + 4)
    traffic = made_traffic(RECORDS, rng)
    scene = KafkaScene(tmp_path / "job", broker=cluster, source="moving", max_offsets=4_000).make()
    sent = send(cluster.plain(), scene.source, traffic.records)
    victims = rng.sample(cluster.nodes, 3)
    away_s = []
    with contextlib.ExitStack() as stack:
        readers: dict[str, Follower] = {p: stack.enter_context(one) for p, one in scene.followers().items()}
        stack.callback(scene.clean_up)
        driver = scene.start("--once")
        for number, (victim, how) in enumerate(zip(victims, ("kill", "freeze", "kill"), strict=True)):
            after = 1 + 2 * number
            wait_until(
                f"window {after}\n{scene.log}",
                lambda after=after: scene.windows() >= after or driver.poll() is not None,  # type: ignore[misc]
                DEADLINE_S,
            )
            assert driver.poll() is None, f"the job has ended before all was done\n{scene.output()}"
            time.sleep(rng.uniform(0, 1))
            away_s.append(_away(victim, how, rng))
        wait_until("the end of the job", lambda: driver.poll() is not None, DEADLINE_S)
        assert driver.returncode == 0, scene.output()
        seen = scene.read()
        for port in PORTS:
            readers[port].wait_for(len(seen[port]))
        meanwhile = {port: reader.records for port, reader in readers.items()}
    for what, records in (("meanwhile", meanwhile), ("afterwards", seen)):
        found = problems(sent, traffic, records)
        assert found == [], f"read {what}, seed {ledger.SEED}: {found}\n{scene.output()}"
    notes.add(
        f"Kafka, three brokers, one at a time killed or frozen: {RECORDS:,} records, {scene.windows()} windows; "
        f"away for {', '.join(f'{seconds:.1f} s' for seconds in away_s)}"
    )


def _away(victim: Broker, how: str, rng: random.Random) -> float:
    """Seconds for which this broker was not there."""
    began = time.monotonic()
    if how == "freeze":
        victim.freeze()
        ledger.note_kill("frozen", "broker", "kafka")
        time.sleep(_FROZEN_S)
        victim.thaw()
    else:
        victim.kill()
        ledger.note_kill("broker", "broker", "kafka")
        time.sleep(rng.uniform(0.5, 4))
        victim.start()
    return time.monotonic() - began
