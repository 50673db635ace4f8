"""`errors`: the error port by reason and detail, in each format; without it, what the log has."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console
from typer.testing import CliRunner

from deduper.admin.errors.report import ErrorsReport, WindowRange, errors_report
from deduper.admin.open_store import OpenStore, open_store
from deduper.cli.main import app
from deduper.cli.views.contents import render_errors
from deduper.errors import IntegrityError
from tests.deduper.store_samples import Window, make_store, write_config

pytestmark = pytest.mark.slow
NO_FIELD, NULL = "user: no such field", "user: null"
ROWS = [
    (0, [("null_key", NO_FIELD, "in/a.json", 4), ("malformed", "the line is no object", "in/a.json", 6)]),
    (2, [("null_key", NO_FIELD, "in/b.json", 0), ("file_missing", "the file was listed, and is gone", "in/c.json", 0)]),
    (3, [("null_key", NULL, "in/d.json", 9), ("null_key", NO_FIELD, "in/d.json", 10)]),
]


def job(directory: Path, ending: str, *, has_detail: bool = True) -> Path:
    """A store of four windows whose error port has ROWS in this format; the config file."""
    file = write_config(directory)
    text = file.read_text().replace("  error: {format: none}", f"  error: {{format: {ending}, path: out/error}}")
    file.write_text(text)
    make_store(file, [Window(counts={"error": 2}, reasons={"null_key": 2}) for _ in range(4)])
    prefix = open_store(str(file)).log.manifest.store_id[:8]
    folder = directory / "out" / "error"
    folder.mkdir(parents=True)
    for window, rows in ROWS:
        dedups: list[dict[str, Any]] = []
        for reason, detail, source, position in rows:
            row = {"verdict": "error", "reason": reason, "window": window, "source": source, "position": position}
            dedups.append({**row, "raw": "Zq7xW\n", **({"detail": detail} if has_detail else {})})
        write(folder / f"{prefix}-{window:012d}-0000.{ending}", dedups)
    (folder / "_staging").mkdir()
    (folder / f"00000000-{1:012d}-0000.{ending}").write_text("another job's")
    return file


def write(path: Path, dedups: list[dict[str, Any]]) -> None:
    """A published file of the error port."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"k": [None] * len(dedups), "_dedup": dedups}), path)
    elif path.suffix == ".json":
        path.write_text("".join(json.dumps({"_dedup": dedup}) + "\n" for dedup in dedups))
    else:
        with path.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["k", "_dedup"])
            rows.writerows(["", json.dumps(dedup)] for dedup in dedups)


def opened(file: Path) -> OpenStore:
    """The job's store."""
    return open_store(str(file))


def groups(report: ErrorsReport) -> list[tuple[str, str | None, int, int | None, int | None, str | None]]:
    """The groups as tuples."""
    return [(one.reason, one.detail, one.rows, one.first_window, one.last_window, one.place) for one in report.groups]


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_errors_are_grouped(tmp_path: Path, ending: str) -> None:
    """The largest first, with the windows and the place of the first; files of another job are none of it."""
    report = errors_report(opened(job(tmp_path, ending)), WindowRange())
    assert groups(report) == [
        ("null_key", NO_FIELD, 3, 0, 3, "in/a.json:5"),
        ("file_missing", "the file was listed, and is gone", 1, 2, 2, "in/c.json"),
        ("malformed", "the line is no object", 1, 0, 0, "in/a.json:7"),
        ("null_key", NULL, 1, 3, 3, "in/d.json:10"),
    ]
    assert (report.windows, report.rows, report.taken_rows) == (3, 6, 2)
    console = Console(width=120, file=io.StringIO())
    console.print(*render_errors(report), sep="\n")
    text = console.file.getvalue()
    for part in ("6 rows of 3 windows", "2 rows are not in the folder any more", NO_FIELD, "0–3", "in/a.json:5"):
        assert part in text
    assert "Zq7xW" not in text


@pytest.mark.parametrize(
    ("windows", "last", "found"),
    [
        (WindowRange(3, 3), None, 2),
        (WindowRange(0, 2), None, 4),
        (WindowRange(), 1, 2),
        (WindowRange(), 2, 4),
        (WindowRange(1, 1), None, 0),
    ],
)
def test_some_windows(tmp_path: Path, windows: WindowRange, last: int | None, found: int) -> None:
    """A range, the newest ones of the store, or one without errors."""
    store = opened(job(tmp_path, "json"))
    if last is not None:
        windows = windows.newest(last, store.log.state.next_window)
    report = errors_report(store, windows)
    assert (report.rows, report.taken_rows) == (found, None)


def test_some_reasons(tmp_path: Path) -> None:
    """Others are not counted, and nothing is said of those that a reader has taken."""
    report = errors_report(opened(job(tmp_path, "json")), WindowRange(), ["malformed"])
    assert [group.reason for group in report.groups] == ["malformed"]
    assert (report.rows, report.windows, report.taken_rows) == (1, 1, None)


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_files_of_earlier_releases_have_no_detail(tmp_path: Path, ending: str) -> None:
    """Their errors are grouped by reason."""
    report = errors_report(opened(job(tmp_path, ending, has_detail=False)), WindowRange())
    assert groups(report)[0] == ("null_key", None, 4, 0, 3, "in/a.json:5")


def test_without_files_the_log_has_the_reasons(tmp_path: Path) -> None:
    """With a port that is no folder, and with a store that was named without its config."""
    file = write_config(tmp_path)
    make_store(file, [Window(counts={"error": 2, "expired": 1}, reasons={"null_key": 2, "older_than_period": 1})] * 3)
    report = errors_report(opened(file), WindowRange(1, 2))
    assert groups(report) == [("null_key", None, 4, 1, 2, None)]
    assert "the error port is `none`" in report.origin
    assert "name the config" in errors_report(open_store(str(tmp_path / "state")), WindowRange()).origin


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """It is no output of the job any more."""
    file = job(tmp_path, "json")
    path = sorted((tmp_path / "out" / "error").glob("*-0000.json"))[-1]
    path.write_text("{}\n")
    with pytest.raises(IntegrityError, match=path.name):
        errors_report(opened(file), WindowRange())


@pytest.mark.parametrize(
    ("text", "windows"),
    [("7", WindowRange(7, 7)), ("7..9", WindowRange(7, 9)), ("7..", WindowRange(7)), ("..9", WindowRange(0, 9))],
)
def test_ranges_of_windows(text: str, windows: WindowRange) -> None:
    """Both ends count."""
    assert WindowRange.of(text) == windows


@pytest.mark.parametrize("text", ["", "..", "x", "9..7", "-1", "1-2"])
def test_what_names_no_windows(tmp_path: Path, text: str) -> None:
    """Is a mistake of usage."""
    result = CliRunner().invoke(app, ["errors", str(job(tmp_path, "json")), f"--window={text}"])
    assert result.exit_code == 2
    assert "names no windows" in result.output


def test_the_command(tmp_path: Path) -> None:
    """As JSON, for the newest window."""
    result = CliRunner().invoke(app, ["errors", str(job(tmp_path, "csv")), "--last", "1", "--json"])
    assert (result.exit_code, json.loads(result.output)["rows"]) == (0, 2)
