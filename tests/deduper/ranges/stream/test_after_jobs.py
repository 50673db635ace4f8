"""Two real jobs before a stream: duplicates of events and of ranges are gone, and types are those of jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.deduper.ranges.stream.stream_scene import INSTANT, Row, event, instant
from tests.forked import command

JOB = """\
name: {name}
source: {{format: files, path: {name}/, file_format: parquet, schema: "{schema}"}}
key: {key}
expiry: {{by: event_time, field: {field}, period: 24h, span: 1h}}
store: {{url: "file:state/{name}", shards: 1}}
sinks:
  unique: {{format: parquet, path: unique/{name}}}
  duplicate: {{format: none}}
  expired: {{format: parquet, path: expired/{name}}}
  error: {{format: parquet, path: error/{name}}}
trigger: available_now
"""
STREAM = """\
events: unique/events
ranges: unique/ranges
on: id
time: at
start: start
end: end
aggregates: {points: sum(points), offers: count}
period: 1h
late_ranges: correct
range_key: campaign
retraction: {column: op, value: withdrawn}
store: state/points
output: out/points
corrections: out/corrections
late: out/late
errors: out/errors
trigger: 1s
"""


def run(folder: Path, *words: str) -> str:
    """A command of the service without a JVM: what it prints."""
    done = command(*words, cwd=folder, module="tests.crash.seed_driver")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.night
@pytest.mark.slow
def test_topics_or_folders_through_jobs(tmp_path: Path) -> None:
    """Each copy of an event or a range counts once; a range and its retraction are two records of the job's key."""
    events = pa.schema([("id", pa.string()), ("at", INSTANT), ("event", pa.int64())])
    ranges = pa.schema(
        [
            *(("id", pa.string()), ("start", INSTANT), ("end", INSTANT), ("points", pa.int32())),
            *(("campaign", pa.int64()), ("op", pa.string()), ("seen", INSTANT)),
        ]
    )
    (tmp_path / "events").mkdir()
    (tmp_path / "ranges").mkdir()
    columns = {"events": "id string, at timestamp, event bigint"}
    columns["ranges"] = (
        "id string, start timestamp, end timestamp, points int, campaign bigint, op string, seen timestamp"
    )
    for name, key, field in (("events", "[event]", "at"), ("ranges", "[campaign, op]", "seen")):
        (tmp_path / f"{name}.yaml").write_text(JOB.format(name=name, schema=columns[name], key=key, field=field))
    (tmp_path / "points.yaml").write_text(STREAM)

    def offer(campaign: int, identity: str | None, op: str, seen: float) -> Row:
        times = {"start": instant(0), "end": instant(100)} if op == "new" else {"start": None, "end": None}
        return {"id": identity, **times, "points": 2**campaign, "campaign": campaign, "op": op, "seen": instant(seen)}

    steps: list[tuple[list[Row], list[Row]]] = [
        ([event(1, "a", 5), event(1, "a", 5), event(2, "b", 6)], [offer(1, "a", "new", 0), offer(1, "a", "new", 0)]),
        ([event(2, "b", 6), event(3, "a", 7)], [offer(2, "a", "new", 1), offer(1, "a", "new", 2)]),
        ([event(4, "a", 8)], [offer(1, None, "withdrawn", 3), offer(1, None, "withdrawn", 3)]),
    ]
    for number, (of_events, of_ranges) in enumerate(steps):
        pq.write_table(pa.Table.from_pylist(of_events, events), tmp_path / f"events/{number}.parquet")
        pq.write_table(pa.Table.from_pylist(of_ranges, ranges), tmp_path / f"ranges/{number}.parquet")
        run(tmp_path, "run", "events.yaml", "--once")
        run(tmp_path, "run", "ranges.yaml", "--once")
        text = run(tmp_path, "run", "points.yaml", "--max-windows", "1")
        assert "; window limit reached" in text.splitlines()[-1]
    ended = json.loads(run(tmp_path, "run", "points.yaml", "--once", "--json"))
    assert {name: ended[name] for name in ("event", "windows", "stopped_by")} == {
        "event": "summary",
        "windows": 0,
        "stopped_by": "drained",
    }

    def rows(port: str) -> list[tuple[int, int | None, int]]:
        files = sorted((tmp_path / "out" / port).glob("*.parquet"))
        found = [row for file in files for row in pq.read_table(file).to_pylist()]
        return sorted((row["event"], row["points"], row["_window"]) for row in found)

    assert rows("points") == [(1, 2, 0), (2, None, 0), (3, 6, 1), (4, 4, 2)]
    assert rows("corrections") == [(1, 4, 2), (1, 6, 1), (3, 4, 2)]
    assert not list((tmp_path / "out/errors").glob("*.parquet"))
