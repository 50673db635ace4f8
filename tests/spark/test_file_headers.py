"""CSV files whose header is not that of the schema: one error each, and nothing of them is judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.harness import PORTS, Job

pytestmark = pytest.mark.spark

_FILES = {
    "a.csv": ["id,user", "1,ann"],
    "b.csv": ["user,id", "ann,1"],
    "c.csv": ["7,zoe", "8,bob"],
    "d.csv": ["id;user", "1;ann"],
    "e.csv": ["id,user", "1,ann"],
    "f.csv": ["ID", "3"],
}


def test_files_with_another_header_are_errors(new_job: Callable[..., Job]) -> None:
    """With the reason and its detail; the others are judged."""
    source = {"file_format": "csv", "schema": "id string, user string", "header": True}
    job = new_job(source=source, key=["id"])
    for name, lines in _FILES.items():
        job.add_file(lines, name)
    job.run()
    faults, others = {}, []
    for port in PORTS:
        for row in job.rows(port):
            dedup = row["_dedup"]
            name = Path(dedup["source"]).name
            if dedup["reason"] == "file_header":
                assert dedup["raw"] == f"{dedup['source']}: {dedup['detail']}"
                faults[name] = dedup["detail"]
            else:
                others.append((port, name, dedup["position"], dedup["reason"], row["id"]))
    expected = "the header id, user is expected; the first line "
    assert faults == {
        "b.csv": f"{expected}is user, id",
        "c.csv": f'{expected}has fields like "9", "aaa"',
        "d.csv": f'{expected}has fields like "aa;aaaa"',
    }
    assert sorted(others) == [
        ("duplicate", "e.csv", 1, "same_window", "1"),
        ("unique", "a.csv", 1, None, "1"),
        ("unique", "f.csv", 1, None, "3"),
    ]
