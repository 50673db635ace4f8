"""The owner's sign of life: a counter in `heartbeat` that moves while the owner runs.

It decides nothing about commits; it only keeps a second start from taking over by mistake from a live owner. The file
(framed, magic `BSHEARTB`, version 1; the body a msgpack array: owner, nonce of the running process, counter) is
replaced whole every two seconds, not synced, and removed at a clean stop. Watchers compare bytes, so a damaged file
that changes is a sign of life too.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from bucket_store.errors import CorruptionError
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place
from bucket_store.wire import decode, encode

MAGIC = b"BSHEARTB"
VERSION = 1
FILE_NAME = "heartbeat"
INTERVAL_S = 2.0
_CHECK_EVERY_S = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat: the owner, its process (8 random bytes), and the number of the beat."""

    owner: str
    nonce: bytes
    counter: int


class HeartBeat:
    """Beats from a thread of its own between `start` and `stop`; also a context manager.

    A beat that cannot be written is logged and the next one tried: it never stops the owner.
    """

    def __init__(self, root: Place, owner: str, *, interval_s: float = INTERVAL_S) -> None:
        self._path = root / FILE_NAME
        self._owner = owner
        self._nonce = secrets.token_bytes(8)
        self._interval_s = interval_s
        self._counter = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Beat once, then from the background thread."""
        self.beat()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Write the next beat."""
        self._counter += 1
        body = encode(Beat(self._owner, self._nonce, self._counter))
        try:
            self._path.replace(frame(MAGIC, VERSION, body))
        except OSError as exc:
            log.warning("heartbeat %s could not be written: %s", self._path, exc)

    def stop(self) -> None:
        """End the beating, and remove the file unless it holds another owner's beat. Safe to repeat."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        beat = read_beat(self._path.parent)
        if beat is not None and beat.nonce == self._nonce:
            try:
                self._path.remove()
            except OSError as exc:
                log.warning("heartbeat %s could not be removed: %s", self._path, exc)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.beat()

    def __enter__(self) -> HeartBeat:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def read_beat(root: Place) -> Beat | None:
    """The last beat; None when there is none or it cannot be read. Raises UnknownFormatError."""
    data = _read(root)
    if data is None:
        return None
    try:
        body = unframe(data, magic=MAGIC, version=VERSION, file=str(root / FILE_NAME))
        return decode(Beat, body)
    except (CorruptionError, ValueError):
        return None


def moves(root: Place, wait_s: float, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether an owner lives: True as soon as the heartbeat has changed, False when it has not within `wait_s`.

    False at once when there is none, and when it goes away meanwhile: that owner has stopped. `wait_s` should be twice
    the owner's interval or more.
    """
    first = _read(root)
    waited = 0.0
    while first is not None and waited < wait_s:
        sleep(min(_CHECK_EVERY_S, wait_s - waited))
        waited += _CHECK_EVERY_S
        now = _read(root)
        if now != first:
            return now is not None
    return False


def _read(root: Place) -> bytes | None:
    try:
        return (root / FILE_NAME).read()
    except (FileNotFoundError, NotADirectoryError):
        return None
