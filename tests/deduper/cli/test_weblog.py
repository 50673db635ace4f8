"""The web log: the same bytes each time, and exactly what its summary says, counted a second time in another way."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deduper.cli.weblog import MANIFEST, WeblogError, WeblogSummary, read_weblog, write_weblog

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.glob("access-*")}


def in_arrival_order(directory: Path) -> list[Path]:
    return sorted(directory.glob("access-*"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def judge(directory: Path, files_per_batch: int) -> tuple[Counter[str], Counter[str]]:
    """The verdicts, and the reasons of the errors, by the plain rules: one line after the other, one clock a file."""
    verdicts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    seen: set[tuple[str, int]] = set()
    committed: datetime | None = None
    files = in_arrival_order(directory)
    for start in range(0, len(files), files_per_batch):
        clocks = []
        for path in files[start : start + files_per_batch]:
            latest = committed
            for line in path.read_bytes().split(b"\n")[:-1]:
                try:
                    text = line.decode()
                except UnicodeDecodeError:
                    reasons["invalid_utf8"] += 1
                    continue
                try:
                    record = json.loads(text)
                    user, number, moment = record.get("user"), record.get("id"), datetime.fromisoformat(record["ts"])
                    if not isinstance(number, int | None) or not isinstance(record["bytes"], int):
                        raise ValueError
                except ValueError:
                    reasons["malformed"] += 1
                    continue
                if user is None or number is None:
                    reasons["null_key"] += 1
                elif moment > NOW + timedelta(hours=1):
                    reasons["ahead_of_now"] += 1
                elif latest is not None and moment <= latest - timedelta(hours=24):
                    verdicts["expired"] += 1
                else:
                    verdicts["duplicate" if (user, number) in seen else "unique"] += 1
                    seen.add((user, number))
                    latest = moment if latest is None else max(latest, moment)
            clocks.append(latest)
        committed = max(clock for clock in [committed, *clocks] if clock is not None)
    verdicts["error"] = reasons.total()
    return verdicts, reasons


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WeblogSummary]:
    directory = tmp_path_factory.mktemp("weblog") / "in"
    return directory, write_weblog(directory, records=40_000, days=3, seed=7)


def test_same_arguments_same_bytes(tmp_path: Path) -> None:
    """Two logs of one seed are equal in names, bytes and times; another seed gives another log."""
    first = write_weblog(tmp_path / "a", records=3_000, days=2, seed=5)
    second = write_weblog(tmp_path / "b", records=3_000, days=2, seed=5)
    write_weblog(tmp_path / "c", records=3_000, days=2, seed=6)
    assert first == second
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("files_per_batch", [1, 4, 7, 1000])
def test_counts_are_as_promised(log: tuple[Path, WeblogSummary], files_per_batch: int) -> None:
    """The four ports get what the summary says, however many files make a batch."""
    directory, summary = log
    verdicts, reasons = judge(directory, files_per_batch)
    assert dict(verdicts) == summary.counts
    assert reasons == summary.error_reasons


@pytest.mark.parametrize(("records", "days", "seed"), [(100, 1, 0), (101, 1, 1), (1_000, 1, 2), (5_000, 9, 3)])
def test_counts_of_small_logs(tmp_path: Path, records: int, days: int, seed: int) -> None:
    """Also a log of one day, or of a hundred lines, is what its summary says."""
    summary = write_weblog(tmp_path / "in", records=records, days=days, seed=seed)
    assert dict(judge(tmp_path / "in", 2)[0]) == {name: n for name, n in summary.counts.items() if n or name == "error"}
    assert sum(summary.counts.values()) == records


def test_the_log_has_everything_in_it(log: tuple[Path, WeblogSummary]) -> None:
    """A quarter repeats; expired, malformed, null keys, and exactly one poisoned line."""
    directory, summary = log
    assert 9_000 < summary.counts["duplicate"] < 10_000
    assert min(summary.counts.values()) > 0
    assert min(summary.error_reasons.values()) == summary.error_reasons["ahead_of_now"] == 1
    assert sum(summary.counts.values()) == 40_000
    assert summary.files == {path.name: path.stat().st_size for path in directory.glob("access-*")}
    lines = b"".join(path.read_bytes() for path in in_arrival_order(directory))
    assert lines.count(b"2099-01-01") == 1
    assert lines.count(b"\n") == 40_000
    assert b"\n\n" in lines


def test_the_sample_key_is_a_duplicate(log: tuple[Path, WeblogSummary]) -> None:
    """The key offered for a look-up occurs more than once, within 24 h of the end."""
    directory, summary = log
    key = '{{"user":"{}","id":{},'.format(*summary.sample).encode()
    lines = [line for path in directory.glob("access-*") for line in path.read_bytes().splitlines() if key in line]
    assert len(lines) > 1
    times = {json.loads(line)["ts"] for line in lines}
    assert len(times) == 1
    assert datetime(2025, 3, 6, tzinfo=UTC) - datetime.fromisoformat(times.pop()) < timedelta(hours=24)


def test_files_come_in_order_of_arrival(log: tuple[Path, WeblogSummary]) -> None:
    """By modification time is by name, about one file an hour, all in the days of the log."""
    directory, summary = log
    assert [path.name for path in in_arrival_order(directory)] == sorted(summary.files)
    assert len(summary.files) == 72
    times = [path.stat().st_mtime for path in in_arrival_order(directory)]
    start = datetime(2025, 3, 3, tzinfo=UTC).timestamp()
    assert start < times[0]
    assert times[-1] <= start + 3 * 86_400


def test_a_whole_log_is_found_again(tmp_path: Path) -> None:
    """A second call changes nothing, and keeps a file that a user has added."""
    first = write_weblog(tmp_path / "in", records=2_000, days=1, seed=1)
    (tmp_path / "in" / "mine.jsonl").write_text("{}\n")
    before = {path.name: path.stat().st_ino for path in (tmp_path / "in").iterdir()}
    assert write_weblog(tmp_path / "in", records=2_000, days=1, seed=1) == first
    assert {path.name: path.stat().st_ino for path in (tmp_path / "in").iterdir()} == before


@pytest.mark.parametrize("harm", ["missing", "short", "killed while writing", "torn summary"])
def test_a_half_written_log_is_rebuilt(tmp_path: Path, harm: str) -> None:
    """A file missing or cut short, or no good summary: the next call gives the whole log, and nothing beside it."""
    directory = tmp_path / "in"
    write_weblog(directory, records=2_000, days=1, seed=1)
    whole = contents(directory)
    if harm == "missing":
        (directory / "access-0001.jsonl").unlink()
    elif harm == "short":
        os.truncate(directory / "access-0001.jsonl", 10)
    elif harm == "killed while writing":
        (directory / MANIFEST).write_bytes(b"")
        (directory / "access-0099.jsonl").write_text("of a log that was never whole")
    else:
        os.truncate(directory / MANIFEST, 100)
        assert read_weblog(directory) is None
    write_weblog(directory, records=2_000, days=1, seed=1)
    assert contents(directory) == whole


def test_another_log_is_refused(tmp_path: Path) -> None:
    """A log of other arguments, and files of others, are not written over; the message says what lies there."""
    write_weblog(tmp_path / "in", records=500, days=1, seed=1)
    with pytest.raises(WeblogError, match="seed 1"):
        write_weblog(tmp_path / "in", records=500, days=1, seed=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("mine")
    with pytest.raises(WeblogError, match=r"precious\.txt"):
        write_weblog(tmp_path / "other", records=500, days=1, seed=1)


@pytest.mark.parametrize("wrong", [{"records": 99}, {"days": 0}])
def test_wrong_arguments_are_named(tmp_path: Path, wrong: dict[str, int]) -> None:
    """Too few lines, no days: refused before anything is written."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        write_weblog(tmp_path / "in", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "in").exists()
