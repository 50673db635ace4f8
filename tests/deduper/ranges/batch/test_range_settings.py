"""The settings of a range aggregate: every mistake with its place and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from deduper.config.problems import ConfigError
from deduper.ranges.batch.settings import RangeJob

GOOD = """\
events: {path: in/events, format: parquet}
ranges: {path: in/ranges, format: csv, schema: "id BIGINT, start TIMESTAMP, end TIMESTAMP, points BIGINT"}
on: id
time: at
start: start
end: end
aggregates: {points: sum(points), offers: count}
output: {path: out/points, format: parquet}
"""


def test_a_whole_file(tmp_path: Path) -> None:
    """Paths start at the file's folder; a flag comes over the file."""
    file = tmp_path / "points.yaml"
    file.write_text(GOOD)
    job = RangeJob.load(file, overrides=["longest=30d"], environment={})
    assert job.events.path == tmp_path / "in/events"
    assert job.on == ("id",)
    assert job.longest == 30 * 86_400_000_000
    assert job.ends == "[]"
    assert job.errors is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("on: id\n", "", "points.yaml:1:1: on: is missing; write `on: id`"),
        ("time: at", "times: at", "points.yaml:4:1: times: unknown setting; did you mean `time`?"),
        ("sum(points)", "som(points)", "points.yaml:7:22: aggregates.points: `som(points)` is not an aggregate"),
        (
            "format: csv, schema",
            "format: csv, scheme",
            "points.yaml:2:40: ranges.scheme: unknown setting; did you mean `schema`?",
        ),
        ("format: parquet}\nranges", "format: csv}\nranges", "events.schema: files of csv have no types of their own"),
        ("out/points, format: parquet", "out/points, format: orc", "output.format: `orc` is not a valid choice"),
        ("end: end\n", "end: end\nends: '[['\n", "points.yaml:7:7: ends: `[[` is not a valid choice"),
        (
            "end: end\n",
            "end: end\nerrors: {path: out/x/../points, format: json}\n",
            "errors.path: is the folder of `output`",
        ),
        (
            "format: csv,",
            "format: csv, name_pattern: '(?P<day>.*)',",
            "ranges.name_pattern: the schema has no column `day`; its columns are id, start, end, points",
        ),
        (
            "in/events, format: parquet",
            "in/events, format: parquet, name_pattern: '(?P<day>.*)'",
            "events.name_pattern: Parquet files have types of their own, and a text in a name has none; remove it",
        ),
        (
            "format: csv, schema",
            "format: common_log, schema",
            "ranges.schema: common_log has no field `id`; its fields are host, ident",
        ),
        ("out/points", "in/events/points", "output.path: overlaps `events` ("),
        ("end: end\n", "end: end\nlongest: soon\n", "points.yaml:7:10: longest: `soon` is not a duration"),
    ],
)
def test_a_mistake_is_shown_at_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    """File, line, column, setting, and what to write instead."""
    file = tmp_path / "points.yaml"
    assert old in GOOD
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        RangeJob.load(file, environment={})
    assert message in "\n".join(problem.headline for problem in caught.value.problems)
