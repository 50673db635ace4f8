"""The warning of key columns of which texts have more digits."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from deduper.config.files import FilesSource
from deduper.sources.declared_columns import file_reading, record_layout
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.read import ReadTask
from deduper.tasks.readers.reading_tasks import PartRead, RoundedKeys
from tests.deduper.digest_cases import SALT
from tests.spark.harness import Job

SCHEMA = "n decimal(10,2), k decimal(10,2), at timestamp"


def read(job: Job, lines: Sequence[str], folder: str, warned: RoundedKeys) -> list[PartRead]:
    """Read a window of one packed file, in the driver as in a task; gives its parts."""
    path = job.directory / "in" / folder / "a.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    source = job.config.source
    assert isinstance(source, FilesSource)
    files = tuple(stat_files([ListedFile(str(path), path.stat().st_mtime_ns // 10**6)]))
    batch = SourceFileBatch(source, files, file_reading(job.config, source, SALT), rounded=warned)
    spool = job.directory / f"spool-{folder}"
    spool.mkdir()
    task = ReadTask(str(spool), 2, record_layout(job.config), None, in_order=False, keeps_latest=False)
    records = batch.records()
    found = [records.read(task, part) for part in records.parts]
    batch.as_read(found)
    return found


def test_each_is_named_once_and_only_keys_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its type and with what to write instead. A column in the names of folders has no texts in lines."""
    source = {"file_format": "json", "schema": SCHEMA}
    job = Job(tmp_path, None, {"source": source, "key": ["k", "at"], "expiry": {"by": "never"}})
    warned = RoundedKeys()
    line = '{"n":1.001,"k":%s,"at":"2024-01-01T12:00:00.%sZ"}'
    with caplog.at_level(logging.WARNING):
        read(job, [line % ("1.50", "5")], "one", warned)
        assert caplog.messages == []
        found = read(job, [line % ("1.50", "5"), line % ("1.004", "5")], "two", warned)
        assert [part.noted.rounded for part in found] == [{1}]
        read(job, [line % ("1.004", "5")], "three", warned)
        read(job, [line % ("1.004", "0000001")], "n=1", warned)
    decimal, time = caplog.messages
    assert "column k is a decimal(10,2)" in decimal
    assert "`decimal(38,18)` or `string`" in decimal
    assert "column at is a timestamp" in time
    assert "declare it `string`" in time
