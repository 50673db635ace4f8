"""A window whose jobs find no room: judged somewhere else, or not at all, and told where; never by half."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PythonException

from bucket_store.filesystem import LocalFileSystem
from bucket_store.log.records import LogState
from deduper.errors import CannotWriteError, IntegrityError, RowsGoneError
from deduper.sinks.names import STAGING
from deduper.sources.files.batch import SourceFileBatch
from deduper.sources.files.source_file import ListedFile, stat_files
from deduper.tasks.write import WriterReceipt, WriteTask
from deduper.testing import Row, Settings
from deduper.window import exchange_folder
from deduper.window.attempt import Judgement
from deduper.window.progress import BatchProgress
from deduper.window.runner import WindowInput
from deduper.window.storage_wait import OutageWatch
from tests.deduper.small_service import Process, SmallJobs, TaskKilled, Trial, Trouble, World, armed, machine_of
from tests.deduper.unread import UNREAD

ROWS = [[Row(("a",)), Row(("b",))], [Row(("a",))]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A job with ports whose spool goes to memory first."""
    monkeypatch.setattr(exchange_folder, "_LEAST_ROOM", 0)
    world = World(tmp_path, Trial(Settings("never"), shards=2, ports=True))
    with machine_of(world):
        yield world


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fills the places whose paths a function says yes to: writing there fails as the kernel has it fail."""

    def fill(is_full: Callable[[str], bool]) -> None:
        def device(path: Any) -> Any:
            return "/dev/full" if is_full(str(path)) else path

        monkeypatch.setattr(pa, "OSFile", lambda path, mode: os_file(device(path), mode))
        monkeypatch.setattr(LocalFileSystem, "open", lambda fs, path, **more: opened(fs, device(path), **more))

    os_file, opened = pa.OSFile, LocalFileSystem.open
    return fill


def published(world: World) -> dict[str, list[str | None]]:
    """The keys that the ports show."""
    return {
        port: [
            row["k"]
            for file in sorted(sink.path.glob("*.parquet"))
            for row in parquet.read_table(file, partitioning=None).to_pylist()
        ]
        for port, sink in world.config.file_ports.items()
    }


def spools(world: World) -> list[Path]:
    return list(world.root.glob("*/spool/*"))


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".rows", ".keys", ".verdicts", ".firsts"])
def test_a_spool_that_does_not_fit_into_memory_goes_to_the_disk(
    world: World, fill: Callable[..., None], ending: str
) -> None:
    """Whichever of its files it is; and from then on all go there, before any has failed."""
    process = Process(world)
    fill(lambda path: path.startswith(str(world.root / "memory")) and ending in path)
    for _ in range(2):
        process.offer(world.put(ROWS))
    assert process.log.state.totals == {"unique": 2, "duplicate": 4, "expired": 0, "error": 0}
    assert [len(keys) for keys in published(world).values()] == [2, 4, 0, 0]
    tried = [process.log.state.sources[window].name.rpartition("-")[2] for window in range(2)]
    assert tried == ["001", "002"], "one judging was in vain"
    assert not spools(world)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".rows", ".keys", ".verdicts", ".firsts"])
def test_a_spool_that_fits_nowhere_ends_the_job_and_says_where(
    world: World, fill: Callable[..., None], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed, nothing is left, and with more room the batch is judged."""
    process, paths = Process(world), world.put(ROWS)
    with monkeypatch.context():
        fill(lambda path: "/spool/" in path and ending in path)
        with pytest.raises(CannotWriteError, match="No space left on device") as failure:
            process.offer(paths)
    assert str(world.root / "disk" / "spool") in str(failure.value)
    assert process.log.refresh().next_window == 0
    assert not spools(world)
    fill(lambda path: False)
    process.offer(paths)
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}


def test_storages_are_looked_at_while_jobs_are_at_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one machine too, where a task tries for 20 s before the driver hears of an outage; and no longer than that."""
    looks: list[threading.Event] = []
    during: list[bool] = []
    monkeypatch.setattr(OutageWatch, "look_until", lambda _, ended: looks.append(ended))
    write = SmallJobs.write

    def written(jobs: SmallJobs, task: WriteTask) -> list[WriterReceipt]:
        during.extend(ended.is_set() for ended in looks)
        return write(jobs, task)

    monkeypatch.setattr(SmallJobs, "write", written)
    Process(world).offer(world.put(ROWS))
    assert during == [False]
    assert [ended.is_set() for ended in looks] == [True]


def test_ports_that_do_not_fit_end_the_job_and_say_where(world: World, fill: Callable[..., None]) -> None:
    """The spool is not to blame: it stays where it is, and nothing is judged a second time for it."""
    process, paths = Process(world), world.put(ROWS)
    fill(lambda path: f"/{STAGING}/" in path)
    with pytest.raises(CannotWriteError, match=f"out/unique/{STAGING}/.*No space left on device"):
        process.offer(paths)
    assert list(world.judged) == [(0, 1, 0)]
    assert not any(published(world).values())
    fill(lambda path: False)
    process.offer(paths)
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}
    assert list(world.judged) == [(0, 1, 0), (0, 1, 1)]
    assert not list(world.root.glob(f"out/*/{STAGING}/*")), "what was half written goes with the window"


def test_folders_that_cannot_be_made_end_the_job_and_say_where(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the ports, and those of the spool."""

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_below_staging(path: Path, *arguments: Any, **more: Any) -> None:
        if path.parent.name == STAGING:
            full()
        mkdir(path, *arguments, **more)

    process, paths, mkdir = Process(world), world.put(ROWS), Path.mkdir
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full_below_staging)
        with pytest.raises(CannotWriteError, match=f"out/unique/{STAGING}/.*No space left on device"):
            process.offer(paths)
    with monkeypatch.context() as patch:
        patch.setattr(exchange_folder.tempfile, "mkdtemp", full)
        with pytest.raises(CannotWriteError, match="disk/spool: No space left on device"):
            process.offer(paths)
    process.offer(paths)
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}


