"""Error rows of Parquet files are found again and sent through once more, exactly once; or a message says why not."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from bucket_store.log.sources_file import SourcePartition
from deduper.admin.errors.report import errors_report
from deduper.admin.errors.rows import Windows
from deduper.admin.open_store import open_store
from deduper.cli.main import app
from deduper.errors import UsageError
from deduper.sources.files.source_file import source_digest
from tests.deduper.admin.test_replay_errors import POINTS, Row
from tests.deduper.admin.test_replay_errors import Job as LinesJob
from tests.deduper.small_service import Killed, armed
from tests.deduper.store_samples import Window, make_store, write_config

pytestmark = pytest.mark.slow
FILES = {"a.parquet": 0, "day=1/b.parquet": 0, "c.parquet": 1}
"""Files of the source with the window that judged each."""
ERRORS: list[Row] = [("null_key", "a.parquet", 7, None), ("ahead_of_now", "a.parquet", 8, None)]
ERRORS += [("null_key", "c.parquet", 0, None), ("malformed", "day=1/b.parquet", 9, None)]


def contents(name: str, rows: int = 10) -> pa.Table:
    """Rows of a file of the source; `own` is no column of the config."""
    return pa.table({"user": [None] * rows, "id": list(range(rows)), "own": [f"{name}:{row}" for row in range(rows)]})


def write(path: Path, table: pa.Table) -> None:
    """A file in small row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=4)


class Job(LinesJob):
    """A store whose windows have judged real Parquet files, and an error port made by hand; no service runs."""

    def __init__(self, directory: Path, tables: dict[str, pa.Table] | None = None) -> None:
        self.directory, self.folder = directory, directory / "in"
        self.file = write_config(directory)
        text = self.file.read_text().replace("  error: {format: none}", "  error: {format: json, path: out/error}")
        self.file.write_text(text.replace("file_format: json", "file_format: parquet"))
        windows: dict[int, list[SourcePartition]] = {0: [], 1: []}
        for name, window in FILES.items():
            path, table = self.folder / name, (tables or {}).get(name, contents(name))
            write(path, table)
            found = path.stat()
            modified_ms, digest = found.st_mtime_ns // 10**6, source_digest(str(path), found.st_mtime_ns // 10**6)
            windows[window].append(SourcePartition(str(path), modified_ms, 0, found.st_size, table.num_rows, digest))
        make_store(self.file, [Window(sources=sources) for _, sources in sorted(windows.items())])
        (directory / "out" / "error").mkdir(parents=True)
        for window in windows:
            self.put({window: [one for one in ERRORS if FILES[one[1]] == window]})

    def sent(self) -> list[str]:
        """`own` of all rows of files of replays that the source has now."""
        return [row["own"] for file in self.replayed() for row in parquet.ParquetFile(file).read().to_pylist()]

    def replayed(self) -> list[str]:
        """Files of replays."""
        return [file for file in self.source_files() if "deduper-replay" in file]


ALL = [f"{name}:{position}" for _, name, position, _ in ERRORS]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_rows_come_into_the_source_once(job: Job) -> None:
    """With all columns of their file, in the order of the port, into the folder of their file; then nothing is left."""
    report = job.replay()
    assert (report.number, report.rows) == (1, {"null_key": 2, "ahead_of_now": 1, "malformed": 1})
    assert (report.left_out, report.not_found) == ({}, ())
    assert [str(Path(file).parent.relative_to(job.folder)) for file in report.files] == [".", "day=1"]
    assert Counter(job.sent()) == Counter(ALL)
    first = parquet.ParquetFile(report.files[0]).read()
    assert first.column_names == ["user", "id", "own"]
    assert first.column("own").to_pylist() == ["a.parquet:7", "a.parquet:8", "c.parquet:0"]
    second = job.replay()
    assert (second.number, second.rows, second.files) == (None, {}, ())
    assert not list(job.folder.rglob(".*"))


