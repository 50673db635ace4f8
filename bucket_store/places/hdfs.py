"""Places in HDFS, over hdfs-native.

- A file is created, written and closed in one call: a writer that is open and idle hangs when its DataNode dies.
- Each call runs on a thread of its own and has `_LIMIT_S`, plus a second for 16 MiB. After that the caller gets a
  TimeoutError and the process a new client; the thread stays behind with the old one.
- A process must not fork after its first call: a child has none of the threads, but the connections, and its calls
  would hang. They are an OSError instead.

The options of the cluster (name services, Kerberos, replication) are those of HADOOP_CONF_DIR.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urlsplit

from bucket_store.filesystem import temporary_name
from bucket_store.places import steps
from bucket_store.places.hadoop_settings import FOLDER, PROTECTION, asks_for_login, hadoop_settings
from bucket_store.places.kerberos import TOKENS, LoginError, ticket
from bucket_store.places.place import Entry, NotPlacedError, Place, Prepared, UnansweredError
from bucket_store.places.prepared import prepared_below, prepared_name
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
_BYTES_A_SECOND = 16 << 20
_CLOCK_GOOD_FOR_S = 600.0
_POLL_S = 0.02
# Less than the retries of a NameNode that is away take: they are not repeated, since Spark repeats the task.
_TRIES_S, _PAUSE_S, _LONGEST_PAUSE_S = 6.0, 0.05, 0.25
# Of two DataNodes the NameNode picks the dead one every other time: two dozen tries, on a slow machine too.
_TRIES, _LONGEST_TRIES_S = 24, 20.0

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

# By authority: how far the NameNode's clock is ahead of this machine's, in µs, and when that was measured.
_clocks: dict[str, tuple[int, float]] = {}


@dataclass(frozen=True, slots=True)
class HdfsNames:
    """The files of the HDFS at `authority`: `host:port` of a NameNode, or a name service of HADOOP_CONF_DIR."""

    authority: str

    @property
    def scheme(self) -> str:
        """See `Names`."""
        return "hdfs"

    def url(self, path: PurePosixPath) -> str:
        """See `Names`."""
        return f"hdfs://{self.authority}{quote(str(path))}"

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """See `Names`."""
        try:
            temporary = self._stage(path, data, failpoint)
        except OSError as exc:
            raise NotPlacedError(exc.errno, exc.strerror, exc.filename) from exc
        steps.written(failpoint)
        try:
            self.call(path, lambda client: client.rename(str(temporary), str(path)))
        except FileExistsError:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise
        except OSError as exc:
            was_there = self._withdraw(temporary)
            if was_there is None:
                raise UnansweredError(exc.errno, exc.strerror, exc.filename) from exc
            if was_there:
                raise NotPlacedError(exc.errno, exc.strerror, exc.filename) from exc
            raise
        steps.linked(failpoint)

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`."""
        temporary = self._stage(path, data)
        try:
            self.call(path, lambda client: client.rename(str(temporary), str(path), True))
        except OSError:
            self._withdraw(temporary)
            raise

    def prepare(self, path: PurePosixPath, data: bytes, *, epoch: int) -> Prepared:
        """See `Names`: a temporary file with the epoch in its name."""
        temporary = self.written(data, lambda _: path.with_name(prepared_name(path.name, epoch)))

        def put() -> None:
            self.call(path, lambda client: client.rename(str(temporary), str(path), True))

        return Prepared(put, lambda: self.remove(temporary))

    def remove_prepared(self, path: PurePosixPath, *, below_epoch: int) -> None:
        """See `Names`."""
        for name in prepared_below(self.listed(path.parent), path.name, below_epoch):
            self.remove(path.with_name(name))

    def read(self, path: PurePosixPath) -> bytes:
        """See `Names`."""
        reader = self._reader(path, None)
        size = len(reader)
        return self.call(path, lambda _: reader.read_range(0, size), size) if size else b""

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """See `Names`."""
        reader = self._reader(path, start + length)
        length = min(length, len(reader) - start)
        return self.call(path, lambda _: reader.read_range(start, length), length) if length > 0 else b""

    def stat(self, path: PurePosixPath) -> Entry:
        """See `Names`."""
        return _entry(self.call(path, lambda client: client.get_file_info(str(path))), path.name)

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
            found = self.call(path, lambda client: list(client.list_status(str(path))))
        except FileNotFoundError:
            return []
        if [status.path for status in found] == [str(path)]:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.url(path))
        return sorted((_entry(each, PurePosixPath(each.path).name) for each in found), key=lambda entry: entry.name)

    def remove(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self.call(path, lambda client: client.delete(str(path), False))

    def remove_tree(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self.call(path, lambda client: client.delete(str(path), True))

    def make_directories(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self.call(path, lambda client: client.mkdirs(str(path), create_parent=True))

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """See `Names`."""
        self.call(target, lambda client: client.rename(str(source), str(target)))

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`: one transaction of the NameNode, no block. The time is by the NameNode's clock."""
        now = (time.time_ns() // 1000 + self._clock_ahead_us(path)) // 1000
        try:
            self.call(path, lambda client: client.set_times(str(path), now, now))
        except FileNotFoundError:
            self.replace(path, data)

    def sync(self, path: PurePosixPath) -> None:
        """See `Names`: nothing is left to do."""

    def written(
        self, data: bytes, named: Callable[[int], PurePosixPath], *, parents: bool = False, failpoint: str = ""
    ) -> PurePosixPath:
        """The path of a new file, whole and durable: the first of these names under which it could be written.

        The client goes to the DataNodes that the NameNode picks, which picks dead ones until it misses them. So after
        two refusals, or one call that hangs, the file is begun with one replica, until a living one is picked, and the
        NameNode makes the others: after a death Java's client leaves it as many to make. A failed try may leave a part
        of a file, or a whole one later. With `parents` missing directories are made.

        Raises:
            OSError: what the cluster refused; or the last error after `_TRIES_S` seconds and `_TRIES` tries, or
                `_LONGEST_TRIES_S`, or after two calls that hang.
        """
        since, wanted, hung = time.monotonic(), 0, 0
        for number in itertools.count():
            path, began = named(number), time.monotonic()
            try:
                self.begin(path, data, 1 if wanted else None, parents=parents, failpoint=failpoint)
            except FileExistsError:
                continue
            except OSError as exc:
                now = time.monotonic()
                if exc.errno == errno.ETIMEDOUT:
                    hung += 1
                    since = now
                elif now - began > _TRIES_S:
                    raise  # the NameNode is away
                tried_s = now - since
                is_tried = tried_s > _TRIES_S and (number >= _TRIES or tried_s > _LONGEST_TRIES_S)
                if hung > 1 or is_tried or exc.errno not in (errno.ETIMEDOUT, errno.EIO):
                    raise
                if number or hung:
                    wanted = wanted or self._replicas(path)
                    if hung and not wanted:
                        raise  # it is the NameNode that gives no answer
                    time.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**number))
            else:
                break
        if wanted > 1:
            with contextlib.suppress(OSError):
                self.call(path, lambda client: client.set_replication(str(path), wanted))
            logger.warning("%s: one DataNode has it so far, %d tries have failed", self.url(path), number)
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

        Raises:
            FileExistsError: the name is taken.
        """

        def write(client: Client) -> None:
            options = WriteOptions(permission=0o600, create_parent=parents, replication=replicas)
            # The inner client: a file of the outer one is closed when it is collected. After a refused write that means
            # to ask the NameNode for 15 s whether it has a block that no DataNode has.
            file = client.inner.create(str(path), options)
            file.write(data)
            steps.opened(failpoint)
            file.close()

        self.call(path, write, len(data))

    def call(self, path: PurePosixPath, action: Callable[[Client], T], size: int = 0) -> T:
        """What `action` gives for a client of this process; `size` is the bytes it moves.

        Raises:
            OSError: what the cluster refused, in plain words.
        """
        try:
            client = _client(self.authority)
        except (OSError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            # Of the constructor: a name service that the configuration does not have.
            raise as_os_error(exc, self.url(path)) from exc
        try:
            return bounded(lambda: action(client), _LIMIT_S + size / _BYTES_A_SECOND)
        except TimeoutError as exc:
            _throw_away(self.authority, client)
            raise TimeoutError(errno.ETIMEDOUT, f"HDFS gives no answer: {exc}", self.url(path)) from exc
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            # Of its own errors, a panic of the client is none of Exception's.
            raise as_os_error(exc, self.url(path)) from exc

    def _stage(self, path: PurePosixPath, data: bytes, failpoint: str = "") -> PurePosixPath:
        """A temporary file beside `path`, whole and durable; those of failed tries are removed."""
        tried: list[PurePosixPath] = []

        def named(_: int) -> PurePosixPath:
            tried.append(path.with_name(temporary_name(path.name)))
            return tried[-1]

        try:
            whole = self.written(data, named, failpoint=failpoint)
        except OSError as exc:
            if exc.errno in (errno.ETIMEDOUT, errno.EIO):
                on_a_thread(lambda: self._withdraw_all(tried))
            else:
                self._withdraw_all(tried)  # the NameNode answers
            raise
        if len(tried) > 1:
            on_a_thread(lambda: self._withdraw_all(tried[:-1]))
        return whole

    def _withdraw_all(self, temporaries: Iterable[PurePosixPath]) -> None:
        for temporary in temporaries:
            self._withdraw(temporary)

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
            size = self.stat(path).size
            if len(reader) >= size:
                return reader
            if time.monotonic() > give_up:
                raise TimeoutError(errno.ETIMEDOUT, "no DataNode has reported the last block", self.url(path))
            time.sleep(_POLL_S)

    def _clock_ahead_us(self, path: PurePosixPath) -> int:
        """How far the NameNode's clock is ahead of ours, by a file that it dates."""
        ahead, measured = _clocks.get(self.authority, (0, 0.0))
        if not measured or time.monotonic() > measured + _CLOCK_GOOD_FOR_S:
            probe = path.with_name(temporary_name(f"clock-{secrets.token_hex(2)}"))
            # Rather too far ahead, by the time a file takes, than behind what the NameNode has dated before.
            began_us = time.time_ns() // 1000
            self.begin(probe, b"")
            ahead = self.stat(probe).modified_us - began_us
            self.remove(probe)
            _clocks[self.authority] = (ahead, time.monotonic())
        return ahead


def hdfs_place(url: str) -> Place:
    """The place of `hdfs://HOST:PORT/PATH`, or of a name service in place of HOST:PORT. Nothing is connected to yet.

    Raises:
        ValueError: no authority, or something beside authority and path, such as a login.
    """
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("the URL of a place in HDFS is hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH, and no more")
    return Place(HdfsNames(parts.netloc), PurePosixPath("/", unquote(parts.path).lstrip("/")))


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


def _throw_away(authority: str, client: Client) -> None:
    """The next call gets a new client, if this one is still the newest."""
    clients = _clients[authority]
    if clients[-1] is client:
        clients.append(None)


def _entry(status: FileStatus, name: str) -> Entry:
    return Entry(name, status.isdir, 0 if status.isdir else status.length, status.modification_time * 1000)


_JAVA_ERROR = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*?)(?:\\n|"\)$)', re.DOTALL)
_ERRORS = {
    "AccessControlException": errno.EACCES,
    "AlreadyBeingCreatedException": errno.EBUSY,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "RecoveryInProgressException": errno.EBUSY,
    "RetriableException": errno.EAGAIN,
    "SafeModeException": errno.EAGAIN,
    "StandbyException": errno.EAGAIN,
}
_LONGEST_REASON = 300
_NO_NAMENODE = "No NameNode hosts found"
# Of GSSAPI's texts for a ticket; they begin with its name, or are MIT Kerberos's own words.
_TICKET = re.compile(r"GSSAPI|[Kk]erberos|[Tt]icket|credentials? cache|libgssapi")
_NO_TOKENS = "the tokens are none of this cluster, or end within a minute, and "
_GSSAPI_TEXT = re.compile(r'GSSAPIError\(.*, "(.*)"\)$', re.DOTALL)
# What to do, behind the cluster's own words.
_REMEDIES = {
    errno.EACCES: "let this user write there (`hdfs dfs -chown`), or run the job as another one",
    errno.EDQUOT: "raise it (`hdfs dfsadmin -setSpaceQuota`, `-setQuota`), or delete files below it",
    "SafeModeException": "its DataNodes have not reported their blocks, or somebody keeps it there: "
    "`hdfs dfsadmin -safemode get`",
}


def as_os_error(error: BaseException, url: str) -> OSError:
    """The OSError for an error of hdfs-native, without Java's stack, and with what to do about it."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url)
    java = _JAVA_ERROR.search(text)
    name, reason = (java[1], java[2]) if java else (type(error).__name__, text.partition("\n")[0])
    code = _ERRORS.get(name, errno.EIO)
    if "could only be written to" in reason:
        reason = "no DataNode takes a block: they are down, full, or too few for the replication"
    elif "All DataNodes failed" in reason:
        reason = "no DataNode gives the file's bytes: those that have them are down"
    elif _NO_NAMENODE in reason:
        return OSError(errno.EINVAL, f"HDFS: {_unknown_name(urlsplit(url).netloc)}", url)
    elif java is None and _TICKET.search(reason):
        return PermissionError(errno.EACCES, f"HDFS: no login: {_why_no_login(reason)}", url)
    remedy = _REMEDIES.get(name) or _REMEDIES.get(code) or _remedy_of_closed(reason)
    return OSError(code, f"HDFS: {reason[:_LONGEST_REASON]}{f'; {remedy}' if remedy else ''}", url)


def _why_no_login(reason: str) -> str:
    try:
        ticket()
    except LoginError as exc:
        return f"{_NO_TOKENS if TOKENS in os.environ else ''}{exc}"
    message = _GSSAPI_TEXT.search(reason)
    text = message[1] if message else reason
    return f"{text[:_LONGEST_REASON]}; see that the KDC answers, and that the servers' principals are in its realm"


def _remedy_of_closed(reason: str) -> str | None:
    """A server that requires a login, or another one, closes the connection and says nothing."""
    if "RPC listener disconnected" in reason and not asks_for_login(hadoop_settings()):
        return f"if this NameNode requires Kerberos, name the folder of its client configuration in {FOLDER}"
    if "Connection reset" in reason or "onnection closed" in reason or "early eof" in reason:
        settings = hadoop_settings()
        if asks_for_login(settings) and PROTECTION not in settings:
            return f"{FOLDER} has no {PROTECTION}: if the DataNodes have one, write it into hdfs-site.xml"
    return None


def _unknown_name(authority: str) -> str:
    folder = os.environ.get("HADOOP_CONF_DIR")
    where = f"{folder}/hdfs-site.xml" if folder else "the hdfs-site.xml in HADOOP_CONF_DIR, which is not set,"
    return (
        f"`{authority}` has no port, so it is a name service, and {where} has no NameNodes of it "
        f"(dfs.ha.namenodes.{authority}, dfs.namenode.rpc-address.{authority}.…); or write hdfs://HOST:PORT/PATH"
    )
