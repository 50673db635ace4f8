"""A job with all its outputs, made without Spark: windows judged by the real code, every port's rows written out.

The rows are what Spark's writers give (see `staging`): Parquet with a struct, JSON without nulls, CSV with the struct
as a JSON text. The order of the steps is the job's, so that a window can be left between any two of them.
"""

from __future__ import annotations

import copy
import csv
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from pyarrow import parquet

from bucket_store.log.codec import encode_record, record_name
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Published, prepare_published
from bucket_store.log.records import CommitRecord, OutputFile
from bucket_store.log.sources_file import SourcePartition, write_sources
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import local_place
from deduper.admin.open_store import OpenStore, open_store
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.config.sections import PORTS
from deduper.sinks.names import Attempt, FinalName, final_name
from deduper.sources.files.source_file import source_digest
from deduper.testing import Answer, Row, Settings
from deduper.window.policy import CATEGORIES, fixed_settings, settings_hash
from tests.deduper.digest_oracle import key_digest
from tests.deduper.engine import Engine, Shape

_SIZES = ((20, 30), (0, 25, 40), (0, 25, 40))
WALL_US = 1_740_000_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600_000_000


_ORDERED = Settings("ordered", period=60, span=10)


@dataclass(frozen=True)
class Kind:
    """What the job is like. `step`: how many stored steps one unit of the stream's clock is."""

    settings: Settings = _ORDERED
    type: str = "long"
    unit: str = ""
    step: int = 1
    formats: Sequence[str] = ("parquet", "parquet", "json", "csv")
    backend: str = "file"
    first_seen: bool = True
    floats: bool = False
    snapshot_every: int = 1000

    def expiry(self) -> dict[str, Any]:
        """The section of the config."""
        s = self.settings
        given: dict[str, Any] = {"by": s.by}
        if s.by == "never":
            return given
        if s.by == "category":
            return given | {"field": "t", "live_categories": s.live_categories, "remember_dropped": 100}
        period, span = s.period, s.span
        if s.by in ("event_time", "processing_time"):
            period, span = f"{period}us", f"{span}us"
        elif self.type.startswith("decimal"):
            period, span = period / 100, span / 100
        given |= {"period": period, "span": span}
        if s.by == "processing_time":
            return given
        given |= {"field": "t", "lookup": s.lookup, "clock": s.clock}
        if s.by == "event_time":
            given |= {"max_ahead_of_now": "off"} | ({"unit": self.unit} if self.unit else {})
        return given


KINDS = {
    "own_bucket": Kind(),
    "all_live": Kind(Settings("ordered", period=60, span=10, lookup="all_live")),
    "batch": Kind(Settings("ordered", period=60, span=10, clock="batch"), backend="rocksdb"),
    "batch all_live": Kind(Settings("ordered", period=60, span=10, lookup="all_live", clock="batch")),
    "double": Kind(Settings("ordered", period=60.0, span=10.0), type="double", floats=True),
    "decimal": Kind(Settings("ordered", period=6000, span=1000), type="decimal(10,2)", step=100),
    "time": Kind(Settings("event_time", period=60 * HOUR, span=10 * HOUR), type="timestamp", step=HOUR),
    "epoch": Kind(Settings("event_time", period=60 * HOUR, span=10 * HOUR), unit="s", step=HOUR),
    "processing_time": Kind(Settings("processing_time", period=30_000_000, span=10_000_000), formats=("json",) * 4),
    "never": Kind(Settings("never"), formats=("csv",) * 4),
    "category": Kind(Settings("category", live_categories=2), type="string"),
    "no first_seen": Kind(first_seen=False, formats=("parquet", "none", "json", "none")),
}


class _SaltedEngine(Engine):
    """Digests with the salt of a store."""

    salt: bytes

    def _digest(self, row: Row) -> tuple[int, int]:
        return key_digest(row.key, self.types, self.salt, secure=False)


