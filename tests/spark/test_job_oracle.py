"""Random streams through the real job, row for row against the oracle."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
import pytest

from deduper.testing import Answer, Oracle
from tests.deduper.engine import Shape, comparable
from tests.deduper.streams import MODES, Stream, Window, random_shape, random_stream
from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.spark, pytest.mark.query]

STREAMS_A_MODE = 3

_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}


@pytest.mark.night(
    but=[
        "never-json-0",
        "event_time-json-0",
        "event_time-parquet-1",
        "ordered-json-0",
        "ordered float-parquet-1",
        "processing_time-json-0",
        "category-parquet-1",
    ]
)
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("parquet", 1),
        ("json", 0),
        *(pytest.param("parquet", n, marks=pytest.mark.night) for n in (0, *range(2, 6))),
        pytest.param("json", 3, marks=pytest.mark.night),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_job_says_what_the_oracle_says(mode: str, kind: str, seed: int, new_job: Callable[..., Job]) -> None:
    """Port, reason and first copy of every row, whatever the shards, the digest, the lookup and the clock."""
    stream, files_a_window = regular(random_stream(mode, seed), seed)
    shape = random_shape(seed)
    job = new_job(
        source={"file_format": kind, "schema": schema(stream), "max_files_per_batch": files_a_window},
        key=[f"k{number}" for number in range(len(stream.types))],
        null_keys=stream.settings.null_keys,
        digest="secure" if shape.secure else "fast",
        expiry=expiry_section(stream),
        store={
            "url": ("file:state", "rocksdb:state")[seed % 2],
            "shards": shape.shards,
            "first_seen": shape.keep_first_seen,
        },
    )
    for window in stream.windows:
        for part in window.partitions:
            if kind == "json":
                add_json(job, records(stream, part))
            else:
                job.add_table(table(stream, part))
    if not stream.windows:
        return
    job.run(clock=wall_clock(stream))
    oracle = Oracle(stream.settings)
    expected = [
        comparable(
            oracle.judge(window.partitions, window.now_us), stream.settings, keep_first_seen=shape.keep_first_seen
        )
        for window in stream.windows
    ]
    assert given_answers(job, kind, stream, shape) == expected, (mode, seed, stream.settings, shape)


def regular(stream: Stream, seed: int) -> tuple[Stream, int]:
    """The stream cut into windows of equally many source partitions, as the file source does it."""
    parts = [part for window in stream.windows for part in window.partitions]
    files = 1 + seed % 3
    groups = [parts[at : at + files] for at in range(0, len(parts), files)]
    clocks = chain((window.now_us for window in stream.windows), repeat(stream.windows[-1].now_us))
    return replace(stream, windows=[Window(group, now) for group, now in zip(groups, clocks, strict=False)]), files


def wall_clock(stream: Stream) -> Callable[[], int]:
    """A clock that shows each window its time. The job looks twice at its start and twice in every window."""
    times = [window.now_us for window in stream.windows]
    looks = iter([times[0], times[0], *chain.from_iterable((now, now) for now in times)])
    return lambda: next(looks, times[-1])


def schema(stream: Stream) -> str:
    keys = ", ".join(f"k{number} {kind}" for number, kind in enumerate(stream.types))
    return f"{keys}, e {expiry_type(stream)}"


def expiry_type(stream: Stream) -> str:
    if stream.settings.by == "category":
        return "string"
    return "double" if stream.floats else "bigint"


def table(stream: Stream, part: list[Any]) -> pa.Table:
    columns = {
        f"k{number}": pa.array([row.key[number] for row in part], _ARROW[kind])
        for number, kind in enumerate(stream.types)
    }
    columns["e"] = pa.array([row.expiry for row in part], _ARROW[expiry_type(stream)])
    return pa.table(columns)


def records(stream: Stream, part: list[Any]) -> list[dict[str, Any]]:
    """The rows as JSON has them."""
    rows = table(stream, part).to_pylist()
    return [
        {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()}
        for row in rows
    ]


def add_json(job: Job, rows: list[dict[str, Any]]) -> None:
    """A file of these rows. One of no bytes is in no window, so one without rows has a byte order mark."""
    path = job.add_records(rows)
    if not rows:
        times = path.stat()
        path.write_bytes(b"\xef\xbb\xbf")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def expiry_section(stream: Stream) -> dict[str, Any]:
    s = stream.settings
    if s.by == "never":
        return {"by": "never"}
    if s.by == "processing_time":
        return {"by": s.by, "period": f"{s.period}us", "span": f"{s.span}us"}
    if s.by == "category":
        return {
            "by": s.by,
            "field": "e",
            "live_categories": s.live_categories,
            "remember_dropped": s.remember_dropped,
        }
    section: dict[str, Any] = {"by": s.by, "field": "e", "lookup": s.lookup, "clock": s.clock}
    if s.by == "ordered":
        return {**section, "period": s.period, "span": s.span, "max_jump": "off" if s.jump is None else s.jump}
    return {
        **section,
        "unit": "us",
        "period": f"{s.period}us",
        "span": f"{s.span}us",
        "max_ahead_of_now": "off" if s.ahead is None else f"{s.ahead}us",
        "max_jump": "off" if s.jump is None else f"{s.jump}us",
    }


def given_answers(job: Job, kind: str, stream: Stream, shape: Shape) -> list[list[list[Answer]]]:
    """What left by the ports, in the shape of the stream."""
    places = {
        str(job.directory / "in" / f"file-{number:04d}.{kind}"): place
        for number, place in enumerate(
            (w, p) for w, window in enumerate(stream.windows) for p in range(len(window.partitions))
        )
    }
    answers: list[list[list[Any]]] = [[[None] * len(part) for part in w.partitions] for w in stream.windows]
    for port in PORTS:
        for row in job.rows(port):
            dedup = row["_dedup"]
            window, partition = places[dedup["source"]]
            assert window == dedup["window"]
            first = dedup.get("first_seen")
            assert answers[window][partition][dedup["position"]] is None, "a row left twice"
            answers[window][partition][dedup["position"]] = (
                port,
                dedup["reason"] or "",
                None if first is None else _first(first, places, stream, shape),
            )
    return answers


def _first(first: dict[str, Any], places: dict[str, tuple[int, int]], stream: Stream, shape: Shape) -> Any:
    window, partition = places[first["source"]]
    assert window == first["window"]
    expiry = first["expiry"]
    if expiry is None:
        expiry = 0
    if hasattr(expiry, "timestamp"):
        expiry = _micros(expiry)
    return window, partition, first["position"], expiry


def _micros(value: Any) -> int:
    return int(pa.scalar(value, pa.timestamp("us", "UTC")).value)
