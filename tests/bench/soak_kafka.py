"""A week in small: the real service under a steady load, with expiry at work, watched from outside.

    python -m tests.bench.soak_kafka --rate 10000 [--minutes 15] [--warm 5] [--kills 3] [--out docs/bench/soak]

A broker, a process that sends `--rate` records a second (a fifth repeats, 2 % late by an hour, one in 1,009 torn), the
job as users start it (`deduper run`, its own process, exactly once, four topics, metrics on), a process that reads the
four topics with read_committed, and a Prometheus with deploy's rules and alerts. Every five seconds a sample is taken
from the job's own metrics page. The broker keeps the last gigabyte of each partition.

Keys live for a minute, so expiry sets in within two. A piece that has died keeps its bytes for ten minutes more (the
store's grace): the store's size in all can be flat only after twelve minutes, its live part after two.

The JVM gets its heap at once (`-Xms` = `-Xmx`, touched), so that its resident memory shows what leaks outside the heap;
what leaks inside shows in what is left after a full garbage collection, which is asked for once a minute (`jcmd`). What
the small ones leave holds much that is dead and waits for a great one.

At the end the sender stops, the job drains what is left and stops by SIGTERM. Checked, and told one by one:

1. every record is on exactly one port, once
2. lag stays bounded: its greatest after warming is below `--lag` seconds of load, and it does not grow
3. resident memory of driver, JVM and workers: the slope after warming is below 1 % an hour. A run of minutes cannot
   show so little with certainty: `holds` and `broken` are said when the 95 % interval lies on one side of it, and
   `not shown` otherwise, with the interval. Likewise their anonymous memory: resident memory has the resident tables
   too, page by page as they are touched, once for every worker. The process that keeps house grows until another takes
   its place, after 200 requests: it is to stay below 128 MB
4. the heap after full garbage collections, likewise
5. the live part of the store does not grow; all of it, from the twelfth minute on
6. no alert of deploy's fires after warming

`--kills` SIGKILLs fall into the minutes of warming, on the driver and on the driver with all its processes in turns;
after each the job is started again and has to catch up. So memory is that of the last start.

`--out` gets a folder with samples.csv, soak.svg, result.json. The exit code is 1 when something is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from deduper.config.load import load_config
from deduper.config.sections import PORTS
from deduper.service.process_memory import summed_by_process
from tests.bench.lanes import remove_tables
from tests.bench.plot_svg import plot
from tests.bench.slopes import Slope, slope
from tests.bench.traffic import SCHEMA
from tests.ports import free_port
from tests.services.kafka_broker import Broker
from tests.services.prometheus import RULES, Prometheus

SAMPLE_S = 5.0
PARTITIONS = 2
MEMORY = ("rss_driver", "rss_jvm", "rss_workers", "anonymous_driver", "anonymous_workers")
PERIOD_S = 60
HOUSEKEEPING_MB = 128
EXPIRING_MINUTES = 2.5
GRACE_MINUTES = 12.0
RETENTION = {"log.retention.bytes": 1 << 30, "log.segment.bytes": 128 << 20, "log.retention.check.interval.ms": 5000}
_ROOT = Path(__file__).parent.parent.parent
SAMPLES_A_MINUTE = 12
_AFTER_GC = re.compile(r"\[(?P<at>[\d.]+)s\].*Pause Full .*->(?P<after>\d+)M\(")

CONFIG = """\
name: soak
source:
  format: kafka
  bootstrap_servers: "{bootstrap}"
  topics: [{source}]
  value: {{format: json, schema: "{schema}"}}
  max_offsets_per_batch: {batch}
