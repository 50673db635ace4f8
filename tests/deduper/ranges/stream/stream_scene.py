"""Two ports of jobs made by hand, a stream that follows them, and what it has published; the answers by comparing all.

The oracle gets the windows of the inputs that met, and keeps all rows in lists.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Published, prepare_published
from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from deduper.ranges.aggregate.aggregates import Own
from deduper.ranges.stream.job import run
from deduper.ranges.stream.settings import StreamJob
from deduper.ranges.stream.status import StreamRun, StreamStatus, stream_status
from tests.deduper.ranges.aggregate import oracle

OWN = "tests.deduper.ranges.stream.own_aggregates"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", "UTC")
EVENTS = pa.schema([("id", pa.string()), ("at", INSTANT), ("event", pa.int64())])
RANGES = pa.schema(
    [
        *(("id", pa.string()), ("start", INSTANT), ("end", INSTANT), ("points", pa.int64())),
        *(("weight", pa.float64()), ("campaign", pa.int64()), ("op", pa.string())),
    ]
)
DEDUP = pa.struct([("verdict", pa.string()), ("window", pa.int64())])
Row = dict[str, Any]


def instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


def event(number: int, identity: str | None, at: float | None) -> Row:
    return {"id": identity, "at": instant(at), "event": number}


def ranged(
    campaign: int,
    identity: str | None,
    start: float | None,
    end: float | None,
    points: int | None = 1,
    weight: float | None = None,
    op: str = "new",
) -> Row:
    times = {"start": instant(start), "end": instant(end)}
    return {"id": identity, **times, "points": points, "weight": weight, "campaign": campaign, "op": op}


DDL = {
    "events": "id string, at timestamp, event bigint",
    "ranges": "id string, start timestamp, end timestamp, points bigint, weight double, campaign bigint, op string",
}


def written(value: Any) -> Any:
    """A value as a text has it."""
    return value.isoformat() if isinstance(value, datetime) else value


class Port:
    """The folder of a job's port, in the job's format."""

    def __init__(self, folder: Path, schema: pa.Schema, store: str, kind: str = "parquet") -> None:
        self.folder = folder
        self.schema = schema
        self.store = store
        self.kind = kind
        self.windows = 0
        folder.mkdir(parents=True)

    def publish(self, *files: list[Row]) -> None:
        """One window, with a file for each list of rows."""
        for number, rows in enumerate(files):
            file = self.folder / f"{self.store[:8]}-{self.windows:012d}-{number:04d}.{self.kind}"
            {"parquet": self._parquet, "json": self._json, "csv": self._csv}[self.kind](file, rows)
        self.mark(self.windows)
        self.windows += 1

    def _parquet(self, file: Path, rows: list[Row]) -> None:
        dedup = pa.array([{"verdict": "unique", "window": self.windows}] * len(rows), DEDUP)
        pq.write_table(pa.Table.from_pylist(rows, self.schema).append_column("_dedup", dedup), file)

    def _json(self, file: Path, rows: list[Row]) -> None:
        """As Spark writes them: without nulls."""
        dedup = {"_dedup": {"verdict": "unique", "window": self.windows}}
        lines = [{name: written(value) for name, value in (row | dedup).items() if value is not None} for row in rows]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def _csv(self, file: Path, rows: list[Row]) -> None:
        with file.open("w", newline="") as opened:
            writer = csv.writer(opened, lineterminator="\n")
            writer.writerow([*self.schema.names, "_dedup"])
            dedup = json.dumps({"verdict": "unique", "window": self.windows})
            writer.writerows([*(written(row[name]) for name in self.schema.names), dedup] for row in rows)

    def mark(self, window: int) -> None:
        prepare_published(local_place(self.folder) / "_published", Published(self.store, window, 1)).put()


SETTINGS: Row = {
    "on": ("id",),
    "time": "at",
    "start": "start",
    "end": "end",
    "aggregates": {"points": "sum(points)", "offers": "count"},
    "period": "100s",
    "max_windows": 1,
}


@dataclass
class Scene:
    """A stream between two folders."""

    root: Path
    settings: Row = field(default_factory=dict)
    kinds: tuple[str, str] = ("parquet", "parquet")
    """The formats of the inputs and of the ports."""
    storage: ClassVar[str] = "file"
    """Where the store is: `file`, or the scheme of an object store on this machine, `objects`."""

    def __post_init__(self) -> None:
        self.events = Port(self.root / "in/events", EVENTS, "aa" * 16, self.kinds[0])
        self.ranges = Port(self.root / "in/ranges", RANGES, "bb" * 16, self.kinds[0])

    @property
    def written(self) -> Row:
        """The settings as in a file."""
        sides = ("events", "ranges")
        settings = {
            **SETTINGS,
            **{name: self._output(name) for name in ("output", "late", "errors")},
            **{side: self._input(side) for side in sides},
            "store": "state" if self.storage == "file" else f"{self.storage}:{self.root}/bucket/state",
            **self.settings,
        }
        if settings.get("late_ranges") == "correct":
            settings.setdefault("corrections", self._output("corrections"))
        return settings

    def _input(self, side: str) -> str | Row:
        if self.kinds[0] == "parquet":
            return f"in/{side}"
        return {"format": self.kinds[0], "path": f"in/{side}", "schema": DDL[side]}

    def _output(self, port: str) -> str | Row:
        return f"out/{port}" if self.kinds[1] == "parquet" else {"format": self.kinds[1], "path": f"out/{port}"}

    @property
    def job(self) -> StreamJob:
        return StreamJob.model_validate(self.written, context={"base_dir": self.root})

    def run(self, *, take_over: bool = False) -> StreamRun:
        """All windows that there are, in a process of its own as far as the state goes."""
        return run(self.job, once=True, take_over=take_over, on_progress=lambda *_: None)

    def rows(self, port: str = "output") -> list[Row]:
        """The published rows of a port, in the order of windows."""
        files = sorted((self.root / "out" / port).glob(f"*.{self.kinds[1]}"))
        if self.kinds[1] == "parquet":
            return [row for file in files for row in pq.read_table(file).to_pylist()]
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [defaultdict(lambda: None, json.loads(line)) for line in lines]  # a null is left out

    def answers(self) -> dict[int, tuple[Any, ...]]:
        """The aggregates of each event, as corrected."""
        names = self.job.aggregates
        rows = sorted([*self.rows(), *self.rows("corrections")], key=lambda row: row["_window"])
        return {row["event"]: tuple(row[name] for name in names) for row in rows}

    @property
    def store(self) -> Place:
        return self.job.store_place

    @property
    def status(self) -> StreamStatus:
        return stream_status(self.store)

    def state(self) -> CommitLog:
        return CommitLog.open(self.store)

    def leftovers(self) -> list[str]:
        """Files that no record names, in the store and in the staging folders."""
        extra = self.state().state.extra
        found = [
            f"{kind}/{name}"
            for kind in ("ranges", "events")
            for name in (self.store / kind).listed()
            if name not in {one[0] for one in extra.get(kind, [])}
        ]
        staged = (self.root / "out").glob("*/_staging/*")
        return found + [str(path.relative_to(self.root)) for path in staged]


@dataclass
class Model:
    """All ranges in a list, all answered events in another one; every answer by comparing them all."""

    job: StreamJob
    clock: datetime | None = None
    held: list[Row] = field(default_factory=list)
    answered: dict[int, tuple[Row, int]] = field(default_factory=dict)
    first: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    corrected: dict[tuple[int, int], tuple[Any, ...]] = field(default_factory=dict)
    told: list[tuple[str, str, int, int]] = field(default_factory=list)
    window: int = 0

    def of(self, event: Row) -> tuple[Any, ...]:
        """The aggregates of an event now."""
        found = []
        for name, text in self.job.aggregates.items():
            if ":" in text:
                found.append(self._own(event, self.job.own[name]))
                continue
            column = text.partition("(")[2].partition(",")[0].strip(")") or "points"
            held = [{**one, "value": one[column]} for one in self.held]
            kind = "double" if column == "weight" else "int"
            found += oracle.of_events([{**event, "time": event["at"]}], held, self.job.ends, text, kind)
        return tuple(found)

    def _own(self, event: Row, own: Own) -> Any:
        held = [{**one, "value": one[own.column]} for one in self.held]
        (values,) = oracle.of_events([{**event, "time": event["at"]}], held, self.job.ends, "list(value)", "double")
        state = own.zero() if callable(own.zero) else own.zero
        for value in values:
            state = own.add(state, value)
        return own.finish(state)

    def judge(self, events: list[Row], ranges: list[Row]) -> None:
        """One window."""
        period = timedelta(microseconds=self.job.period)
        gone = None if self.clock is None else self.clock - period
        final = gone if self.job.late_ranges == "correct" else self.clock
        changed: list[Row] = []
        fresh: list[Row] = []
        for row in ranges:
            if row["op"] == "withdrawn" and self.job.retraction is not None:
                mine = [one for one in self.held if one["campaign"] == row["campaign"] and not _ends_by(one, gone)]
                if not mine:
                    self.told.append(("errors", "unknown_range", row["campaign"], self.window))
                self.held = _without(self.held, mine)
                old = _without(mine, fresh)
                changed += old
                fresh = _without(fresh, mine)
                if any(_begins_by(one, final) for one in old):
                    self.told.append(("late", "late_retraction", row["campaign"], self.window))
                continue
            if row["id"] is None:
                self.told.append(("errors", "null_id", row["campaign"], self.window))
            elif row["start"] is not None and row["end"] is not None and row["start"] > row["end"]:
                self.told.append(("errors", "start_after_end", row["campaign"], self.window))
            elif _ends_by(row, gone):
                self.told.append(("late", "closed", row["campaign"], self.window))
            else:
                self.held.append(row)
                fresh.append(row)
        for row in fresh:
            if _begins_by(row, final):
                self.told.append(("late", "late", row["campaign"], self.window))
        if self.job.late_ranges == "correct":
            for number, (old, _) in self.answered.items():
                covers = any(
                    one["id"] == old["id"] and oracle.covers(one["start"], one["end"], old["at"], self.job.ends)
                    for one in (*changed, *fresh)
                )
                if covers and gone is not None and old["at"] > gone:
                    self.corrected[number, self.window] = self.of(old)
        for row in events:
            if row["id"] is None or row["at"] is None:
                reason = "null_id" if row["id"] is None else "null_time"
                self.told.append(("errors", reason, row["event"], self.window))
                continue
            self.clock = row["at"] if self.clock is None else max(self.clock, row["at"])
            if gone is not None and row["at"] <= gone:
                self.told.append(("late", "expired", row["event"], self.window))
                continue
            self.first[row["event"]] = self.of(row)
            self.answered[row["event"]] = row, self.window
        self.window += 1


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    """The rows that are not among the others; two of equal values are two."""
    return [one for one in rows if all(one is not other for other in others)]


def _ends_by(row: Row, gone: datetime | None) -> bool:
    """Ends are inside in the tests that draw rows."""
    return gone is not None and row["end"] is not None and row["end"] <= gone


def _begins_by(row: Row, final: datetime | None) -> bool:
    return final is not None and (row["start"] is None or row["start"] <= final)
