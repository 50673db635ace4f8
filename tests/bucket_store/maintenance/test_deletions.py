"""The bytes of expired pieces go beside the windows: who waits for it, what the log records, what an error does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bucket_store.errors import StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import DeletionRecord, RetiredPiece
from bucket_store.maintenance import deletions as deleting
from bucket_store.maintenance.deletions import Deletions
from bucket_store.pieces.open import open_backend
from bucket_store.pieces.piece import PieceRef
from bucket_store.pieces.store import Located, PieceStore
from bucket_store.threads import on_a_thread
from deduper.config.model import Config
from deduper.window import recovery
from deduper.window.policy import DELETION_GRACE_US
from deduper.window.runner import WindowRunner
from tests.bucket_store.log_samples import commit, piece
from tests.bucket_store.maintenance.in_process import InProcess
from tests.deduper.window.test_recovery import config_of

DEADLINE_S = 60.0
BEGIN_US = 2_000_000_000_000_000


class Obstacle:
    """A store of pieces of which a test says when a deletion goes on, which pieces are held, and what fails."""

    def __init__(self, *, is_open: bool = False, failure: Exception | None = None) -> None:
        self.asked: list[list[str]] = []
        self.held: set[str] = set()
        self.failure = failure
        self.is_open = threading.Event()
        if is_open:
            self.is_open.set()
        self.is_entered = threading.Event()

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """Waits until it is open."""
        pieces = list(pieces)
        self.asked.append([each.name for each in pieces])
        self.is_entered.set()
        assert self.is_open.wait(DEADLINE_S)
        if self.failure is not None:
            raise self.failure
        return tuple(each for each in pieces if each.name in self.held)


def at_once(action: Callable[[], None]) -> None:
    """Nothing beside anything."""
    action()


class Threads:
    """The usual thread, of which a test can wait for the end."""

    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)

    def __call__(self, action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            self.ended.release()

        on_a_thread(run)

    def wait(self) -> None:
        """Until one more has ended."""
        assert self.ended.acquire(timeout=DEADLINE_S)


def retired(window: int, number: int) -> RetiredPiece:
    """A piece that left in a record."""
    return RetiredPiece(piece(window), number, BEGIN_US)


def names(*pieces: RetiredPiece) -> list[list[str]]:
    """What is asked for when these go: they lie in files of their own."""
    return [[each.ref.name] for each in pieces]


def deletion_of(store: Obstacle, in_background: Any) -> Deletions:
    """The usual deletion."""
    stores: Any = store
    return Deletions(stores, in_background)


def test_nobody_waits_for_a_deletion_and_its_end_is_told_later() -> None:
    """The log may forget the pieces when their bytes are gone, not when that was asked for."""
    store, threads = Obstacle(), Threads()
    deletion = deletion_of(store, threads)
    first, second = retired(0, 4), retired(1, 6)
    deletion.begin((first, second), keep=(), epoch=1)
    assert store.is_entered.wait(DEADLINE_S)
    assert deletion.result() is None
    assert deletion.is_under_way
    store.is_open.set()
    threads.wait()
    assert deletion.result() == 6
    assert not deletion.is_under_way
    assert deletion.result() is None
    assert store.asked == names(first, second)
    # The log does not say so yet, and one more is deletable: only that one is asked for.
    third = retired(2, 9)
    deletion.begin((first, second, third), keep=(), epoch=1)
    threads.wait()
    assert deletion.result() == 9
    assert store.asked == names(first, second, third)


def test_what_a_writer_held_is_asked_for_again_and_not_told_before() -> None:
    """Nor is anything that left after it, though its bytes are gone."""
    store = Obstacle(is_open=True)
    deletion = deletion_of(store, at_once)
    pieces = [retired(window, number) for window, number in enumerate((4, 6, 6, 9))]
    store.held = {pieces[2].ref.name}
    deletion.begin(pieces, keep=(), epoch=1)
    assert deletion.result() == 5
    store.held, store.asked = set(), []
    deletion.begin(pieces, keep=(), epoch=1)
    assert store.asked == names(pieces[2])
    assert deletion.result() == 9


def test_a_failure_is_raised_where_the_result_is_taken_and_tried_again() -> None:
    """As if it had happened there; what was deleted before it is not asked for again."""
    store = Obstacle(is_open=True, failure=StoreError("the disk"))
    deletion = deletion_of(store, at_once)
    deletion.begin((retired(0, 4),), keep=(), epoch=1)
    with pytest.raises(StoreError, match="the disk"):
        deletion.result()
    store.failure = None
    deletion.begin((retired(0, 4),), keep=(), epoch=1)
    assert deletion.result() == 4
    assert store.asked == names(retired(0, 4), retired(0, 4))


def test_closing_ends_a_deletion_after_the_file_it_is_at() -> None:
    """And waits for that one."""
    store, threads = Obstacle(), Threads()
    deletion = deletion_of(store, threads)
    deletion.begin((retired(0, 4), retired(1, 4)), keep=(), epoch=1)
    assert store.is_entered.wait(DEADLINE_S)
    closing = threading.Thread(target=deletion.close)
    closing.start()
    stopping = deletion._under_way
    # `close` takes it away after the request to stop.
    assert stopping is None or stopping.is_stopping.wait(DEADLINE_S)
    assert closing.is_alive()
    store.is_open.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    threads.wait()
    assert store.asked == names(retired(0, 4))
    deletion.close()


def test_closing_tells_a_failure_that_nobody_took(caplog: pytest.LogCaptureFixture) -> None:
    """The last window was over before it; no error goes unseen."""
    store = Obstacle(is_open=True, failure=StoreError("the disk"))
    deletion = deletion_of(store, at_once)
    deletion.begin((retired(0, 4),), keep=(), epoch=1)
    deletion.close()
    assert "could not be deleted, the next start tries again: the disk" in caplog.text


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A disk may hang; the job has to end all the same."""
    monkeypatch.setattr(deleting, "_CLOSE_S", 0.05)
    store, threads = Obstacle(), Threads()
    deletion = deletion_of(store, threads)
    deletion.begin((retired(0, 4),), keep=(), epoch=1)
    assert store.is_entered.wait(DEADLINE_S)
    deletion.close()
    assert "still being deleted" in caplog.text
    store.is_open.set()
    threads.wait()


