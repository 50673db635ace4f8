"""What a start does with what a dead, a sleeping or a moved owner left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bucket_store import filesystem
from bucket_store.errors import FencedError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Published, prepare_published, read_intents, read_published
from bucket_store.log.records import DeletionRecord, LogState, OutputFile
from bucket_store.log.state import fold_all
from bucket_store.log.wall_clock import TOLERANCE_US
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import Entries, PieceRef
from bucket_store.pieces.store import append_piece
from bucket_store.places.local import LocalNames, local_place
from deduper.config.model import Config
from deduper.errors import CheckFailedError, IntegrityError, UsageError
from deduper.sinks import names, staging
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.window import policy, publishing, recovery
from deduper.window.present_clock import present_wall_us
from deduper.window.runner import WindowInput, WindowRunner
from tests.bucket_store.log_samples import commit
from tests.bucket_store.maintenance.in_process import InProcess
from tests.deduper.unread import UNREAD

NOW_US = 1_735_603_200_000_000  # 2024-12-31
FAR_US = 4_070_908_800_000_000  # 2099-01-01
HOUR_US = 3_600_000_000
PORTS = ("unique", "duplicate", "expired", "error")


FILES = {"format": "files", "path": "in", "file_format": "json", "schema": "k string, t long"}
TOPICS = {
    "format": "kafka",
    "bootstrap_servers": "localhost:9092",
    "topics": ["clicks"],
    "value": {"format": "json", "schema": "k string, t long"},
}


def config_of(directory: Path, source: dict[str, Any] = FILES) -> Config:
    """A job with four file ports."""
    sections: dict[str, Any] = {
        "name": "test",
        "source": source,
        "key": "k",
        "expiry": {"by": "processing_time", "period": "1h", "span": "10m"},
        "store": {"url": "file:state", "shards": 2},
        "sinks": {port: {"format": "parquet", "path": f"out/{port}"} for port in PORTS},
    }
    return Config.model_validate(sections, context={"base_dir": directory})


def owned(config: Config) -> CommitLog:
    """The log of the job's store, with a new epoch claimed."""
    log = recovery.open_or_create(config, 1_000)
    log.claim_epoch("test", 1_000)
    return log


def recover(config: Config, log: CommitLog) -> None:
    """Steps d to f."""
    recovery.recover(config, recovery.Ownership(log, open_backend(config.store.url)))


def stage(config: Config, log: CommitLog, window: int = 0) -> OutputFile:
    """A staged file of the port `unique` and its name to be."""
    attempt = names.Attempt(window, log.state.epoch, 0)
    path = config.sinks.unique.path / names.STAGING / attempt.folder / "_port=unique" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rows")
    final = config.sinks.unique.path / names.final_name(log.manifest.store_id, attempt, 0, "parquet")
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

    monkeypatch.setattr(recovery.failpoints, "hit", overtaken)
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


def test_a_job_that_was_moved_without_its_staged_rows_is_refused(tmp_path: Path, config: Config) -> None:
    """They are not taken for rows that a reader has: once the folder is back, they are published."""
    output = committed(config, owned(config))
    (tmp_path / "job").rename(tmp_path / "moved")
    moved = config_of(tmp_path / "moved")
    staged = next((tmp_path / "moved").rglob(names.STAGING))
    staged.rename(tmp_path / "kept")
    for _ in range(2):
        with pytest.raises(IntegrityError, match="committed and not published"):
            recover(moved, owned(moved))
    shutil.rmtree(staged, ignore_errors=True)
    (tmp_path / "kept").rename(staged)
    recover(moved, owned(moved))
    assert (tmp_path / "moved" / "out" / "unique" / Path(output.final).name).read_bytes() == b"rows"