@dataclass
class WholeJob:
    """A job's directory. `records` by (source, position), as `testing.differences` takes them."""

    directory: Path
    kind: Kind = Kind()
    seed: int = 0
    interval_us: int = 10_000_000
    records: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def make(self, windows: int = 5) -> WholeJob:
        """The directory, with some windows judged, committed and published."""
        sections = {
            "name": "whole",
            "source": {
                "format": "files",
                "path": "in",
                "file_format": "json",
                "schema": f"k string, n long, t {self.kind.type}",
            },
            "key": ["k", "n"],
            "expiry": self.kind.expiry(),
            "store": {"url": f"{self.kind.backend}:state", "shards": 2, "first_seen": self.kind.first_seen},
            "sinks": {
                port: {"format": form} if form == "none" else {"format": form, "path": f"out/{port}"}
                for port, form in zip(PORTS, self.kind.formats, strict=True)
            },
        }
        self.config_file.write_text(json.dumps(sections))
        self.config = load_config(self.config_file, environment={})
        (self.directory / "in").mkdir()
        for sink in self.config.file_ports.values():
            sink.path.mkdir(parents=True)
        self.log = CommitLog.create(
            local_place(self.config.store.path),
            fixed_settings(self.config),
            wall_us=WALL_US,
            snapshot_every=self.kind.snapshot_every,
        )
        self.log.claim_epoch("somebody:1", WALL_US)
        shape = Shape(shards=2, arrow_rows=7, seed=self.seed, keep_first_seen=self.kind.first_seen)
        self.engine = _SaltedEngine(self.kind.settings, ["string", "bigint"], shape, floats=self.kind.floats)
        self.engine.salt = self.log.manifest.salt
        self.draw = random.Random(self.seed)
        for _ in range(windows):
            self.run_window()
        return self

    config: Config = field(init=False)
    log: CommitLog = field(init=False)
    engine: _SaltedEngine = field(init=False)
    draw: random.Random = field(init=False)

    @property
    def config_file(self) -> Path:
        """The config file."""
        return self.directory / "job.yaml"

    def open(self) -> OpenStore:
        """The store as a command opens it."""
        return open_store(str(self.config_file))

    def run_window(self, *, change: Callable[[CommitRecord], CommitRecord] = lambda record: record) -> None:
        """One window, through all its steps; its record is another where it is to be `change`d."""
        record = change(self.judge())
        self.log.place(record)
        self.publish(record.outputs)
        self.mark(record.window)
        for sink in self.config.file_ports.values():
            shutil.rmtree(sink.path / "_staging", ignore_errors=True)

    def judge(self) -> CommitRecord:
        """Steps 2 and 3: everything is durable, nothing is committed."""
        window, state = self.log.state.next_window, self.log.state
        attempt = Attempt(window, state.epoch, 0)
        wall_us = WALL_US + window * self.interval_us
        partitions = [[self._row(window) for _ in range(self.draw.choice(sizes))] for sizes in _SIZES]
        files = [source_name(window, number) for number in range(3)]
        answers = self.engine.judge(partitions, wall_us)
        for file, rows in zip(files, partitions, strict=True):
            for at, row in enumerate(rows):
                self.records[file, at] = {"k": row.key[0], "n": row.key[1], "t": self._value(row.expiry)}
        outcomes = self.engine.outcomes
        backend = open_backend(self.config.store.url)
        pieces = [
            append_piece(
                backend,
                outcome.entries,
                store_id=bytes.fromhex(self.log.manifest.store_id),
                shard=shard,
                first_window=window,
                last_window=window,
                epoch=state.epoch,
                attempt=0,
            )
            for shard, outcome in enumerate(outcomes)
            if outcome.entries is not None
        ]
        backend.close()
        sources = write_sources(
            self.log.root,
            window=window,
            epoch=state.epoch,
            attempt=0,
            partitions=[
                SourcePartition(file, 7, 0, 1, len(rows), source_digest(file, 7))
                for file, rows in zip(files, partitions, strict=True)
            ],
        )
        reasons: Counter[str] = Counter()
        for outcome in outcomes:
            reasons.update(outcome.reasons())
        by = self.kind.settings.by
        latest = wall_us if by == "processing_time" else self.engine.latest
        fields: dict[str, Any] = {
            "window": window,
            "epoch": state.epoch,
            "attempt": 0,
            "query_id": "q",
            "batch_id": window,
            "wall_us": wall_us,
            "settings_hash": settings_hash(self.config),
            "latest_point": latest,
            "latest_moved_us": wall_us,
            "counts": {port: sum(int(outcome.counts[at]) for outcome in outcomes) for at, port in enumerate(PORTS)},
            "reasons": dict(reasons),
            "pieces": tuple(pieces),
            "outputs": self._stage(attempt, files, partitions, answers),
            "buckets": tuple(sorted({bucket for outcome in outcomes for bucket in outcome.buckets})),
            "timestamp": max((o.max_remembered for o in outcomes if o.max_remembered is not None), default=None),
            "sources": sources,
            "extra": {CATEGORIES: self.engine.categories.to_wire()} if by == "category" else {},
        }
        return CommitRecord(**fields)

    def publish(self, outputs: Sequence[OutputFile]) -> None:
        """Step 5."""
        for output in outputs:
            Path(output.staged).rename(output.final)

    def mark(self, window: int, store_id: str = "") -> None:
        """Step 6."""
        places = [self.log.root.local / "published", *(s.path / "_published" for s in self.config.file_ports.values())]
        for path in places:
            self.mark_at(path, window, store_id)
        if not store_id and window < self.log.state.next_window:
            self.log.forget_outputs(window)

    def mark_at(self, path: Path, window: int, store_id: str = "") -> None:
        """One mark alone."""
        published = Published(store_id or self.log.manifest.store_id, window, 1)
        prepare_published(local_place(path), published).put()

    def published(self, port: str, window: int | None = None) -> list[Path]:
        """The files of a port (and window), in the order of their names."""
        found = sorted((self.directory / "out" / port).glob("[0-9a-f]*"))
        names = [(path, FinalName.of(path.name)) for path in found]
        return [path for path, name in names if window is None or (name is not None and name.window == window)]

    def record(self, window: int) -> tuple[Path, CommitRecord]:
        """The commit record of a window, and its file."""
        for record in self.log.records():
            if isinstance(record.body, CommitRecord) and record.body.window == window:
                return self.log.root.local / "log" / f"{record.number:020d}", record.body
        raise KeyError(window)

    def _row(self, window: int) -> Row:
        key = (None, 1) if self.draw.random() < 0.03 else (f"k{self.draw.randrange(12)}", self.draw.randrange(3))
        by = self.kind.settings.by
        if by == "category":
            return Row(key, f"day {window // 2 + self.draw.randrange(-2, 2)}")
        if self.draw.random() < 0.02:
            return Row(key, None)
        late = self.draw.choice((0, 0, 0, 0, 2, 4, 8, 20, 59, 60, 61, 90))
        moment = (20 * window + self.draw.randrange(20) - late) * self.kind.step
        return Row(key, float(moment) if self.kind.floats else moment)

    def _stage(
        self, attempt: Attempt, files: list[str], partitions: list[list[Row]], answers: list[list[Answer]]
    ) -> tuple[OutputFile, ...]:
        by_port: dict[str, list[dict[str, Any]]] = {port: [] for port in PORTS}
        for ordinal, (rows, given) in enumerate(zip(partitions, answers, strict=True)):
            for position, (row, answer) in enumerate(zip(rows, given, strict=True)):
                by_port[answer[0]].append(self._shown(attempt.window, files, ordinal, position, row, answer))
        outputs = []
        for port, sink in self.config.file_ports.items():
            rows = by_port[port]
            self.draw.shuffle(rows)
            parts = [rows] if sink.format == "csv" else [rows[::2], rows[1::2]]
            for number, part in enumerate(part for part in parts if part):
                path = sink.path / "_staging" / attempt.folder / f"_port={port}" / f"part-{number}.{sink.format}"
                path.parent.mkdir(parents=True, exist_ok=True)
                self.write(path, part)
                final = sink.path / final_name(self.log.manifest.store_id, attempt, number, sink.format)
                outputs.append(described(port, path, final, len(part)))
        return tuple(outputs)

    def _shown(
        self, window: int, files: list[str], ordinal: int, position: int, row: Row, answer: Answer
    ) -> dict[str, Any]:
        port, reason, first = answer
        is_error = port == "error"
        dedup = {
            "verdict": port,
            "reason": reason or None,
            "window": window,
            "source": files[ordinal],
            "position": position,
            "raw": "{}" if is_error else None,
        }
        if self.kind.first_seen:
            dedup["first_seen"] = None
            if first is not None:
                in_window, of, at, expiry = first
                dedup["first_seen"] = {
                    "window": in_window,
                    "source": source_name(in_window, of),
                    "position": at,
                    "expiry": self._first_value(expiry),
                }
        return {"k": row.key[0], "n": row.key[1], "t": self._value(row.expiry), "_dedup": dedup}

    def _value(self, moment: Any) -> Any:
        if moment is None:
            return None
        if self.kind.type.startswith("decimal"):
            return Decimal(moment).scaleb(-2)
        if self.kind.type == "timestamp":
            return _EPOCH + timedelta(microseconds=moment)
        return moment // 1_000_000 if self.kind.unit == "s" else moment

    def _first_value(self, moment: Any) -> Any:
        by = self.kind.settings.by
        if by in ("never", "category"):
            return None
        if by in ("event_time", "processing_time"):
            return _EPOCH + timedelta(microseconds=moment)
        return self._value(moment)

    def schema(self) -> pa.Schema:
        """That of a Parquet port."""
        types = {
            "long": pa.int64(),
            "double": pa.float64(),
            "decimal(10,2)": pa.decimal128(10, 2),
            "timestamp": pa.timestamp("us", "UTC"),
            "string": pa.string(),
        }
        by = self.kind.settings.by
        first_expiry = types[self.kind.type] if by == "ordered" else pa.timestamp("us", "UTC")
        if self.kind.type.startswith("decimal"):
            first_expiry = pa.decimal128(18, 2)
        if by in ("never", "category"):
            first_expiry = pa.int64()
        first = pa.struct(
            [("window", pa.int64()), ("source", pa.string()), ("position", pa.int64()), ("expiry", first_expiry)]
        )
        dedup = [("verdict", pa.string()), ("reason", pa.string()), ("window", pa.int64()), ("source", pa.string())]
        dedup += [("position", pa.int64()), ("raw", pa.string())]
        if self.kind.first_seen:
            dedup.append(("first_seen", first))
        return pa.schema(
            [("k", pa.string()), ("n", pa.int64()), ("t", types[self.kind.type]), ("_dedup", pa.struct(dedup))]
        )

    def write(self, path: Path, rows: Sequence[dict[str, Any]]) -> None:
        """Rows as Spark writes them in the format of the file's ending."""
        if path.suffix == ".parquet":
            parquet.write_table(pa.Table.from_pylist(list(rows), self.schema()), path)
        elif path.suffix == ".json":
            path.write_text("".join(_json(row) + "\n" for row in rows))
        else:
            with path.open("w", newline="") as stream:
                writer = csv.writer(stream, lineterminator="\n")
                writer.writerow(["k", "n", "t", "_dedup"])
                for row in rows:
                    writer.writerow([_text(row["k"]), _text(row["n"]), _text(row["t"]), _json(row["_dedup"])])

    def read(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a Parquet or JSON file."""
        if path.suffix == ".parquet":
            return list(parquet.ParquetFile(path).read().to_pylist())
        return [json.loads(line) for line in path.read_text().splitlines()]

    def change(self, number: int, change: Callable[[Any], Any]) -> Path:
        """Another body in a record, its checksum right: gives its file."""
        (record,) = [record for record in self.log.records(number) if record.number == number]
        file = self.log.root.local / "log" / record_name(number)
        file.write_bytes(encode_record(replace(record, body=change(record.body))))
        return file

    def change_window(self, window: int, change: Callable[[CommitRecord], CommitRecord]) -> Path:
        """Another commit record of a window: gives its file."""
        return self.change(int(self.record(window)[0].name), change)

    def copied(self, directory: Path) -> WholeJob:
        """The same in another directory, with the same owner, who can go on."""
        shutil.copytree(self.directory, directory, dirs_exist_ok=True)
        other = WholeJob(directory, self.kind, self.seed, self.interval_us, dict(self.records))
        other.config = load_config(other.config_file, environment={})
        other.log = CommitLog.open(local_place(other.config.store.path))
        other.log._epoch = self.log.epoch
        other.engine = copy.deepcopy(self.engine)
        other.draw = copy.deepcopy(self.draw)
        return other


def source_name(window: int, number: int) -> str:
    """The same wherever a job is copied to."""
    return f"/data/in/w{window}-{number}.json"


def described(port: str, path: Path, final: Path, rows: int, *, staged: str = "") -> OutputFile:
    """A file as the commit record names it."""
    data = path.read_bytes()
    return OutputFile(port, staged or str(path), str(final), len(data), xxhash.xxh3_64_intdigest(data), rows)


def _json(value: Any) -> str:
    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: plain(each) for name, each in part.items() if each is not None}
        if isinstance(part, datetime):
            return part.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return float(part) if isinstance(part, Decimal) else part

    return json.dumps(plain(value))


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return "" if value is None else str(value)
