"""What a running job tells, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deduper.cli.main import app
from deduper.window.progress import (
    BatchProgress,
    ErrorGroup,
    RemainingInput,
    RunSummary,
    expired_note,
    json_line,
    nothing_note,
    phases_line,
    progress_line,
    summary_line,
)
from tests.deduper.store_samples import write_config

PROGRESS = BatchProgress(
    window=12,
    batch_id=3,
    rows=1_234_567,
    unique=1_000_000,
    duplicate=234_000,
    expired=560,
    error=7,
    seconds=3.14159,
    rows_per_second=392_974.3,
    latest_point="2024-12-31T00:00:00Z",
    phases={"intent": 0.00123, "judge": 2.5},
    tables={"hits": 3, "load_seconds": 0.12345},
    errors=(ErrorGroup("null_key", "user: null", 7),),
    causes=("they lack `user`",),
)
SUMMARY = RunSummary(windows=1, unique=10, duplicate=5, expired=1, error=0, seconds=75.04, stopped_by="max_windows")


def test_a_window_is_one_line() -> None:
    """Its numbers, aligned with those of other windows."""
    assert progress_line(PROGRESS) == (
        "window   12  1,234,567 rows  unique 1,000,000  duplicate   234,000  expired   560  error    7  "
        "3.1 s, 392,974 rows/s, latest 2024-12-31T00:00:00Z"
    )
    assert phases_line(PROGRESS) == "intent 0.00s  judge 2.50s"


def test_a_window_is_one_json_object_with_stable_keys() -> None:
    """Told apart from the summary by its event."""
    assert json.loads(json_line(PROGRESS.to_json())) == {
        "event": "window",
        "window": 12,
        "batch_id": 3,
        "rows": 1_234_567,
        "unique": 1_000_000,
        "duplicate": 234_000,
        "expired": 560,
        "error": 7,
        "seconds": 3.142,
        "rows_per_second": 392_974.3,
        "latest_point": "2024-12-31T00:00:00Z",
        "phases": {"intent": 0.0012, "judge": 2.5},
        "tables": {"hits": 3, "load_seconds": 0.1235},
        "errors": [{"reason": "null_key", "detail": "user: null", "rows": 7}],
        "causes": ["they lack `user`"],
        "expired_cause": None,
        "left": None,
    }
    left = replace(PROGRESS, left=RemainingInput(7, "file", 3.5)).to_json()["left"]
    assert left == {"count": 7, "noun": "file", "seconds": 3.5}


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (RemainingInput(0, "file", 0.0), "0 files left"),
        (RemainingInput(1, "file", 0.2), "1 file left, 1 s"),
        (RemainingInput(24, "file", 99.4), "24 files left, 99 s"),
        (RemainingInput(12_345, "offset", 700.0), "12,345 offsets left, 12 min"),
        (RemainingInput(5, "offset", 100_000.0), "5 offsets left, 28 h"),
        (RemainingInput(5, "offset"), "5 offsets left"),
    ],
)
def test_what_is_left_and_the_time_to_go(left: RemainingInput, text: str) -> None:
    """At the end of a window's line."""
    assert str(left) == text
    assert progress_line(replace(PROGRESS, left=left)).endswith(f"latest 2024-12-31T00:00:00Z, {text}")


def test_a_run_is_summed_up() -> None:
    """On one line, and as one object; many errors add a line."""
    assert summary_line(SUMMARY) == (
        "1 window, 16 rows in 75.0 s: 10 unique, 5 duplicate, 1 expired, 0 error; window limit reached"
    )
    assert SUMMARY.to_json() == {
        "event": "summary",
        "rows": 16,
        "windows": 1,
        "unique": 10,
        "duplicate": 5,
        "expired": 1,
        "error": 0,
        "seconds": 75.04,
        "stopped_by": "max_windows",
        "error_note": None,
        "expired_note": None,
        "nothing_note": None,
    }
    noted = replace(SUMMARY, error_note="90% of 16 rows are errors", expired_note=expired_note(3, 10, "the clock"))
    late = "30% of 10 rows are expired. Likely cause: the clock. See `deduper status --over-time`"
    assert summary_line(noted).splitlines() == [summary_line(SUMMARY), "90% of 16 rows are errors", late]
    assert noted.to_json()["error_note"] == "90% of 16 rows are errors"


def test_a_run_without_a_window_says_what_was_judged_before() -> None:
    """And how to begin again."""
    assert nothing_note(0, 0, "in/") == "nothing is in in/ yet"
    assert nothing_note(3, 1200, "in/").startswith(
        "nothing in in/ is new: 3 windows with 1,200 rows were judged before"
    )


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_run_prints_every_window_and_the_summary(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without colours or animation when standard output is no terminal; the flags reach the job."""
    from deduper.service import job

    calls = []

    def fake_run(config, *, once, max_windows, take_over, unpublished, on_progress):  # type: ignore[no-untyped-def]
        calls.append((config.name, config.store.shards, once, max_windows, take_over))
        on_progress(PROGRESS)
        return SUMMARY

    monkeypatch.setattr(job, "run", fake_run)
    arguments = ["run", str(write_config(tmp_path)), "--once", "--max-windows", "2", "--set", "store.shards=8"]
    result = CliRunner().invoke(app, [*arguments, "--take-over", *(["--json"] if as_json else [])])
    assert (result.exit_code, calls) == (0, [("clicks", 8, True, 2, True)])
    if as_json:
        assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == ["window", "summary"]
    else:
        assert result.stdout.splitlines() == [progress_line(PROGRESS), summary_line(SUMMARY)]