@pytest.mark.parametrize("is_published", [False, True], ids=["original waits", "original published"])
def test_a_copied_job_publishes_its_own_rows(tmp_path: Path, config: Config, is_published: bool) -> None:
    """Copied between record and publishing: each of the two publishes from its folder to its folder."""
    output = committed(config, owned(config))
    shutil.copytree(tmp_path / "job", tmp_path / "copy")
    if is_published:
        recover(config, owned(config))
    copy = config_of(tmp_path / "copy")
    name = Path(output.final).name
    for _ in range(2):
        recover(copy, owned(copy))
        assert (copy.sinks.unique.path / name).read_bytes() == b"rows"
        assert Path(output.final).exists() == is_published
        assert Path(output.staged).exists() != is_published
        # Marks are not synced: after a power cut the window is published once more.
        (copy.store.path / "published").unlink()
    recover(config, owned(config))
    assert Path(output.final).read_bytes() == b"rows"


def test_a_store_that_was_put_back_without_its_outputs_is_refused(tmp_path: Path, config: Config) -> None:
    """A port that holds a window which the store will judge next, or a later one: its name is taken already."""
    committed(config, owned(config))
    shutil.copytree(tmp_path / "job", tmp_path / "backup")
    for windows in (1, 2):
        committed(config, owned(config), window=windows)
        recover(config, owned(config))
        older = tmp_path / f"older-{windows}"
        shutil.copytree(tmp_path / "job", older)
        shutil.rmtree(older / "state")
        shutil.copytree(tmp_path / "backup" / "state", older / "state")
        put_back = config_of(older)
        with pytest.raises(IntegrityError, match=rf"windows up to {windows}, the store only those below 1"):
            recover(put_back, owned(put_back))


def test_a_port_belongs_to_its_store_before_any_window(tmp_path: Path, config: Config) -> None:
    """Two new jobs with one port: the second is refused, not only when the first has published."""
    log = owned(config)
    recover(config, log)
    for port in PORTS:
        mark = read_published(local_place(tmp_path / "job" / "out" / port / names.PUBLISHED))
        assert mark is not None
        assert (mark.store_id, mark.window) == (log.manifest.store_id, -1)
    other = config.model_copy(update={"store": config.store.model_copy(update={"url": f"file:{tmp_path / 'other'}"})})
    with pytest.raises(UsageError, match="outputs of another store"):
        recover(other, owned(other))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_store_older_than_its_ports_is_refused(config: Config, ahead: int) -> None:
    """A copy put back over a store that has gone on, by one window or more."""
    log = owned(config)
    recover(config, log)
    committed(config, log)
    recover(config, owned(config))
    mark = config.sinks.error.path / names.PUBLISHED
    assert read_published(local_place(mark)) == Published(log.manifest.store_id, 0, 2)
    beyond = Published(log.manifest.store_id, 1 + ahead)
    prepare_published(local_place(mark), beyond).put()
    with pytest.raises(IntegrityError, match=f"port error holds windows up to {1 + ahead}, the store only those below"):
        recover(config, owned(config))


def test_a_start_takes_the_pieces_of_lower_epochs_that_no_record_names(config: Config) -> None:
    """Not those of its own epoch, nor live ones, nor those that left the log and are in use."""
    pieces = open_backend(config.store.url)

    def append(epoch: int, shard: int, window: int) -> PieceRef:
        entries = Entries(
            np.zeros(1, np.int64), np.array([0, 1]), np.array([[window, 1]], np.uint64), expiry=np.zeros(1, np.int64)
        )
        store_id = bytes.fromhex(first.manifest.store_id)
        windows = {"first_window": window, "last_window": window}
        return append_piece(pieces, entries, store_id=store_id, shard=shard, epoch=epoch, attempt=0, **windows)

    def place(log: CommitLog, window: int, ref: PieceRef) -> None:
        log.place(commit(window, log.state.epoch, pieces=(ref,), outputs=(), sources=None, extra={}))

    first = owned(config)
    live, retired, _ = (append(1, shard, window=shard) for shard in range(3))
    place(first, 0, live)
    place(first, 1, retired)
    first.place(DeletionRecord((retired,), 1_000, 1))
    second = owned(config)
    own = append(2, shard=3, window=2)
    recover(config, second)
    assert {piece.name for piece in pieces.pieces()} == {live.name, retired.name, own.name}


