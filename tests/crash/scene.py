"""A job on a directory of its own, run as a process that can be killed, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bucket_store import failpoints
from bucket_store.errors import StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import INTENTS_DIRECTORY, PUBLISHED_NAME, read_published
from bucket_store.log.records import LogState
from bucket_store.log.sources_archive import files_of
from bucket_store.pieces.reader import PieceReader
from bucket_store.tables.generation import table_folder
from deduper.admin.open_store import open_store
from deduper.admin.verify.run import verify_store
from deduper.config.files import FilesSource
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.sinks.names import STAGING
from deduper.sources.files.judged import KnownFiles
from deduper.sources.files.listing import list_files
from deduper.spark.installed import pyspark_folder
from deduper.spark_promises import is_one_process
from deduper.testing import differences
from deduper.window.policy import DELETION_BATCH, dead_pieces, entry_expiry_point, fixed_settings, live_from_bucket
from tests.crash import ledger
from tests.deduper.settled import half_done
from tests.forked import Forked
from tests.processes import freeze, is_alive, is_frozen, name_of
from tests.spark.harness import PORTS, read_rows

ROOT = Path(__file__).parent.parent.parent
FILES_A_WINDOW, ROWS_A_FILE = 2, 90
WINDOWS, MANY_WINDOWS = 7, 12
SNAPSHOT_EVERY = 4
_FIRST_FILE_TIME = 1_700_000_000
DEADLINE_S = 600.0
FORGET, DELETE, TEAR = "delete the published mark", "delete the intents", "tear the newest intent"


@dataclass
class Scene:
    """One job: its config, its input, and the processes that were started on it. `small`: see `tests.crash.driver`."""

    directory: Path
    store: str = "rocksdb:state"
    lookup: str = "own_bucket"
    form: str = "parquet"
    error_format: str = "parquet"
    schema: str = "k string, t long"
    expiry: str = ""
    master: str = "local[2]"
    ports: str = "out"
    shards: int = 2
    spark: dict[str, str] = field(default_factory=dict)
    java_options: str = ""
    shared_folders: bool = False
    small: bool = False
    clock: Path | None = None
    log: list[str] = field(default_factory=list)
    drivers: list[Forked] = field(default_factory=list)
    _killed_at: float | None = None

    def make(self, windows: int = WINDOWS) -> Scene:
        """The directory, the config file, the input, and a store whose log is folded often."""
        (self.directory / "in").mkdir(parents=True)
        (self.directory / "tmp").mkdir(exist_ok=True)
        expiry = self.expiry or f"{{by: ordered, field: t, period: 60, span: 10, lookup: {self.lookup}}}"
        self.config_path.write_text(
            f"""\
name: crash
source: {{format: files, path: in, file_format: json, schema: "{self.schema}",
         max_files_per_batch: {FILES_A_WINDOW}}}
key: k
expiry: {expiry}
store: {{url: "{self.store}", shards: {self.shards}, tables: tables}}
sinks:
  unique: {{format: {self.form}, path: "{self.ports}/unique"}}
  duplicate: {{format: {self.form}, path: "{self.ports}/duplicate"}}
  expired: {{format: {self.form}, path: "{self.ports}/expired"}}
  error: {{format: {self.error_format}, path: "{self.ports}/error"}}
