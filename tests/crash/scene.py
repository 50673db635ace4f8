"""A job on a directory of its own, run as a process that can be killed, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bucket_store import failpoints
from bucket_store.commit_log import CommitLog
from deduper import checkpoint
from deduper.config import Config
from deduper.config_file import load_config
from deduper.judging import fixed_settings
from deduper.open_store import open_store
from deduper.staging import STAGING
from deduper.verify import verify_store
from tests.spark.harness import PORTS, read_rows

ROOT = Path(__file__).parent.parent.parent
FILES, FILES_A_WINDOW, ROWS_A_FILE = 14, 2, 90
WINDOWS = FILES // FILES_A_WINDOW
SNAPSHOT_EVERY = 4
_FIRST_FILE_TIME = 1_700_000_000
_DEADLINE_S = 240.0


@dataclass
class Scene:
    """One job: its config, its input, and the processes that were started on it."""

    directory: Path
    store: str = "rocksdb:state"
    lookup: str = "own_bucket"
    error_format: str = "parquet"
    trigger: str = "1s"
    log: list[str] = field(default_factory=list)
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self, files: int = FILES) -> Scene:
        """The directory, the config file, the input, and a store whose log is folded often."""
        (self.directory / "in").mkdir(parents=True)
        (self.directory / "tmp").mkdir()
        self.config_path.write_text(
            f"""\
name: crash
source: {{format: files, path: in, file_format: json, schema: "k string, t long",
         max_files_per_batch: {FILES_A_WINDOW}}}
key: k
expiry: {{by: ordered, field: t, period: 60, span: 10, lookup: {self.lookup}}}
store: {{url: "{self.store}", shards: 2, tables: tables}}
sinks:
  unique: {{format: parquet, path: out/unique}}
  duplicate: {{format: parquet, path: out/duplicate}}
  expired: {{format: parquet, path: out/expired}}
  error: {{format: {self.error_format}, path: out/error}}
trigger: {self.trigger}
spark:
  spark.master: "local[2]"
  spark.driver.memory: 1g
  spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={self.directory / "tmp"}"
