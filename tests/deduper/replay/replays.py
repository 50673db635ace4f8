"""What the tests of replays share: the case of the issue, the oracle on the sorted log, and what has left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from deduper.config.sections import PORTS
from deduper.replay.run import ReplayReport, replay
from deduper.replay.settings import Asked
from deduper.testing import Oracle, Row, Settings
from tests import triggers
from tests.spark.harness import Job, read_rows

DAY0 = datetime(2024, 1, 6, tzinfo=UTC)
A_DAY = 100
"""Records of a collector and day."""

Record = dict[str, Any]
EVENTS = {"by": "event_time", "field": "ts", "period": "24h", "lookup": "all_live", "span": "1h"}


def without_spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A stand-in for a session: of inputs as small as these, Spark does nothing."""
    context = SimpleNamespace(master="local[2]", defaultParallelism=2, getConf=dict)
    session = cast(SparkSession, SimpleNamespace(sparkContext=context))
    monkeypatch.setattr("deduper.service.job.require_promises", lambda *_: None)
    monkeypatch.setattr("deduper.replay.survey._STRIDE", 4)  # small files are cut too
    triggers.stand_in(monkeypatch)
    return session


def replayed(job: Job, *, slice_bytes: int = 4000, window_bytes: int = 9000, **asked: Any) -> ReplayReport:
    """The replay of a job into `out-of-time`, in many slices and windows."""
    given = Asked(job.directory / "replayed", **asked)
    return replay(job.config, given, session=job.session, slice_bytes=slice_bytes, window_bytes=window_bytes)


def ports(job: Job) -> dict[tuple[str, int], tuple[str, tuple[str, int] | None]]:
    """By file and row: the port, and the first copy of a duplicate. Each record has left once."""
    found: dict[tuple[str, int], tuple[str, tuple[str, int] | None]] = {}
    for port in PORTS:
        for row in read_rows(job.directory / "replayed" / port):
            dedup = row["_dedup"]
            place = dedup["source"], dedup["position"]
            assert place not in found
            first = dedup.get("first_seen")
            found[place] = port, None if first is None else (first["source"], first["position"])
    return found


def days() -> dict[tuple[str, int], list[Record]]:
    """Records by collector and day; every tenth of B is one of A's."""
    found: dict[tuple[str, int], list[Record]] = {}
    for day in range(4):
        for collector in "AB":
            rows = []
            for number in range(A_DAY):
                at = DAY0 + timedelta(days=day, seconds=number * 86_400 / A_DAY)
                twin = "A" if collector == "B" and not number % 10 else collector
                rows.append({"id": f"{twin}-{day}-{number}", "ts": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")})
            found[collector, day] = rows
    return found


def expected(
    files: Sequence[tuple[object, Sequence[Any]]],
    lookup: str,
    first: int | None = None,
    end: int | None = None,
    key: tuple[str, ...] = ("k",),
    settings: Settings | None = None,
) -> dict[tuple[str, int], tuple[str, tuple[str, int] | None]]:
    """The oracle's verdicts on the whole log, sorted by (expiry key, place)."""
    placed: list[tuple[float, int, int, Row]] = []
    for number, (_, records) in enumerate(files):
        keys = [one["t"] if isinstance(one, dict) and "t" in one else None for one in records]
        begin = next((key for key in keys if key is not None), None)
        before = begin
        for row, (one, t) in enumerate(zip(records, keys, strict=True)):
            before = t if t is not None else before
            inside = before is None or ((first is None or before >= first) and (end is None or before < end))
            if inside:
                place = float("-inf") if before is None else float(before)
                values = tuple(one.get(name) if isinstance(one, dict) else None for name in key)
                placed.append((place, number, row, Row(values, t)))
    placed.sort(key=lambda one: one[:3])
    oracle = Oracle(settings or Settings("ordered", period=100, span=10, lookup=lookup))
    (answers,) = oracle.judge([[row for *_, row in placed]], 0)
    names = [(str(files[number][0]), row) for _, number, row, _ in placed]
    return {
        name: (port, None if of is None else names[of[2]]) for name, (port, _, of) in zip(names, answers, strict=True)
    }
