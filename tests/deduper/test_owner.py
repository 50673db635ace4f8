"""What a start does with what a dead, a sleeping or a moved owner left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bucket_store import durable
from bucket_store.backend import open_backend
from bucket_store.commit_log import CommitLog
from bucket_store.errors import FencedError
from bucket_store.log_values import OutputFile
from bucket_store.marks import Published, read_intents, read_published
from deduper import owner, staging, window_run
from deduper.checkpoint import ListedFile
from deduper.config import Config
from deduper.errors import IntegrityError, UsageError
from deduper.file_batch import FileBatch
from deduper.file_source import stat_files
from deduper.window_run import Batch, WindowRunner
from tests.bucket_store.log_samples import commit

PORTS = ("unique", "duplicate", "expired", "error")


def config_of(directory: Path) -> Config:
    """A job with four file ports."""
    sections: dict[str, Any] = {
        "name": "test",
        "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t long"},
        "key": "k",
        "expiry": {"by": "processing_time", "period": "1h", "span": "10m"},
        "store": {"url": "file:state", "shards": 2},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
    }
    return Config.model_validate(sections, context={"base_dir": directory})


def owned(config: Config) -> CommitLog:
    """The log of the job's store, with a new epoch claimed."""
    log = owner.open_or_create(config, 1_000)
    log.claim_epoch("test", 1_000)
    return log


def recover(config: Config, log: CommitLog) -> Path:
    """Steps d to f."""
    return owner.recover(config, log, open_backend(config.store.url))


def stage(config: Config, log: CommitLog, window: int = 0) -> OutputFile:
    """A staged file of the port `unique` and its name to be."""
    attempt = staging.Attempt(window, log.state.epoch, 0)
    path = config.sinks.unique.path / staging.STAGING / attempt.folder / "_port=unique" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rows")
    final = config.sinks.unique.path / staging.final_name(log.manifest.store_id, attempt, 0, "parquet")
    return OutputFile("unique", str(path), str(final), 4, 0, 1)


def committed(config: Config, log: CommitLog, window: int = 0) -> OutputFile:
    """A window that is committed and not published."""
    output = stage(config, log, window)
    log.place(commit(window, log.state.epoch, pieces=(), outputs=(output,), sources=None, extra={}))
    return output


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A job whose store is not there yet."""
    (tmp_path / "job").mkdir()
    return config_of(tmp_path / "job")


def test_a_start_that_slept_leaves_the_staging_of_a_later_owner_alone(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overtaken between its claim and its discarding: what the new owner has committed is still there to publish."""
    sleeper = owned(config)
    recover(config, sleeper)
    outputs: list[OutputFile] = []

    def overtaken(name: str) -> None:
        if name == "start.published":
            outputs.append(committed(config, owned(config)))

    monkeypatch.setattr(owner.failpoints, "hit", overtaken)
    recover(config, sleeper)
    monkeypatch.undo()
    recover(config, owned(config))
    assert Path(outputs[0].final).read_bytes() == b"rows"


def test_what_lower_epochs_staged_is_discarded(config: Config) -> None:
    """Nothing names it."""
    log = owned(config)
    left = stage(config, log, window=3)
    recover(config, owned(config))
    assert not Path(left.staged).parent.parent.exists()


def test_a_job_that_was_moved_publishes_from_its_new_place(tmp_path: Path, config: Config) -> None:
    """The record holds the paths of before; the rows lie beside the store of today."""
    output = committed(config, owned(config))
    (tmp_path / "job").rename(tmp_path / "moved")
    moved = config_of(tmp_path / "moved")
    recover(moved, owned(moved))
    assert (tmp_path / "moved" / "out" / "unique" / Path(output.final).name).read_bytes() == b"rows"


def test_a_port_belongs_to_its_store_before_any_window(tmp_path: Path, config: Config) -> None:
    """Two new jobs with one port: the second is refused, not only when the first has published."""
    log = owned(config)
    recover(config, log)
    for port in PORTS:
        mark = read_published(tmp_path / "job" / "out" / port / staging.PUBLISHED)
        assert mark is not None
        assert (mark.store_id, mark.window) == (log.manifest.store_id, -1)
    other = config.model_copy(update={"store": config.store.model_copy(update={"url": f"file:{tmp_path / 'other'}"})})
    with pytest.raises(UsageError, match="outputs of another store"):
        recover(other, owned(other))


def test_publishing_again_makes_the_names_durable(config: Config) -> None:
    """Whoever renamed a file may have died before the sync; after it the record may forget the output."""
    output = committed(config, owned(config))
    Path(output.staged).rename(output.final)
    synced: list[Path] = []

    class Syncing(durable.LocalFileSystem):
        def fsync_dir(self, path: Path) -> None:
            synced.append(path)

    assert staging.publish([output], fs=Syncing()) == []
    assert {Path(output.final).parent, Path(output.staged).parent} <= set(synced)


