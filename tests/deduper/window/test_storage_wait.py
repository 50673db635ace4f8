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
from deduper.window.storage_wait import StorageWait

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
