"""Places in HDFS, over hdfs-native.

- A file is created, written and closed in one call: a writer that is open and idle hangs when its DataNode dies.
- A try that fails is deleted at once, and with it go its block and its lease: until then it would count against a quota
  as a whole block in all replicas. So a block is no larger than the file, in steps of `_LEAST_BLOCK`. What cannot be
  deleted now is deleted once the NameNode answers, by a thread; a call that hangs deletes its file when it ends.
- Each call runs on a thread of its own and has `_LIMIT_S`, plus a second for 16 MiB; less, once this process has given
  up an HDFS that is away. After that the caller gets a TimeoutError and the process a new client; the thread stays
  behind with the old one.
- A process must not fork after its first call: a child has none of the threads, but the connections, and its calls
  would hang. They are an OSError instead.

The options of the cluster (name services, Kerberos, replication) are those of HADOOP_CONF_DIR.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urlsplit

from bucket_store.errors import CorruptionError, StorageAwayError
from bucket_store.filesystem import temporary_name
from bucket_store.places import steps
from bucket_store.places.hadoop_settings import asks_for_login, hadoop_settings
from bucket_store.places.hdfs_errors import as_os_error, listens, nodes_of
from bucket_store.places.kerberos import TOKENS, LoginError, ticket
from bucket_store.places.outages import is_given_up, is_waiting, note, patient
from bucket_store.places.place import (
    Entry,
    NotPlacedError,
    Place,
    Prepared,
    UnansweredError,
    prepared_below,
    prepared_name,
    try_of,
)
from bucket_store.threads import bounded, on_a_thread

try:
    from hdfs_native import Client, WriteOptions
except ImportError as exc:
    raise ImportError("hdfs: needs hdfs-native: pip install 'stream-deduper[hdfs]'") from exc

if TYPE_CHECKING:
    from hdfs_native import FileReader, FileStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LIMIT_S = 10.0
_GIVEN_UP_LIMIT_S = 1.0
_BYTES_A_SECOND = 16 << 20
_CLOCK_GOOD_FOR_S = 600.0
_POLL_S = 0.02
# Less than the retries of a NameNode that is away take: they are not repeated, since Spark repeats the task.
_TRIES_S, _PAUSE_S, _LONGEST_PAUSE_S = 6.0, 0.05, 0.25
# Of two DataNodes the NameNode picks the dead one every other time: two dozen tries, on a slow machine too.
_TRIES, _LONGEST_TRIES_S = 24, 20.0

_MOST_ROUNDS = 5
"""So often a file is made again whose rename had no answer, and certainly was not done."""
_CHANGES = ("answers", "takes changes")
# Others refuse the name itself; but of a file that exists this very try has taken it, and the answer was lost.
_LEAVES_A_FILE = (errno.EIO, errno.ETIMEDOUT, errno.EDQUOT, errno.EAGAIN, errno.EEXIST)
_TRIED_AGAIN = (errno.EIO, errno.ETIMEDOUT, errno.EEXIST)
_PAUSES_OF_DAMAGE_S = (0.5, 2.0)
"""Before a block is read again that all its DataNodes refuse: one of them may just have come back."""

# The least that a NameNode takes, unless `dfs.namenode.fs-limits.min-block-size` is set; then it has its own block.
_LEAST_BLOCK, _LARGEST_FILE_OF_ONE = 1 << 20, 64 << 20
_LEAST_REFUSED = "less than configured minimum"
# As long as that a thread tries to delete what failed tries have left; then the next start does.
_SWEEP_S, _SWEEP_PAUSE_S = 1800.0, 1.0

# Seven seconds in all, and so below the limit of a call: a NameNode that fails over is waited for, a dead one is not.
_OPTIONS = {
    "dfs.client.failover.max.attempts": "7",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "2000",
}

# By authority, the newest last; after None the next call makes one. Never emptied: dropping a client that hangs waits
# for its threads.
_clients: dict[str, list[Client | None]] = {}
_owner: int | None = None
"""The process whose clients these are."""

# When a file with one replica was last logged.
_logged_at = -math.inf
_LOGGED_EVERY_S = 60.0

# Authorities that have answered this process, so that it needs no other login.
_answered: set[str] = set()

# Authorities whose NameNode has refused the least block.
_own_blocks: set[str] = set()

# What failed tries have left, until a thread has deleted it. The thread runs while there is some.
_left: list[tuple[HdfsNames, PurePosixPath]] = []
_sweeping = threading.Lock()

# By authority: how far the NameNode's clock is ahead of this machine's, in µs, and when that was measured.
_clocks: dict[str, tuple[int, float]] = {}


@dataclass(frozen=True, slots=True)
class HdfsNames:
    """The files of the HDFS at `authority`: `host:port` of a NameNode, or a name service of HADOOP_CONF_DIR."""

    authority: str
    is_public: bool = field(default=False, compare=False)
    """New files have mode 0644 and not 0600. No umask counts, neither this process's nor the cluster's."""

    @property
    def scheme(self) -> str:
        """See `Names`."""
        return "hdfs"

    def url(self, path: PurePosixPath) -> str:
        """See `Names`."""
        return f"hdfs://{self.authority}{quote(str(path))}"

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """See `Names`."""
        for is_last in (*[False] * _MOST_ROUNDS, True):
            try:
                temporary = self._stage(path, data, failpoint)
            except OSError as exc:
                raise NotPlacedError(exc.errno, exc.strerror, exc.filename) from exc
            steps.written(failpoint)
            try:
                self.call(path, lambda client, new=temporary: client.rename(str(new), str(path)))  # type: ignore[misc]
            except FileExistsError:
                self._discard(temporary)
                raise
            except OSError as exc:
                was_there = self._withdrawn(temporary)
                is_passing = isinstance(exc, StorageAwayError) and is_waiting()
                if was_there is None:
                    raise UnansweredError(exc.errno, exc.strerror, exc.filename) from exc
                if was_there and is_passing and not is_last:
                    continue
                if was_there:
                    raise NotPlacedError(exc.errno, exc.strerror, exc.filename) from exc
                if not is_passing or not self._holds(path, data):
                    raise
            break
        steps.linked(failpoint)

    def write_own(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> PurePosixPath:
        """See `Names`. A twin of a task may write the same file: that of a failed try must not be the twin's."""
        steps.half(failpoint)
        return self.written(data, lambda: try_of(path), parents=True, failpoint=failpoint)

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`."""
        for is_last in (*[False] * _MOST_ROUNDS, True):
            temporary = self._stage(path, data)
            try:
                self.call(path, lambda client, new=temporary: client.rename(str(new), str(path), True))  # type: ignore[misc]
            except OSError as exc:
                was_there = self._withdrawn(temporary)
                if not is_waiting() or not isinstance(exc, StorageAwayError) or was_there is None or is_last:
                    raise
                if was_there:
                    continue
            break

    def prepare(
        self,
        path: PurePosixPath,
        data: bytes,
        *,
        epoch: int,
        is_durable: bool = False,  # noqa: ARG002  every closed file is
    ) -> Prepared:
        """See `Names`: a temporary file with the epoch in its name."""
        temporary = self.written(data, lambda: path.with_name(prepared_name(path.name, epoch)))

        def put() -> None:
            # Of a rename that was done, and had no answer, the second finds no file: as when another owner is later.
            self._patient(path, lambda client: client.rename(str(temporary), str(path), True), proves=_CHANGES)

        return Prepared(put, lambda: self.remove(temporary))

    def remove_prepared(self, path: PurePosixPath, *, below_epoch: int) -> None:
        """See `Names`."""
        for name in prepared_below(self.listed(path.parent), path.name, below_epoch):
            self.remove(path.with_name(name))

    def read(self, path: PurePosixPath) -> bytes:
        """See `Names`."""
        return self._read(path, 0, None)

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """See `Names`."""
        return self._read(path, start, start + length)

    def stat(self, path: PurePosixPath) -> Entry:
        """See `Names`."""
        return _entry(self._patient(path, lambda client: client.get_file_info(str(path))), path.name)

    def exists(self, path: PurePosixPath) -> bool:
        """See `Names`."""
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def listed(self, path: PurePosixPath, *, after: str = "") -> list[str]:
        """See `Names`; the NameNode lists all of them."""
        return [entry.name for entry in self.entries(path) if entry.name > after]

    def entries(self, path: PurePosixPath) -> list[Entry]:
        """See `Names`."""
        try:
            found = self._patient(path, lambda client: list(client.list_status(str(path))))
        except FileNotFoundError:
            return []
        if [status.path for status in found] == [str(path)]:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.url(path))
        return sorted((_entry(each, PurePosixPath(each.path).name) for each in found), key=lambda entry: entry.name)

    def remove(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self._patient(path, lambda client: client.delete(str(path), False), proves=_CHANGES)

    def remove_all(self, paths: list[PurePosixPath]) -> None:
        """See `Names`: a request each."""
        for path in paths:
            self.remove(path)

    def remove_tree(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self._patient(path, lambda client: client.delete(str(path), True), proves=_CHANGES)

    def make_directories(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self._patient(path, lambda client: client.mkdirs(str(path), create_parent=True), proves=_CHANGES)

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """See `Names`. After an outage this very call may have given it the name: then there is no source any more."""
        self._patient(target, lambda client: client.rename(str(source), str(target)), proves=_CHANGES)

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`: one transaction of the NameNode, no block. The time is by the NameNode's clock."""
        now = (time.time_ns() // 1000 + self._clock_ahead_us(path)) // 1000
        try:
            self._patient(path, lambda client: client.set_times(str(path), now, now), proves=_CHANGES)
        except FileNotFoundError:
            self.replace(path, data)

    def sync(self, path: PurePosixPath) -> None:
        """See `Names`: nothing is left to do."""

    def written(
        self, data: bytes, new_name: Callable[[], PurePosixPath], *, parents: bool = False, failpoint: str = ""
    ) -> PurePosixPath:
        """The path of a new file, whole and durable; each try has a name of its own, which no other process uses.

        The client goes to the DataNodes that the NameNode picks, which picks dead ones until it misses them. So after
        two refusals, or one call that hangs, the file is begun with one replica, until a living one is picked, and the
        NameNode makes the others: after a death Java's client leaves it as many to make. The file of a failed try is
        deleted. With `parents` missing directories are made.

        Raises:
            OSError: what the cluster refused; or, where nothing waits for an outage, the last error after `_TRIES_S`
                seconds and `_TRIES` tries, or `_LONGEST_TRIES_S`, or after two calls that hang.
        """
        return patient(
            self._storage, lambda: self._written(data, new_name, parents, failpoint), proves=(*_CHANGES, "writes")
        )

    def _written(
        self, data: bytes, new_name: Callable[[], PurePosixPath], parents: bool, failpoint: str
    ) -> PurePosixPath:
        since, wanted, hung = time.monotonic(), 0, 0
        for number in itertools.count():
            path, began = new_name(), time.monotonic()
            try:
                self.begin(path, data, 1 if wanted else None, parents=parents, failpoint=failpoint)
            except OSError as exc:
                now = time.monotonic()
                if isinstance(exc, StorageAwayError):
                    note(self._storage, exc, began)
                is_hung = exc.errno == errno.ETIMEDOUT
                is_away = is_hung or now - began > _TRIES_S  # the NameNode, for all that is known
                hung += is_hung
                since = now if is_hung else since
                tried_s = now - since
                is_last = (is_away and not is_hung) or hung > 1 or exc.errno not in _TRIED_AGAIN
                is_last |= tried_s > _TRIES_S and (number >= _TRIES or tried_s > _LONGEST_TRIES_S)
                if not is_last and (number or hung):
                    wanted = wanted or self._replicas(path)
                    is_last = hung > 0 and not wanted  # it is the NameNode that gives no answer
                self._discard(path, exc, now=not is_away)
                if is_last:
                    raise
                if number or hung:
                    time.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**number))
            else:
                break
        if wanted > 1:
            with contextlib.suppress(OSError):
                self.call(path, lambda client: client.set_replication(str(path), wanted))
            _warn_of_one_replica(self.url(path), number)
        return path

    def begin(
        self,
        path: PurePosixPath,
        data: bytes,
        replicas: int | None = None,
        *,
        parents: bool = False,
        failpoint: str = "",
    ) -> None:
        """Make a file under its own name, durable on return; after an error a part of it may be there.

        A call that hangs deletes the file when it ends.

        Raises:
            FileExistsError: the name is taken.
        """
        is_given_up, is_created = threading.Event(), threading.Event()

        def write(client: Client) -> None:
            size = None if self.authority in _own_blocks else _block_size(len(data))
            mode = 0o644 if self.is_public else 0o600
            options = WriteOptions(permission=mode, create_parent=parents, replication=replicas, block_size=size)
            try:
                # The inner client: a file of the outer one is closed when it is collected. After a refused write that
                # means to ask the NameNode for 15 s whether it has a block that no DataNode has.
                file = client.inner.create(str(path), options)
                is_created.set()
                file.write(data)
                steps.opened(failpoint)
                file.close()
            finally:
                if is_given_up.is_set():
                    client.delete(str(path), False)

        try:
            self.call(path, write, len(data), missing=lambda: "writes" if is_created.is_set() else "answers")
        except OSError as exc:
            is_given_up.set()
            if _LEAST_REFUSED not in str(exc) or self.authority in _own_blocks:
                raise
            _own_blocks.add(self.authority)
            self.begin(path, data, replicas, parents=parents, failpoint=failpoint)

    @property
    def _has_answered(self) -> bool:
        return self.authority in _answered

    @property
    def _storage(self) -> str:
        return f"hdfs://{self.authority}"

    def _patient(
        self, path: PurePosixPath, action: Callable[[Client], T], *, proves: Collection[str] = ("answers",)
    ) -> T:
        """As `call`, tried again in an outage that this process waits for: the action is safe to repeat."""
        return patient(self._storage, lambda: self.call(path, action), proves=proves)

    def call(
        self,
        path: PurePosixPath,
        action: Callable[[Client], T],
        size: int = 0,
        *,
        missing: Callable[[], str] = lambda: "answers",
    ) -> T:
        """What `action` gives for a client of this process; `size` is the bytes it moves.

        `missing`: what HDFS does not do if the action now has no answer, as `StorageAwayError` has it.

        Raises:
            OSError: what the cluster refused, in plain words.
        """
        try:
            client = _client(self.authority)
        except (OSError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            # Of the constructor: a name service that the configuration does not have.
            raise as_os_error(exc, self.url(path), has_answered=self._has_answered) from exc
        try:
            limit_s = _GIVEN_UP_LIMIT_S if is_given_up(self._storage) else _LIMIT_S
            result = bounded(lambda: action(client), limit_s + size / _BYTES_A_SECOND)
            _answered.add(self.authority)
            return result
        except TimeoutError as exc:
            _throw_away(self.authority, client)
            text = f"HDFS gives no answer: {exc}"
            raise StorageAwayError.of(errno.ETIMEDOUT, text, self.url(path), missing()) from exc
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            # Of its own errors, a panic of the client is none of Exception's.
            raise as_os_error(exc, self.url(path), has_answered=self._has_answered, missing=missing()) from exc

    def _stage(self, path: PurePosixPath, data: bytes, failpoint: str = "") -> PurePosixPath:
        """A temporary file beside `path`, whole and durable."""
        return self.written(data, lambda: path.with_name(temporary_name(path.name)), failpoint=failpoint)

    def _discard(self, path: PurePosixPath, failure: OSError | None = None, *, now: bool = True) -> None:
        """Delete what a failed try may have left: now, or once the NameNode answers; `failure` is that of the try."""
        if failure is not None and failure.errno not in _LEAVES_A_FILE:
            return
        if not now or self._withdraw(path) is None:
            _delete_later(self, path)

    def _replicas(self, path: PurePosixPath) -> int:
        """How many replicas a file that was begun is to have; 0 when that is not clear."""
        with contextlib.suppress(OSError):
            return self.call(path, lambda client: int(client.get_file_info(str(path)).replication or 0))
        return 0

    def _withdraw(self, temporary: PurePosixPath) -> bool | None:
        """Remove a temporary file. True: it was there, so no rename has moved it, and none under way will.

        False: it was not there. None: that is unclear, and a rename under way may still move it.
        """
        with contextlib.suppress(OSError):
            return self.call(temporary, lambda client: client.delete(str(temporary), False))
        return None

    def _withdrawn(self, temporary: PurePosixPath) -> bool | None:
        """As `_withdraw`, after an outage that this process waits for; what is unclear is tried again on a thread."""
        with contextlib.suppress(OSError):
            return self._patient(temporary, lambda client: client.delete(str(temporary), False), proves=_CHANGES)
        _delete_later(self, temporary)
        return None

    def _holds(self, path: PurePosixPath, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except FileNotFoundError:
            return False

    def _read(self, path: PurePosixPath, start: int, end: int | None) -> bytes:
        """The bytes of a range, or all from `start` on.

        Raises:
            CorruptionError: the DataNodes that have a block answer, and none gives its bytes.
        """

        def read() -> bytes:
            reader = self._reader(path, end)
            length = min(len(reader), len(reader) if end is None else end) - start
            if length <= 0:
                return b""
            return self.call(path, lambda _: reader.read_range(start, length), length, missing=lambda: "reads")

        def read_if_whole() -> bytes:
            for pause_s in (*_PAUSES_OF_DAMAGE_S, None):
                try:
                    return read()
                except StorageAwayError as exc:
                    nodes = nodes_of(exc)
                    if exc.missing != "reads" or not nodes or not all(map(listens, nodes)):
                        raise
                    if pause_s is None:
                        raise CorruptionError(
                            "a block of the file",
                            file=self.url(path),
                            offset=start,
                            expected="bytes that agree with their checksums",
                            found=f"none in its replicas, at the DataNodes {', '.join(nodes)} (`hdfs fsck`)",
                        ) from exc
                    time.sleep(pause_s)
            raise AssertionError("the last round ends the loop")

        return patient(self._storage, read_if_whole, proves=("answers", "reads"))

    def _reader(self, path: PurePosixPath, end: int | None) -> FileReader:
        """A reader of the bytes up to `end`, or of all.

        A file that was closed just now may be whole and its last block not reported yet: a reader does not see that
        block, and the NameNode tells the file's size with it. Then it is waited for.
        """
        give_up = time.monotonic() + _LIMIT_S
        while True:
            reader: FileReader = self.call(path, lambda client: client.read(str(path)))
            if end is not None and len(reader) >= end:
                return reader
            size = self.call(path, lambda client: client.get_file_info(str(path)).length)
            if len(reader) >= size:
                return reader
            if time.monotonic() > give_up:
                text = "no DataNode has reported the last block"
                raise StorageAwayError.of(errno.ETIMEDOUT, text, self.url(path), "reads")
            time.sleep(_POLL_S)

    def _clock_ahead_us(self, path: PurePosixPath) -> int:
        """How far the NameNode's clock is ahead of ours, by a file that it dates."""
        ahead, measured = _clocks.get(self.authority, (0, 0.0))
        if not measured or time.monotonic() > measured + _CLOCK_GOOD_FOR_S:
            probe = path.with_name(temporary_name(f"clock-{secrets.token_hex(2)}"))
            # Rather too far ahead, by the time a file takes, than behind what the NameNode has dated before.
            began_us = time.time_ns() // 1000
            try:
                self.begin(probe, b"")
                ahead = self.stat(probe).modified_us - began_us
            finally:
                self._discard(probe)
            _clocks[self.authority] = (ahead, time.monotonic())
        return ahead


def hdfs_place(url: str, *, is_public: bool = False) -> Place:
    """The place of `hdfs://HOST:PORT/PATH`, or of a name service in place of HOST:PORT. Nothing is connected to yet.

    Raises:
        ValueError: no authority, or something beside authority and path, such as a login.
    """
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("the URL of a place in HDFS is hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH, and no more")
    return Place(HdfsNames(parts.netloc, is_public), PurePosixPath("/", unquote(parts.path).lstrip("/")))


def _client(authority: str) -> Client:
    global _owner
    if _owner not in (None, os.getpid()):
        raise OSError(errno.EDEADLK, f"process {_owner} used HDFS before it forked this one", authority)
    _owner = os.getpid()
    # Two threads may make one each: no harm.
    clients = _clients.setdefault(authority, [])
    client = clients[-1] if clients else None
    if client is None:
        client = _new_client(authority)
        clients.append(client)
    return client


def _new_client(authority: str) -> Client:
    """A client that has no connection yet.

    Raises:
        PermissionError: it could not log in, and HADOOP_TOKEN_FILE_LOCATION names no tokens either.
    """
    if asks_for_login(hadoop_settings()) and TOKENS not in os.environ:
        try:
            ticket()
        except LoginError as exc:
            raise PermissionError(errno.EACCES, f"HDFS: no login: {exc}", f"hdfs://{authority}") from exc
    return Client(f"hdfs://{authority}", _OPTIONS)


def _warn_of_one_replica(url: str, tries: int) -> None:
    """While a DataNode is dead, many files a window are so: one line a minute."""
    global _logged_at
    now = time.monotonic()
    if now - _logged_at >= _LOGGED_EVERY_S:
        _logged_at = now
        logger.warning(
            "%s: one DataNode has it so far, %d tries have failed; the NameNode makes the others", url, tries
        )


def _delete_later(names: HdfsNames, path: PurePosixPath) -> None:
    """Delete the file of a failed try once the NameNode answers, on a thread; see `_sweep`."""
    _left.append((names, path))
    if _sweeping.acquire(blocking=False):
        on_a_thread(_sweep)


def _sweep() -> None:
    give_up = time.monotonic() + _SWEEP_S
    try:
        while _left and time.monotonic() < give_up:
            names, path = _left[0]
            if names._withdraw(path) is None:
                time.sleep(_SWEEP_PAUSE_S)
            else:
                _left.pop(0)
    finally:
        _sweeping.release()


def _block_size(length: int) -> int | None:
    """The block of a file of so many bytes; None for that of the cluster."""
    return None if length > _LARGEST_FILE_OF_ONE else -(-max(1, length) // _LEAST_BLOCK) * _LEAST_BLOCK


def _throw_away(authority: str, client: Client) -> None:
    """The next call gets a new client, if this one is still the newest."""
    clients = _clients[authority]
    if clients[-1] is client:
        clients.append(None)


def _entry(status: FileStatus, name: str) -> Entry:
    return Entry(name, status.isdir, 0 if status.isdir else status.length, status.modification_time * 1000)