class Job:
    """A store with a window each in a file of pieces, and a runner that judges nothing."""

    def __init__(self, config: Config, in_background: Any, *, windows: int = 3) -> None:
        self.config = config
        self.now_us = BEGIN_US
        self.log: CommitLog = recovery.open_or_create(config, BEGIN_US)
        self.log.claim_epoch("test", BEGIN_US)
        self.pieces: PieceStore = open_backend(config.store.url)
        self.refs = [self.window(number) for number in range(windows)]
        nobody: Any = None
        self.runner = WindowRunner(
            config, self.log, InProcess(self.pieces), nobody, lambda: self.now_us, in_background=in_background
        )

    def window(self, number: int) -> PieceRef:
        """One more, with one piece."""
        name = piece(number).name
        at = self.pieces.append(shard=0, epoch=self.log.state.epoch, name=name, data=name.encode() * 1000)
        ref = replace(piece(number), file=at.file, offset=at.offset, length=at.length, max_bucket=1 << 60)
        self.log.place(
            commit(number, self.log.state.epoch, pieces=(ref,), outputs=(), sources=None, extra={}, wall_us=self.now_us)
        )
        return ref

    def retire(self, *numbers: int) -> None:
        """Their pieces leave the store, and the grace passes."""
        leaving = tuple(self.refs[number] for number in numbers)
        self.log.place(DeletionRecord(leaving, self.now_us, max(numbers)))
        self.now_us += DELETION_GRACE_US

    def expire(self) -> None:
        """The end of a window."""
        self.runner._expire(self.log.state)

    def lying(self) -> set[str]:
        """The pieces whose bytes are there."""
        return {each.name for each in self.pieces.pieces()}

    def names(self, *numbers: int) -> set[str]:
        """Of these windows."""
        return {piece(number).name for number in numbers}


