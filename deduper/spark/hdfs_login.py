"""The login to HDFS in a Python worker of an executor: delegation tokens that came with the task.

Spark renews tokens for its JVMs alone. The client of HDFS in a Python worker reads a file that a variable names, for
each connection. Here that file is in memory, and the process's own: no other user reads it, and it is gone with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from bucket_store.places.kerberos import CACHE, KEYTAB, TOKENS

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What Hadoop's file of tokens has: secrets, so no log shows them."""

    data: bytes = field(repr=False)


LogsIn: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Gives tasks that use HDFS a login: the function with a login around it, to be pickled.

Called in the driver, before each job. Raises DeduperError if tasks would have no login.
"""


def needs_none(function: Callable[..., _T], /) -> Callable[..., _T]:
    """A `LogsIn` of tasks that have a login, or need none."""
    return function


_OWN_LOGIN = tuple(f"spark.executorEnv.{name}" for name in (CACHE, KEYTAB, TOKENS))


def travel_with_tasks(spark: Mapping[str, object]) -> bool:
    """Whether tasks get tokens on a cluster: unless these settings name a login that its hosts have. PURE."""
    return not any(name in spark for name in _OWN_LOGIN)


_held: list[tuple[Tokens, int]] = []
"""The tokens of this process and their files, the newest last. A connection may be reading the file before it."""


def logged_in(tokens: Tokens, function: Callable[..., _T], *arguments: object) -> _T:
    """Call a function with these tokens in force in this process, and after it."""
    if not _held or _held[-1][0] != tokens:
        file = os.memfd_create("tokens")
        os.write(file, tokens.data)
        _held.append((tokens, file))
        os.environ[TOKENS] = f"/proc/self/fd/{file}"
        while len(_held) > 2:
            os.close(_held.pop(0)[1])
    return function(*arguments)
