"""Staged windows for a publisher, a process that publishes them and can be killed, and what must be true afterwards.

`python -m tests.services.staged_windows SPEC` publishes the windows of a JSON file from the first to the last, as a
driver that has lost all its marks does. It says `ready` before, `done` after, or the class of the error that ended it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bucket_store import failpoints
from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from deduper.config.kafka.options import librdkafka_options
from deduper.kafka.errors import KafkaSinkError
from deduper.sinks.publisher import PortWork, Publisher, ThreadPublisher, failure
from deduper.sinks.slot import CommittedWindow
from deduper.sinks.transaction import PublisherSettings, TransactionalSink
from tests.processes import is_frozen
from tests.services.kafka_traffic import Record

ROOT = Path(__file__).parent.parent.parent
STAGED = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp_ms", pa.int64()),
        ("slot", pa.int32()),
    ]
)
FIRST_TIME_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Staged:
    """Windows in files: `files[window][slot]` in the order they are sent."""

    directory: Path
    files: tuple[dict[int, list[Place]], ...]
    rows: tuple[tuple[int, int, int], ...]
    """(window, slot, number inside the slot) of every row there is."""

    def moved_to(self, folder: Place) -> Staged:
        """The same windows with their files in another storage."""
        folder.make_directories()
        moved = tuple(
            {slot: [_moved(file, folder) for file in of] for slot, of in window.items()} for window in self.files
        )
        return replace(self, files=moved)

    def checksum(self, window: int) -> int:
        """What stands for the checksum of the window's commit record."""
        return 0x9E3779B97F4A7C15 * (window + 1) % (1 << 64)


def _moved(file: Place, folder: Place) -> Place:
    moved = folder / file.name
    moved.create(file.read())
    file.remove()
    return moved


