"""A process waits for a storage that is away: by one deadline, with a line every ten seconds, until it is over."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bucket_store.errors import StorageAwayError
from bucket_store.places import outages
from bucket_store.places.outages import is_given_up, is_waiting, not_waiting, patient, waiting


class Stopped(Exception):
    """A stop was requested."""


def away(missing: str = "answers") -> StorageAwayError:
    """An error of the storage."""
    return StorageAwayError.of(errno.EIO, "HDFS: the NameNode: Connection refused", "hdfs://namenode/state", missing)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_PAUSE_S", 0.001)
    monkeypatch.setattr(outages, "LOG_EVERY_S", 0.2)
    monkeypatch.setattr(outages, "STOPPING_S", 0.05)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> str:
    """The storage of this test alone: the line of an outage's end may come when its test is over."""
    return f"hdfs://{request.node.name}"


def lines_of(caplog: pytest.LogCaptureFixture, storage: str) -> list[str]:
    """What was logged about a storage."""
    return [record.getMessage() for record in caplog.records if storage in record.getMessage()]


@pytest.fixture
def stop() -> threading.Event:
    """The stop of the job."""
    return threading.Event()


@pytest.fixture
def job(stop: threading.Event) -> Iterator[None]:
    """Inside, this process waits for two seconds."""
    with waiting(2.0, stop, Stopped):
        yield


class Storage:
    """Is away until a moment; counts its calls, and how many were there at a time."""

    def __init__(self, away_s: float, missing: str = "answers") -> None:
        self.until = time.monotonic() + away_s
        self.calls = self.at_once = self.most = 0
        self.missing = missing

    def __call__(self) -> str:
        """One call."""
        self.calls += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        time.sleep(0.005)
        self.at_once -= 1
        if time.monotonic() < self.until:
            raise away(self.missing)
        return "done"


def test_elsewhere_an_outage_is_an_error_at_once(storage: str) -> None:
    """In tasks and commands."""
    server = Storage(1)
    with pytest.raises(StorageAwayError, match="Connection refused"):
        patient(storage, server)
    assert (server.calls, is_waiting()) == (1, False)


@pytest.mark.usefixtures("job")
def test_a_job_goes_on_when_it_is_over(storage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A line at ten seconds, one every ten seconds, and one when it is over: with address, cause and deadline."""
    assert patient(storage, Storage(0.5)) == "done"
    _until(lambda: "going on" in caplog.text)
    lines = lines_of(caplog, storage)
    assert lines[0].startswith(f"waiting for {storage} for 0 s (hdfs://namenode/state: HDFS: the NameNode: Connection")
    assert "gives up after 2 s" in lines[0]
    assert lines[-1].startswith(f"{storage} answers again after ")
    assert 2 <= len(lines) <= 4


@pytest.mark.usefixtures("job")
def test_the_lines_do_not_wait_for_calls(storage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that stands still lets each call hang."""
    with pytest.raises(StorageAwayError), not_waiting():
        patient(storage, Storage(1))
    _until(lambda: len(lines_of(caplog, storage)) == 2)


@pytest.mark.usefixtures("job")
def test_a_short_fault_has_no_line(
    storage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a NameNode that fails over."""
    monkeypatch.setattr(outages, "LOG_EVERY_S", 1.0)
    assert patient(storage, Storage(0.02)) == "done"
    time.sleep(0.1)
    assert lines_of(caplog, storage) == []


def test_the_deadline_is_that_of_the_outage(storage: str, stop: threading.Event) -> None:
    """Not of each call: after it, calls fail at once, until one succeeds."""
    with waiting(0.1, stop, Stopped):
        server = Storage(0.3)
        with pytest.raises(StorageAwayError, match="waited 0 s; nothing is lost: bring it back") as caught:
            patient(storage, server)
        assert caught.value.missing == "answers"
        began = time.monotonic()
        with pytest.raises(StorageAwayError):
            patient(storage, server)
        assert time.monotonic() - began < 0.5
        server.until = 0
        assert patient(storage, server) == "done"
        server.until = time.monotonic() + 0.05
        assert patient(storage, server) == "done"


@pytest.mark.usefixtures("job")
def test_a_stop_ends_the_wait(storage: str, stop: threading.Event) -> None:
    """After some seconds: a server that only restarts lets the window be finished."""
    stop.set()
    assert patient(storage, Storage(0.02)) == "done"
    began = time.monotonic()
    with pytest.raises(Stopped, match="stopped while waiting for hdfs"):
        patient(storage, Storage(1))
    assert time.monotonic() - began < 0.5


@pytest.mark.usefixtures("job")
def test_one_thread_tries_at_a_time(storage: str) -> None:
    """And all go on at once when it is over."""
    server = Storage(0.3)
    threads = [threading.Thread(target=patient, args=(storage, server)) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)  # all have failed once
    server.most = 0
    time.sleep(0.05)
    assert server.most == 1
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("job")
def test_servers_that_answer_may_yet_not_write(storage: str) -> None:
    """An answer ends no outage of what has the bytes."""
    with pytest.raises(StorageAwayError), not_waiting():
        patient(storage, Storage(1, "writes"))
    patient(storage, lambda: None)
    assert outages.are_known()
    patient(storage, lambda: None, proves=("answers", "writes"))
    assert not outages.are_known()


@pytest.mark.usefixtures("job")
def test_a_refusal_is_an_answer(storage: str) -> None:
    """And is not waited for."""
    with pytest.raises(StorageAwayError), not_waiting():
        patient(storage, Storage(1))

    def refuse() -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        patient(storage, refuse)
    assert not outages.are_known()


@pytest.mark.usefixtures("job")
def test_what_is_tried_again_in_another_way_has_its_lines_too(storage: str, caplog: pytest.LogCaptureFixture) -> None:
    """As a file that is written under other names, until one call gives it up."""
    outages.note(storage, away("writes"), time.monotonic() - 0.2)
    _until(lambda: "waiting for" in caplog.text)
    patient(storage, lambda: None, proves=("writes",))
    _until(lambda: "writes again" in caplog.text)


def test_nothing_is_known_after_a_job(storage: str, stop: threading.Event) -> None:
    """Its outages end with it."""
    with waiting(1, stop, Stopped), pytest.raises(StorageAwayError), not_waiting():
        patient(storage, Storage(1))
    assert not outages.are_known()


def _until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_what_was_away_at_a_stop_is_given_up(storage: str, stop: threading.Event) -> None:
    """Through the rest of the stop, until it answers: each file that is closed then asks it once, for a moment."""
    server = Storage(60)
    with waiting(60.0, stop, Stopped):
        threading.Timer(0.1, stop.set).start()
        with pytest.raises(Stopped):
            patient(storage, server)
        assert is_given_up(storage)
        assert not is_given_up("hdfs://another")
    assert is_given_up(storage)
    server.until = 0.0
    assert patient(storage, server) == "done"
    assert not is_given_up(storage)


def test_an_outage_that_is_waited_for_is_not_given_up(storage: str, stop: threading.Event) -> None:
    """Before a stop, and by the next job of the process."""
    server = Storage(60)
    with waiting(60.0, stop, Stopped):
        with not_waiting(), pytest.raises(StorageAwayError):
            patient(storage, server)
        assert not is_given_up(storage)
    assert is_given_up(storage)
    with waiting(60.0, threading.Event(), Stopped):
        assert not is_given_up(storage)
