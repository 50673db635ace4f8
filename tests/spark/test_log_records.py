"""Access logs through a whole job: lines that collectors have both, the time of the server, a line that is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.spark.harness import Job

pytestmark = [pytest.mark.spark, pytest.mark.night]


def line(minute: int, target: str) -> str:
    """A line of the combined format."""
    return f'192.0.2.1 - - [06/Jan/2024:10:{minute:02}:00 +0100] "GET {target} HTTP/1.1" 200 - "-" "curl/8.12.1"'


def test_access_logs_of_two_collectors(new_job: Callable[..., Job]) -> None:
    """Each request once; the one a day older is expired; the broken one is an error with its line and what it lacks."""
    schema = "time timestamp, host string, target string, status int, bytes bigint, collector string"
    job = new_job(
        source={
            "file_format": "combined_log",
            "schema": schema,
            "name_pattern": r"(?P<collector>\w+)-2024-01-06\.log",
        },
        key=["time", "host", "target"],
        expiry={"by": "event_time", "field": "time", "period": "24h", "span": "1h"},
    )
    old = line(0, "/old").replace("06/Jan", "04/Jan")
    job.add_file([line(1, "/a"), line(2, "/b"), line(3, "/b"), "no line", old], "web1-2024-01-06.log")
    job.add_file([line(1, "/a"), line(2, "/c")], "web2-2024-01-06.log")
    job.run()
    assert Counter(row["target"] for row in job.rows("unique")) == {"/a": 1, "/b": 2, "/c": 1}
    (first,) = [row for row in job.rows("unique") if row["target"] == "/a"]
    assert (first["status"], first["bytes"], first["collector"]) == (200, None, "web1")
    assert first["time"] == datetime(2024, 1, 6, 9, 1, tzinfo=UTC)
    assert [row["collector"] for row in job.rows("duplicate")] == ["web2"]
    assert [row["target"] for row in job.rows("expired")] == ["/old"]
    (error,) = job.rows("error")
    assert error["_dedup"]["reason"] == "malformed"
    assert error["_dedup"]["raw"] == "no line"
    assert error["_dedup"]["detail"] == "no ident stands where combined_log has it"
    assert Path(error["_dedup"]["source"]).name == "web1-2024-01-06.log"