def write_staged(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A staged file of these rows, in several row groups."""
    parquet.write_table(pa.Table.from_pylist(list(rows), STAGED), path, row_group_size=max(1, len(rows) // 2))
    return path


def stage(directory: Path, windows: int, slots: int, rows: int, seed: int = 1) -> Staged:
    """Windows of about `rows` rows a slot, every third without a key; a slot may be absent from a window."""
    directory.mkdir(parents=True)
    rng = random.Random(seed)
    files: list[dict[int, list[Place]]] = []
    named: list[tuple[int, int, int]] = []
    for window in range(windows):
        of_window: dict[int, list[Place]] = {}
        for slot in range(slots):
            if window and slots > 1 and rng.random() < 0.1:
                continue
            count = rng.randint(rows // 2, rows)
            named += [(window, slot, number) for number in range(count)]
            staged = [_row(window, slot, number) for number in range(count)]
            cut = count // 3
            of_window[slot] = [
                local_place(write_staged(directory / f"{window:03}-{slot}-{part}.parquet", some))
                for part, some in enumerate((staged[:cut], staged[cut:]))
            ]
        files.append(of_window)
    return Staged(directory, tuple(files), tuple(named))


def _row(window: int, slot: int, number: int) -> dict[str, Any]:
    name = f"{window}:{slot}:{number}"
    return {
        "key": None if number % 3 == 0 else f"key-{number * 7919 % 97}".encode(),
        "value": f"{name}{' ' * 60}".encode(),
        "headers": [{"key": "dedup-window", "value": str(window).encode()}, {"key": "row", "value": name.encode()}],
        "timestamp_ms": FIRST_TIME_MS + number,
        "slot": slot,
    }


def problems(staged: Staged, records: Iterable[Record]) -> list[str]:
    """What is wrong with what a read_committed reader got: rows lost, repeated, changed, or out of order."""
    seen: Counter[tuple[int, int, int]] = Counter()
    last: dict[tuple[int | None, int], tuple[int, int]] = defaultdict(lambda: (-1, -1))
    found = []
    for record in records:
        assert record.value is not None
        window, slot, number = map(int, record.value.split(b":"))
        seen[window, slot, number] += 1
        row = _row(window, slot, number)
        headers = tuple((header["key"], header["value"]) for header in row["headers"])
        if (record.key, record.value, record.headers, record.timestamp_ms) != (
            row["key"],
            row["value"],
            headers,
            row["timestamp_ms"],
        ):
            found.append(f"changed: {record}")
        if (window, number) <= last[record.partition, slot]:
            found.append(f"partition {record.partition}: {(window, slot, number)} after {last[record.partition, slot]}")
        last[record.partition, slot] = (window, number)
    wanted = set(staged.rows)
    lost, strange = wanted - seen.keys(), seen.keys() - wanted
    twice = [row for row, count in seen.items() if count > 1]
    found += [f"{len(some)} {what}, as {min(some)}" for what, some in (("lost", lost), ("strange", strange)) if some]
    return found + ([f"{len(twice)} twice, as {min(twice)}"] if twice else [])


@dataclass(frozen=True, slots=True)
class PortPublisher:
    """A publisher of one port."""

    sink: TransactionalSink
    publisher: Publisher

    def publish(
        self, window: int, checksum: int, slots: Mapping[int, Sequence[Place]], **more: Any
    ) -> dict[int, int | None]:
        """Publish a window; raises the gravest error. Gives the rows sent by slot, None if published before."""
        work = PortWork(self.sink, CommittedWindow.of(window, checksum, slots, **more))
        (outcomes,) = self.publisher.publish([work])
        error = failure(outcomes)
        if error is not None:
            raise error
        return {number: outcome for number, outcome in outcomes.items() if not isinstance(outcome, BaseException)}

    def close(self) -> None:
        """Close it."""
        self.publisher.close()


@dataclass(frozen=True, slots=True)
class Job:
    """Who publishes which windows where; `publishers` makes those of `publisher`."""

    staged: Staged
    bootstrap: str
    topic: str
    name: str = "clicks"
    deadline_s: float = 60.0
    transaction_timeout_s: float = 60.0
    publishers: Callable[[], Publisher] = ThreadPublisher

    def group(self, slot: int) -> str:
        """The name of a slot's group."""
        return f"{self.name}/0123456789abcdef/unique/{slot}"

    def publisher(
        self, *, bootstrap_servers: str = "", options: Mapping[str, str] | None = None, **more: Any
    ) -> PortPublisher:
        """A publisher that knows nothing of others."""
        settings = PublisherSettings(deadline_s=self.deadline_s, transaction_timeout_s=self.transaction_timeout_s)
        sink = {
            "job": self.name,
            "store_id": "0123456789abcdef",
            "port": "unique",
            "topic": self.topic,
            "client": librdkafka_options(bootstrap_servers or self.bootstrap, options or {}),
            "keep_order": True,
            "settings": settings,
        }
        return PortPublisher(TransactionalSink(**sink | more), self.publishers())

    def publish(self, publisher: PortPublisher, windows: Iterable[int] | None = None) -> None:
        """Publish windows, all of them unless told which."""
        for window in range(len(self.staged.files)) if windows is None else windows:
            publisher.publish(window, self.staged.checksum(window), self.staged.files[window])

    def start(self, armed: str = "") -> Process:
        """A process that publishes all windows, with failpoints."""
        spec = {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "name": self.name,
            "deadline_s": self.deadline_s,
            "transaction_timeout_s": self.transaction_timeout_s,
            "windows": [
                {str(slot): [str(file) for file in files] for slot, files in window.items()}
                for window in self.staged.files
            ],
        }
        path = self.staged.directory / f"{self.topic}.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        return Process(
            subprocess.Popen(
                [sys.executable, "-m", "tests.services.staged_windows", str(path)],
                cwd=ROOT,
                env={**os.environ, failpoints.ENVIRONMENT: armed},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        )


@dataclass(frozen=True, slots=True)
class Process:
    """A started publisher."""

    popen: subprocess.Popen[str]

    def said(self) -> str:
        """Its next line: `ready`, `done`, or the class of an error; empty when it was killed."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def wait_until_frozen(self, deadline_s: float = 60.0) -> None:
        """Until a failpoint has frozen it."""
        until = time.monotonic() + deadline_s
        while not is_frozen(self.popen.pid):
            assert self.popen.poll() is None, f"it ended: {self.said()}"
            assert time.monotonic() < until, "it does not freeze"
            time.sleep(0.01)

    def thaw(self) -> None:
        """A frozen one goes on."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, frozen or not."""
        self.popen.kill()
        self.popen.wait(30)

    def end(self, deadline_s: float = 90.0) -> str:
        """Its last words, once it has ended; `killed` for a killed one."""
        assert self.popen.stdout is not None
        try:
            words = self.popen.communicate(timeout=deadline_s)[0].split()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return "killed" if self.popen.returncode == -signal.SIGKILL else words[-1]


def main(spec: dict[str, Any]) -> None:
    """Publish all windows and say how it ended."""
    files = tuple(
        {int(slot): [local_place(file) for file in some] for slot, some in w.items()} for w in spec["windows"]
    )
    job = Job(
        Staged(Path(), files, ()),
        spec["bootstrap"],
        spec["topic"],
        spec["name"],
        spec["deadline_s"],
        spec["transaction_timeout_s"],
    )
    publisher = job.publisher()
    print("ready", flush=True)
    try:
        job.publish(publisher)
    except KafkaSinkError as exc:
        print(exc, file=sys.stderr)
        print(type(exc).__name__, flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