"""
        )
        for number in range(files):
            self.add_file(number)
        CommitLog.create(self.config.store.path, fixed_settings(self.config), wall_us=1, snapshot_every=SNAPSHOT_EVERY)
        return self

    def add_file(self, number: int) -> None:
        """Keys that come again in the file, in its window and in later ones; late tuples; every kind of error line."""
        now = 15 * number
        lines = [json.dumps({"k": f"{key % 47}", "t": now + key % 7}) for key in range(ROWS_A_FILE - 24)]
        lines += [json.dumps({"k": f"{key}", "t": now - back + key % 7}) for back in (15, 30, 45) for key in range(4)]
        lines += [json.dumps({"k": f"late{key}", "t": now - 100 + key}) for key in range(4)]
        lines += [json.dumps({"k": f"only{number}.{key}", "t": now}) for key in range(4)]
        lines += [json.dumps({"k": None, "t": now}), json.dumps({"k": "no time"}), "{torn", '{"k": 1']
        path = self.directory / "in" / f"file-{number:04d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{line}\n" for line in lines))
        os.utime(hidden, (_FIRST_FILE_TIME + number, _FIRST_FILE_TIME + number))
        hidden.rename(path)

    @property
    def config_path(self) -> Path:
        """The config file."""
        return self.directory / "job.yaml"

    @property
    def config(self) -> Config:
        """The configuration, read anew."""
        return load_config(self.config_path)

    def start(self, *options: str, armed: str = "") -> subprocess.Popen[bytes]:
        """A driver in a session of its own, so that all its processes can be stopped at once."""
        environment = {
            **os.environ,
            failpoints.ENVIRONMENT: armed,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.directory / "tmp"),
        }
        self.log.append(f"{' '.join(options)} {armed}")
        with (self.directory / "driver.log").open("ab") as output:
            output.write(f"--- {self.log[-1]}\n".encode())
            output.flush()
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.driver", "run", str(self.config_path), "--json", *options],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.drivers.append(driver)
        return driver

    def run(self, *options: str, armed: str = "") -> int:
        """A driver from start to end: its exit code, -9 when it was killed. What it leaves running, it leaves."""
        driver = self.start("--once", *options, armed=armed)
        try:
            return driver.wait(_DEADLINE_S)
        except BaseException:
            end(driver)
            raise

    def windows(self) -> int:
        """How many windows are committed."""
        return CommitLog.open(self.config.store.path).state.next_window

    def forget_last_commit(self) -> None:
        """As if Spark had died before it noted its last batch as done."""
        commits = (checkpoint.newest(self.config.checkpoint_path) or Path("none")) / "commits"
        numbers = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()] if commits.is_dir() else []
        if numbers:
            (commits / str(max(numbers))).unlink()
            (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)

    def rows(self) -> dict[str, Counter[str]]:
        """The published rows of every port as texts that know no directory, with how often each is there."""
        rows = {}
        for port in PORTS:
            texts = (json.dumps(row, sort_keys=True, default=str) for row in read_rows(self.directory / "out" / port))
            rows[port] = Counter(text.replace(str(self.directory), "") for text in texts)
        return rows

    def everything(self) -> dict[str, bytes]:
        """The bytes of all that a fenced driver must leave alone: outputs, marks, log, pieces."""
        kept: dict[str, bytes] = {}
        for top in ("out", "state/log", "state/pieces", "state/sources", "state/intents"):
            for path in (self.directory / top).rglob("*"):
                if path.is_file() and not re.search(r"/(LOG|LOG\.old.*|LOCK|IDENTITY)$", str(path)):
                    kept[str(path.relative_to(self.directory))] = path.read_bytes()
        kept["published"] = (self.config.store.path / "published").read_bytes()
        # What a sleeper places in a slot that was folded and freed meanwhile is no part of the log.
        records = {name for name in kept if name.startswith("state/log/")}
        newest = max(int(name.rpartition("/")[2]) for name in records) // SNAPSHOT_EVERY * SNAPSHOT_EVERY
        return {name: data for name, data in kept.items() if name not in records or int(Path(name).name) >= newest}

    def outcome(self) -> dict[str, Any]:
        """What must be as in a run that nobody disturbed."""
        state = CommitLog.open(self.config.store.path).state
        return {
            "rows": self.rows(),
            "totals": state.totals,
            "reasons": state.reason_totals,
            "windows": state.next_window,
            "latest": state.latest_point,
            # Over all shards: which shard a key is in depends on the store's salt.
            "entries": {
                window: sum(ref.entries for refs in state.pieces.values() for ref in refs if ref.first_window == window)
                for window in {ref.first_window for refs in state.pieces.values() for ref in refs}
            },
        }

    def check_nothing_is_public_twice(self, undisturbed: dict[str, Any]) -> None:
        """At any moment: what is out is right, and out once."""
        for port, rows in self.rows().items():
            surplus = rows - undisturbed["rows"][port]
            assert not surplus, f"{self.log}: port {port} has rows it must not have: {list(surplus.items())[:3]}"

    def check_is_as_if_undisturbed(self, undisturbed: dict[str, Any]) -> None:
        """At the end: the same rows and totals, a sound store, and nothing left lying about."""
        outcome = self.outcome()
        for port in PORTS:
            missing = undisturbed["rows"][port] - outcome["rows"][port]
            assert not missing, f"{self.log}: port {port} lost {missing.total()} rows: {list(missing)[:3]}"
        self.check_nothing_is_public_twice(undisturbed)
        for what, value in undisturbed.items():
            assert outcome[what] == value, f"{self.log}: {what}: {outcome[what]}, undisturbed {value}"
        report = verify_store(open_store(self.store.replace("state", str(self.directory / "state"))))
        assert (report.findings, report.unnamed_pieces) == ((), 0), (self.log, report.findings, report.unnamed_pieces)
        staged = [str(path) for path in self.directory.rglob(f"{STAGING}/*")]
        assert staged == [], self.log
        state = CommitLog.open(self.config.store.path).state
        named = {ref.name for ref in state.sources.values()}
        assert {path.name for path in (self.directory / "state" / "sources").iterdir()} == named, self.log
        assert not (self.directory / "state" / "heartbeat").exists(), self.log
        assert not list(self.directory.glob("state/checkpoint/*.set-aside-*")), self.log

    def clean_up(self) -> None:
        """End what still runs, and remove the tables in shared memory, which outlive every process."""
        for driver in self.drivers:
            end(driver)
        store_id = CommitLog.open(self.config.store.path).manifest.store_id
        shutil.rmtree(Path("/dev/shm/deduper-tables", store_id), ignore_errors=True)


def session_of(driver: subprocess.Popen[bytes]) -> Iterator[int]:
    """The processes that belong to a driver: itself, its JVM, the Python workers."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == driver.pid:
                    yield int(entry.name)


def signal_all(driver: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to every process of a driver."""
    for process in list(session_of(driver)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def end(driver: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a driver."""
    signal_all(driver, signal.SIGKILL)
    driver.wait()


def wait_until(what: str, condition: Any, deadline_s: float = _DEADLINE_S) -> None:
    """Look again and again until a condition holds."""
    end_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_at, f"not within {deadline_s} s: {what}"
        time.sleep(0.1)


def is_frozen(driver: subprocess.Popen[bytes]) -> bool:
    """Whether the driver itself has been stopped by SIGSTOP."""
    return Path("/proc", str(driver.pid), "stat").read_text().rpartition(")")[2].split()[0] == "T"
