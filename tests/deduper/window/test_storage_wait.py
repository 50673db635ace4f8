"""What tasks could not do while a storage was away is done again once it can be written to."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bucket_store.errors import StorageAwayError
from bucket_store.places import outages
from bucket_store.places.objects import ObjectNames
from deduper.config.model import Config
from deduper.window import storage_wait
from deduper.window.storage_wait import OutageWatch, StorageWait

_TASK = RuntimeError(
    "Traceback (most recent call last):\n"
    "bucket_store.errors.StorageAwayError: objects:///state/pieces/1: HDFS: a DataNode of nn: Connection refused\n"
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_wait, "_PAUSE_S", 0.0)
    monkeypatch.setattr(outages, "_PAUSE_S", 0.001)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A job whose store is elsewhere."""
    sections = {
        "name": "waits",
        "source": {"format": "files", "path": "in", "file_format": "json", "schema": "k string"},
        "key": "k",
        "expiry": {"by": "never"},
        "store": {"url": f"objects:{tmp_path}/state", "deadline": "5s"},
        "sinks": {port: {"format": "none"} for port in ("unique", "duplicate", "expired", "error")},
    }
    return Config.model_validate(sections, context={"base_dir": tmp_path})


@pytest.fixture
def job() -> Iterator[None]:
    """Inside, this process waits."""
    with outages.waiting(5.0, threading.Event(), RuntimeError):
        yield


@pytest.mark.usefixtures("job")
def test_the_work_is_done_again_when_a_file_can_be_written(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """To each storage, and nothing stays there; a task has tried for some seconds when it fails, which count."""
    noted: list[tuple[str, str]] = []
    monkeypatch.setattr(storage_wait, "note", lambda storage, error, _: noted.append((storage, error.missing)))
    create, failures = ObjectNames._create, [StorageAwayError.of(errno.EIO, "away", "objects:///state")]

    def away(*arguments: object) -> None:
        def once() -> None:
            if failures:
                raise failures.pop()
            create(*arguments)  # type: ignore[arg-type]

        outages.patient("objects://", once)

    monkeypatch.setattr(ObjectNames, "_create", away)
    assert StorageWait(config).is_over(_TASK)
    assert failures == []
    assert noted == [("objects://", "writes")]
    assert config.store.place.entries() == []


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), OSError(errno.ENOSPC, "full")])
@pytest.mark.usefixtures("job")
def test_another_failure_is_not_waited_for(config: Config, failure: Exception) -> None:
    """Nothing is written."""
    assert not StorageWait(config).is_over(failure)
    assert config.store.place.entries() == []


def test_nothing_waits_outside_of_a_job(config: Config) -> None:
    """The failure ends what has failed."""
    assert not StorageWait(config).is_over(_TASK)


@pytest.mark.usefixtures("job")
def test_what_fails_for_longer_than_the_deadline_is_not_done_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when executors alone do not reach the storage; success begins the deadline anew."""
    now_s = [0.0]
    monkeypatch.setattr(storage_wait.time, "monotonic", lambda: now_s[0])
    wait = StorageWait(config)
    tried: list[bool] = []
    look: Callable[[], None] = lambda: tried.append(wait.is_over(_TASK))  # noqa: E731
    look()
    now_s[0] = 5.5
    look()
    wait.succeeded()
    look()
    assert tried == [True, False, True]


def test_a_stop_ends_the_waits_for_tasks_that_do_not_reach_it(config: Config) -> None:
    """After one more attempt: a storage that only restarts lets the window be finished."""
    stop = threading.Event()
    stop.set()
    wait = StorageWait(config)
    with outages.waiting(5.0, stop, InterruptedError):
        assert wait.is_over(_TASK)
        with pytest.raises(InterruptedError):
            wait.is_over(_TASK)


@pytest.mark.usefixtures("job")
def test_an_outage_is_known_while_tasks_are_at_work(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their engine does about it; it is over when a file can be written, and nothing looks after the work."""
    monkeypatch.setattr(storage_wait, "_LOOK_EVERY_S", 0.001)
    remove, create, is_back = ObjectNames.remove, ObjectNames._create, threading.Event()
    failed, looked = threading.Event(), threading.Event()
    failures: list[StorageAwayError] = []

    def away(*arguments: object) -> None:
        def once() -> None:
            if not is_back.is_set():
                failures.append(StorageAwayError.of(errno.EIO, "away", "objects:///state"))
                if len(failures) == 2:  # so the first one was noted
                    failed.set()
                raise failures[-1]
            create(*arguments)  # type: ignore[arg-type]

        outages.patient("objects://", once, proves=("answers", "writes"))

    def removed(*arguments: object) -> None:
        remove(*arguments)  # type: ignore[arg-type]
        looked.set()

    monkeypatch.setattr(ObjectNames, "_create", away)
    monkeypatch.setattr(ObjectNames, "remove", removed)
    ended = threading.Event()
    OutageWatch(config).look_until(ended)
    assert failed.wait(10)
    assert outages.are_known()
    is_back.set()
    assert looked.wait(10)
    assert not outages.are_known()
    ended.set()
    looked.clear()
    looked.wait(0.1)  # one look may be under way
    looked.clear()
    assert not looked.wait(0.1)
    assert config.store.place.entries() == []


def test_nobody_looks_at_this_machine(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk is not away."""
    started: list[object] = []
    monkeypatch.setattr(storage_wait, "on_a_thread", started.append)
    of_disk = config.model_copy(update={"store": config.store.model_copy(update={"url": f"file:{tmp_path}/state"})})
    for job in (of_disk, config):
        OutageWatch(job).look_until(threading.Event())
    assert len(started) == 1
