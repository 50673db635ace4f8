"""The entries of one index on a Redis server: its address, all that is sent to it, and its refusals as our errors.

Every call has a time limit and is tried three times. Writes are transactions that fail if another process has claimed
the index, so a call that is repeated does not write twice; and they are counted, so they fail on a server that has lost
one of them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray

from deduper import DISTRIBUTION
from deduper.config.problems import mask_text
from deduper.table.errors import IndexDamagedError, IndexServerError, ServerRefusedError, SettingError
from deduper.table.index.keys import FileNumbers, Int64s, UInt64s

try:
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, WatchError
    from redis.retry import Retry
except ImportError as error:
    install = f"pip install '{DISTRIBUTION}[redis]'"
    raise SettingError("index.kind", "`external` needs the package redis", install) from error

_SCHEMES = ("redis", "rediss", "unix")
_WRITE = 'write `index: {kind: external, options: {url: "redis://localhost:6379/0"}}`'
_CLIENTS = {
    "password": "password",
    "ca_file": "ssl_ca_certs",
    "certificate_file": "ssl_certfile",
    "key_file": "ssl_keyfile",
    "key_password": "ssl_password",
}
"""The client's names of our options."""
_CONNECT_S = 5.0
_CALL_S = 10.0
_RETRIES = 2
_BLOCK_KEYS = 8192
"""Keys of a command: a few milliseconds of the server, which does nothing else meanwhile."""
_DIGEST_BYTES = 16
_HEAD = ("token", "writer", "writes")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server; neither its text nor `shown` has the password. `options`: the client's, beside the URL."""

    url: str = field(repr=False)
    options: Mapping[str, str] = field(repr=False)

    @property
    def shown(self) -> str:
        """The URL without a login and options."""
        return mask_text(self.url.partition("?")[0])


def server_address(
    url: object,
    password: object,
    *,
    ca_file: object = None,
    certificate_file: object = None,
    key_file: object = None,
    key_password: object = None,
) -> ServerAddress:
    """The address in the options of an index; the system's authorities count beside those of `ca_file`.

    Raises:
        SettingError: `index.options` are none, or a PEM file of TLS cannot be used.
    """
    if not isinstance(url, str) or not url:
        raise _wrong("`external` needs the server's `url`", _WRITE)
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise _wrong(f"`{mask_text(url)}` is no URL of a server", _WRITE)
    given = {
        "password": password,
        "ca_file": ca_file,
        "certificate_file": certificate_file,
        "key_file": key_file,
        "key_password": key_password,
    }
    options: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, str):
            options[name] = value
        elif value is not None:
            raise _wrong(f"`{name}` is no text", "put it in quotes")
    if "password" in options and parts.password:
        raise _wrong("the URL has a password, and `password` is another", "leave one of them out")
    unsafe = [name for name, _ in parse_qsl(parts.query) if name.startswith("ssl_")]
    if unsafe:
        write = "leave it out; `ca_file`, `certificate_file` and `key_file` are the options of TLS"
        raise _wrong(f"`{unsafe[0]}` in the URL is not read", write)
    if "key_file" in options and "certificate_file" not in options:
        raise _wrong("`key_file` is without its certificate", "name it as `certificate_file`")
    if parts.scheme == "rediss":
        _require_tls(options)
    elif options.keys() - {"password"}:
        raise _wrong(f"`{parts.scheme}://` is without TLS and needs no files", "write `rediss://`, or leave them out")
    return ServerAddress(url, {_CLIENTS[name]: value for name, value in options.items()})


def _require_tls(options: Mapping[str, str]) -> None:
    """The PEM files can be used: the client says which one it cannot only when it connects, without its name."""
    context = ssl.create_default_context()
    for name in ("ca_file", "certificate_file", "key_file"):
        if name not in options:
            continue
        path = Path(options[name])
        if not path.is_absolute():
            raise _wrong(f"`{name}` is `{mask_text(options[name])}`, which is no absolute path", "write the whole path")
        try:
            path.read_bytes()
            if name == "ca_file":
                context.load_verify_locations(path)
            elif name == "key_file" or "key_file" not in options:
                certificate, key = options["certificate_file"], options.get("key_file")
                # Without an answer OpenSSL asks the terminal for the password.
                context.load_cert_chain(certificate, key, lambda: options.get("key_password", ""))
        except (OSError, ValueError) as error:
            write = "correct it; a key has to be that of `certificate_file`, and an encrypted one needs `key_password`"
            raise _wrong(f"`{name}` {path} cannot be used: {error}", write) from None


