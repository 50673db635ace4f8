"""The owner's sign of life: the file `heartbeat`, whose bytes or modification time move while the owner runs.

It decides nothing about commits; it only keeps a second start from taking over by mistake from a live owner. The file
(framed, magic `BSHEARTB`, version 1; the body a msgpack array: owner, nonce of the running process, counter) is
written once and then touched every two seconds, not synced, and removed at a clean stop. The storage touches in the way
that costs it least (`Names.touch`): on a local disk the file is replaced with the next counter, in HDFS its time is
set. Watchers compare bytes and time, so a damaged file that changes is a sign of life too.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import xxhash

from bucket_store.errors import CorruptionError
from bucket_store.framing import frame, unframe
from bucket_store.places.outages import are_known, not_waiting
from bucket_store.places.place import Place
from bucket_store.wire import decode, encode

MAGIC = b"BSHEARTB"
VERSION = 1
FILE_NAME = "heartbeat"
INTERVAL_S = 2.0
_CHECK_EVERY_S = 0.25
_NONCE_BYTES = 8
_SPACE_BYTES = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat: the owner, its process (8 bytes: those of `_process_space`, then random ones), and its number."""

    owner: str
    nonce: bytes
    counter: int

    @property
    def has_our_numbers(self) -> bool:
        """Whether process numbers mean the same to its process and to this one: one boot, one PID namespace.

        Beats of earlier releases do not say it, so never.
        """
        return self.nonce.startswith(_process_space())


@dataclass(frozen=True, slots=True)
class Sign:
    """The bytes of a heartbeat, and when it was last written or touched; another one at every beat."""

    data: bytes
    modified_us: int


class HeartBeat:
    """Beats from a thread of its own between `start` and `stop`; also a context manager.

    A beat that cannot be written is logged and the next one tried: it never stops the owner. A job without
    input notices an outage of the storage by it.
    """

    def __init__(self, root: Place, owner: str, *, interval_s: float = INTERVAL_S) -> None:
        self._path = root / FILE_NAME
        self._owner = owner
        self._nonce = _process_space() + secrets.token_bytes(_NONCE_BYTES - _SPACE_BYTES)
        self._interval_s = interval_s
        self._counter = 0
        self._is_written = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Beat once, then from the background thread."""
        self.beat()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Beat once more. Only the first beat is sure to say whose it is."""
        self._counter += 1
        data = frame(MAGIC, VERSION, encode(Beat(self._owner, self._nonce, self._counter)))
        try:
            with not_waiting():
                if self._is_written:
                    self._path.touch(data)
                else:
                    self._path.replace(data)
                    self._is_written = True
        except OSError as exc:
            if not are_known():  # the lines of an outage say it
                log.warning("heartbeat %s could not be written: %s", self._path, exc)

    def stop(self) -> None:
        """End the beating, and remove the file unless it holds another owner's beat. Safe to repeat."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            with not_waiting():
                beat = read_beat(self._path.parent)
                if beat is not None and beat.nonce == self._nonce:
                    self._path.remove()
        except OSError as exc:  # raised here, it would hide the error that ends the job
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
    """Who wrote the heartbeat last, and with what counter; None when there is none or it cannot be read.

    Raises:
        UnknownFormatError: of a later release.
    """
    sign = read_sign(root)
    if sign is None:
        return None
    try:
        body = unframe(sign.data, magic=MAGIC, version=VERSION, file=str(root / FILE_NAME))
        return decode(Beat, body)
    except (CorruptionError, ValueError):
        return None


def moves(root: Place, wait_s: float, *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether an owner lives: True as soon as the heartbeat has changed, False when it has not within `wait_s`.

    False at once when there is none, and when it goes away meanwhile: that owner has stopped. `wait_s` should be twice
    the owner's interval or more.
    """
    first = read_sign(root)
    waited = 0.0
    while first is not None and waited < wait_s:
        sleep(min(_CHECK_EVERY_S, wait_s - waited))
        waited += _CHECK_EVERY_S
        now = read_sign(root)
        if now != first:
            return now is not None
    return False


def read_sign(root: Place) -> Sign | None:
    """What a watcher of the heartbeat compares; None when there is no file."""
    path = root / FILE_NAME
    try:
        return Sign(path.read(), path.stat().modified_us)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _process_space() -> bytes:
    """Bytes that are equal in all processes of one boot and one PID namespace, and in hardly any other."""
    try:
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return secrets.token_bytes(_SPACE_BYTES)
    return xxhash.xxh64_digest(f"{boot}{space}".encode())[:_SPACE_BYTES]
