"""A standalone Spark on 127.0.0.1: a master and workers as a user starts them, which tests kill and start again.

    <name>.log      what a process said, of all its starts
    work-<n>/       the executors' folders of a worker, with their logs

The environment of the workers is that of the tests, less what the driver alone needs: executors get theirs from it, as
on another host. Each process runs on a leash (leash.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from deduper.spark.installed import pyspark_folder
from tests.crash.scene import wait_until
from tests.jvm import BRIEF
from tests.ports import free_ports
from tests.services.leashed import Daemon

SPECULATES = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    # Also a stage of few tasks, which is what a window and a round of merges have.
    "spark.speculation.task.duration.threshold": "1s",
    "spark.locality.wait": "500ms",
    "spark.driver.host": "127.0.0.1",
}
"""Settings by which a task that stands still for a second runs on the other worker too, if the two are apart."""
_REGISTERED = "Successfully registered with master"
_DEPLOY = "org.apache.spark.deploy"
_OF_DRIVER = ("BUCKET_STORE_FAILPOINTS", "PYTHONPATH", "PYSPARK_PYTHON", "NUMBA_CACHE_DIR")


def _daemon(name: str, directory: Path, words: list[str], environment: Mapping[str, str]) -> Daemon:
    return Daemon(name, directory, lambda: [str(pyspark_folder() / "bin" / "spark-class"), *words], environment)


class Standalone:
    """One master, and workers of 1 GiB each; `apart`: on loopback addresses of their own, as other hosts.

    Spark repeats a slow task on another host alone.
    """

    def __init__(self, directory: Path, workers: int = 2, *, apart: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(["rpc", "web", *(f"web-{number}" for number in range(workers))], None)
        self.url = f"spark://127.0.0.1:{ports['rpc']}"
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_DRIVER}
        of_all = {
            **inherited,
            "SPARK_HOME": str(pyspark_folder()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join([*BRIEF, "-Dspark.worker.timeout=10"]),
            "SPARK_LOCAL_DIRS": str(directory),
        }
        master = [
            f"{_DEPLOY}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(ports["rpc"]),
            "--webui-port",
            str(ports["web"]),
        ]
        self.master = _daemon("master", directory, master, of_all)
        self.workers = [
            _daemon(
                f"worker-{number}",
                directory,
                [
                    *(f"{_DEPLOY}.worker.Worker", "--host", f"127.0.0.{1 + apart * number}"),
                    *("--cores", "1", "--memory", "1g"),
                    *("--webui-port", str(ports[f"web-{number}"])),
                    *("--work-dir", str(directory / f"work-{number}"), self.url),
                ],
                of_all,
            )
            for number in range(workers)
        ]

    def start(self) -> None:
        """Start what does not run, and wait until every worker is registered."""
        self.master.launch()
        wait_until("the master", lambda: self.master.says("I have been elected leader"))
        starting = [worker for worker in self.workers if not worker.is_running]
        before = [worker.says(_REGISTERED) for worker in starting]
        for worker in starting:
            worker.launch()
        for worker, count in zip(starting, before, strict=True):
            wait_until(worker.name, partial(_has_registered, worker, count))

    def stop(self) -> None:
        """Kill all of it."""
        for daemon in (*self.workers, self.master):
            daemon.kill()


def _has_registered(worker: Daemon, before: int) -> bool:
    return worker.says(_REGISTERED) > before


@contextlib.contextmanager
def standalone(directory: Path, workers: int = 2, *, apart: bool = False) -> Iterator[Standalone]:
    """A started one."""
    one = Standalone(directory, workers, apart=apart)
    try:
        one.start()
        yield one
    finally:
        one.stop()
