"""A command with a Kafka broker of its own, which ends with it, on this machine and for measuring.

    python -m tests.bench.with_broker deduper bench --format kafka

The command gets `--bootstrap-servers` at its end, and Spark's contenders their connector by a configuration
of Spark's. The broker's data are in the temporary folder. The exit code is the command's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services.jars import connector_conf
from tests.services.kafka_broker import Broker


def main() -> int:
    """See the module."""
    name, *words = sys.argv[1:]
    beside = Path(sys.executable).parent / name
    command = [str(beside) if beside.exists() else name, *words]
    with (
        tempfile.TemporaryDirectory(prefix="deduper-broker-") as directory,
        Broker(Path(directory), heap="768m", fast_start=False) as broker,
    ):
        environment = {**os.environ, **connector_conf(Path(directory))}
        done = subprocess.run([*command, "--bootstrap-servers", broker.bootstrap], env=environment, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
