"""The command `replay`: what it refuses, what it shows, and how it goes on as a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bucket_store.log.profile import Profiles, WindowProfile
from bucket_store.places.local import local_place
from deduper.cli.main import app
from deduper.replay.run import ReplayReport

CONFIG = """\
name: clicks
source: {format: files, path: in, file_format: json, schema: "id string, ts timestamp"}
key: id
expiry: {by: event_time, field: ts, period: 24h}
store: {url: "file:state"}
sinks:
  unique: {format: parquet, path: out/unique}
  duplicate: {format: none}
  expired: {format: none}
  error: {format: json, path: out/error}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A job with one file."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": "1", "ts": "2024-01-06T00:00:00Z"}\n' * 3)
    (tmp_path / "clicks.yaml").write_text(CONFIG)
    return tmp_path / "clicks.yaml"


def command(*words: object) -> Any:
    """One run."""
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def test_without_execute_it_shows_the_plan(config: Path) -> None:
    """Files, records, cost and every place that will be written; nothing is made."""
    shown = command(config)
    assert shown.exit_code == 0, shown.output
    for text in (
        "by time",
        "1 file",
        "about 3",
        "2024-01-06T00:00:00Z",
        "clicks-replay/store",
        "repeat with --execute",
    ):
        assert text in " ".join(shown.output.split())
    planned = json.loads(command(config, "--json").stdout)
    assert planned["estimate"]["records"] == 3
    assert planned["outputs"]["duplicate"] == "none"
    assert not (config.parent / "clicks-replay").exists()


def test_the_time_of_a_plan_names_its_rate(config: Path) -> None:
    """That of the job's own large windows, if it has some; small ones cost more a record, and do not count."""
    (shown,) = [line for line in command(config).output.splitlines() if line.startswith("time")]
    assert "of one core" in shown
    store = local_place(config.parent / "state")
    store.make_directories()
    profiles = Profiles(store)
    for window, rows in enumerate((10, 200_000, 100_000)):
        profiles.add(WindowProfile(window, 1, 0, rows, 2.0, {}))
    profiles.write()
    rated = " ".join(command(config).output.split())
    assert "about 1 s at 75,000 records/s, as in the last windows of" in rated
    assert "of one core" not in rated


def test_a_comparison_shows_both_plans(config: Path) -> None:
    """Two stores and four ports of files each."""
    planned = json.loads(command(config, "--compare", config, "--json").stdout)
    assert planned["here"]["store"].endswith("clicks-compare/here/store")
    assert planned["there"]["outputs"]["duplicate"].endswith("clicks-compare/there/duplicate")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--in-place", "--out", "x"], "leave out --out"),
        (["--then-follow"], "add --in-place"),
        (["--in-place", "--to", "2024-01-07T00:00:00Z"], "takes the whole source"),
        (["--from", "never"], "--from: column ts"),
        (["--compare", "clicks.yaml", "--order", "arrival"], "--order time"),
    ],
)
def test_options_that_do_not_go_together(
    words: list[str], message: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and what to write."""
    monkeypatch.chdir(config.parent)
    refused = command(config, *words)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.split())


@pytest.mark.parametrize("is_over", [True, False])
def test_it_goes_on_as_the_job_when_it_is_over(is_over: bool, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--then-follow`: the same process becomes `run`, with the same overrides; not after an interruption."""
    report = ReplayReport("time", "file:state", {}, "out", is_executed=True, is_over=is_over)
    begun: list[list[str]] = []
    monkeypatch.setattr("deduper.replay.run.replay", lambda *_, **__: report)
    monkeypatch.setattr("os.execv", lambda _, words: begun.append(words[1:]))
    words = ["--in-place", "--then-follow", "--execute", "--set", "store.shards=2"]
    assert command(config, *words).exit_code == 0
    assert begun == ([["-m", "deduper", "run", str(config), "--set", "store.shards=2"]] if is_over else [])