@pytest.fixture(params=["file", "rocksdb"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A job whose store is not there yet."""
    (tmp_path / "job").mkdir()
    config = config_of(tmp_path / "job")
    store = config.store.model_copy(update={"url": config.store.url.replace("file:", f"{request.param}:")})
    return config.model_copy(update={"store": store})


def dying(config: Config) -> tuple[Job, list[Callable[[], None]]]:
    """A job whose three pieces are to be deleted, and the deletion, which waits."""
    waiting: list[Callable[[], None]] = []
    job = Job(config, waiting.append)
    job.retire(0, 1, 2)
    job.expire()
    return job, waiting


def test_the_log_goes_on_naming_retired_pieces_until_a_later_window_finds_them_gone(config: Config) -> None:
    """A crash before that finds them in the log, and deletes them again."""
    threads = Threads()
    job = Job(config, threads)
    job.retire(0, 1)
    at_number = job.log.state.retired[-1].at_number
    job.expire()
    threads.wait()
    assert job.lying() == job.names(2)
    job.refs.append(job.window(3))
    if job.runner._deletion.is_under_way:  # else its end was met before the window's
        assert [each.ref for each in job.log.state.retired] == job.refs[:2]
    job.expire()
    job.window(4)
    assert job.log.state.retired == ()
    assert job.log.state.purged_through == at_number
    assert CommitLog.open(job.log.root).state.retired == ()
    job.runner.close()


def test_a_failure_beside_a_window_fails_the_next_one(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own end was before; nothing is forgotten, and the window after tries again."""
    waiting: list[Callable[[], None]] = []
    job = Job(config, waiting.append)
    job.retire(0)

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(type(job.pieces), "delete", broken)
        job.expire()
        waiting.pop()()
    with pytest.raises(OSError, match="Input/output error"):
        job.expire()
    job.window(3)
    assert len(job.log.state.retired) == 1
    assert job.names(0) <= job.lying()
    job.expire()
    waiting.pop()()
    job.expire()
    job.window(4)
    assert job.log.state.retired == ()
    assert job.lying() == job.names(1, 2, 3, 4)


@pytest.mark.parametrize("config", ["rocksdb"], indirect=True)
def test_a_piece_that_comes_to_a_dying_file_meanwhile_stays(config: Config) -> None:
    """Asked for when nothing in the file was live: the next window's piece comes before the deletion does."""
    job, waiting = dying(config)
    came = job.window(3)
    assert came.file == job.refs[0].file
    waiting.pop()()
    assert job.lying() == job.names(3)
    assert job.pieces.read(came) == came.name.encode() * 1000
    job.expire()
    job.window(4)
    assert job.log.state.retired == ()


@pytest.mark.parametrize("config", ["rocksdb"], indirect=True)
def test_no_damage_makes_a_file_go_that_pieces_still_come_to(config: Config) -> None:
    """What was live when the deletion was asked for does not tell; a flipped byte may hide what came since."""
    job, waiting = dying(config)
    came = job.window(3)
    path = job.log.root.local / came.file
    damaged = max(path.glob("*.sst"), key=lambda table: table.stat().st_mtime_ns)
    data = bytearray(damaged.read_bytes())
    data[10] ^= 1
    damaged.write_bytes(data)
    waiting.pop()()
    assert damaged.read_bytes()[came.offset :] == data[came.offset :]


def test_an_overtaken_owner_deletes_nothing_of_the_new_one(config: Config) -> None:
    """Asked for before, done after: pieces that left are dead for both, all others stay, and so do their files."""
    job, waiting = dying(config)
    new = Job(config, at_once, windows=0)
    new.now_us = job.now_us
    new.refs = job.refs
    came = [new.window(number) for number in (3, 4)]
    new.expire()
    waiting.pop()()
    assert new.lying() == new.names(3, 4)
    assert [new.pieces.read(ref) for ref in came] == [ref.name.encode() * 1000 for ref in came]
    new.window(5)
    assert new.log.state.retired == ()


def test_a_start_goes_on_with_what_a_crash_left(config: Config) -> None:
    """Half deleted, and nothing recorded: the next owner's first deletion takes the rest, and the emptied files."""
    waiting: list[Callable[[], None]] = []
    job = Job(config, waiting.append)
    job.retire(0, 1, 2)
    job.pieces.delete([job.refs[1]], writing_epoch=job.log.state.epoch)
    assert job.lying() == job.names(0, 2)
    new = Job(config, at_once, windows=0)
    new.now_us = job.now_us
    recovery.recover(config, recovery.Ownership(new.log, new.pieces))
    new.expire()
    assert new.lying() == set()
    new.window(3)
    assert new.log.state.retired == ()
    assert not (new.log.root.local / job.refs[0].file).exists()


@pytest.mark.parametrize("config", ["rocksdb"], indirect=True)
def test_files_emptied_while_they_could_still_grow_go_at_the_next_start(config: Config) -> None:
    """Nothing names them then, so nobody else would come for them."""
    job = Job(config, at_once)
    job.retire(0, 1, 2)
    job.expire()
    path = job.log.root.local / job.refs[0].file
    assert job.lying() == set()
    assert path.exists()
    new = Job(config, at_once, windows=0)
    recovery.recover(config, recovery.Ownership(new.log, new.pieces))
    assert not path.exists()


def test_the_thread_ends_with_its_deletion() -> None:
    """An idle job has none."""
    store, threads = Obstacle(is_open=True), Threads()
    deletion = deletion_of(store, threads)
    deletion.begin((retired(0, 4),), keep=(), epoch=1)
    threads.wait()
    for thread in threading.enumerate():
        if thread.name == "deleting-pieces":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def test_how_long_it_took_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """No window's profile has it."""
    caplog.set_level(logging.DEBUG, deleting.logger.name)
    store = Obstacle(is_open=True)
    deletion = deletion_of(store, at_once)
    deletion.begin((retired(0, 4),), keep=(), epoch=1)
    deletion.result()
    assert "1 retired pieces deleted in 0.0" in caplog.text
    assert deletion.seconds > 0
