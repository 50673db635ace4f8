"""The shuffle of a replay by Spark: the rows of a replay that is sorted in the driver, with values of every type."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from deduper.config.sections import PORTS
from deduper.replay.run import replay
from deduper.replay.settings import Asked
from tests.spark.harness import Job, read_rows

SCHEMA = (
    "id string, ts timestamp, price decimal(12,2), n tinyint, bytes binary, day date, tags array<string>, "
    "seen map<string,bigint>, at struct<x: double, y: timestamp>"
)


def test_spark_sorts_as_the_driver_does(new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with nested values, nulls and errors, cut by tasks into slices: the same ports, values and first copies."""
    expiry = {"by": "event_time", "field": "ts", "period": "1h", "span": "10m", "lookup": "all_live"}
    job = new_job(source={"schema": SCHEMA}, key="id", expiry=expiry)
    draw = random.Random(2)
    for _ in range(7):
        lines = []
        for _ in range(60):
            minute = draw.randrange(600)
            time = f"2024-01-06T{minute // 60:02}:{minute % 60:02}:00Z"
            record = {
                "id": str(draw.randrange(90)),
                "ts": time,
                "price": draw.randrange(10**6) / 100,
                "n": draw.randrange(140),
            }
            record |= {
                "bytes": "AAEC",
                "day": "2024-02-29",
                "tags": ["a", None],
                "seen": {"é": 1},
                "at": {"x": 0.5, "y": time},
            }
            lines.append(json.dumps({name: record[name] for name in record if draw.random() < 0.97}))
        job.add_file(lines)

    def replayed(name: str) -> list[dict[str, Any]]:
        out = job.directory / name
        report = replay(job.config, Asked(out), session=job.session, slice_bytes=9000, window_bytes=1)
        assert report.is_over
        assert report.windows > 2
        rows = [row for port in PORTS for row in read_rows(out / port)]
        for row in rows:  # the cut into windows may differ
            del row["_dedup"]["window"]
            if row["_dedup"]["first_seen"] is not None:
                del row["_dedup"]["first_seen"]["window"], row["_dedup"]["reason"]
        return sorted(rows, key=lambda row: (row["_dedup"]["source"], row["_dedup"]["position"]))

    here = replayed("here")
    monkeypatch.setattr("deduper.replay.shuffle.is_small", lambda _: False)
    by_spark = replayed("by-spark")
    assert len(here) == 7 * 60
    assert {row["_dedup"]["verdict"] for row in here} == {"unique", "duplicate", "error"}
    assert by_spark == here