def test_selections_that_overlap_send_nothing_twice(job: Job) -> None:
    """By window and reason; `--dry-run` counts the same and writes nothing."""
    assert job.replay(Windows(0, 0), ["null_key"]).rows == {"null_key": 1}
    assert job.replay(dry_run=True).rows == {"null_key": 1, "ahead_of_now": 1, "malformed": 1}
    assert job.replay(Windows(1)).rows == {"null_key": 1}
    assert job.replay().rows == {"ahead_of_now": 1, "malformed": 1}
    assert Counter(job.sent()) == Counter(ALL)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("other", [False, True], ids=["the same call", "another selection"])
def test_a_death_at_any_point_loses_and_repeats_nothing(job: Job, point: str, other: bool) -> None:
    """At each rename; the next call finishes it, whatever it selects."""
    for nth in range(1, 3 if point == "replay.renamed" else 2):

        def die() -> None:
            raise Killed

        if nth > 1:
            job.put({0: [("null_key", name, 1, None) for name in ("a.parquet", "day=1/b.parquet")]}, part=1)
        with armed(point, nth, die), pytest.raises(Killed):
            job.replay()
        if other:
            job.replay(Windows(99))
        job.replay()
        assert Counter(job.sent()) == Counter([*ALL, *(["a.parquet:1", "day=1/b.parquet:1"] if nth > 1 else [])])
        assert job.replay().rows == {}
        assert not list(job.folder.rglob(".*"))


def test_what_fails_again_is_sent_by_again_alone(job: Job) -> None:
    """Its rows are those of the replayed file, which the job has judged like any other."""
    (file, *_) = job.replay().files
    store = open_store(str(job.file))
    found, name = Path(file).stat(), Path(file).name
    partition = SourcePartition(file, found.st_mtime_ns // 10**6, 0, found.st_size, 3, source_digest(file, 1))
    shutil.rmtree(store.root.local)
    make_store(job.file, [Window(), Window(), Window(sources=[partition])])
    for old in (job.directory / "out" / "error").iterdir():
        old.unlink()
    job.put({2: [("null_key", name, 2, None)]})
    assert (job.replay().rows, job.replay().left_out) == ({}, {"replayed before": 1})
    assert job.replay(again=True).rows == {"null_key": 1}
    assert job.replay(again=True).rows == {}
    assert Counter(job.sent())["c.parquet:0"] == 2


def test_a_file_that_is_gone_is_named_and_can_be_put_back(job: Job) -> None:
    """Its rows are left out, with window, numbers and what to do; the others are sent; put back, they follow."""
    away = job.directory / "away.parquet"
    shutil.move(job.folder / "a.parquet", away)
    report = job.replay()
    assert (report.rows, report.left_out) == ({"malformed": 1, "null_key": 1}, {"source file gone": 2})
    (lost,) = report.not_found
    assert (Path(lost.source).name, lost.window, lost.rows) == ("a.parquet", 0, (7, 8))
    assert "put it back as it was" in lost.why
    shutil.copy2(away, job.folder / "a.parquet")
    assert job.replay().rows == {"null_key": 1, "ahead_of_now": 1}
    assert Counter(job.sent()) == Counter(ALL)


def test_a_changed_file_is_taken_only_where_that_is_said(job: Job) -> None:
    """A row's number means something only in the file that was judged, or in one that was mended row by row."""
    mended = contents("a.parquet").set_column(0, "user", pa.array(["mended"] * 10))
    write(job.folder / "a.parquet", mended)
    report = job.replay()
    assert report.left_out == {"source file changed": 2}
    assert report.not_found[0].why.startswith("judged as ")
    assert "--mended-files" in report.not_found[0].why
    report = job.replay(mended_files=True)
    assert report.rows == {"null_key": 1, "ahead_of_now": 1}
    assert parquet.ParquetFile(report.files[0]).read().column("user").to_pylist() == ["mended", "mended"]
    assert job.replay(mended_files=True).rows == {}
    assert Counter(job.sent()) == Counter(ALL)


def test_a_mended_file_with_other_rows_is_refused(job: Job) -> None:
    """Also where the mend is announced."""
    write(job.folder / "a.parquet", contents("a.parquet", 9))
    (lost,) = job.replay(mended_files=True).not_found
    assert lost.why.startswith("10 rows were judged, it has 9 now")


def test_a_file_that_cannot_be_read_any_more_is_named(job: Job) -> None:
    """The rest is sent."""
    path = job.folder / "a.parquet"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-8:] = b"\xff" * 8
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = job.replay()
    assert report.left_out == {"source file cannot be copied": 2}
    assert "cannot be read" in report.not_found[0].why


