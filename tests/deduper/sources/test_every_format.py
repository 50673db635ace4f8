"""Each format that a source of files may have: a good record is judged, and one that is none leaves with its detail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from deduper.config.files import FilesSource
from deduper.config.kafka.sections import KafkaValue
from deduper.config.sections import PORTS
from deduper.preflight.first_records import columns, would_be_errors
from deduper.preflight.results import Start
from tests.deduper.plain_job import PlainJob

SAMPLES = {
    "json": '{"host": "a"}\n{"host": 1\n',
    "csv": "a\na,b\n",
    "common_log": '1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.0" 200 1\nnothing\n',
    "combined_log": '1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.0" 200 1 "-" "-"\nnothing\n',
    "logfmt": 'host=a\nhost="a\n',
}
"""Two lines with a column `host`: a record, and a malformed one."""


def test_every_format_has_a_sample() -> None:
    """A new one is read here too; topics have two more."""
    assert {*SAMPLES, "parquet"} == {*get_args(FilesSource.model_fields["file_format"].annotation)}
    assert {*SAMPLES, "text", "avro"} == {*get_args(KafkaValue.model_fields["format"].annotation)}


@pytest.mark.parametrize("form", SAMPLES)
def test_a_format_is_read_and_its_errors_are_explained(form: str, tmp_path: Path) -> None:
    """By the tasks, by the detail of an error, and by the check of the first lines before a start."""
    source: dict[str, Any] = {"format": "files", "path": "in", "file_format": form, "schema": "host string"}
    sinks = {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS}
    expiry = {"by": "never"}
    job = PlainJob(tmp_path / "job", {"source": source, "key": "host", "expiry": expiry, "sinks": sinks})
    good, bad = SAMPLES[form].splitlines()
    (job.root / "in" / "lines").write_text(f"{good}\n")
    assert not list(columns(Start(job.config)))
    (job.root / "in" / "lines").write_text(SAMPLES[form])
    job.run()
    assert len(job.rows("unique")) == 1
    (error,) = job.rows("error")
    assert (error["_dedup"]["reason"], error["_dedup"]["raw"]) == ("malformed", bad)
    assert error["_dedup"]["detail"]
    assert list(would_be_errors(job.config, "source", "lines", [bad.encode()]))
