"""Outages of storages elsewhere: a process that waits for them repeats a call until a deadline.

A process waits inside `waiting`, as a job does. Elsewhere, in tasks and in commands that look, an outage is an error at
once. All threads share an outage: one of them tries again at a time, so that a server which returns meets no crowd. A
thread of the outage logs a line at ten seconds and every ten seconds, and one line when it is over, whatever calls are
doing meanwhile.

Only calls that are safe to repeat go through `patient`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from bucket_store.errors import StorageAwayError
from bucket_store.threads import on_a_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOG_EVERY_S = 10.0
STOPPING_S = 5.0
"""A wait continues so long after a stop: a storage that only restarts lets the window be finished."""
_PAUSE_S = 0.25
_NOTHING_LOST = "nothing is lost: bring it back and start the job again"


@dataclass(frozen=True, slots=True, eq=False)
class _Patience:
    deadline_s: float
    stop: threading.Event
    stopped: type[Exception]


@dataclass(eq=False)
class _Outage:
    storage: str
    since: float
    cause: StorageAwayError
    over: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that tries again."""
    is_logged: bool = False

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.since


def storage_of(url: object) -> str:
    """The storage of a URL, as `hdfs://host:port`; empty for a path of this machine."""
    parts = urlsplit(str(url or ""))
    return "" if parts.scheme in ("", "file", "rocksdb") else f"{parts.scheme}://{parts.netloc}"


_patiences: list[_Patience] = []
_outages: dict[tuple[str, str], _Outage] = {}
"""By the storage, and what it does not do."""
_left_away: set[str] = set()
"""Storages that were away when this process ended its wait for them."""
_lock = threading.Lock()
_thread = threading.local()


@contextlib.contextmanager
def waiting(deadline_s: float, stop: threading.Event, stopped: type[Exception]) -> Iterator[None]:
    """Inside the block this process waits for storages that are away, until the deadline of each outage.

    After `stop` a wait ends within some seconds, with an exception of the class `stopped`. Of several blocks at a time,
    as of several queries, the last one's deadline and stop count.
    """
    own = _Patience(deadline_s, stop, stopped)
    _left_away.clear()
    _patiences.append(own)
    try:
        yield
    finally:
        _patiences.remove(own)
        with _lock:
            for outage in () if _patiences else _outages.values():
                outage.over.set()
            if not _patiences:
                _left_away.update(outage.storage for outage in _outages.values())
                _outages.clear()


@contextlib.contextmanager
def not_waiting() -> Iterator[None]:
    """Inside the block this thread does not wait: for what is to be given up while a storage is away. May be nested."""
    before = getattr(_thread, "is_impatient", False)
    _thread.is_impatient = True
    try:
        yield
    finally:
        _thread.is_impatient = before


def is_waiting() -> bool:
    """Whether a call of this thread waits for a storage that is away."""
    return bool(_patiences) and not getattr(_thread, "is_impatient", False)


def end_if_stopped() -> None:
    """Raise the class given to `waiting` if a stop was requested: for work that is repeated after an outage."""
    for patience in _patiences[-1:]:
        if patience.stop.is_set():
            raise patience.stopped("a stop was requested while a storage was away")


def is_given_up(storage: str) -> bool:
    """True if the storage was away and this process ends its wait, or has ended it.

    A call may still find it back, but is not worth the time that a client spends on a server that does not answer: of
    a stop there is one for each file that is closed.
    """
    patience = _patience()
    if patience is None:
        return storage in _left_away
    if not patience.stop.is_set():
        return False
    with _lock:
        outages = [outage for outage in _outages.values() if outage.storage == storage]
    return any(outage.waited_s >= STOPPING_S for outage in outages)


def are_known() -> bool:
    """Whether a storage is away that this process waits for."""
    return bool(_outages)


def patient(storage: str, action: Callable[[], T], *, proves: Collection[str] = ("answers",)) -> T:
    """What `action` gives, tried again while it raises StorageAwayError and this process waits.

    `proves`: what a success shows that the storage does again, as `StorageAwayError.missing` has it.

    Raises:
        StorageAwayError: the last one, after the deadline of the outage, or at once where nothing waits.
        Exception: the class given to `waiting`: a stop was requested.
    """
    held: _Outage | None = None
    try:
        while True:
            began = time.monotonic()
            try:
                result = action()
            except StorageAwayError as exc:
                if not _patiences:
                    raise
                outage = _noted(storage, exc, began)
                if held is not None:
                    held.turn.release()
                    held = None
                if not is_waiting():
                    raise
                held = _turn_of(outage, exc)
            except OSError:
                _are_over(storage, ("answers",))  # a refusal is an answer
                raise
            else:
                _are_over(storage, proves)
                return result
    finally:
        if held is not None:
            held.turn.release()


def note(storage: str, error: StorageAwayError, began: float) -> None:
    """Note the failure of a call that began at `began`, by the monotonic clock, and is tried again in its own way."""
    if _patiences:
        _noted(storage, error, began)


def _patience() -> _Patience | None:
    with contextlib.suppress(IndexError):
        return _patiences[-1]
    return None


def _noted(storage: str, error: StorageAwayError, began: float) -> _Outage:
    with _lock:
        outage = _outages.get((storage, error.missing))
        if outage is None:
            outage = _outages[storage, error.missing] = _Outage(storage, began, error)
            on_a_thread(lambda: _log(outage))
        outage.cause = error
        return outage


def _turn_of(outage: _Outage, error: StorageAwayError) -> _Outage | None:
    """Wait for the end of the outage (None), or for the turn to try again, which is then held."""
    outage.over.wait(_PAUSE_S)
    while True:
        patience, waited_s = _patience(), outage.waited_s
        if patience is None:
            raise error
        if outage.over.is_set():
            return None
        if waited_s >= patience.deadline_s:
            raise error.after(f"waited {waited_s:.0f} s; {_NOTHING_LOST}") from error
        if waited_s >= STOPPING_S and patience.stop.is_set():
            raise patience.stopped(f"stopped while waiting for {outage.storage}: {error}") from error
        if outage.turn.acquire(timeout=_PAUSE_S):
            return outage


def _are_over(storage: str, proves: Collection[str]) -> None:
    _left_away.discard(storage)
    if not _outages:
        return
    with _lock:
        ended = [_outages.pop((storage, what), None) for what in proves]
    for outage in ended:
        if outage is not None:
            outage.over.set()


def _log(outage: _Outage) -> None:
    """The lines of an outage, on a thread of its own."""
    next_s = LOG_EVERY_S
    while True:
        is_over, patience = outage.over.wait(max(0.0, next_s - outage.waited_s)), _patience()
        if patience is None or (is_over and not outage.is_logged) or outage.waited_s >= patience.deadline_s:
            return
        waited_s, cause = outage.waited_s, outage.cause
        if is_over:
            logger.warning("%s %s again after %.0f s: going on", outage.storage, cause.missing, waited_s)
            return
        logger.warning(
            "waiting for %s for %.0f s (%s); trying again, gives up after %.0f s",
            *(outage.storage, waited_s, cause, patience.deadline_s),
        )
        outage.is_logged = True
        next_s = (waited_s // LOG_EVERY_S + 1) * LOG_EVERY_S