key: k
expiry: {{by: event_time, field: ts, period: {period}s, span: 5s, lookup: all_live}}
store: {{url: "rocksdb:state", shards: 2}}
sinks:
{sinks}
trigger: {trigger}
metrics: {{port: {port}}}
spark:
  spark.master: "local[2]"
  spark.driver.memory: {heap}m
  spark.driver.extraJavaOptions: "-Xms{heap}m -XX:+AlwaysPreTouch -Xlog:gc:file={gc}"
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, what became of it, and the numbers."""

    claim: str
    verdict: str
    numbers: str


def main() -> int:
    """See the module."""
    arguments = parsed()
    work = Path(tempfile.mkdtemp(prefix="deduper-soak-"))
    loads = [os.getloadavg()[0]]
    with Broker(work / "broker", heap="768m", fast_start=False, settings=RETENTION) as broker:
        found = soak(broker, work, arguments)
    loads.append(os.getloadavg()[0])
    checks = [
        once(found.counts, found.sent),
        silent(found.alerts, arguments.warm * 60),
        *checked(found.samples, found.after_gc, arguments),
    ]
    write(arguments, found, checks, loads)
    for check in checks:
        print(f"{check.verdict:10} {check.claim}: {check.numbers}")
    remove_tables(load_config(work / "soak.yaml", environment={}))
    shutil.rmtree(work, ignore_errors=True)
    return int(any(check.verdict == "broken" for check in checks))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a soak gave.

    `after_gc` are megabytes left after each collection; `counts` is how often each record was seen on each port.
    """

    samples: list[dict[str, float]]
    after_gc: list[tuple[float, float]]
    counts: np.ndarray  # type: ignore[type-arg]
    sent: int
    kills: int
    alerts: dict[str, list[float]]
    """Seconds at which each alert was seen firing."""


def soak(broker: Broker, work: Path, arguments: argparse.Namespace) -> Measured:
    """Run it all."""
    source = broker.create_topic("soak", PARTITIONS)
    topics = [broker.create_topic(port, PARTITIONS) for port in PORTS]
    port = free_port()
    sinks = "\n".join(f"  {name}: {{format: kafka, topic: {name}}}" for name in PORTS)
    (work / "soak.yaml").write_text(
        CONFIG.format(
            bootstrap=broker.bootstrap,
            source=source,
            schema=SCHEMA,
            batch=int(arguments.rate * 20),
            period=PERIOD_S,
            sinks=sinks,
            trigger=arguments.trigger,
            port=port,
            heap=arguments.heap,
            gc=work / "gc.log",
        ),
        encoding="utf-8",
    )
    seen_file = work / "seen.npz"
    follower = process(
        "tests.bench.traffic", "follow", broker.bootstrap, *topics, "--counts", "--result", str(seen_file)
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "following\n"
    job = Job(work)
    try:
        # The clock starts when the job has judged something: what Spark takes to start is none of the load's lag.
        sent = sending(broker, source, 100.0, 1.0, 0)()
        until(lambda: job.ended or judged(port) >= sent, 300, "the first records are judged")
        seconds = arguments.minutes * 60
        to_the_end = sending(broker, source, arguments.rate, seconds, sent)
        began = time.monotonic()
        alerts: dict[str, list[float]] = {}
        rules = [file.read_text(encoding="utf-8") for file in RULES]
        with Prometheus(work / "prometheus", f"127.0.0.1:{port}", rules) as prometheus:
            samples = watched(port, job, seconds, kill_times(arguments), prometheus, alerts)
        sent += to_the_end()
        until(lambda: job.ended or judged(port) >= sent, 600, f"all {sent:,} records are judged")
    finally:
        code = job.stop()
        time.sleep(3)
        follower.send_signal(signal.SIGTERM)
        follower.wait(120)
    if code:
        raise SystemExit(f"the job ended with {code}:\n{job.log.read_text()[-3000:]}")
    with np.load(seen_file) as seen:
        read = seen["counts"]
    assert not read[sent:].any(), "records that nobody sent"
    counts = np.zeros((sent, len(PORTS)), np.uint8)
    counts[: len(read)] = read[:sent]
    after_gc = [(at + job.started - began, left) for at, left in heap_after_gc(work / "gc.log")]
    return Measured(samples, after_gc, counts, sent, job.kills, alerts)


class Job:
    """The job as users start it, in a process group of its own; started again after every kill."""

    def __init__(self, work: Path) -> None:
        self.log = work / "job.log"
        self.kills = 0
        self._command = [sys.executable, "-m", "deduper", "run", str(work / "soak.yaml"), "--json", "--verbose"]
        self._start()

    @property
    def pid(self) -> int:
        """The driver's."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the driver, every other time with all its processes, without a warning, and start it again."""
        if self.kills % 2:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(60)
        self.kills += 1
        self._start()

    def stop(self) -> int:
        """End it in order; gives its exit code."""
        if not self.ended:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)

    def _start(self) -> None:
        self.started = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(self._command, cwd=_ROOT, stdout=log, stderr=log, start_new_session=True)


