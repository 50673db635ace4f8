"""Error records written out for the same source: as they came, whole or not at all, in a folder of their own."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from deduper.admin.errors import export
from deduper.admin.errors.export import ErrorExport, _own_headers, export_errors
from deduper.admin.errors.report import WindowRange
from deduper.admin.open_store import open_store
from deduper.cli.main import app
from deduper.config.files import FilesSource
from deduper.config.kafka.values import DEDUP_HEADERS
from deduper.config.load import load_config
from deduper.core.verdict import Admission
from deduper.errors import IntegrityError, UsageError
from deduper.sources.declared_columns import file_reading
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.sources.kafka.fetching import TopicRecord
from deduper.tasks.readers.parquet import _ADMISSIONS as FAULTS
from deduper.tasks.readers.text import TextReading
from tests.deduper.store_samples import Window, make_store, write_config
from tests.forked import command

pytestmark = pytest.mark.slow
Row = tuple[str, str, int, str | None]
"""Reason, file below the source's folder, position, text."""
ROWS: dict[int, list[Row]] = {
    0: [("null_key", "a.json", 4, '{"n":1}'), ("malformed", "a.json", 6, "{broken\r")],
    2: [("null_key", "b.json", 0, '{"n":2}'), ("file_missing", "c.json", 0, "in/c.json: gone")],
    3: [("invalid_utf8", "d.json", 9, base64.b64encode(b"\xff").decode()), ("null_key", "d.json", 10, '{"n":3}')],
}
ALL = [b'{"n":1}', b"{broken\r", b'{"n":2}', b"\xff", b'{"n":3}']


class Job:
    """A store and an error port made by hand; no service runs."""

    def __init__(self, directory: Path, source: str | None = None, port: str = "json") -> None:
        self.directory = directory
        self.file = write_config(directory)
        text = self.file.read_text().replace("  error: {format: none}", f"  error: {{format: {port}, path: out/error}}")
        self.file.write_text(text if source is None else text.replace("path: in/, file_format: json", source))
        make_store(self.file, [Window()] * 4)
        self.folder = directory / "in"
        self.folder.mkdir()
        self.to = directory / "again"
        (directory / "out" / "error").mkdir(parents=True)

    def put(self, rows: dict[int, list[Row]]) -> None:
        """Publish files of the error port, one a window, as JSON."""
        for window, some in rows.items():
            lines = [{"_dedup": self.said(*row)} for row in some]
            self.port_file(window, "json").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def said(self, reason: str, source: str, position: int, raw: str | None) -> dict[str, Any]:
        """`_dedup` of a row."""
        return {"reason": reason, "source": str(self.folder / source), "position": position, "raw": raw}

    def port_file(self, window: int, ending: str) -> Path:
        """A file of the error port."""
        prefix = open_store(str(self.file)).log.manifest.store_id[:8]
        return self.directory / "out" / "error" / f"{prefix}-{window:012d}-0000.{ending}"

    def export(self, windows: WindowRange = WindowRange(), reasons: Sequence[str] = ()) -> ErrorExport:  # noqa: B008
        """A call of the command, in this process."""
        return export_errors(open_store(str(self.file)), windows, reasons, str(self.to))

    def files(self) -> dict[str, bytes]:
        """The exported files by their folders."""
        return {str(file.parent.relative_to(self.to)): file.read_bytes() for file in self.to.rglob("*.*")}

    def lines(self) -> list[bytes]:
        """The lines of all exported files, in the order of their names."""
        return [line for file in sorted(self.to.iterdir()) for line in file.read_bytes().split(b"\n")[:-1]]

    def read_again(self, file: Path) -> list[str | None]:
        """The texts of the errors that the job finds in an exported file of lines."""
        config = load_config(self.file, environment={})
        assert isinstance(config.source, FilesSource)
        reading = file_reading(config, config.source, bytes(16))
        assert isinstance(reading, TextReading)
        part = reading.part(0, stat_files([ListedFile(str(file), 0)])[0])
        return [text for batch in reading.records(part) for text in batch["_raw"].to_pylist()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path)
    made.put(ROWS)
    return made


def test_the_records_are_written_as_they_came(job: Job) -> None:
    """As their bytes, in the order of the port; a row about a file is left out."""
    report = job.export()
    assert job.lines() == ALL
    assert report == ErrorExport(
        str(job.to), {"null_key": 3, "malformed": 1, "invalid_utf8": 1}, 1, {"file_missing": 1}
    )
    assert [path.name for path in job.directory.glob(".*")] == []


def test_a_row_without_its_record_is_left_out(tmp_path: Path) -> None:
    """And counted by its reason; a folder without any record is none."""
    job = Job(tmp_path)
    job.put({0: [("ahead_of_now", "a.json", 3, None)]})
    report = job.export()
    assert (report.rows, report.left_out, job.to.exists()) == ({}, {"ahead_of_now": 1}, False)
    job.put({1: [("ahead_of_now", "a.json", 4, "{}")]})
    report = job.export()
    assert (report.rows, report.left_out, job.lines()) == ({"ahead_of_now": 1}, {"ahead_of_now": 1}, [b"{}"])


