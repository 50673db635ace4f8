"""Names that a rotation changes are found before a job judges files by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deduper.config.load import load_config
from deduper.preflight.first_records import rotated, rotated_name
from deduper.preflight.results import Start


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["access.log", "access.log.1"], "access.log.1"),
        (["access.log.1", "access.log.2.gz"], "access.log.1"),
        (["error.log", "access.log.10.zst", "access.log.9.bz2"], "access.log.10.zst"),
        (["access.log", "access.log-20240106.gz"], None),
        (["access.log", "error.log.1"], None),
        (["part.1", "part.1.gz"], None),
        (["part.001", "part.002"], None),
        (["access.log.20240106", "access.log.20240107"], None),
        (["a/access.log", "b/access.log.1"], None),
        ([], None),
    ],
)
def test_names(names: list[str], found: str | None) -> None:
    """A number alone says nothing: it must be one of several, or stand beside the file that grows."""
    assert rotated_name(names) == found


def test_a_start_warns(tmp_path: Path) -> None:
    """With what to write; of a pattern that leaves the names out it says nothing."""
    (tmp_path / "in").mkdir()
    for name in ("access.log", "access.log.1", "access.log-20240106"):
        (tmp_path / "in" / name).write_text("{}\n")
    said = []
    for path in ("in", "in/access.log-*"):
        settings = {
            "name": "log",
            "source": {"format": "files", "path": path, "file_format": "json", "schema": "user string"},
            "key": "user",
            "expiry": {"by": "never"},
            "store": {"url": "file:state"},
            "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
        }
        (tmp_path / "job.yaml").write_text(json.dumps(settings), encoding="utf-8")
        said.append([str(one) for one in rotated(Start(load_config(tmp_path / "job.yaml", environment={})))])
    assert said == [
        [
            f"source.path: {tmp_path}/in/access.log.1 has a number that a rotation changes: under its next name its "
            "records come again, as duplicates or expired, and the file that gets this name is not read; write names "
            "that stay (`dateext` in logrotate), and let `source.path` leave out the file that grows"
        ],
        [],
    ]
