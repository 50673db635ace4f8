"""A small job on files, run to its end or killed at a failpoint, as tests of storages need it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bucket_store import failpoints


def written_job(directory: Path, text: str) -> tuple[Path, list[str]]:
    """The config file, and four files of its source `in/` with columns k and t; the keys of all their records.

    One of the files has a line more that is no record. Keys come again in the same file and in later ones.
    """
    config = directory / "job.yaml"
    config.write_text(text, encoding="utf-8")
    (directory / "in").mkdir()
    keys: list[str] = []
    for number in range(4):
        lines = [{"k": f"key-{(number * 5 + line) % 11}", "t": line} for line in range(8)]
        keys += [str(line["k"]) for line in lines]
        records = "".join(json.dumps(line) + "\n" for line in lines) + ("no record\n" if number == 2 else "")
        (directory / "in" / f"{number}.json").write_text(records, encoding="utf-8")
        os.utime(directory / "in" / f"{number}.json", (1_700_000_000 + number,) * 2)
    return config, keys


def run_once(config: Path, kill: str = "") -> subprocess.CompletedProcess[str]:
    """`deduper run --once`, with these failpoints armed."""
    command = [sys.executable, "-m", "deduper", "run", str(config), "--once", "--take-over"]
    environment = {**os.environ, failpoints.ENVIRONMENT: kill}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