def test_publishing_again_makes_the_names_durable(config: Config) -> None:
    """The process that renamed a file may have died before the sync; after it the record may forget the output."""
    output = committed(config, owned(config))
    Path(output.staged).rename(output.final)
    synced: list[Path] = []

    class Syncing(filesystem.LocalFileSystem):
        def fsync_dir(self, path: Path) -> None:
            synced.append(path)

    assert staging.publish([output], names=LocalNames(Syncing())) == []
    assert {Path(output.final).parent, Path(output.staged).parent} <= set(synced)


@pytest.mark.parametrize("moment", ["before the check", "before the rename"])
def test_two_owners_may_publish_the_same_window_at_once(config: Config, moment: str) -> None:
    """An owner that is being taken over renames a file under the eyes of the new one: no error, and the file is out."""
    output = committed(config, owned(config))

    class Raced(filesystem.LocalFileSystem):
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

    assert staging.publish([output], names=LocalNames(Raced())) == []
    assert Path(output.final).read_bytes() == b"rows"


def test_a_foreign_file_under_a_final_name_is_never_overwritten(config: Config) -> None:
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
    with pytest.raises(CheckFailedError, match="gone: the port's folder is gone, and rows of a committed window wait"):
        staging.publish([lost])


def test_whatever_breaks_after_a_take_over_is_told_as_that(config: Config) -> None:
    """The new owner discards what the old one stages; the old one must end with exit code 5, not 1."""
    log = owned(config)
    broken = OSError("staged file gone")
    with pytest.raises(OSError, match="staged file gone") as told, recovery.telling_takeover(log):
        raise broken
    assert told.value is broken
    assert broken.__cause__ is None
    owned(config)
    with pytest.raises(FencedError) as fenced, recovery.telling_takeover(log):
        raise broken
    assert fenced.value.__cause__ is broken


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

    monkeypatch.setattr(publishing.failpoints, "hit", overtaken)
    with pytest.raises(FencedError):
        publishing.publish_window(config, log, 0, [output])
    assert isinstance(recovery.reason_to_stop(log, OSError()), FencedError)
    marks = [read_published(place) for place in publishing.mark_places(config, log)]
    assert marks == [Published(log.manifest.store_id, 1, log.state.epoch)] * 5
    assert not list(config.store.path.parent.rglob("*.tmp"))


def runner(config: Config, log: CommitLog, clock: Callable[[], int]) -> WindowRunner:
    """A runner that will not judge."""
    nobody: Any = None
    return WindowRunner(config, log, InProcess(open_backend(config.store.url)), nobody, clock)


def test_a_batch_that_is_repeated_keeps_its_wall_clock(config: Config, tmp_path: Path) -> None:
    """However many claims came in between; another batch takes the time of now."""
    listed = (ListedFile(f"{tmp_path}/a", 1), ListedFile(f"{tmp_path}/b", 2))

    def intent_of(files: tuple[ListedFile, ...], now: int) -> int:
        log = recovery.open_or_create(config, now)
        log.claim_epoch("test", now)
        batch = WindowInput("query", 0, SourceFileBatch(config.source, tuple(stat_files(files)), UNREAD))
        return runner(config, log, lambda: now)._intend(batch, log.state).wall_us

    assert intent_of(listed, 5_000) == 5_000
    assert intent_of(listed, 9_000) == 5_000
    assert intent_of(listed, 9_500) == 5_000
    assert intent_of(listed[:1], 9_900) == 9_900
    assert [intent.wall_us for intent in read_intents(local_place(config.store.path))][-1] == 9_900