def test_another_failure_of_the_spool_is_not_taken_for_a_full_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails is no reason to try another place in silence."""

    def broken(path: Any, mode: str) -> Any:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(pa, "OSFile", broken)
    with pytest.raises(Exception, match="Input/output error") as failure:
        Process(world).offer(world.put(ROWS))
    assert not isinstance(failure.value, CannotWriteError)
    assert not spools(world)


def test_what_dead_tasks_have_left_is_in_no_port(world: World) -> None:
    """Each of the three jobs loses a task; what it wrote is named by no receipt, and goes with the window."""
    process = Process(world)
    deaths = []

    def die() -> None:
        deaths.append(1)
        raise TaskKilled

    with armed("read.spilled", 1, die), armed("judge.piece.after", 1, die), armed("write.done", 1, die):
        process.offer(world.put(ROWS))
    assert len(deaths) == 3
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}
    assert not spools(world)
    assert not list(world.root.glob(f"out/*/{STAGING}/*"))


def test_what_was_judged_in_the_end_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was asked for: a source that has lost something meanwhile must go on from where the record says."""
    process = Process(world)
    asked = SourceFileBatch(
        world.config.source, tuple(stat_files([ListedFile(f"{path}", 0) for path in world.put(ROWS)])), UNREAD
    )
    less = replace(asked)
    judge = process.judge.judge

    def judged_less(batch: SourceFileBatch, state: LogState, wall_us: int) -> Judgement:
        return replace(judge(batch, state, wall_us), batch=less)

    monkeypatch.setattr(process.runner, "_judge", judged_less)
    progress: list[BatchProgress] = []
    judged = process.runner.run(WindowInput("query", 1, asked), progress.append)
    assert [each.rows for each in progress] == [3]
    assert judged is less


@pytest.mark.slow
@pytest.mark.parametrize("job", ["read", "judge", "write"])
def test_counts_that_do_not_agree_are_judged_once_more(world: World, job: str) -> None:
    """A receipt of any of the jobs is lost: what that attempt has left is in no port and in no piece."""
    process = Process(world)
    world.trouble = Trouble(lose_receipt=job)
    process.offer(world.put(ROWS))
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}
    assert list(world.judged) == [(0, 1, 0), (0, 1, 1)]
    named = {ref.name for refs in process.log.state.pieces.values() for ref in refs}
    left = {piece.name for piece in process.pieces.pieces()}
    # The driver does not know of a piece whose receipt was lost: the next start takes it.
    assert left == named or (job == "judge" and left > named)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("read", r"3 rows came in, the shards judged [012]:"),
        ("judge", r"no receipt from shards \[1\]"),
        ("write", r"port unique: 2 rows judged, [01] rows staged"),
    ],
)
def test_counts_that_never_agree_are_never_committed(
    world: World, job: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the same: the window is not committed, nothing is public, and the message has the numbers."""

    def lose(_: SmallJobs, of: str, receipts: list[Any]) -> None:
        if of == job:
            receipts.pop()

    process, paths = Process(world), world.put(ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(SmallJobs, "_lose", lose)
        with pytest.raises(IntegrityError, match=f"window 0: not committed: {says}"):
            process.offer(paths)
    assert process.log.refresh().next_window == 0
    assert not any(published(world).values())
    assert list(world.judged) == [(0, 1, 0), (0, 1, 1)]
    process.offer(paths)
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}


@pytest.mark.slow
@pytest.mark.parametrize("losses", [1, 4, 5])
def test_a_window_whose_rows_are_gone_is_judged_again(
    world: World, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to four times; then something removes them, and the job ends without committing anything."""
    left = losses
    write = SmallJobs.write

    def writing(jobs: SmallJobs, task: WriteTask) -> list[WriterReceipt]:
        nonlocal left
        if left:
            left -= 1
            error = "deduper.errors.RowsGoneError: x.rows: rows are gone from this host"
            raise PythonException(f"Traceback (most recent call last):\n  File\n{error}")
        return write(jobs, task)

    monkeypatch.setattr(SmallJobs, "write", writing)
    process, paths = Process(world), world.put(ROWS)
    if losses == 5:
        with pytest.raises(RowsGoneError, match="rows are gone from this host"):
            process.offer(paths)
        assert process.log.refresh().next_window == 0
        assert not any(published(world).values())
        return
    process.offer(paths)
    assert len(world.judged) == losses + 1
    assert published(world) == {"unique": ["a", "b"], "duplicate": ["a"], "expired": [], "error": []}
