"""See the package."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer
from ruamel.yaml import YAML

from deduper.config.load import load_config
from tests.bench.lanes import remove_tables
from tests.crash.faults import full, mounted
from tests.incidents.scaled_rules import scaled_rules
from tests.ports import free_port
from tests.processes import freeze
from tests.services.kafka_broker import Broker
from tests.services.prometheus import RULES, Prometheus

_CLI = (sys.executable, "-m", "deduper")
_RATE = 300
_FALLS_BACK = 20 * _RATE
"""So many records: keys of the last twenty seconds, most of which are in the bucket of now."""
_PERIOD, _SPAN = "2h", "5m"
_QUIET_S = 180.0
"""A healthy beginning: it is the yesterday of the last incidents."""
_YESTERDAY_S = 12 * 60.0
_RESTART_S = 1.0
_FILLING_S = 4.0
"""A disk fills up: two minutes of the night between its last 3 % and the end, in which its figures are scraped."""

_CONFIG = """\
name: night
source:
  format: kafka
  bootstrap_servers: "{bootstrap}"
  topics: [in]
  value: {{format: json, schema: "user string, ts timestamp, page string"}}
key: user
fingerprint: {{columns: [page]}}
expiry: {{by: event_time, field: ts, period: {period}, span: {span}}}
store: {{url: "rocksdb:state", shards: 2, memory: 64MiB}}
sinks:
  unique: {{format: kafka, topic: unique}}
  duplicate: {{format: parquet, path: out/duplicate}}
  expired: {{format: json, path: out/expired}}
  error: {{format: json, path: out/error}}