def test_a_batch_begun_by_a_clock_far_ahead_takes_the_present_one(config: Config, tmp_path: Path) -> None:
    """Nothing of it was shown. An intent ahead by no more than the tolerance is repeated."""
    listed = (ListedFile(f"{tmp_path}/a", 1),)

    def intent_of(now: int) -> int:
        log = recovery.open_or_create(config, now)
        log.claim_epoch("test", present_wall_us(log, now))
        batch = WindowInput("query", 0, SourceFileBatch(config.source, tuple(stat_files(listed)), UNREAD))
        return runner(config, log, lambda: now)._intend(batch, log.state).wall_us

    far = 10 * TOLERANCE_US
    assert intent_of(far) == far
    assert intent_of(far - TOLERANCE_US) == far
    assert intent_of(far - TOLERANCE_US - 1) == far - TOLERANCE_US - 1


def test_a_clock_far_behind_the_records_counts_and_is_told(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """Once: the claim has told the log."""
    with recovery.owned_store(config, take_over=False, wall_clock_us=lambda: FAR_US):
        pass
    for _ in range(2):
        with recovery.owned_store(config, take_over=True, wall_clock_us=lambda: NOW_US) as ownership:
            assert ownership.log.state.last_wall_us == NOW_US
    told = [record.getMessage() for record in caplog.records if "this machine's clock is at" in record.getMessage()]
    assert len(told) == 1
    assert "2024-12-31T00:00:00Z, earlier records of the store have 2099-01-01T00:00:00Z" in told[0]


def test_a_clock_that_comes_back_while_the_job_runs_is_told_to_the_log_before_the_window(config: Config) -> None:
    """By a deletion record without pieces: a commit may be of an old intent."""
    log = recovery.open_or_create(config, FAR_US)
    log.claim_epoch("test", FAR_US)
    at_work = runner(config, log, lambda: NOW_US)
    batch = WindowInput("query", 0, SourceFileBatch(config.source, (), UNREAD))
    for _ in range(2):
        assert at_work._intend(batch, log.state).wall_us == NOW_US
    state = log.state
    assert (state.last_wall_us, state.next_number) == (NOW_US, 3)
    assert replace(state, last_wall_us=FAR_US, next_number=2) == fold_all(LogState(), list(log.records())[:-1])


def test_a_latest_point_by_processing_time_goes_on_from_a_clock_that_was_far_ahead(config: Config) -> None:
    """It never goes back: the time that passes since the first window of the right clock is added to it."""
    points = []
    state = LogState()
    for wall_us in (FAR_US, NOW_US, NOW_US, NOW_US + 5, NOW_US + 9):
        latest = policy.processing_point(state, wall_us)
        state = replace(state, latest_point=latest, latest_moved_us=policy.moved_us(state, latest, wall_us))
        points.append(latest - FAR_US)
        assert policy.judge_rules(config, state, wall_us).latest == latest
    assert points == [0, 0, 0, 5, 9]


def test_silence_counts_from_the_first_window_of_the_right_clock(config: Config) -> None:
    """By the clock that was far ahead a stream that stood still would not be silent until that time."""
    state = LogState(latest_point=10, latest_moved_us=FAR_US)
    assert policy.moved_us(state, 10, NOW_US) == NOW_US
    assert policy.moved_us(replace(state, latest_moved_us=NOW_US), 10, NOW_US + 5) == NOW_US
    assert policy.moved_us(replace(state, latest_moved_us=NOW_US), 11, NOW_US + 5) == NOW_US + 5
    assert policy.moved_us(LogState(), None, NOW_US) is None


def test_a_batch_under_other_settings_is_no_repetition(config: Config, tmp_path: Path) -> None:
    """What it was judged by before would judge it differently now: it takes the time of now."""
    files = tuple(stat_files((ListedFile(f"{tmp_path}/a", 1),)))
    longer = config.expiry.model_copy(update={"period": 2 * HOUR_US})

    def intent_of(config: Config, now: int) -> int:
        log = recovery.open_or_create(config, now)
        log.claim_epoch("test", now)
        return (
            runner(config, log, lambda: now)
            ._intend(WindowInput("q", 0, SourceFileBatch(config.source, files, UNREAD)), log.state)
            .wall_us
        )

    assert intent_of(config, 5_000) == 5_000
    assert intent_of(config.model_copy(update={"expiry": longer}), 9_000) == 9_000
