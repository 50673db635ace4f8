"""CSV files whose header is not that of the schema: one error each, by both readers, and nothing of them is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.harness import PORTS, READ_BY_SPARK, Job

pytestmark = pytest.mark.spark

_FILES = {
    "a.csv": ["id,user", "1,ann"],
    "b.csv": ["user,id", "ann,1"],
    "c.csv": ["7,zoe", "8,bob"],
    "d.csv": ["id;user", "1;ann"],
    "e.csv": ["id,user", "1,ann"],
    "f.csv": ["ID", "3"],
}


def test_both_readers_refuse_the_same_files(tmp_path: Path, session: SparkSession) -> None:
    """With the same rows, reasons and details, and the same count of what was judged."""
    found: list[list[tuple[Any, ...]]] = []
    for spark in ({}, READ_BY_SPARK):
        source = {"file_format": "csv", "schema": "id string, user string", "header": True}
        job = Job(tmp_path / str(len(found)), session, {"source": source, "key": ["id"], "spark": spark})
        job.directory.mkdir()
        for name, lines in _FILES.items():
            job.add_file(lines, name)
        job.run()
        rows = []
        for port in PORTS:
            for row in job.rows(port):
                dedup = row["_dedup"]
                name = Path(dedup["source"]).name
                raw = dedup["raw"] and dedup["raw"].removeprefix(f"{dedup['source']}: ")
                rows.append((port, name, dedup["position"], dedup["reason"], row["id"], raw, dedup.get("detail")))
        found.append(sorted(rows, key=str))
    assert found[0] == found[1]
    faults = {
        name: detail for _, name, _, reason, _, raw, detail in found[0] if reason == "file_header" and raw == detail
    }
    expected = "the header id, user is expected; the first line "
    assert faults == {
        "b.csv": f"{expected}is user, id",
        "c.csv": f'{expected}has fields like "9", "aaa"',
        "d.csv": f'{expected}has fields like "aa;aaaa"',
    }
    others = [row[:5] for row in found[0] if row[3] != "file_header"]
    assert others == [
        ("duplicate", "e.csv", 1, "same_window", "1"),
        ("unique", "a.csv", 1, None, "1"),
        ("unique", "f.csv", 1, None, "3"),
    ]