FIRST = [("dedup-first-seen", b"in-0@7"), ("dedup-first-seen-window", b"3")]
OTHER = [("dedup-fingerprint", b"0a"), ("dedup-first-fingerprint", b"0b")]
WHY = [("dedup-reason", b"conflict"), ("dedup-window", b"4"), ("dedup-origin", b"in-1@8")]


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        (DEDUP_HEADERS, [("dedup-verdict", b"error"), *WHY, *FIRST, *OTHER]),
        (DEDUP_HEADERS, [("dedup-verdict", b"error"), *WHY]),
        (("reason", "window", "origin", "fingerprint"), [*WHY, *OTHER]),
        (("reason", "window", "origin"), WHY),
    ],
)
def test_headers_of_the_job_are_left_out(names: tuple[str, ...], ours: list[tuple[str, bytes]]) -> None:
    """Both that stand for one setting; those of an earlier job are the record's own."""
    sink: Any = SimpleNamespace(dedup_headers=names)
    for own in ([], [("n", b"1"), ("dedup-verdict", b"duplicate"), *FIRST, *OTHER]):
        record = TopicRecord(0, 8, 0, b"k", b"v", (*own, *ours))
        assert _own_headers(record, sink) == own


def test_windows_and_reasons_select(job: Job) -> None:
    """Nothing to export leaves no folder; another export may have the same records."""
    assert job.export(WindowRange(1, 1)).rows == {}
    assert job.export(reasons=["tombstone"]).rows == {}
    assert not job.to.exists()
    job.export(WindowRange(0, 2), ["null_key"])
    assert job.lines() == [b'{"n":1}', b'{"n":2}']
    job.to = job.directory / "more"
    job.export(WindowRange(0, 0))
    assert job.lines() == [b'{"n":1}', b"{broken\r"]