def _wrong(what: str, write: str) -> SettingError:
    return SettingError("index.options", what, write)


@dataclass(frozen=True, slots=True)
class Head:
    """What the server says of an index: its token, the process that may write, and how often one has written."""

    token: str
    writer: str
    writes: int


def _head(token: bytes | None, writer: bytes | None, writes: bytes | None) -> Head | None:
    return None if token is None or writer is None else Head(token.decode(), writer.decode(), int(writes or 0))


class ServedEntries:
    """The entries of an index. Not for several threads.

    Raises: IndexServerError at any call: the server is away, or refuses it.
    """

    def __init__(self, address: ServerAddress, index_id: str) -> None:
        self._address = address
        self._shown = address.shown
        files = "`ca_file`, `certificate_file`" if address.url.startswith("rediss:") else "`rediss://` for TLS"
        self._check = f"; check that the server runs, and `url` ({files})"
        self._prefix = f"dd:{index_id[:16]}"
        self._key_prefix = f"{self._prefix}:".encode()
        self._run: dict[str, Any] = {}
        self.writes: int | None = None
        """As `Head` has it after the last write; None before one. A server that has lost a write has another."""
        try:
            # Any: the client's types leave open whether replies are bytes or texts; these are bytes.
            self._redis: Any = redis.Redis.from_url(
                address.url,
                **address.options,
                socket_connect_timeout=_CONNECT_S,
                socket_timeout=_CALL_S,
                retry=Retry(ExponentialBackoff(cap=1.0, base=0.1), _RETRIES),
            )
            self._redis.connection_pool.make_connection()
        except (TypeError, ValueError) as error:
            what = mask_text(str(error))
            raise ServerRefusedError(f"{self._shown}: the client does not take the URL: {what}") from None

    @property
    def name(self) -> str:
        """The prefix of its keys."""
        return self._prefix

    def head(self) -> Head | None:
        """What the server says of the index; None when it does not have it, or has evicted entries.

        Raises: as `require_fit`.
        """
        info = self.require_fit()
        with self._as_table_errors():
            *named, run, evicted = self._redis.hmget(self._prefix, *_HEAD, "run", "evicted")
        is_same_run = run is not None and run.decode() == info["run_id"]
        known = int(evicted or 0) if is_same_run else 0
        return _head(*named) if info["evicted_keys"] == known else None

    def require_fit(self) -> dict[str, Any]:
        """What the server says of itself.

        Raises:
            ServerRefusedError: it may drop entries, is no primary, or is a cluster.
        """
        with self._as_table_errors():
            info: dict[str, Any] = self._redis.info()
        policy = info["maxmemory_policy"]
        if info.get("cluster_enabled"):
            raise ServerRefusedError(f"{self._shown}: is a cluster; name a server without cluster mode")
        if info["role"] != "master":
            raise ServerRefusedError(f"{self._shown}: is a replica, which takes no writes; name the primary")
        if policy != "noeviction":
            raise EvictingError(
                f"{self._shown}: drops keys when its memory is full (`maxmemory-policy {policy}`), and rows would be "
                "loaded twice; set `maxmemory-policy noeviction`, or name another server. Entries may be gone, so the "
                "next write builds the index anew"
            )
        self._run = {"run": info["run_id"], "evicted": info["evicted_keys"]}
        return info

    def begin(self, token: str, writer: str, table: Path) -> None:
        """The head of a new index, which has no entries; after `require_fit`, as `claim`."""
        with self._as_table_errors():
            named = {"token": token, "writer": writer, "writes": 0, "table": f"{socket.gethostname()}:{table}"}
            self._redis.hset(self._prefix, mapping={**named, **self._run})
            self.writes = 0

    def claim(self, head: Head, writer: str) -> None:
        """From now on only `writer` may write; fails if another process has claimed the index since `head`."""

        def claimed(pipe: Any) -> None:
            if pipe.hget(self._prefix, "token") != head.token.encode():
                raise WatchError("The index is claimed:")
            pipe.multi()
            pipe.hset(self._prefix, mapping={"writer": writer, **self._run})

        self._written(head.writer, claimed)

    def take_numbers(self, writer: str, count: int) -> int:
        """The first of so many file numbers, which are never given again."""

        def taken(pipe: Any) -> None:
            pipe.multi()
            pipe.hincrby(self._prefix, "next", count)

        (end,) = self._written(writer, taken)
        return int(end) - count

    def advance(self, writer: str, token: str) -> None:
        """The server has another token from now on."""

        def advanced(pipe: Any) -> None:
            pipe.multi()
            pipe.hset(self._prefix, "token", token)

        self._written(writer, advanced)

    def find(self, digests: UInt64s) -> tuple[Int64s, Int64s, list[Head | None]]:
        """(places among the digests, file numbers, the heads after each block); numbers of a place ascend."""
        places, numbers, heads = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
        for begin in range(0, max(len(digests), 1), _BLOCK_KEYS):
            block = self._keys(digests[begin : begin + _BLOCK_KEYS])
            with self._as_table_errors():
                pipe = self._redis.pipeline(transaction=False)
                if block:
                    pipe.mget(block)
                pipe.hmget(self._prefix, *_HEAD)
                *found, named = pipe.execute()
            heads.append(_head(*named))
            if found:
                place, number = self._numbers(found[0])
                places.append(begin + place)
                numbers.append(number)
        return np.concatenate(places), np.concatenate(numbers), heads

    def add(self, writer: str, digests: UInt64s, file: FileNumbers, live: NDArray[np.bool_]) -> None:
        """Enters files of digests. Of numbers that are there those stay that are `live`."""
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        digests, file = digests[order], file[order]
        is_next = np.ones(len(digests), np.bool_)
        is_next[1:] = (digests[1:] != digests[:-1]).any(axis=1)
        starts = np.append(np.flatnonzero(is_next), len(digests))
        different = digests[is_next]
        for begin in range(0, len(different), _BLOCK_KEYS):
            edges = starts[begin : begin + _BLOCK_KEYS + 1]
            block = self._keys(different[begin : begin + _BLOCK_KEYS])
            added = np.repeat(np.arange(len(block)), np.diff(edges))
            number = file[edges[0] : edges[-1]].astype(np.int64)
            self._written(writer, partial(self._merge, block, added, number, live))

    def put(self, writer: str, digests: UInt64s, file: FileNumbers) -> None:
        """Enters one file for each digest; each digest once, and none has an entry of a live file yet."""
        for begin in range(0, len(digests), _BLOCK_KEYS):
            end = begin + _BLOCK_KEYS
            values = map(b"%d".__mod__, file[begin:end].tolist())
            self._written(writer, partial(_set, self._keys(digests[begin:end]), values))

    def listed(self) -> Iterator[tuple[UInt64s, Int64s]]:
        """All entries as (digests, file numbers), in any order; some may come twice."""
        for keys in self._scanned():
            with self._as_table_errors():
                place, number = self._numbers(self._redis.mget(keys))
            data = b"".join(key[len(self._key_prefix) :] for key in keys)
            yield np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)[place], number

    def forget(self) -> None:
        """The index counts as lost from now on; entries stay."""
        with self._as_table_errors():
            self._redis.delete(self._prefix)

    def remove(self) -> None:
        """Deletes the index: its head first, so that no process uses the entries that are left."""
        self.forget()
        for keys in self._scanned():
            with self._as_table_errors():
                self._redis.unlink(*keys)

    def _merge(self, keys: list[bytes], place: Int64s, number: Int64s, live: NDArray[np.bool_], pipe: Any) -> None:
        """Sets keys to the numbers of their places, and to those of the server's that are live."""
        # Without live files nothing that is stored stays.
        had, stored = self._numbers(pipe.mget(keys) if len(live) else [])
        stays = stored < len(live)
        stays[stays] = live[stored[stays]]
        _set(keys, _values(np.append(had[stays], place), np.append(stored[stays], number)), pipe)

    def _keys(self, digests: UInt64s) -> list[bytes]:
        data, prefix = digests.astype(">u8").tobytes(), self._key_prefix
        return [prefix + data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES)]

    def _numbers(self, values: list[bytes | None]) -> tuple[Int64s, Int64s]:
        """(places of the values, their numbers)."""
        there = [place for place, value in enumerate(values) if value is not None]
        found = [value for value in values if value is not None]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        counts = [value.count(b",") + 1 for value in found]
        try:
            number = np.array(b",".join(found).split(b",")).astype(np.uint32).astype(np.int64)
        except (ValueError, OverflowError) as error:
            what = "has entries that are no file numbers; `deduper table rebuild` makes the index anew"
            raise IndexDamagedError(f"{self._shown}: {self._prefix} {what}") from error
        return np.repeat(np.array(there, np.int64), counts), number

    def _scanned(self) -> Iterator[list[bytes]]:
        cursor = 0
        while True:
            with self._as_table_errors():
                cursor, keys = self._redis.scan(cursor, match=self._key_prefix + b"*", count=_BLOCK_KEYS)
            if keys:
                yield keys
            if cursor == 0:
                return

    def _written(self, writer: str, change: Callable[[Any], None]) -> list[Any]:
        """A transaction of the writer. `change` reads, calls `multi`, and writes; gives the replies."""
        with self._as_table_errors(), self._redis.pipeline() as pipe:
            pipe.watch(self._prefix)
            head = _head(*pipe.hmget(self._prefix, *_HEAD))
            if head is None or head.writer != writer:
                raise WatchError("The index is claimed:")
            if self.writes not in (None, head.writes):
                raise WatchError("The last writes are lost:")
            change(pipe)
            pipe.hincrby(self._prefix, "writes", 1)
            *replies, self.writes = pipe.execute()
            return [*replies]

    @contextmanager
    def _as_table_errors(self) -> Iterator[None]:
        """Errors of the client, as ours."""
        try:
            yield
        except WatchError as error:
            what = "the server went away, or another process took the index; repeat the command"
            raise IndexServerError(f"{self._shown}: {_text(error)} {what}") from error
        except NoPermissionError as error:
            what = f"refuses a command: {_text(error)}; grant the right with `ACL SETUSER` (docs/tables.md lists all)"
            raise ServerRefusedError(f"{self._shown}: {what}") from error
        except (AuthenticationError, AuthorizationError) as error:
            what = f"refuses the login: {_text(error)}; correct the user in `url`, or `password`"
            raise ServerRefusedError(f"{self._shown}: {what}") from error
        except RedisError as error:
            is_unreached = isinstance(error, redis.ConnectionError | redis.TimeoutError)
            raise IndexServerError(f"{self._shown}: {_text(error)}{self._check if is_unreached else ''}") from error


class EvictingError(ServerRefusedError):
    """A server drops entries. The operator: set `maxmemory-policy noeviction`, or use another server."""


def _text(error: RedisError) -> str:
    """What the server or the client says, without the command that the client puts before it."""
    return mask_text(str(error).rpartition(" caused error: ")[2])


def _set(keys: list[bytes], values: Iterable[bytes], pipe: Any) -> None:
    pipe.multi()
    pipe.mset(dict(zip(keys, values, strict=True)))


def _values(place: Int64s, number: Int64s) -> Iterable[bytes]:
    """The values of places 0, 1, …, each of which has a number at least."""
    order = np.lexsort((number, place))
    place, number = place[order], number[order]
    is_next = np.ones(len(place), np.bool_)
    is_next[1:] = (place[1:] != place[:-1]) | (number[1:] != number[:-1])
    place, words = place[is_next], list(map(b"%d".__mod__, number[is_next].tolist()))
    edges = np.flatnonzero(np.diff(place, prepend=-1, append=-2)).tolist()
    if len(edges) == len(words) + 1:
        return words
    return [b",".join(words[begin:end]) for begin, end in pairwise(edges)]
