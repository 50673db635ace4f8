"""The values of a topic that a job of files is seeded from: in the format of its files, if they can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deduper.config.load import load_config
from deduper.errors import UsageError
from deduper.seeding.source import SeedInput
from deduper.seeding.topics import topic_source


@pytest.mark.parametrize(
    ("schema", "form", "refusal"),
    [
        ("time timestamp, host string", None, None),
        ("time timestamp, host string, day date", "json", None),
        ("time timestamp, host string, day date", None, "values in combined_log cannot have the job's columns"),
    ],
)
def test_values_of_logs(tmp_path: Path, schema: str, form: str | None, refusal: str | None) -> None:
    """A column that the names of files give is in no line: it is refused in words."""
    settings = {
        "source": {
            "format": "files",
            "path": "in",
            "file_format": "combined_log",
            "schema": schema,
            **({"name_pattern": r"(?P<day>.*)\.log"} if "day" in schema else {}),
        },
        "key": "host",
        "expiry": {"by": "never"},
        "store": {"url": "file:state"},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(settings), encoding="utf-8")
    config = load_config(tmp_path / "job.yaml", environment={})
    given = SeedInput("topic", "old", record_format=form, brokers="localhost:9092")
    if refusal is None:
        assert topic_source(config, given).value.format == (form or "combined_log")
    else:
        with pytest.raises(UsageError, match=refusal):
            topic_source(config, given)
