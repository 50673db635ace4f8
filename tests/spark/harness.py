"""What the tests of the real job share: a configuration on a temporary directory, files to feed it, rows to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import SparkSession

from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from deduper.config.model import Config
from deduper.service.job import run
from deduper.window.present_clock import wall_clock_us
from deduper.window.progress import BatchProgress, RunSummary

PORTS = ("unique", "duplicate", "expired", "error")
_FIRST_FILE_TIME = 1_700_000_000


@dataclass
class Job:
    """A job on a directory of its own: `settings` are the configuration's sections, over simple defaults."""

    directory: Path
    session: SparkSession | None
    settings: Mapping[str, Any]
    progress: list[BatchProgress] = field(default_factory=list)
    _files: int = 0

    @property
    def config(self) -> Config:
        """The configuration, checked again."""
        sections: dict[str, Any] = {
            "name": "test",
            "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t long"},
            "key": "k",
            "expiry": {"by": "never"},
            "store": {"url": "rocksdb:state", "shards": 2},
            "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
        }
        for name, value in self.settings.items():
            merge = isinstance(value, dict) and name != "expiry"
            sections[name] = {**sections.get(name, {}), **value} if merge else value
        return Config.model_validate(sections, context={"base_dir": self.directory})

    def add_file(self, lines: Iterable[str | bytes], name: str | None = None) -> Path:
        """A file of lines in the source's directory, later than all before it."""
        number, self._files = self._files, self._files + 1
        path = self.directory / "in" / (name or f"file-{number:04d}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = (line.encode() if isinstance(line, str) else line for line in lines)
        # Under a hidden name first: a stream that runs must not see half of it.
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(b"".join(line + b"\n" for line in encoded))
        os.utime(hidden, (_FIRST_FILE_TIME + number, _FIRST_FILE_TIME + number))
        hidden.rename(path)
        return path

    def add_table(self, table: pyarrow.Table) -> Path:
        """A Parquet file, later than all before it."""
        path = self.add_file([], f"file-{self._files:04d}.parquet")
        hidden = path.with_name(f".{path.name}")
        pyarrow.parquet.write_table(table, hidden)
        times = path.stat()
        os.utime(hidden, ns=(times.st_atime_ns, times.st_mtime_ns))
        hidden.replace(path)
        return path

    def add_records(self, records: Iterable[Mapping[str, Any]], name: str | None = None) -> Path:
        """A file of JSON records."""
        return self.add_file((json.dumps(record) for record in records), name)

    def run(
        self,
        *,
        once: bool = True,
        max_windows: int | None = None,
        take_over: bool = False,
        clock: Callable[[], int] = wall_clock_us,
    ) -> RunSummary:
        """Run the job until the source is drained."""
        (self.directory / "in").mkdir(exist_ok=True)
        return run(
            self.config,
            once=once,
            max_windows=max_windows,
            take_over=take_over,
            on_progress=self.progress.append,
            session=self.session,
            clock=clock,
        )

    def rows(self, port: str) -> list[dict[str, Any]]:
        """The rows of a port, in the order of its files."""
        sink = self.config.file_ports.get(port)
        return [] if sink is None else read_rows(sink.place)

    def verdicts(self, files: Sequence[Path]) -> list[list[str]]:
        """The port every line of these files left by: exactly one, or the test fails."""
        seen: dict[tuple[str, int], str] = {}
        for port in PORTS:
            for row in self.rows(port):
                dedup = row["_dedup"]
                assert dedup["verdict"] == port
                place = (dedup["source"], dedup["position"])
                assert place not in seen, f"{place} left by {seen[place]} and by {port}"
                seen[place] = port
        lengths = [len(file.read_bytes().splitlines()) for file in files]
        assert len(seen) == sum(lengths)
        return [
            [seen[str(file), number] for number in range(length)] for file, length in zip(files, lengths, strict=True)
        ]


def read_rows(directory: Path | Place) -> list[dict[str, Any]]:
    """The rows of a directory of published Parquet or JSON files, wherever it lies; none when it is not there."""
    rows: list[dict[str, Any]] = []
    place = local_place(directory) if isinstance(directory, Path) else directory
    for entry in place.entries():
        if entry.name.endswith(".parquet"):
            rows.extend(pyarrow.parquet.read_table(pyarrow.BufferReader((place / entry.name).read())).to_pylist())
        elif entry.name.endswith(".json"):
            rows.extend(json.loads(line) for line in (place / entry.name).read().splitlines())
    return rows