def test_a_killed_export_is_no_export(job: Job) -> None:
    """What is there has a hidden name; the next call writes all."""
    words = ["errors", str(job.file), "--window=0..", "--export", str(job.to), "--json"]
    killed = command(*words, armed="errors.written=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not job.to.exists()
    assert [path.name.startswith(".again.") for path in job.directory.glob(".*")] == [True]
    assert json.loads(command(*words).stdout)["files"] == 1
    assert job.lines() == ALL


def test_a_damaged_port_leaves_nothing(job: Job) -> None:
    """Neither the folder nor a hidden one."""
    job.port_file(3, "json").write_text("{}\n")
    with pytest.raises(IntegrityError, match="cannot be read as an output"):
        job.export()
    assert not job.to.exists()
    assert not list(job.directory.glob(".*"))


def test_partition_folders_stay(tmp_path: Path) -> None:
    """A column may be in the name of a folder alone; of a source that has moved, these folders alone are kept."""
    job = Job(tmp_path)
    job.put({0: [("null_key", "day=1/a.json", 0, "{}"), ("null_key", "/elsewhere/day=2/h=3/b.json", 0, "[]")]})
    job.export()
    assert job.files() == {"day=1": b"{}\n", "day=2/h=3": b"[]\n"}


def test_csv_with_a_header_gets_one(tmp_path: Path) -> None:
    """A file's first line is no record there; the job's own reader takes it, in a partition folder too."""
    job = Job(tmp_path, "path: in/, file_format: csv, header: true, delimiter: ';'")
    rows: list[Row] = [("malformed", name, 1, "x;y") for name in ("a.csv", "day=1/a.csv", "N=2/Day=1/more/a.csv")]
    job.put({0: rows})
    job.export()
    assert job.files() == {
        ".": b'"user";"id";"ts";"n";"day"\nx;y\n',
        "day=1": b'"user";"id";"ts";"n"\nx;y\n',
        "N=2/Day=1/more": b'"user";"id";"ts"\nx;y\n',
    }
    job.folder.rmdir()
    job.to.rename(job.folder)
    for file in job.folder.rglob("*.csv"):
        assert job.read_again(file) == ["x;y"], file


@pytest.mark.parametrize(
    ("original", "begin", "ending"),
    [
        ("clicks-7.jsonl.gz", "clicks-7-errors-", ".jsonl"),
        ("clicks-7.json.GZ", "clicks-7-errors-", ".json"),
        ("clicks-7.json.Zst.bz2", "clicks-7-errors-", ".json"),
        ("clicks.DEFLATE", "clicks-errors-", ".json"),
        ("clicks.Snappy", "clicks-errors-", ".json"),
        ("part", "part-errors-", ".json"),
        ("x" * 250, "xxx", ".json"),
    ],
)
def test_a_name_is_like_that_of_the_file(tmp_path: Path, original: str, begin: str, ending: str) -> None:
    """So the source's pattern takes it; and a job reads it as it was written, whatever the file was packed by."""
    job = Job(tmp_path)
    job.put({0: [("malformed", original, 1, "x")]})
    job.export()
    (file,) = job.to.iterdir()
    assert (file.name.startswith(begin), file.suffix, file.read_text()) == (True, ending, "x\n")
    assert job.read_again(file) == ["x"]


def test_large_exports_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read by one task."""
    monkeypatch.setattr(export, "_BUFFER_BYTES", 100)
    monkeypatch.setattr(export, "_PART_BYTES", 1000)
    job = Job(tmp_path)
    job.put(
        {window: [("malformed", "a.json", n, f"{window}-{n}-{'x' * 40}") for n in range(20)] for window in range(4)}
    )
    assert job.export().files == 2
    assert [line.split(b"-x")[0].decode() for line in job.lines()] == [f"{w}-{n}" for w in range(4) for n in range(20)]


def test_rows_of_parquet_are_the_columns_of_the_port(tmp_path: Path) -> None:
    """In their types, without `_dedup`; a row with a null in place of a value that no column holds is left out."""
    faults = [Admission(code).reason for code in FAULTS[1:].tolist()]
    job = Job(tmp_path, "path: in/, file_format: parquet", "parquet")
    for window in range(2):
        reasons = ["ahead_of_now", *faults, "null_key"]
        said = [job.said(reason, f"day={window}/a.parquet", n, None) for n, reason in enumerate(reasons)]
        columns = {"user": ["a", *[None] * len(faults), None], "id": pa.array([window, *[1] * len(faults), 2])}
        parquet.write_table(pa.table({**columns, "_dedup": said}), job.port_file(window, "parquet"))
    report = job.export()
    assert (report.rows, report.files) == ({"ahead_of_now": 2, "null_key": 2}, 2)
    assert report.left_out == dict.fromkeys(["bad_expiry", "malformed", "invalid_utf8"], 2)
    for window in range(2):
        (file,) = (job.to / f"day={window}").iterdir()
        table = parquet.ParquetFile(file).read()
        assert table.schema.names == ["user", "id"]
        assert table.to_pylist() == [{"user": "a", "id": window}, {"user": None, "id": 2}]


def test_many_folders_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files are open at once."""
    monkeypatch.setattr(export, "_MOST_OPEN", 2)
    job = Job(tmp_path, "path: in/, file_format: parquet", "parquet")
    for window in range(2):
        said = [job.said("null_key", f"day={day}/a.parquet", 0, None) for day in range(5)]
        parquet.write_table(pa.table({"id": list(range(5)), "_dedup": said}), job.port_file(window, "parquet"))
    job.export()
    ids = [parquet.ParquetFile(file).read().column("id")[0].as_py() for file in sorted(job.to.rglob("*.parquet"))]
    assert sorted(ids) == sorted([*range(5)] * 2)


@pytest.mark.parametrize(
    ("source", "port", "reasons", "message"),
    [
        (None, "{format: none}", (), "the error port is `none`"),
        (None, "{format: json, path: out/error}", ["nul_key"], "no reason of an error"),
        (
            "path: in/, file_format: parquet",
            "{format: json, path: out/error}",
            (),
            "from an error port that is parquet",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, source: str | None, port: str, reasons: Sequence[str], message: str
) -> None:
    """With the reason."""
    job = Job(tmp_path, source)
    job.file.write_text(job.file.read_text().replace("{format: json, path: out/error}", port))
    with pytest.raises(UsageError, match=message):
        job.export(reasons=reasons)


def test_a_folder_with_files_is_refused(job: Job) -> None:
    """An empty one is taken; so is no file, and no folder of the source, where a job would read it half written."""
    job.to.mkdir()
    job.export()
    with pytest.raises(UsageError, match="is there already"):
        job.export()
    job.to = job.file
    with pytest.raises(UsageError, match="is there already"):
        job.export()
    job.to = job.folder / "again"
    with pytest.raises(UsageError, match="inside the source"):
        job.export()


def test_a_store_without_its_config_is_refused(job: Job) -> None:
    """It does not know the source."""
    with pytest.raises(UsageError, match="config file"):
        export_errors(open_store(str(job.directory / "state")), WindowRange(), (), str(job.to))


def test_the_command(job: Job) -> None:
    """As text; of the newest windows."""
    words = ["errors", str(job.file), "--last=2", "--reason=null_key", "--export", str(job.to)]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "2 records in 1 file" in " ".join(result.output.split())) == (0, True)
    assert job.lines() == [b'{"n":2}', b'{"n":3}']


def test_an_export_names_its_windows(job: Job) -> None:
    """Else each export would send the records of earlier ones again, which may be unique again by then."""
    words = ["errors", str(job.file), "--reason=null_key", "--export", str(job.to)]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, "add --window" in " ".join(result.output.split())) == (2, True)
    assert not job.to.exists()
    assert CliRunner().invoke(app, [*words, "--window", "0.."]).exit_code == 0
    assert job.lines() == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
