"""Tasks that fail: what died after its work counts for nothing; what has no room is told with its place, or goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from bucket_store.log.commit_log import CommitLog
from bucket_store.places.local import local_place
from deduper.errors import CannotWriteError, ExitCode, exit_code_of
from deduper.sinks import staging
from deduper.sinks.names import STAGING
from deduper.tasks import write as write_task
from deduper.window import exchange_folder, table_folder
from deduper.window.jobs import local as jobs
from tests.spark.harness import PORTS, Job

pytestmark = [pytest.mark.spark, pytest.mark.query]

_FIRST = [{"k": f"{number % 40}", "t": number} for number in range(60)]
_SECOND = [{"k": f"{number % 50}", "t": number} for number in range(60)]


def rows(job: Job) -> dict[str, list[tuple[str, str, int, int]]]:
    """What left by each port."""
    return {
        port: sorted(
            (row["k"], Path(row["_dedup"]["source"]).name, row["_dedup"]["position"], row["_dedup"]["window"])
            for row in job.rows(port)
        )
        for port in PORTS
    }


def dying_once(work: Callable[..., Any]) -> Callable[..., Any]:
    """A task that does all of its work at every attempt, and of whose first one nobody hears."""

    def attempt(*arguments: Any) -> Any:
        done = work(*arguments)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt dies after its work")
        return done

    return attempt


def without_pool(*_: object) -> None:
    """Each step of a window is a job, as where a file system has no sockets."""
    raise OSError("no sockets")


def test_an_attempt_that_dies_after_its_work_counts_for_nothing(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task of the three jobs runs twice, and leaves its files twice: the outputs are as in an undisturbed run."""
    undisturbed, job = (new_job(name) for name in ("undisturbed", "job"))
    for each in (undisturbed, job):
        each.add_records(_FIRST)
    undisturbed.run()
    with monkeypatch.context() as patch:
        patch.setattr(write_task, "_WRITER_BYTES", 1)  # or the driver would do it all
        patch.setattr(jobs, "TaskPool", without_pool)
        patch.setattr(jobs, "read_group", dying_once(jobs.read_group))
        patch.setattr(jobs, "judge", dying_once(jobs.judge))
        patch.setattr(jobs, "write", dying_once(jobs.write))
        job.run()
    for each in (undisturbed, job):
        each.add_records(_SECOND)
        each.run()
    assert rows(job) == rows(undisturbed)
    assert len(rows(undisturbed)["unique"]) == 50
    for port in PORTS:
        published = sorted(path.name for path in (job.directory / "out" / port).glob("*.parquet"))
        named = CommitLog.open(local_place(job.config.store.path)).manifest.store_id[:8]
        assert len(published) == len(list((undisturbed.directory / "out" / port).glob("*.parquet")))
        assert all(name.startswith(named) for name in published)
        assert not list((job.directory / "out" / port / STAGING).glob("*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of one MiB. Skips where that is not permitted."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no right to mount: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """Take all the room there is, with a file."""
    with (place / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\1" * 4096):
            pass


@pytest.mark.night(but=["parquet"])
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_port_without_room_is_named(
    new_job: Callable[..., Job], small_disk: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 and the place; the next start with room goes on."""
    job = new_job(sinks={port: {"format": kind, "path": f"{small_disk}/{port}"} for port in PORTS})
    job.add_records(_FIRST)
    real = staging.make_staging
    with monkeypatch.context() as patch:

        def met_without_room(*arguments: Any) -> Any:
            made = real(*arguments)
            fill(small_disk)
            return made

        patch.setattr(staging, "make_staging", met_without_room)
        with pytest.raises(CannotWriteError, match="No space left on device") as stopped:
            job.run()
    assert str(stopped.value).startswith(str(small_disk))
    assert exit_code_of(stopped.value) is ExitCode.FAILED
    assert not CommitLog.open(local_place(job.config.store.path)).state.windows
    (small_disk / "ballast").unlink()
    assert job.run().windows == 1


def test_a_window_that_memory_cannot_hold_is_judged_on_the_disk(
    new_job: Callable[..., Job], small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Shared memory full is no fault; told once, not tried again. With the disk full too, the place is named."""
    monkeypatch.setattr(table_folder, "SHARED_MEMORY", small_disk)
    monkeypatch.setattr(exchange_folder, "_LEAST_ROOM", 0)
    job = new_job(store={"tables": "tables"}, source={"schema": "k string, text string", "max_files_per_batch": 1})
    records = [{"k": f"{number}", "text": "x" * 1000} for number in range(1500)]
    job.add_records(records)
    job.add_records(records)
    summary = job.run()
    assert (summary.windows, summary.unique, summary.duplicate) == (2, 1500, 1500)
    reported = [record.getMessage() for record in caplog.records if "shared memory is full" in record.getMessage()]
    assert len(reported) == 1
    job.add_records(records)
    with monkeypatch.context() as patch:
        patch.setattr(exchange_folder.ExchangeFolders, "was_full", lambda places, folder: False)
        with pytest.raises(CannotWriteError, match="No space left on device") as stopped:
            job.run()
    assert str(stopped.value).startswith(str(small_disk))
    assert exit_code_of(stopped.value) is ExitCode.FAILED
