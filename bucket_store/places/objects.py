"""Places in an object store, over obstore: S3 and what speaks its protocol, Google Cloud Storage, Azure.

| `Names` | requests |
|---|---|
| create | conditional put (`If-None-Match: *`, on Google generation 0) |
| replace, touch | put |
| read, read_range | get |
| stat, exists | head; a list too when there is no object of that name |
| entries | list with delimiter: sizes and times come with it, 1,000 names a request |
| make_directories, sync | none: a directory is the prefix of its objects, and every put is durable |
| rename | cannot |

Credentials, region and endpoint come from the environment alone, under obstore's names: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT`, `AWS_ALLOW_HTTP`; `GOOGLE_*`; `AZURE_*`; or
from the machine's or the pod's role. A server's answer may repeat parts of them, so no error here carries it.
"""

from __future__ import annotations

import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urlsplit

from bucket_store.errors import StorageAwayError
from bucket_store.places import steps
from bucket_store.places.outages import is_given_up, is_waiting, patient
from bucket_store.places.place import Entry, NotPlacedError, Place, Prepared, UnansweredError

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, LocalStore, S3Store
except ImportError as exc:
    raise ImportError("object stores need obstore: pip install 'stream-deduper[objects]'") from exc

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_REQUEST_S = 20
"""Bound of one request of at most 32 MiB; each doubling of its bytes doubles it."""
_RETRY_S = 25.0
"""After this no request is sent again, so that an outage ends in an error within 50 s."""
_PAUSES_S = (0.1, 0.3, 0.9, 2.7, 5.0, 5.0)

_UNCLEAR = (408, 409, 425, 429)
"""Refusals of the moment. obstore calls 409, S3's "a conflicting request is under way", an existing object."""