def test_a_source_that_has_moved(job: Job) -> None:
    """A file is found below the new folder, by time and size."""
    job.folder.rename(job.directory / "new")
    job.file.write_text(job.file.read_text().replace("path: in/", "path: new/"))
    job.folder = job.directory / "new"
    assert sum(job.replay().rows.values()) == len(ALL)
    assert Counter(job.sent()) == Counter(ALL)
    assert {Path(file).parent.name for file in job.replayed()} == {"new", "day=1"}


def test_a_copy_keeps_values_and_types(tmp_path: Path) -> None:
    """As Parquet stores them, with Spark's notes on the calendar."""
    at = datetime(1960, 1, 1, 1, 2, 3, tzinfo=UTC)
    table = pa.table(
        {
            "text": pa.array(["ä"]),
            "bytes": pa.array([b"\xff"]),
            "fixed": pa.array([b"ab"], pa.binary(2)),
            "small": pa.array([-1], pa.int8()),
            "unsigned": pa.array([2**32 - 1], pa.uint32()),
            "half": pa.array([0.5], pa.float32()),
            "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
            "at_ms": pa.array([at], pa.timestamp("ms", "UTC")),
            "at_ns": pa.array([at], pa.timestamp("ns", "UTC")),
            "local": pa.array([at.replace(tzinfo=None)], pa.timestamp("us")),
            "day": pa.array([date(1500, 1, 1)]),
            "category": pa.array(["x"]).dictionary_encode(),
            "list": pa.array([[1, None]], pa.list_(pa.int64())),
            "struct": pa.array([{"a": None, "b": [{"c": 1}]}]),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        },
        metadata={"org.apache.spark.legacyDateTime": "", "org.apache.spark.version": "3.5.0"},
    )
    ten = pa.concat_tables([table] * 10)
    job = Job(tmp_path, {"c.parquet": ten})
    (file,) = job.replay(Windows(1)).files
    copied = parquet.ParquetFile(file)
    written = parquet.ParquetFile(job.folder / "c.parquet")
    types = [
        [
            (leaf.path, leaf.physical_type, str(leaf.logical_type))
            for leaf in map(each.schema.column, range(len(each.schema)))
        ]
        for each in (copied, written)
    ]
    assert types[0] == types[1]
    assert copied.read().to_pylist() == table.to_pylist()
    assert copied.metadata.metadata[b"org.apache.spark.version"] == b"3.5.0"
    assert b"org.apache.spark.legacyDateTime" in copied.metadata.metadata


def test_a_type_that_a_copy_would_not_keep_is_refused(tmp_path: Path) -> None:
    """Times in INT96 that Spark has not written are read in more than one way."""
    job = Job(tmp_path)
    path = job.folder / "c.parquet"
    table = pa.table({"user": [None] * 10, "at": [datetime(1960, 1, 1, tzinfo=UTC)] * 10})
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True)
    report = job.replay(Windows(1), mended_files=True)
    (lost,) = report.not_found
    assert "its column at is of INT96" in lost.why
    assert "under another name" in lost.why


def test_the_report_of_errors_names_the_row(job: Job) -> None:
    """A Parquet file has no lines: rows are counted from 0, as in `_dedup.position`."""
    report = errors_report(open_store(str(job.file)), Windows(), None)
    assert {group.place for group in report.groups} >= {f"{job.folder / 'a.parquet'}, row 7"}


def test_the_command(job: Job) -> None:
    """As text, file by file; the option is for Parquet."""
    (job.folder / "a.parquet").unlink()
    result = CliRunner().invoke(app, ["replay-errors", str(job.file)], env={"COLUMNS": "200"})
    assert (result.exit_code, "replay 1: 2 error rows in 2 new files of the source" in result.output) == (0, True)
    said = " ".join(result.output.split())
    assert f"not sent: {job.folder / 'a.parquet'}, rows 7, 8 (window 0): it is not there" in said
    job.file.write_text(job.file.read_text().replace("file_format: parquet", "file_format: json"))
    with pytest.raises(UsageError, match="is for Parquet"):
        job.replay(mended_files=True)
