"""Rows a second from topic to topics: one machine, and two executors on it, one after the other on the same broker.

    python -m tests.bench.bench_kafka_executors [--rows 400000] [--window 100000] [--masters 'local[2];…']

Records as the crash tests have them: JSON, 30 % copies, all four ports topics, exactly once, `preserve_order` for one.
Rows a second are those of all windows but the first two, from the end of the second's publication to the end of the
last one's; `send` is the time of a publication, `wait` what the next commit waits for it. The load is the machine's at
the beginning and the end of each run. Executors on one machine share its cores: this shows what they cost, not what
more machines bring.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.crash.kafka_scene import KafkaScene, made_traffic
from tests.services.kafka_broker import Broker
from tests.services.kafka_traffic import send

_SLOW_START_S = 400.0


def measure(scene: KafkaScene) -> str:
    """One line of the table."""
    load = os.getloadavg()[0]
    driver = scene.start("--once")
    ends: list[float] = []
    while driver.poll() is None:
        ends += [time.monotonic()] * (len(_windows(scene)) - len(ends))
        time.sleep(0.02)
    windows = _windows(scene)
    ends += [time.monotonic()] * (len(windows) - len(ends))
    assert driver.returncode == 0, scene.output()
    rows = sum(window["rows"] for window in windows[2:])
    phases = [window["phases"] for window in windows[2:]]
    figures = (
        f"{len(windows)}",
        f"{rows / (ends[-1] - ends[1]):,.0f}",
        *(f"{statistics.median(one.get(name, 0.0) for one in phases):.2f}" for name in ("judge", "send", "wait")),
        f"{load:.0f} to {os.getloadavg()[0]:.0f}",
    )
    return "| " + " | ".join((f"`{scene.master}`", *figures)) + " |"


def _windows(scene: KafkaScene) -> list[dict[str, object]]:
    lines = [line for line in scene.output().splitlines() if line.startswith("{") and '"phases"' in line]
    return [json.loads(line) for line in lines]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--window", type=int, default=100_000)
    parser.add_argument("--masters", default="local[2];local-cluster[2,1,1024]")
    args = parser.parse_args()
    traffic = made_traffic(args.rows, random.Random(1))
    with tempfile.TemporaryDirectory(prefix="deduper-executors-") as folder:
        broker = Broker(Path(folder, "kafka"), heap="768m", fast_start=False)
        broker.start(_SLOW_START_S)
        try:
            print("| master | windows | rows/s | judge, s | send, s | wait, s | load |")
            print("|---|---|---|---|---|---|---|", flush=True)
            for number, master in enumerate(args.masters.split(";")):
                scene = KafkaScene(
                    Path(folder, f"job-{number}"),
                    broker=broker,
                    source=f"in-{number}",
                    max_offsets=args.window,
                    store="file:state",
                    master=master,
                ).make()
                send(broker.plain(), scene.source, traffic.records, deadline_s=600)
                try:
                    print(measure(scene), flush=True)
                finally:
                    scene.clean_up()
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