_AT_ONCE = 1000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ObjectNames:
    """The objects of a bucket (on Azure, a container); with the scheme `objects`, local files as such, for tests.

    Each process has its own client, made at the first call.

    A process must not fork after its first call: a child's calls raise OSError, since obstore's would never return.
    """

    scheme: str
    bucket: str

    def url(self, path: PurePosixPath) -> str:
        """See `Names`."""
        return f"{self.scheme}://{self.bucket}{quote(str(path))}"

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """See `Names`. Sent again after a passing fault; the object may then be this call's own."""
        steps.written(failpoint)
        self._create(path, data)
        steps.linked(failpoint)

    def _create(self, path: PurePosixPath, data: bytes) -> None:
        store = self._store(len(data), retries=False)
        failures: list[_Failure] = []

        def put() -> None:
            try:
                obstore.put(store, _key(path), data, mode="create", use_multipart=False)
                return
            except (BaseError, OSError) as exc:
                failures.append(_Failure.of(exc))
            if failures[-1].is_taken:
                raise FileExistsError(errno.EEXIST, "the object exists", self.url(path))
            raise failures[-1].error(self.url(path))

        give_up = time.monotonic() + _RETRY_S
        for pause_s in (*_PAUSES_S, 0.0):
            try:
                patient(self._storage, put)
                return
            except FileExistsError:
                raise
            except OSError:
                if failures[-1].is_refusal or not self._retries or time.monotonic() > give_up:
                    break
            time.sleep(pause_s * random.uniform(0.5, 1.0))
        last = failures[-1]
        if all(failure.is_refusal or failure.was_not_sent for failure in failures):
            raise NotPlacedError(last.errno, last.text, self.url(path))
        if not all(failure.is_answer or failure.was_not_sent for failure in failures):
            raise UnansweredError(last.errno, last.text, self.url(path))
        raise last.error(self.url(path))

    def write_own(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> PurePosixPath:
        """See `Names`. No object is half written; one that is there after an unclear put has these bytes."""
        steps.half(failpoint)
        try:
            self._create(path, data)
        except FileExistsError:
            if self.read(path) != data:
                raise
        return path

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`. Durable on return."""
        store = self._store(len(data))
        self._call(path, lambda: obstore.put(store, _key(path), data, use_multipart=False))

    def prepare(
        self,
        path: PurePosixPath,
        data: bytes,
        *,
        epoch: int,  # noqa: ARG002
        is_durable: bool = False,  # noqa: ARG002  every object is
    ) -> Prepared:
        """See `Names`: nothing is written before the object is replaced, if it is still today's version."""
        version: UpdateVersion | None
        try:
            _, version = self.read_version(path)
        except FileNotFoundError:
            version = None

        def put() -> None:
            try:
                if version is None:
                    self._create(path, data)
                else:
                    self.replace_version(path, data, version)
            except FileExistsError as exc:
                if self.read(path) != data:  # else it is this call's own, after an outage
                    raise FileNotFoundError(errno.ENOENT, "another version was put in place", self.url(path)) from exc

        return Prepared(put, lambda: None)

    def remove_prepared(self, path: PurePosixPath, *, below_epoch: int) -> None:
        """Nothing: what was prepared is refused once the object has changed."""

    def read(self, path: PurePosixPath) -> bytes:
        """See `Names`."""
        return self.read_version(path)[0]

    def read_version(self, path: PurePosixPath) -> tuple[bytes, UpdateVersion]:
        """All bytes of an object and the version that has them, for `replace_version`."""
        store = self._store()

        def get() -> tuple[bytes, UpdateVersion]:
            found = obstore.get(store, _key(path))
            version: UpdateVersion = {}
            if found.meta["e_tag"] is not None:
                version["e_tag"] = found.meta["e_tag"]
            if found.meta["version"] is not None:
                version["version"] = found.meta["version"]
            return found.bytes().to_bytes(), version

        return self._call(path, get)

    def replace_version(self, path: PurePosixPath, data: bytes, version: UpdateVersion) -> None:
        """Put new bytes in place of the version that was read. Of all racers one wins.

        Raises:
            FileExistsError: another version is there, or none. After an outage it may be this very call's.
        """
        store = self._store(len(data))
        if self.scheme == "objects":  # of no use to racers
            if self.read_version(path)[1] != version:
                raise FileExistsError(errno.EEXIST, "another version of the object is there", self.url(path))
            self.replace(path, data)
        else:
            self._call(path, lambda: obstore.put(store, _key(path), data, mode=version, use_multipart=False))

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """See `Names`."""
        if length == 0:
            return b""
        store = self._store(length)
        try:
            return self._call(path, lambda: obstore.get_range(store, _key(path), start=start, length=length).to_bytes())
        except OSError as exc:
            if exc.errno == errno.ERANGE:
                return b""
            raise

    def stat(self, path: PurePosixPath) -> Entry:
        """See `Names`. A directory is there while it has an object, and its time is 0."""
        store = self._store()
        with suppress(FileNotFoundError):
            if _key(path):
                found = self._call(path, lambda: obstore.head(store, _key(path)))
                return Entry(path.name, False, found["size"], _micros(found["last_modified"]))
        if _key(path) and not self._call(path, lambda: next(obstore.list(store, _key(path)), ())):
            raise FileNotFoundError(errno.ENOENT, "no such object", self.url(path))
        return Entry(path.name, True, 0, 0)

    def exists(self, path: PurePosixPath) -> bool:
        """Whether there is an object of this name or below it."""
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def listed(self, path: PurePosixPath, *, after: str = "") -> list[str]:
        """The names in a directory that sort after `after`, sorted. With `after`, only objects after it are listed."""
        if not after:
            return [entry.name for entry in self.entries(path)]
        store = self._store()
        offset = _key(path / after)
        pages = self._call(path, lambda: list(obstore.list(store, _key(path), offset=offset)))
        below = (PurePosixPath("/", each["path"]).relative_to(path) for page in pages for each in page)
        return sorted({name.parts[0] for name in below if name.parts[0] > after})

    def entries(self, path: PurePosixPath) -> list[Entry]:
        """See `Names`."""
        store = self._store()
        try:
            found = self._call(path, lambda: obstore.list_with_delimiter(store, _key(path)))
        except FileNotFoundError:
            return []
        inner = [Entry(PurePosixPath(prefix).name, True, 0, 0) for prefix in found["common_prefixes"]]
        inner += [
            Entry(PurePosixPath(each["path"]).name, False, each["size"], _micros(each["last_modified"]))
            for each in found["objects"]
        ]
        return sorted(inner, key=lambda entry: entry.name)

    def remove(self, path: PurePosixPath) -> None:
        """See `Names`."""
        store = self._store()
        with suppress(FileNotFoundError):
            self._call(path, lambda: obstore.delete(store, _key(path)))

    def remove_all(self, paths: list[PurePosixPath]) -> None:
        """See `Names`: 1,000 a request where the storage can."""
        store = self._store()
        for at in range(0, len(paths), _AT_ONCE):
            some = paths[at : at + _AT_ONCE]
            try:
                self._call(some[0], partial(obstore.delete, store, [_key(path) for path in some]))
            except FileNotFoundError:
                for path in some:
                    self.remove(path)

    def remove_tree(self, path: PurePosixPath) -> None:
        """See `Names`."""
        store = self._store()
        with suppress(FileNotFoundError):
            pages = self._call(path, lambda: list(obstore.list(store, _key(path))))
            self.remove_all([PurePosixPath("/", each["path"]) for page in pages for each in page])

    def make_directories(self, path: PurePosixPath) -> None:
        """See `Names`."""

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """See `Names`."""
        raise NotImplementedError(f"{self.url(source)}: objects cannot be renamed")

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`."""
        self.replace(path, data)

    def sync(self, path: PurePosixPath) -> None:
        """See `Names`."""

    @property
    def _storage(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    @property
    def _retries(self) -> bool:
        """False where a process waits for outages by itself, or has given this storage up."""
        return not is_waiting() and not is_given_up(self._storage)

    def _store(self, size_bytes: int = 0, *, retries: bool = True) -> ObjectStore:
        """The client, which sends no request twice unless it `retries`."""
        request_s = _REQUEST_S << (size_bytes >> 25).bit_length()
        return _client(self.scheme, self.bucket, request_s, retries and self._retries)

    def _call(self, path: PurePosixPath, call: Callable[[], _T]) -> _T:
        """What a request gives that is safe to repeat, also after an outage that this process waits for."""

        def request() -> _T:
            try:
                return call()
            except (BaseError, OSError) as exc:
                failure = _Failure.of(exc)
            # Outside of the handler: an error's context is printed too, and obstore's text holds the server's answer.
            raise failure.error(self.url(path))

        return patient(self._storage, request)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What an exception of obstore says, in words that hold nothing of the server's answer."""

    errno: int
    text: str
    is_taken: bool = False
    is_refusal: bool = False
    was_not_sent: bool = False
    has_status: bool = False

    @property
    def is_answer(self) -> bool:
        """The server is done with the request; otherwise it may still act on it."""
        return self.is_refusal or self.has_status

    @classmethod
    def of(cls, exc: Exception) -> _Failure:
        kind, said = type(exc).__name__, str(exc)
        code = re.search(r"status code: (\d{3})", said)
        status = int(code[1]) if code else 0
        if kind == "AlreadyExistsError" and status != 409:
            return cls(errno.EEXIST, "the object exists", is_taken=True)
        if status in _UNCLEAR or status >= 500:
            return cls(errno.EIO, f"the object store answered {status}", has_status=True)
        if kind == "PreconditionError":
            return cls(errno.EEXIST, "another version of the object is there", is_refusal=True)
        if isinstance(exc, FileNotFoundError):
            return cls(errno.ENOENT, "no such object or bucket", is_refusal=True)
        if status == 416 or "StartTooLarge" in said:
            return cls(errno.ERANGE, "the object ends before this range", is_refusal=True)
        if kind in ("PermissionDeniedError", "UnauthenticatedError"):
            return cls(errno.EACCES, f"the object store refused the credentials ({status or kind})", is_refusal=True)
        if status:
            return cls(errno.EIO, f"the object store answered {status}", is_refusal=True)
        if "kind: Timeout" in said:
            return cls(errno.ETIMEDOUT, "the object store did not answer in time")
        if "kind: Connect" in said:
            return cls(errno.EIO, "the object store cannot be reached", was_not_sent=True)
        for sign, cause in (("BadScheme", "http is not allowed: set AWS_ALLOW_HTTP=true"), ("No space left", "")):
            if sign in said:
                return cls(errno.EIO if cause else errno.ENOSPC, cause or "no space left", is_refusal=True)
        return cls(errno.EIO, f"the object store failed ({kind})", is_refusal=kind == "InvalidPathError")

    def error(self, url: str) -> OSError:
        if self.errno in (errno.EIO, errno.ETIMEDOUT) and not self.is_refusal:
            return StorageAwayError.of(self.errno, self.text, url)
        return OSError(self.errno, self.text, url)  # Python picks the subclass by the number


def object_place(url: str) -> Place:
    """The place of an object store's URL. Nothing is connected to yet.

    Raises:
        ValueError: no bucket, or something beside bucket and path, such as credentials.
    """
    parts = urlsplit(url)
    if set("@:") & set(parts.netloc) or parts.query or parts.fragment:
        raise ValueError(f"{parts.scheme}: the URL of an object store is {parts.scheme}://BUCKET/PREFIX and no more")
    if parts.scheme == "objects":
        return Place(ObjectNames("objects", ""), PurePosixPath("/", unquote(parts.path)))
    if not parts.netloc:
        raise ValueError(f"{url}: write {parts.scheme}://BUCKET/PREFIX")
    return Place(ObjectNames(parts.scheme, parts.netloc), PurePosixPath("/", unquote(parts.path).lstrip("/")))


_clients: dict[tuple[object, ...], ObjectStore] = {}
_owner: int | None = None
"""The process that has used obstore. Its threads are not in a forked child, whose calls would wait for them forever."""
_lock = threading.Lock()


def _client(scheme: str, bucket: str, request_s: int, retries: bool) -> ObjectStore:
    global _owner
    with _lock:
        if _owner not in (None, os.getpid()):
            raise OSError(errno.EDEADLK, f"process {_owner} used an object store before it forked this one", bucket)
        _owner = os.getpid()
        key = (scheme, bucket, request_s, retries)
        if key not in _clients:
            _clients[key] = _connect(scheme, bucket, request_s, retries, os.environ)
        return _clients[key]


def _connect(scheme: str, bucket: str, request_s: int, retries: bool, environment: Mapping[str, str]) -> ObjectStore:
    if scheme == "objects":
        return LocalStore("/")
    variables = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
    # obstore reads this name, but forgets it when other client options are given.
    allow_http = environment.get(f"{variables}_ALLOW_HTTP", "").lower() in ("true", "1")
    client: ClientConfig = {"timeout": f"{request_s}s", "connect_timeout": "5s", "allow_http": allow_http}
    retry: RetryConfig = {"max_retries": 6 if retries else 0, "retry_timeout": timedelta(seconds=_RETRY_S)}
    try:
        if scheme == "s3":
            return S3Store(bucket, client_options=client, retry_config=retry)
        if scheme == "gs":
            return GCSStore(bucket, client_options=client, retry_config=retry)
        return AzureStore(bucket, client_options=client, retry_config=retry)
    except (BaseError, ValueError) as exc:
        kind = type(exc).__name__
    raise OSError(errno.EINVAL, f"the environment's {variables}_* settings make no client ({kind})", bucket)


def _key(path: PurePosixPath) -> str:
    return str(path).lstrip("/")


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