def kill_times(arguments: argparse.Namespace) -> list[float]:
    """Seconds at which the job is killed, evenly in the minutes that do not count."""
    return [arguments.warm * 60 * (number + 1) / (arguments.kills + 1) for number in range(arguments.kills)]


def sending(broker: Broker, topic: str, rate: float, seconds: float, first: int) -> Callable[[], int]:
    """Starts a sender; gives what waits for its end and tells how many it has sent."""
    words = ("--rate", str(rate), "--seconds", str(seconds), "--late", "0.02", "--first", str(first))
    sender = process("tests.bench.traffic", "send", broker.bootstrap, topic, *words)

    def ended() -> int:
        out, _ = sender.communicate(timeout=300)
        if sender.returncode:
            raise SystemExit("the sender failed")
        return int(out)

    return ended


def anonymous(process: psutil.Process) -> int:
    """Bytes without pages of files and of shared memory: a leak shows here."""
    with contextlib.suppress(psutil.Error):
        memory = process.memory_info()
        return int(memory.rss - memory.shared)
    return 0


def watched(
    port: int,
    job: Job,
    seconds: float,
    kills: list[float],
    prometheus: Prometheus,
    alerts: dict[str, list[float]],
) -> list[dict[str, float]]:
    """A sample every five seconds, for as long as the sender sends; the job is killed at some of them.

    `alerts` gets what fires at each sample.
    """
    samples: list[dict[str, float]] = []
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        if job.ended:
            break
        if kills and passed >= kills[0]:
            kills = kills[1:]
            job.kill()
            print(f"{passed / 60:5.1f} min: killed and started again", flush=True)
        for labels, _ in prometheus.query('ALERTS{alertstate="firing"}'):
            alerts.setdefault(labels["alertname"], []).append(round(passed, 1))
        found = page(port)
        if found is not None:
            held = {f"anonymous_{name}": float(count) for name, count in summed_by_process(anonymous, job.pid).items()}
            samples.append({"seconds": round(passed, 1), **sample(found), **held})
            if len(samples) % SAMPLES_A_MINUTE == 1:
                collect_garbage(job)
                last = samples[-1]
                shown = ", ".join(f"{name} {last[name]:,.0f}" for name in ("records", "lag", "windows"))
                print(f"{passed / 60:5.1f} min: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
        time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began - passed)))
    return samples


def collect_garbage(job: Job) -> None:
    """A full collection in the job's JVM, its only child of that name."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    jvms = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    for jvm in jvms:
        subprocess.run(["jcmd", jvm, "GC.run"], check=True, stdout=subprocess.DEVNULL)


def page(port: int) -> dict[str, list[tuple[Mapping[str, str], float]]] | None:
    """The metrics by name; None when there is no page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=4) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((one.labels, one.value))
    return found


def sample(found: dict[str, list[tuple[Mapping[str, str], float]]]) -> dict[str, float]:
    """What is kept of a page."""

    def total(name: str, **labels: str) -> float:
        values = [value for has, value in found.get(name, ()) if labels.items() <= has.items()]
        return sum(values) if values else float("nan")

    return {
        "records": total("deduper_records_total"),
        "windows": total("deduper_windows_total"),
        "lag": total("deduper_source_lag_records"),
        "rss_driver": total("deduper_resident_memory_bytes", process="driver"),
        "rss_maintenance": total("deduper_resident_memory_bytes", process="maintenance"),
        "rss_jvm": total("deduper_resident_memory_bytes", process="jvm"),
        "rss_workers": total("deduper_resident_memory_bytes", process="workers"),
        "store_live": total("deduper_store_bytes", state="live"),
        "store_all": total("deduper_store_bytes"),
        "entries": total("deduper_store_entries"),
        "tables": total("deduper_tables_resident_bytes"),
        "window_seconds": total("deduper_window_seconds_sum"),
        "errors": total("deduper_errors_total"),
    }


