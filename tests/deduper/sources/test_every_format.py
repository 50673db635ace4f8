"""Each format that a source of files may have: a good record is judged, and one that is none leaves with its detail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.admin.open_store import open_store
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


@pytest.mark.parametrize("fingerprint", ["none", "all"])
@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_record_is_malformed_whatever_the_job_needs_of_it(form: str, fingerprint: str, tmp_path: Path) -> None:
    """No port has its columns, and they are no part of the payload: a seed reads so what its job has judged."""
    source = {"format": "files", "path": "in", "file_format": form, "schema": "id string, n int, t string"}
    sinks = {port: {"format": "none"} for port in PORTS}
    rules = {"key": "id", "expiry": {"by": "never"}, "fingerprint": fingerprint}
    job = PlainJob(tmp_path / "job", {"source": source, "sinks": sinks, **rules})
    rows = [(b"a", 1, b"t"), (b"b", 5_000_000_000, b"t"), (b"c", 3, b"\xff"), (b"d", 4, b"t")]
    lines = {"json": b'{"id":"%b","n":%d,"t":"%b"}', "csv": b"%b,%d,%b"}
    if form == "parquet":
        kinds = (pa.binary(), pa.int64(), pa.binary())
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        parquet.write_table(pa.table(columns, ["id", "n", "t"]), job.root / "in" / "rows.parquet")
    else:
        (job.root / "in" / "rows").write_bytes(b"".join(lines[form] % row + b"\n" for row in rows))
    job.run()
    state = open_store(str(job.config_file)).log.state
    assert state.totals == {"unique": 2, "duplicate": 0, "expired": 0, "error": 2}
    assert state.reason_totals == {"malformed": 1, "invalid_utf8": 1}