trigger: 1s
{f"shared_folders: [{self.directory}]" if self.shared_folders else ""}
spark:
  spark.master: "{self.master}"
  spark.driver.memory: 1g
  spark.driver.extraJavaOptions: "-Djava.io.tmpdir={self.directory / "tmp"} {self.java_options}"
{"".join(f"  {name}: {json.dumps(value)}{chr(10)}" for name, value in self.spark.items())}"""
        )
        self.add_windows(0, windows)
        CommitLog.create(self.config.store.place, fixed_settings(self.config), wall_us=1, snapshot_every=SNAPSHOT_EVERY)
        return self

    def add_windows(self, first: int, end: int) -> None:
        """The input of windows [first, end)."""
        for number in range(first * FILES_A_WINDOW, end * FILES_A_WINDOW):
            self.add_file(number)

    def add_file(self, number: int) -> None:
        """Keys that come again in the file, in its window and in later ones; late tuples; every kind of error line."""
        now = 15 * number
        lines = [json.dumps({"k": f"{key % 47}", "t": now + key % 7}) for key in range(ROWS_A_FILE - 24)]
        lines += [json.dumps({"k": f"{key}", "t": now - back + key % 7}) for back in (15, 30, 45) for key in range(4)]
        lines += [json.dumps({"k": f"late{key}", "t": now - 100 + key}) for key in range(4)]
        lines += [json.dumps({"k": f"only{number}.{key}", "t": now}) for key in range(4)]
        lines += [json.dumps({"k": None, "t": now}), json.dumps({"k": "no time"}), "{torn", '{"k": 1']
        self.put_file(number, lines)

    def put_file(self, number: int, lines: list[str]) -> None:
        """A file of the input, whole at once, later than those of lower numbers."""
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
        """The configuration, read again."""
        return load_config(self.config_path)

    def environment(self, armed: str) -> dict[str, str]:
        """The environment of a process of this job."""
        return {
            **os.environ,
            failpoints.ENVIRONMENT: armed,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.directory / "tmp"),
            **({} if self.clock is None else {"CRASH_CLOCK": str(self.clock)}),
            **({"CRASH_SMALL": "1"} if self.small else {}),
            **({} if is_one_process(self.master) else self._of_executors()),
        }

    def _of_executors(self) -> dict[str, str]:
        """The installed Spark under another path: `local-cluster` leaves its executors' logs there."""
        home = self.directory / "spark-home"
        if not home.exists():
            home.mkdir()
            for path in pyspark_folder().iterdir():
                if path.name != "work":
                    (home / path.name).symlink_to(path)
        return {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}

    def start(self, *options: str, armed: str = "") -> Forked:
        """A driver in a session of its own, so that all its processes can be stopped at once."""
        self.log.append(f"{' '.join(options)} {armed}")
        with (self.directory / "driver.log").open("ab") as output:
            output.write(f"--- {self.log[-1]}\n".encode())
        words = ("run", str(self.config_path), "--json", *options)
        log = self.directory / "driver.log"
        driver = Forked(words, self.environment(armed), log, log, module="tests.crash.driver")
        self.drivers.append(driver)
        return driver

    def run(self, *options: str, armed: str = "") -> int:
        """A driver from start to end: its exit code, -9 when it was killed. What it leaves running, it leaves.

        After a kill, the time to the next commit is noted.
        """
        driver = self.start("--once", *options, armed=armed)
        before = self.windows() if self._killed_at is not None else None
        deadline = time.monotonic() + DEADLINE_S
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = driver.wait(0.2)
                    break
                assert time.monotonic() < deadline, f"{self.log}: not ended in {DEADLINE_S} s\n{self.output()}"
                before = self._note_recovery(before)
        except BaseException:
            end(driver)
            raise
        self._note_recovery(before)
        self._killed_at = time.monotonic() if "kill" in armed and code != 0 else None
        return code

    def run_to_the_end(self) -> int:
        """The last run of a story: its exit code.

        The JVM and the workers of a driver that was killed go on for a moment, and may leave something behind when the
        next start has already looked: they have ended before the last one.
        """
        wait_until("the end of the killed drivers", lambda: not any(map(living, self.drivers)))
        return self.run()

    def _note_recovery(self, before: int | None) -> int | None:
        if before is not None and self._killed_at is not None:
            with contextlib.suppress(StoreError, OSError):
                if self.windows() > before:
                    ledger.note_recovery(time.monotonic() - self._killed_at)
                    return None
        return before

    def output(self) -> str:
        """What all drivers have said."""
        return (self.directory / "driver.log").read_text(errors="replace")

    def staged(self) -> list[str]:
        """What lies in any `_staging`. Not looked for everywhere: a JVM that ends is removing its temporary files."""
        homes = (self.config.store.place, *(sink.place for sink in self.config.file_ports.values()))
        return [str(home / STAGING / entry.name) for home in homes for entry in (home / STAGING).entries()]

    def windows(self) -> int:
        """How many windows are committed."""
        return CommitLog.open(self.config.store.place).state.next_window

    def is_idle(self) -> bool:
        """Whether a first run has nothing left to do: every file is in a window, and the last one is published."""
        mark = read_published(self.config.store.place / PUBLISHED_NAME)
        log = CommitLog.open(self.config.store.place)
        state = log.state
        assert isinstance(self.config.source, FilesSource)
        is_judged = not KnownFiles(self.config.source, log).new(list_files(self.config.source))
        return is_judged and mark is not None and mark.window == state.next_window - 1

    def delete_mark(self) -> None:
        """It is not synced: a power cut may take it."""
        (self.config.store.path / PUBLISHED_NAME).unlink(missing_ok=True)

    def delete_intents(self) -> None:
        """As the mark."""
        shutil.rmtree(self.config.store.path / INTENTS_DIRECTORY, ignore_errors=True)

    def tear_intent(self) -> None:
        """The newest one is empty."""
        intents = self.config.store.path / INTENTS_DIRECTORY
        for path in sorted(intents.iterdir())[-1:] if intents.is_dir() else ():
            path.write_bytes(b"")

    def rows(self) -> dict[str, Counter[str]]:
        """The published rows of every port as texts that know no directory, with how often each is there."""
        rows = {}
        for port in PORTS:
            texts = (
                json.dumps(row, sort_keys=True, default=str) for row in read_rows(self.config.file_ports[port].place)
            )
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
        state = CommitLog.open(self.config.store.place).state
        return {
            "rows": self.rows(),
            "totals": state.totals,
            "reasons": state.reason_totals,
            "windows": state.next_window,
            "latest": state.latest_point,
            "entries": self.live_entries(state),
        }

    def live_entries(self, state: LogState) -> Counter[tuple[int, int, int]]:
        """How often each window, bucket and expiry key is remembered, over all shards and without the dead ones.

        Which shard a key is in depends on the store's salt, so the number of pieces does too, and with it the window
        at which the next batch of dead pieces leaves the store. A look-up finds none of their entries either way.
        """
        config, found = self.config, Counter[tuple[int, int, int]]()
        live_from, point = live_from_bucket(config, state), entry_expiry_point(config, state)
        store = open_store(str(self.config_path))
        reader = PieceReader(store.pieces, store.log.manifest.store_id)
        for part, entries in reader.read_all(reader.all_parts(ref for refs in state.pieces.values() for ref in refs)):
            assert entries.expiry is not None
            if live_from is None or entries.bucket >= live_from:
                # A story is too short for compactions, so every piece is of one window.
                keys = (expiry for expiry in entries.expiry.tolist() if point is None or expiry > point)
                found.update((part.ref.first_window, entries.bucket, expiry) for expiry in keys)
        return found

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
            # The number of a row's window is part of it: the whole of a job may be there, cut in another way.
            assert not missing, (
                f"{self.log}: port {port} lost {missing.total()} rows: {list(missing)[:3]}\n"
                f"{outcome['windows']} windows, totals {outcome['totals']}; undisturbed {undisturbed['windows']}, "
                f"{undisturbed['totals']}\n{self.output()}"
            )
        self.check_nothing_is_public_twice(undisturbed)
        for what, value in undisturbed.items():
            assert outcome[what] == value, f"{self.log}: {what}: {outcome[what]}, undisturbed {value}"
        self.check_store(settled=True)
        staged = self.staged()
        assert staged == [], self.log
        state = CommitLog.open(self.config.store.place).state
        assert len(dead_pieces(self.config, state)) < DELETION_BATCH * self.config.store.shards, self.log
        named = {path.name for path in files_of(state) if path.parent.name == "sources"}
        assert {path.name for path in (self.directory / "state").glob("sources/*")} == named, self.log
        assert not (self.directory / "state" / "heartbeat").exists(), self.log

    def check_store(self, *, settled: bool = False) -> None:
        """All invariants, and every row by the oracle; `settled`: nothing is half done or lies about either.

        Records of windows are deleted at once here, and their wall clock with them, without which the oracle cannot
        judge by the clock: such a story counts its rows itself.
        """
        report = verify_store(open_store(str(self.config_path)))
        assert report.findings == (), (self.log, report.findings)
        assert not settled or half_done(report) == [], self.log
        if self.config.expiry.by not in ("event_time", "processing_time"):
            found = differences(self.config_path)
            assert found == [], (self.log, list(map(str, found)))

    def clean_up(self) -> None:
        """End what still runs, and remove the tables in shared memory, which outlive every process."""
        for driver in self.drivers:
            end(driver)
        store_id = CommitLog.open(self.config.store.place).manifest.store_id
        folder = table_folder(store_id, self.config.store.place)
        shutil.rmtree(Path("/dev/shm/deduper-tables", folder), ignore_errors=True)
        for records in Path("/dev/shm/deduper-tables/records").glob(f"{store_id}-*"):  # of executors
            shutil.rmtree(records, ignore_errors=True)


def session_of(driver: Forked) -> Iterator[int]:
    """The processes that belong to a driver: itself, its JVM, the Python workers."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == driver.pid:
                    yield int(entry.name)


def signal_all(driver: Forked, number: signal.Signals) -> None:
    """Send a signal to every process of a driver."""
    for process in list(session_of(driver)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def freeze_all(driver: Forked) -> None:
    """A machine asleep: no process of a driver does anything more when this returns, until SIGCONT."""
    while awake := [process for process in session_of(driver) if is_alive(process) and not is_frozen(process)]:
        freeze(*awake)


def end(driver: Forked) -> None:
    """Kill what is left of a driver."""
    signal_all(driver, signal.SIGKILL)
    driver.wait()


def wait_until(what: str, condition: Any, deadline_s: float = DEADLINE_S) -> None:
    """Look again and again until a condition holds."""
    end_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_at, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)


def living(driver: Forked) -> dict[int, str]:
    """The processes of a driver that run, and their names."""
    return {process: name_of(process) for process in session_of(driver) if is_alive(process)}
