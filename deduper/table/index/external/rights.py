"""The rights that a write needs on the server of an index, and a look at those that its user lacks.

Commands are sent within a transaction that is never run: as they are queued, a server refuses those that the user may
not run, or whose keys it may not write. So a missing right is found before anything is written, and without a right to
ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

KEYS = "~dd:*"
"""The key pattern: all keys of all indexes."""
_CONNECTION = ("WATCH {key}", "UNWATCH", "MULTI", "EXEC", "MULTI")
"""The transaction of `EXEC` is empty; the second one is left open."""
_QUEUED = (
    *("INFO", "SCAN 0", "HGET {key} f", "HMGET {key} f", "HSET {key} f v", "HINCRBY {key} f 1", "MGET {key}"),
    *("MSET {key} v", "DEL {key}", "UNLINK {key}"),
)


def lacking(connection: Any, key: str) -> list[str]:
    """The rights that the connection's user lacks, as `ACL SETUSER` takes them; the connection is closed afterwards.

    Raises:
        redis.ConnectionError: the server is away.
    """
    try:
        lacks = [*_refused(connection, key, _CONNECTION)]
        if "+multi" in lacks:  # the others would be run, so all are named
            return [KEYS, *dict.fromkeys(map(_right, (*_QUEUED, *_CONNECTION)))]
        lacks += _refused(connection, key, _QUEUED)
    finally:
        connection.disconnect()
    return list(dict.fromkeys(lacks))


def _refused(connection: Any, key: str, commands: Sequence[str]) -> Iterator[str]:
    connection.send_packed_command(connection.pack_commands([command.format(key=key).split() for command in commands]))
    for command in commands:
        try:
            connection.read_response()
        except ResponseError as error:  # without the right to `EXEC` it is another class, with the same word
            if "NOPERM" in str(error) or isinstance(error, NoPermissionError):
                yield KEYS if "access" in str(error) else _right(command)


def _right(command: str) -> str:
    return f"+{command.split()[0].lower()}"
