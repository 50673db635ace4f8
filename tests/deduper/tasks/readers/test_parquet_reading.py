"""Parquet files become records: which ones are errors, and that a file which changes is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from deduper.config.files import FilesSource
from deduper.config.load import load_config
from deduper.core.verdict import Admission
from deduper.sources.declared_columns import file_reading
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.readers import parquet as parquet_records
from deduper.tasks.readers.file_parts import FileChanged, FileGone, FilePart
from deduper.tasks.readers.parquet import ParquetReading
from tests.deduper.digest_cases import SALT
from tests.deduper.store_samples import CONFIG_TEXT
from tests.deduper.tasks.readers.test_text import changed

SCHEMA = pa.schema([("user", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def reading_of(directory: Path, null_keys: str = "error") -> ParquetReading:
    """How a job with an event time reads such files."""
    text = CONFIG_TEXT.replace("file_format: json", "file_format: parquet").replace(", n long, day string", "")
    (directory / "job.yaml").write_text(f"{text}null_keys: {null_keys}\n")
    config = load_config(directory / "job.yaml", environment={})
    assert isinstance(config.source, FilesSource)
    reading = file_reading(config, config.source, SALT)
    assert isinstance(reading, ParquetReading)
    return reading


def part_of(reading: ParquetReading, path: Path, rows: list[tuple[str | None, int | None, int | None]]) -> FilePart:
    """A file of these rows, as it was listed."""
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
    parquet.write_table(pa.table(columns, SCHEMA), path)
    listed = ListedFile(str(path), path.stat().st_mtime_ns // 1_000_000)
    part = reading.part(0, stat_files([listed])[0])
    assert part is not None
    return part


def admissions(reading: ParquetReading, part: FilePart) -> list[Admission]:
    """Of every record."""
    return [
        Admission(admission) for batch in reading.records(part) for admission in batch.column("_admission").to_pylist()
    ]


ROWS = [("a", 1, 5), (None, 1, 5), ("a", None, 5), ("a", 1, None), (None, None, None)]


@pytest.mark.parametrize(
    ("null_keys", "expected"),
    [
        (
            "error",
            [Admission.ADMITTED, Admission.NULL_KEY, Admission.NULL_KEY, Admission.NULL_EXPIRY, Admission.NULL_KEY],
        ),
        (
            "allow",
            [Admission.ADMITTED, Admission.ADMITTED, Admission.ADMITTED, Admission.NULL_EXPIRY, Admission.NULL_EXPIRY],
        ),
    ],
)
def test_a_record_without_a_key_is_that_first_of_all(tmp_path: Path, null_keys: str, expected: list[Admission]) -> None:
    """Whatever its expiry key is; or it is none, when null is a key like any other."""
    reading = reading_of(tmp_path, null_keys)
    assert admissions(reading, part_of(reading, tmp_path / "f.parquet", ROWS)) == expected


@pytest.mark.parametrize("how", ["gone", "time", "size"])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_file_that_changes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, when: str) -> None:
    """Not one record since it was listed: it is another file; while it is read, its records may be of either."""
    monkeypatch.setattr(parquet_records, "_BATCH_ROWS", 2)
    reading = reading_of(tmp_path)
    part = part_of(reading, tmp_path / "f.parquet", ROWS)
    records = reading.records(part)
    if when == "while":
        next(records)
    changed(Path(part.path), how)
    with pytest.raises(FileGone if how == "gone" else FileChanged):
        next(records) if when == "before" else list(records)


def test_places_go_on_from_batch_to_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's source order is its place in its file, and the file's in the window."""
    monkeypatch.setattr(parquet_records, "_BATCH_ROWS", 2)
    reading = reading_of(tmp_path)
    part = part_of(reading, tmp_path / "f.parquet", ROWS)
    order: list[Any] = [at for batch in reading.records(part) for at in batch.column("_order").to_pylist()]
    assert order == list(range(len(ROWS)))
