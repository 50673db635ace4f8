"""The quickstart around the job: what it makes and says, and that it says the truth. The job is a stand-in."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord
from bucket_store.places.local import local_place
from deduper.cli.quickstart import CONFIG_TEXT, quickstart
from deduper.cli.weblog import WeblogSummary, read_weblog
from deduper.config.load import load_config
from deduper.config.model import Config
from deduper.errors import CheckFailedError, UsageError
from deduper.window.progress import BatchProgress, RunSummary

pytestmark = pytest.mark.slow


@dataclass
class StandIn:
    """Commits the counts the log must give, one window for each half of them, and only once, as the job would."""

    wrong_by: int = 0
    stopped_by: str = "drained"
    configs: list[Config] = field(default_factory=list)

    def __call__(
        self,
        config: Config,
        *,
        once: bool,
        max_windows: int | None = None,
        take_over: bool = False,
        on_progress: Callable[[BatchProgress], None],
    ) -> RunSummary:
        assert (once, max_windows, take_over) == (True, None, False)
        self.configs.append(config)
        try:
            CommitLog.open(local_place(config.store.path))
        except StoreMissingError:
            return self._commit(config, on_progress)
        return RunSummary(0, 0, 0, 0, 0, 0.1, self.stopped_by)

    def _commit(self, config: Config, on_progress: Callable[[BatchProgress], None]) -> RunSummary:
        log = CommitLog.create(local_place(config.store.path), {}, wall_us=1)
        epoch = log.claim_epoch("stand-in", 1)
        known = read_weblog(Path(config.source.path))
        assert known is not None
        duplicates, expired = known.counts["duplicate"], known.counts["expired"]
        reasons = {**known.error_reasons, "same_window": duplicates, "older_than_period": expired}
        for window, share in enumerate((lambda n: n // 2, lambda n: n - n // 2)):
            counts = {port: share(rows) for port, rows in known.counts.items()}
            counts["unique"] += self.wrong_by * window
            record = CommitRecord(
                window,
                epoch,
                0,
                "query",
                window,
                1_700_000_000_000_000 + window,
                "settings",
                1_741_000_000_000_000,
                1,
                counts,
                {reason: share(rows) for reason, rows in reasons.items()},
                (),
                (),
                (),
                None,
                None,
                {},
            )
            log.place(record)
            rows = sum(counts.values())
            on_progress(BatchProgress(window, window, rows, **counts, seconds=2.0, rows_per_second=rows / 2))
        return RunSummary(2, **known.counts, seconds=9.5, stopped_by=self.stopped_by)


def go(directory: Path, run: StandIn, *, records: int = 2_000, seed: int = 3) -> str:
    """What a quickstart prints; one run's output, as wide as it likes."""
    out = io.StringIO()
    console = Console(file=out, width=160)
    quickstart(directory, records=records, seed=seed, console=console, run=run)
    return out.getvalue()


def test_the_bar_says_what_is_waited_for(tmp_path: Path) -> None:
    """The first window comes when Spark has started, which may take a minute."""
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    quickstart(tmp_path / "demo", records=2_000, seed=3, console=console, run=StandIn())
    assert 0 < out.getvalue().find("Starting Spark") < out.getvalue().find("Judging")


def log_of(directory: Path) -> WeblogSummary:
    known = read_weblog(directory / "in")
    assert known is not None
    return known


def test_it_shows_what_came_out_beside_what_must(tmp_path: Path) -> None:
    """Rows, shares, reasons, rate and places."""
    demo = tmp_path / "demo"
    text = go(demo, StandIn())
    log = log_of(demo)
    for port, rows in log.counts.items():
        assert _line(text, port).split()[:2] == [port, f"{rows:,}"]
        assert _line(text, port).endswith("as expected")
    assert "2,000 rows judged in 2 windows, 500 rows/s; 9.5 s with the start of Spark." in text
    assert "older_than_period" in text
    assert "differs" not in text
    assert not list(demo.glob(".*"))