trigger: 1s
metrics: {{port: {port}}}
"""


@dataclass
class Traffic:
    """What the producer sends; incidents change it."""

    repeats: float = 0.1
    key: str = "user"
    ahead: timedelta = timedelta()
    share_ahead: float = 1.0
    stands_at: datetime | None = None
    repeat_later: timedelta = timedelta()
    counter_falls_back: bool = False
    rate: int = _RATE


class Sender:
    """A producer of page views, on a thread of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.traffic = Traffic()
        self._producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 3_600_000})
        self._topic = topic
        self._chance = random.Random(1)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send no more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        recent: list[tuple[str, datetime, str]] = []
        number = again = 0  # `again`: of a counter that has fallen back
        while not self._is_over.wait(0.1):
            traffic = self.traffic
            now = datetime.now(UTC)
            for _ in range(traffic.rate // 10):
                if traffic.counter_falls_back:
                    again = (again or number - _FALLS_BACK) + 1
                    user, page = f"u{again}", "/again"
                else:
                    number, again = number + 1, 0
                    user, page = f"u{number}", "/"
                at = traffic.stands_at or now
                if self._chance.random() < traffic.share_ahead:
                    at += traffic.ahead
                if recent and self._chance.random() < traffic.repeats:
                    user, at, page = self._chance.choice(recent)
                    at += traffic.repeat_later
                recent = [*recent[-999:], (user, at, page)]
                line = {traffic.key: user, "ts": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "page": page}
                with contextlib.suppress(BufferError):
                    self._producer.produce(self._topic, json.dumps(line).encode(), user.encode())
            self._producer.poll(0)


class Supervised:
    """The job under a supervisor that starts it again whenever it ends."""

    def __init__(self, config: Path, log: Path, *more: str) -> None:
        self.log = log
        self._command = (*_CLI, "run", str(config), "--json", *more)
        self.codes: list[int] = []
        self.is_wanted = True
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL for the driver."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it in order, and start it no more."""
        self.is_wanted = False
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        self._process.wait(120)
        self._thread.join()

    def start(self) -> None:
        """After `stop`."""
        self.is_wanted = True
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def _watch(self) -> None:
        while True:
            self.codes.append(self._process.wait())
            time.sleep(_RESTART_S)
            if not self.is_wanted:
                return
            self._process = self._start()


@dataclass
class Night:
    """What incidents act on, and where they look."""

    work: Path
    broker: Broker
    sender: Sender
    job: Supervised
    prometheus: Prometheus
    began: float = field(default_factory=time.monotonic)
    log_from: int = 0
    """Bytes of the job's log before the incident at hand."""

    @property
    def config(self) -> Path:
        """The job's."""
        return self.work / "night.yaml"

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {labels["alertname"] for labels, _ in self.prometheus.query('ALERTS{alertstate="firing"}')}

    def is_sound(self) -> bool:
        """Whether no alert fires and the job has just committed: the next incident may happen."""
        recent = self.prometheus.query("time() - deduper_last_commit_timestamp_seconds < 5")
        return bool(recent) and not self.firing()

    def said_by(self, *command: str) -> list[str]:
        """The lines of a command."""
        environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
        done = subprocess.run(
            (*_CLI, *command), capture_output=True, text=True, check=False, timeout=300, env=environment
        )
        return [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]

    def log_lines(self) -> list[str]:
        """The newest messages of the job's log since the incident at hand, newest first."""
        lines = self.job.log.read_bytes()[self.log_from :].decode(errors="replace").splitlines()[-400:]
        found = []
        for line in reversed(lines):
            with contextlib.suppress(ValueError, AttributeError):
                said = json.loads(line)
                found.append(str(said.get("event") or said.get("error") or ""))
                continue
            found.append(line)
        return found


@dataclass(frozen=True)
class Incident:
    """A thing that happens, the alerts of which one is to fire, and where its cause is to stand.

    `look` are commands, or `log`; `cause` is searched in their lines, `look_after_s` after the beginning or later.
    """

    name: str
    happens: Callable[[Night], contextlib.AbstractContextManager[None]]
    alerts: tuple[str, ...]
    look: tuple[tuple[str, ...], ...]
    cause: str
    after_s: float = 0.0
    look_after_s: float = 0.0


def changed_traffic(**changes: object) -> Callable[[Night], contextlib.AbstractContextManager[None]]:
    """The producer sends otherwise for a while."""

    @contextlib.contextmanager
    def happens(night: Night) -> Iterator[None]:
        night.sender.traffic = Traffic(**changes)  # type: ignore[arg-type]  # its fields
        yield
        night.sender.traffic = Traffic()

    return happens


@contextlib.contextmanager
def broker_frozen(night: Night) -> Iterator[None]:
    """Connections stay open, and nothing is answered."""
    night.broker.freeze()
    try:
        yield
    finally:
        night.broker.thaw()


@contextlib.contextmanager
def disk_full(night: Night) -> Iterator[None]:
    """The disk of the port of duplicates fills up: 3 % are free for some minutes of the night, then nothing is."""
    folder = night.work / "out" / "duplicate"
    room = shutil.disk_usage(folder)
    taken = folder / "taken"
    taken.write_bytes(bytes(int(room.free - 0.03 * room.total)))
    try:
        time.sleep(_FILLING_S)
        with full(folder):
            yield
    finally:
        taken.unlink()


@contextlib.contextmanager
def repeated(act: Callable[[], None], every_s: float) -> Iterator[None]:
    """Something is done again and again."""
    is_over = threading.Event()

    def acts() -> None:
        while not is_over.wait(every_s):
            act()

    thread = threading.Thread(target=acts, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def killed_again_and_again(night: Night) -> contextlib.AbstractContextManager[None]:
    """By a machine's memory killer, say."""
    return repeated(night.job.kill, 8.0)


@contextlib.contextmanager
def job_stopped(night: Night) -> Iterator[None]:
    """By a person who forgets it."""
    night.job.stop()
    yield
    night.job.start()


@contextlib.contextmanager
def job_frozen(night: Night) -> Iterator[None]:
    """A machine that stands still."""
    freeze(night.job.pid)
    try:
        yield
    finally:
        os.kill(night.job.pid, signal.SIGCONT)


def clock_stopped(night: Night) -> contextlib.AbstractContextManager[None]:
    """A producer fills in the same time again and again."""
    return changed_traffic(stands_at=datetime.now(UTC))(night)


@contextlib.contextmanager
def two_drivers(night: Night) -> Iterator[None]:
    """Two supervisors, both told to take over; as on two machines each job has its own port for metrics."""
    other = Supervised(night.config, night.work / "other.log", "--take-over", "--set", f"metrics.port={free_port()}")
    night.job.stop()
    night.job._command = (*night.job._command, "--take-over")
    night.job.start()
    try:
        yield
    finally:
        other.stop()
        night.job.stop()
        night.job._command = night.job._command[:-1]
        night.job.start()


@contextlib.contextmanager
def folder_taken(night: Night) -> Iterator[None]:
    """A consumer moves the folder of a port, and leaves a file in its place."""
    folder = night.work / "out" / "expired"
    away = folder.with_name("away")
    night.sender.traffic = Traffic(ahead=-timedelta(hours=3), share_ahead=0.05)
    folder.rename(away)
    folder.write_bytes(b"")
    try:
        yield
    finally:
        folder.unlink()
        away.rename(folder)
        night.sender.traffic = Traffic()


_STATUS, _CHECK, _LOG = ("status",), ("check",), ("log",)
_STANDS = ("DeduperStandsStill", "DeduperNotPublished", "DeduperLagUnknown", "DeduperWindowStuck", "DeduperDown")
INCIDENTS: tuple[Incident, ...] = (
    Incident(
        "a producer renames the key column",
        changed_traffic(key="usr"),
        alerts=("DeduperAlmostAllErrors", "DeduperErrorShareHigh"),
        look=(_STATUS, _LOG),
        cause=r"null_key|errors",
    ),
    Incident(
        "a producer's clock is a day ahead",
        changed_traffic(ahead=timedelta(days=1), share_ahead=0.3),
        alerts=("DeduperPoisonedTimestamps",),
        look=(_STATUS, _LOG),
        cause=r"ahead_of_now",
    ),
    Incident(
        "logs of the day before are sent again",
        changed_traffic(ahead=-timedelta(days=1), share_ahead=0.5),
        alerts=("DeduperExpiredShareHigh",),
        look=(_STATUS,),
        cause=r"are expired",
    ),
    Incident(
        "the broker is frozen",
        broker_frozen,
        alerts=_STANDS,
        look=(_STATUS, _CHECK, _LOG),
        cause=r"brokers?|answer",
    ),
    Incident(
        "the disk of a port fills up",
        disk_full,
        alerts=("DeduperDiskFull",),
        look=(_STATUS, _CHECK, _LOG),
        cause=r"[Nn]o space|full|room|free",
    ),
    Incident(
        "somebody takes a port's folder away",
        folder_taken,
        alerts=("DeduperLogsErrors", "DeduperCrashLoop", *_STANDS),
        look=(_STATUS, _CHECK, _LOG),
        cause=r"out/expired",
    ),
    Incident(
        "the driver is killed again and again",
        killed_again_and_again,
        alerts=("DeduperCrashLoop",),
        look=(_STATUS,),
        cause=r"starts in",
    ),
    Incident(
        "two supervisors fight over the store",
        two_drivers,
        alerts=("DeduperCrashLoop", "DeduperDown", "DeduperLogsErrors"),
        look=(_LOG, _STATUS),
        cause=r"[Aa]nother|taken|starts in",
    ),
    Incident(
        "the job is stopped and forgotten",
        job_stopped,
        alerts=("DeduperDown",),
        look=(_STATUS,),
        cause=r"not running|no process|stopped",
    ),
    Incident(
        "the driver stands still",
        job_frozen,
        alerts=("DeduperDown",),
        look=(_STATUS,),
        cause=r"^not running|^stuck|^behind",
        look_after_s=15,  # the alert fires after minutes, of this night seconds, in which the heartbeat is not old yet
    ),
    Incident(
        "event time stands still",
        clock_stopped,
        alerts=("DeduperClockStandsStill",),
        look=(_STATUS,),
        cause=r"stood still",
        look_after_s=330.0,  # the command's minutes are not divided
    ),
    Incident(
        "retries carry other timestamps",
        changed_traffic(repeats=0.4, repeat_later=-timedelta(minutes=6)),
        alerts=("DeduperLeaks",),
        look=(_STATUS,),
        cause=r"not found",
    ),
    Incident(
        "a producer sends 60 % again",
        changed_traffic(repeats=0.6),
        alerts=("DeduperManyDuplicates",),
        look=(_STATUS,),
        cause=r"are duplicates",
        after_s=_YESTERDAY_S + _QUIET_S,
    ),
    Incident(
        "a producer's counter falls back",
        changed_traffic(counter_falls_back=True),
        alerts=("DeduperConflicts",),
        look=((*_STATUS, "--conflicts"),),
        cause=r"^page ",
    ),
    Incident(
        "a producer's clock is ten minutes ahead",  # last: the latest point stays ahead as long
        changed_traffic(ahead=timedelta(minutes=10), share_ahead=0.01),
        alerts=("DeduperClockAhead",),
        look=(_STATUS,),
        cause=r"ahead of the clock",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What an incident gave: the first of its alerts and after how long, all others, the line with the cause."""

    incident: Incident
    alert: str
    seconds: float
    others: tuple[str, ...]
    line: str
    healed_s: float


def play(night: Night, incident: Incident, limit_s: float) -> Outcome:
    """One incident, until its alert has fired, the cause was looked for, and no alert fires any more."""
    before = night.firing()
    night.log_from = night.job.log.stat().st_size
    began = time.monotonic()
    alert, seconds, others = "none", 0.0, before
    with incident.happens(night):
        while alert == "none" and time.monotonic() - began < limit_s:
            time.sleep(0.5)
            others = night.firing()
            alert = next((name for name in incident.alerts if name in others), "none")
        seconds = time.monotonic() - began
        time.sleep(max(0.0, began + incident.look_after_s - time.monotonic()))
        line = cause(night, incident)
        others = night.firing()
    healed = time.monotonic()
    while not night.is_sound() and time.monotonic() - healed < limit_s:
        time.sleep(0.5)
    return Outcome(incident, alert, seconds, tuple(sorted(others - {alert})), line, time.monotonic() - healed)


def cause(night: Night, incident: Incident) -> str:
    """The first line that names it, and where it stands."""
    for look in incident.look:
        lines = night.log_lines() if look == _LOG else night.said_by(*look, str(night.config))
        (night.work / f"{incident.name[:20]}-{look[0]}.txt").write_text("\n".join(lines), encoding="utf-8")
        for line in lines:
            if re.search(incident.cause, line):
                return f"{look[0]}: {line}"
    return "none"


def table(outcomes: Sequence[Outcome], scale: float) -> str:
    """The night, as Markdown."""
    rows = [
        "| incident | alert | fires after | others | named by |",
        "|---|---|---|---|---|",
    ]
    for one in outcomes:
        after = f"{one.seconds:.0f} s, about {one.seconds * scale / 60:.0f} min" if one.alert != "none" else "-"
        line = one.line.replace("|", "\\|")
        rows.append(f"| {one.incident.name} | {one.alert} | {after} | {', '.join(one.others) or '-'} | `{line}` |")
    return "\n".join(rows) + "\n"


@contextlib.contextmanager
def begun(work: Path, scale: float) -> Iterator[Night]:
    """A night that is healthy."""
    yaml = YAML(typ="safe")
    given = [yaml.load(path.read_text(encoding="utf-8")) for path in RULES]
    rules = [json.dumps(scaled_rules(one, scale)) for one in given]  # which is YAML too
    port = free_port()
    with Broker(work / "broker") as broker, mounted(work / "out" / "duplicate"):
        broker.create_topic("in", 2)
        broker.create_topic("unique", 2)
        config = work / "night.yaml"
        config.write_text(_CONFIG.format(bootstrap=broker.bootstrap, port=port, period=_PERIOD, span=_SPAN))
        with Prometheus(work / "prometheus", f"127.0.0.1:{port}", rules) as prometheus:
            sender = Sender(broker.bootstrap, "in")
            job = Supervised(config, work / "job.log")
            try:
                yield Night(work, broker, sender, job, prometheus)
            finally:
                sender.close()
                job.stop()
        remove_tables(load_config(config, environment={}))


def main() -> int:
    """See the package."""
    parser = argparse.ArgumentParser(prog="python -m tests.incidents", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="incidents whose name has one of these words")
    parser.add_argument("--scale", type=float, default=30.0, help="minutes of a night in a minute")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that an alert may take to fire, and to end")
    parser.add_argument("--quiet", type=float, default=_QUIET_S, help="healthy seconds at the beginning")
    parser.add_argument("--out", type=Path, help="a file for the table")
    arguments = parser.parse_args()
    chosen = [one for one in INCIDENTS if not arguments.only or any(word in one.name for word in arguments.only)]
    work = Path(tempfile.mkdtemp(prefix="deduper-night-"))
    outcomes: list[Outcome] = []
    print(f"{work}; load {os.getloadavg()[0]:.1f}", flush=True)
    with begun(work, arguments.scale) as night:
        night.prometheus.until(lambda: bool(night.prometheus.query("deduper_committed_window >= 2")), "it runs", 300)
        night.prometheus.until(lambda: not night.firing(), "no alert fires", 600)
        time.sleep(arguments.quiet)
        print(f"healthy: {sorted(night.firing()) or 'no alert fires'}", flush=True)
        for incident in chosen:
            time.sleep(max(0.0, night.began + incident.after_s - time.monotonic()))
            outcomes.append(play(night, incident, arguments.limit))
            print(
                table(outcomes[-1:], arguments.scale).splitlines()[-1],
                f"healed {outcomes[-1].healed_s:.0f} s",
                flush=True,
            )
    text = table(outcomes, arguments.scale)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    missed = [one.incident.name for one in outcomes if "none" in (one.alert, one.line)]
    if not missed:
        shutil.rmtree(work, ignore_errors=True)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