def judged(port: int) -> float:
    """Records that are committed and published."""
    found = page(port)
    return -1.0 if found is None else sample(found)["records"]


def heap_after_gc(log: Path) -> list[tuple[float, float]]:
    """Seconds since the JVM's start, and MB that were left, of every full collection."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return [(float(found["at"]), float(found["after"])) for found in _AFTER_GC.finditer(text)]


def once(counts: Any, sent: int) -> Check:
    """Check 1."""
    times = counts.sum(axis=1)
    lost, repeated = int((times == 0).sum()), int((times > 1).sum())
    ports = ", ".join(f"{name} {int(column.sum()):,}" for name, column in zip(PORTS, counts.T, strict=True))
    verdict = "broken" if lost or repeated or not sent else "holds"
    return Check("every record on exactly one port", verdict, f"{sent:,} sent; {lost} lost, {repeated} twice; {ports}")


def silent(alerts: dict[str, list[float]], warm_s: float) -> Check:
    """Check 7."""
    late = {name: [at for at in times if at >= warm_s] for name, times in alerts.items()}
    fired = ", ".join(f"{name} from {times[0] / 60:.0f} min on" for name, times in late.items() if times)
    return Check("no alert fires after warming", "broken" if fired else "holds", fired or "none fired")


def checked(
    samples: list[dict[str, float]], after_gc: list[tuple[float, float]], arguments: argparse.Namespace
) -> list[Check]:
    """Checks 2 to 5, on what was measured after warming."""
    warm_s = arguments.warm * 60
    late = [each for each in samples if each["seconds"] >= warm_s]
    lags = [each["lag"] for each in late if each["lag"] == each["lag"]]
    if len(lags) < 2:
        return [Check("anything after warming", "not shown", f"{len(lags)} samples after {arguments.warm:g} min")]
    bound = arguments.rate * arguments.lag
    half = len(lags) // 2
    grows = float(np.median(lags[half:])) > float(np.median(lags[:half])) + arguments.rate
    numbers = (
        f"greatest {max(lags):,.0f} records ({max(lags) / arguments.rate:.1f} s of load), median of the first half "
        f"{np.median(lags[:half]):,.0f}, of the second {np.median(lags[half:]):,.0f}"
    )
    checks = [Check("lag is bounded", "broken" if max(lags) > bound or grows else "holds", numbers)]
    for name in MEMORY:
        values = [each[name] for each in late]
        checks.append(small(f"{name} grows less than 1 % an hour", [each["seconds"] for each in late], values))
    most = max(each["rss_maintenance"] for each in late) / 1e6
    below = f"the process that keeps house stays below {HOUSEKEEPING_MB} MB"
    if most:
        checks.append(Check(below, "holds" if most < HOUSEKEEPING_MB else "broken", f"greatest {most:.0f} MB"))
    else:  # nothing was deleted or merged in these minutes
        checks.append(Check(below, "not shown", "it did not run"))
    heap = [(at, left) for at, left in after_gc if at >= warm_s]
    checks.append(
        small(
            "heap after full collections grows less than 1 % an hour",
            [at for at, _ in heap],
            [left for _, left in heap],
        )
    )
    expiring = [each for each in late if each["seconds"] >= EXPIRING_MINUTES * 60]
    checks.append(flat("live part of the store does not grow", expiring, "store_live"))
    past_grace = [each for each in late if each["seconds"] >= GRACE_MINUTES * 60]
    checks.append(flat("all of the store does not grow after its grace", past_grace, "store_all"))
    checks.append(flat("tables do not grow", expiring, "tables"))
    return checks


def small(claim: str, seconds: list[float], values: list[float]) -> Check:
    """A slope below 1 % an hour, or below a megabyte an hour for what is next to nothing."""
    found = slope(seconds, values)
    if found is None:
        return Check(claim, "not shown", f"{len(values)} values are too few")
    percent, least, greatest = found.percent_an_hour()
    verdict = "broken" if least > 1.0 else "holds" if greatest < 1.0 else "not shown"
    unit = 1e6 if found.level > 1e6 else 1.0
    return Check(
        claim,
        verdict,
        f"{percent:+.2f} % an hour, 95 % between {least:+.2f} and {greatest:+.2f}; level {found.level / unit:,.0f} MB",
    )


def flat(claim: str, late: list[dict[str, float]], name: str) -> Check:
    """The last third lies no higher than the first by more than a tenth."""
    values = [each[name] for each in late if each[name] == each[name]]
    third = len(values) // 3
    if third < 4:
        return Check(claim, "not shown", f"{len(values)} samples are too few")
    first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
    share = last / first - 1 if first else float(last > 0)
    numbers = f"median of the first third {first / 1e6:,.1f} MB, of the last {last / 1e6:,.1f} MB ({share:+.1%})"
    return Check(claim, "broken" if share > 0.1 else "holds", numbers)


def write(
    arguments: argparse.Namespace,
    found: Measured,
    checks: list[Check],
    loads: list[float],
) -> None:
    """The folder that is kept."""
    samples, sent = found.samples, found.sent
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "samples.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(samples)
    slopes: dict[str, Slope | None] = {}
    late = [each for each in samples if each["seconds"] >= arguments.warm * 60]
    for name in MEMORY:
        slopes[name] = slope([each["seconds"] for each in late], [each[name] for each in late])
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores; broker, sender and reader on it",
        "load": loads,
        "arguments": {name: value for name, value in vars(arguments).items() if name != "out"},
        "sent": sent,
        "kills": found.kills,
        "checks": [{"claim": each.claim, "verdict": each.verdict, "numbers": each.numbers} for each in checks],
        "slopes_percent_an_hour": {name: each and each.percent_an_hour() for name, each in slopes.items()},
        "heap_after_gc_mb": found.after_gc,
    }
    (arguments.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    minutes = [each["seconds"] / 60 for each in samples]

    def line(name: str, scale: float) -> list[float]:
        return [each[name] / scale for each in samples]

    rates = [
        float("nan"),
        *(
            (after["records"] - before["records"]) / (after["seconds"] - before["seconds"])
            for before, after in pairwise(samples)
        ),
    ]
    text = plot(
        f"{arguments.rate:,.0f} records a second for {arguments.minutes:g} minutes: {sent:,} records",
        minutes,
        [
            ("records a second, judged", {"rate": rates}),
            ("lag, thousands of records", {"lag": line("lag", 1e3)}),
            (
                "resident memory, MB",
                {name: line(f"rss_{name}", 1e6) for name in ("jvm", "workers", "driver", "maintenance")},
            ),
            ("store, MB", {"all": line("store_all", 1e6), "live": line("store_live", 1e6)}),
            ("tables, MB", {"tables": line("tables", 1e6)}),
        ],
        {"warm": arguments.warm, "expiry": PERIOD_S / 60, "grace over": GRACE_MINUTES}
        if arguments.minutes > GRACE_MINUTES
        else {"warm": arguments.warm},
    )
    (arguments.out / "soak.svg").write_text(text, encoding="utf-8")


def process(*words: str) -> subprocess.Popen[str]:
    """A module of ours in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", *words], cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def until(is_so: Any, deadline_s: float, what: str) -> None:
    """Poll until something holds."""
    end = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"after {deadline_s:.0f} s still not: {what}")
        time.sleep(0.5)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, required=True, help="half of the median of `python -m tests.bench`")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--warm", type=float, default=5.0, help="minutes that do not count")
    parser.add_argument("--kills", type=int, default=0, help="kills of the job before those minutes are over")
    parser.add_argument("--lag", type=float, default=20.0, help="seconds of load that lag may be")
    parser.add_argument("--trigger", default="1s")
    parser.add_argument("--heap", type=int, default=1200, help="MB")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "bench" / "soak")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
