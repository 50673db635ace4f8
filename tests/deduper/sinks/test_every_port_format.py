"""Each format that a port of files may have: its rows are written, and read back in every way, as those of Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bucket_store.places.local import local_place
from bucket_store.places.place import Place
from deduper.config.sections import PORTS
from deduper.file_formats import PORT_FORMATS
from deduper.sinks.published import SoughtKey, find_rows, judged_rows, rows_where, said_of_rows
from tests.deduper.plain_job import PlainJob

SAID = pa.schema([("reason", pa.string()), ("position", pa.int64())])


def job_of(root: Path, form: str) -> PlainJob:
    """A job with two duplicates, in one file."""
    sinks = {port: {"format": form, "path": f"out/{port}"} for port in PORTS}
    source = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t long"}
    expiry = {"by": "ordered", "field": "t", "period": 100, "span": 10}
    job = PlainJob(root, {"source": source, "key": "k", "expiry": expiry, "sinks": sinks})
    (job.root / "in" / "one.json").write_text("".join(json.dumps({"k": key, "t": 7}) + "\n" for key in "abab"))
    job.run()
    return job


def read_back(job: PlainJob) -> tuple[Any, ...]:
    """The rows of the duplicate port, by each function that reads published files."""
    columns = job.config.source.parsed_columns
    (file,) = [local_place(path) for path in (job.root / "out/duplicate").glob("[0-9a-f]*")]
    key = SoughtKey(columns[:1], ("b",))
    return (
        [(row.reason, row.position, row.first and row.first[2:], row.values) for row in _judged(file, job)],
        pa.Table.from_batches(said_of_rows(file, SAID)).to_pylist(),
        (find_rows(file, key, columns)[0], [row.dedup["position"] for row in find_rows(file, key, columns)[1]]),
        [row.dedup["position"] for row in rows_where(file, columns, "reason", ["same_window"])],
    )


def _judged(file: Place, job: PlainJob) -> list[Any]:
    columns = job.config.source.parsed_columns
    return judged_rows(file, columns, columns[1].type)


@pytest.mark.parametrize("form", PORT_FORMATS)
def test_rows_of_a_format_are_read_back(form: str, tmp_path: Path) -> None:
    """As verdicts, as fields, by their key, by a field."""
    judged, said, found, of_reason = read_back(job_of(tmp_path / "job", form))
    assert judged == [("same_window", at, (at - 2, 7), (key, 7)) for at, key in ((2, b"a"), (3, b"b"))]
    assert said == [{"reason": "same_window", "position": at} for at in (2, 3)]
    assert (found, of_reason) == ((2, [3]), [2, 3])