@pytest.mark.parametrize("moment", ["before the check", "before the rename"])
def test_two_owners_may_publish_the_same_window_at_once(config: Config, moment: str) -> None:
    """An owner that is being taken over renames a file under the eyes of the new one: no error, and the file is out."""
    output = committed(config, owned(config))

    class Raced(durable.LocalFileSystem):
        def move(self) -> None:
            if super().exists(Path(output.staged)):
                super().replace(Path(output.staged), Path(output.final))

        def exists(self, path: Path) -> bool:
            before = super().exists(path)
            if moment == "before the check":
                self.move()
            return before

        def replace(self, source: Path, target: Path) -> None:
            self.move()
            super().replace(source, target)

    assert staging.publish([output], fs=Raced()) == []
    assert Path(output.final).read_bytes() == b"rows"


def test_a_stranger_under_a_final_name_is_never_overwritten(config: Config) -> None:
    """The start stops, both files stay."""
    output = committed(config, owned(config))
    Path(output.final).write_bytes(b"mine")
    with pytest.raises(IntegrityError, match="taken by another file"):
        recover(config, owned(config))
    assert (Path(output.final).read_bytes(), Path(output.staged).read_bytes()) == (b"mine", b"rows")


def test_a_port_whose_directory_is_gone_is_no_published_one(config: Config) -> None:
    """Renaming fails for want of a directory, not of the staged file: the window stays unpublished."""
    output = committed(config, owned(config))
    lost = OutputFile(output.port, output.staged, str(Path(output.final).parent / "gone" / "x.parquet"), 4, 0, 1)
    with pytest.raises(FileNotFoundError):
        staging.publish([lost])


def test_whatever_breaks_after_a_take_over_is_told_as_that(config: Config) -> None:
    """The new owner discards what the old one stages; the old one must end with exit code 5, not 1."""
    log = owned(config)
    broken = OSError("staged file gone")
    assert owner.reason_to_stop(log, broken) is broken
    owned(config)
    assert isinstance(owner.reason_to_stop(log, broken), FencedError)


def test_a_fenced_start_leaves_the_checkpoint_where_it_is(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch has its own: a start that slept gets an empty one, and takes nothing from a later owner."""
    first = owned(config)
    checkpoint = recover(config, first)
    checkpoint.mkdir()
    (checkpoint / "offsets").write_text("kept")
    taken: list[Path] = []

    def overtaken(name: str) -> None:
        if name == "start.discarded":
            monkeypatch.undo()
            taken.append(recover(config, owned(config)))

    sleeper = owned(config)
    monkeypatch.setattr(owner.failpoints, "hit", overtaken)
    assert not recover(config, sleeper).exists()
    assert [(path.name, (path / "offsets").read_text()) for path in taken] == [("000003", "kept")]
    assert [path.name for path in config.checkpoint_path.iterdir()] == ["000003"]


def test_what_an_old_owner_writes_into_its_checkpoint_is_seen_by_nobody(config: Config) -> None:
    """It may be at work when another takes over: Spark makes the directory anew, and a later start removes it."""
    checkpoint = recover(config, owned(config))
    checkpoint.mkdir()
    (checkpoint / "offsets").write_text("kept")
    recover(config, owned(config))
    checkpoint.mkdir()
    newest = recover(config, owned(config))
    assert [path.name for path in config.checkpoint_path.iterdir()] == [newest.name] == ["000003"]
    assert (newest / "offsets").read_text() == "kept"


@pytest.mark.parametrize("point", ["window.6.checked", "window.6.half"])
def test_who_wakes_before_a_mark_sets_it_back_nowhere(
    config: Config, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Overtaken after it looked at the claims: the marks stay the new owner's."""
    log = owned(config)
    recover(config, log)
    output = committed(config, log)

    def overtaken(name: str) -> None:
        if name == point:
            monkeypatch.undo()
            newer = owned(config)
            committed(config, newer, window=1)
            recover(config, newer)

    monkeypatch.setattr(window_run.failpoints, "hit", overtaken)
    with pytest.raises(FileNotFoundError):
        window_run.publish_window(config, log, 0, [output])
    assert isinstance(owner.reason_to_stop(log, OSError()), FencedError)
    marks = [read_published(path) for path in window_run.mark_paths(config, log)]
    assert marks == [Published(log.manifest.store_id, 1)] * 5
    assert not list(config.store.path.parent.rglob("*.tmp"))


def runner(config: Config, log: CommitLog, clock: Callable[[], int]) -> WindowRunner:
    """A runner that will not judge."""
    nobody: Any = None
    return WindowRunner(config, log, open_backend(config.store.url), nobody, clock)


def test_a_batch_that_is_repeated_keeps_its_wall_clock(config: Config, tmp_path: Path) -> None:
    """However many claims came in between; another batch takes the time of now."""
    listed = (ListedFile(f"file://{tmp_path}/a", 1), ListedFile(f"file://{tmp_path}/b", 2))

    def intent_of(files: tuple[ListedFile, ...], now: int) -> int:
        log = owner.open_or_create(config, now)
        log.claim_epoch("test", now)
        batch = Batch("query", 0, FileBatch(config.source, tuple(stat_files(files))))
        return runner(config, log, lambda: now)._intend(batch, log.state).wall_us

    assert intent_of(listed, 5_000) == 5_000
    assert intent_of(listed, 9_000) == 5_000
    assert intent_of(listed, 9_500) == 5_000
    assert intent_of(listed[:1], 9_900) == 9_900
    assert [intent.wall_us for intent in read_intents(config.store.path)][-1] == 9_900