def test_the_config_is_good_and_relative(tmp_path: Path) -> None:
    """The written config loads, keeps everything below its own folder, and holds the rules the counts are made for."""
    run = StandIn()
    go(tmp_path / "demo", run)
    (config,) = run.configs
    assert config == load_config(tmp_path / "demo" / "deduper.yaml", environment={})
    assert config.key == ("user", "id")
    assert (config.expiry.by, config.lookup, config.clock) == ("event_time", "own_bucket", "arrival")
    assert config.period_steps == 86_400_000_000
    paths = [config.store.path, config.source.folder, *(sink.path for _, sink in config.sinks.items())]  # type: ignore[union-attr]
    assert all(path.is_relative_to(tmp_path / "demo") for path in paths)
    assert len(set(paths)) == 6


def test_a_second_run_says_that_nothing_is_new(tmp_path: Path) -> None:
    """The same command again keeps log and config, counts nothing twice, and says so."""
    demo = tmp_path / "demo"
    run = StandIn()
    go(demo, run)
    text = go(demo, run)
    assert "Nothing new: 2 windows already committed, and nothing was added twice." in text
    assert _line(text, "all").split()[:2] == ["all", "2,000"]
    assert _line(text, "all").endswith("as expected")


def test_a_wrong_count_fails_and_is_shown(tmp_path: Path) -> None:
    """Rows that should not be there: the table says how many, and the command fails a check."""
    out = io.StringIO()
    with pytest.raises(CheckFailedError, match="differs from the expected one"):
        quickstart(tmp_path, records=1_000, seed=1, console=Console(file=out, width=160), run=StandIn(wrong_by=7))
    assert _line(out.getvalue(), "unique").endswith("differs by +7")


def test_what_a_user_changed_is_not_judged(tmp_path: Path) -> None:
    """With an edited config, or files of the user's own, there is no expectation, and the reason is given."""
    run = StandIn(wrong_by=7)
    with pytest.raises(CheckFailedError):
        go(tmp_path, run)
    (tmp_path / "in" / "mine.jsonl").write_text("{}\n")
    text = go(tmp_path, run)
    assert "files of your own (mine.jsonl)" in text
    assert "expected" not in _line(text, "unique")
    (tmp_path / "in" / "mine.jsonl").unlink()
    config = tmp_path / "deduper.yaml"
    config.write_text(CONFIG_TEXT + "# mine\n")
    assert "The config was edited" in go(tmp_path, run)
    assert config.read_text().endswith("# mine\n")


def test_the_environment_of_a_real_job_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store named in the environment gets no keys of a demo."""
    monkeypatch.setenv("DEDUPER__STORE__URL", f"file:{tmp_path / 'precious'}")
    run = StandIn()
    go(tmp_path / "demo", run)
    assert run.configs[0].store.path == tmp_path / "demo" / "state" / "weblog"
    assert not (tmp_path / "precious").exists()


def test_a_stopped_run_is_no_result(tmp_path: Path) -> None:
    """Stopped by a signal: it says how to go on, and compares nothing."""
    text = go(tmp_path, StandIn(stopped_by="signal"))
    assert "continues from the last committed window" in text
    assert "expected" not in text


def test_commands_to_try_name_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are short when typed from here, and name the config, a real key and the last file of the log."""
    monkeypatch.chdir(tmp_path)
    text = go(Path("my demo"), StandIn())
    log = log_of(Path("my demo"))
    assert "deduper status 'my demo/deduper.yaml'" in text
    assert " ".join(map(str, log.sample)) in text
    assert f"cp 'my demo/in/{max(log.files)}' 'my demo/in/again-{max(log.files)}'" in text


def test_wrong_arguments_end_before_the_job(tmp_path: Path) -> None:
    """Too few records, or a directory with another log: a usage error, and the job never starts."""
    run = StandIn()
    with pytest.raises(UsageError, match="at least 100 records"):
        go(tmp_path / "few", run, records=5)
    go(tmp_path / "demo", run)
    with pytest.raises(UsageError, match="holds another log"):
        go(tmp_path / "demo", run, seed=4)
    assert len(run.configs) == 1


def _line(text: str, start: str) -> str:
    """The first line of a table that begins with this cell."""
    return next(line.strip() for line in text.splitlines() if line.split()[:1] == [start])
