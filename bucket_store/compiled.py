"""PURE. The one decorator of all kernels: compiled by numba at their first call, run without the GIL.

numba keeps compiled code in the folder of NUMBA_CACHE_DIR, beside the module, or in the user's cache folder, and loads
it in milliseconds. It fits one processor and these very files, so a wheel cannot bring it. For a package that is
installed read-only and a user without a home there is no such folder: then every process compiles for itself.

A process compiles only the kernels that it calls. It says so, as warnings, which a program that configures no logging
shows too: once before the first one, which takes from a second to half a minute, and about every ten seconds while it
goes on.
"""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from numba import njit
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import is_jitted

_F = TypeVar("_F", bound=Callable[..., Any])
_NO_FOLDER = "no locator available"
# Methods that numba calls when no compiled code fits: one in its C code, one to type a call by another kernel.
_BY_PYTHON, _BY_KERNEL = "_compile_for_args", "get_call_template"
_LINE_S = 10.0

logger = logging.getLogger(__name__)


def kernel(*signature: Any, inline: Literal["never", "always"] = "never") -> Callable[[_F], _F]:
    """Decorates a kernel; with a signature it is compiled for these types alone, else for those of each call."""

    compile_it: Any = njit

    def compiled(function: _F) -> _F:
        try:
            made = compile_it(cache=True, nogil=True, inline=inline)(function)
            if is_jitted(made):
                file = cast("Any", made)._cache._cache_file
                file.save = partial(_save, file)
        except RuntimeError as exc:
            if _NO_FOLDER not in str(exc):
                raise
            made = compile_it(nogil=True, inline=inline)(function)
        if signature and is_jitted(made):  # NUMBA_DISABLE_JIT leaves the function as it is
            _compile_at_first_use(made, *signature)
        return cast("_F", made)

    return compiled


def _save(file: Any, key: Any, data: Any) -> None:
    """As numba's own, but one process at a time, and data before the index.

    Two processes that compile a kernel for two types would take one name else, and the index of one could name the code
    of the other.
    """
    with Path(f"{file._index_path}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = file._load_index()
        used = set(known.values())
        name = known.get(key) or next(one for one in map(file._data_name, count(1)) if one not in used)
        file._save_data(name, data)
        file._save_index({**known, key: name})


def ready(*kernels: Any) -> None:
    """Compile kernels that have a signature, or take them from the cache, before their first call."""
    for made in kernels:
        first_call = vars(made).get(_BY_PYTHON)
        if first_call is not None:
            first_call()


def _compile_at_first_use(made: Any, signature: Any) -> None:
    """Have a kernel compiled for its signature when Python or another kernel uses it first.

    numba itself compiles what has a signature as its module is imported, whether it is ever called or not.
    """

    def compile_once() -> None:
        with global_compiler_lock:
            if _BY_PYTHON in vars(made):
                made.compile(signature)
                made.disable_compile()
                delattr(made, _BY_PYTHON)
                delattr(made, _BY_KERNEL)

    def called(*_: Any, **__: Any) -> Any:
        compile_once()
        return made  # numba calls what it gets

    def typed(*arguments: Any) -> Any:
        compile_once()
        return made.get_call_template(*arguments)

    setattr(made, _BY_PYTHON, called)
    setattr(made, _BY_KERNEL, typed)


class _Lines(event.Listener):
    """Says that kernels are compiled. numba reports those alone that no folder has."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._next = self._ended = 0.0
        self._depth = 0

    def on_start(self, _: Any) -> None:
        """Before a kernel, or one that it calls, is compiled."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._next = now, now + _LINE_S
            logger.warning("deduper: compiling for this processor, once after an installation: up to half a minute")
        elif not self._depth and now - self._ended > _LINE_S:
            self._first, self._next = now, now + _LINE_S  # others, long after
        else:
            self._goes_on(now)
        self._depth += 1

    def on_end(self, _: Any) -> None:
        """After it."""
        self._depth -= 1
        self._ended = time.monotonic()
        self._goes_on(self._ended)

    def _goes_on(self, now: float) -> None:
        if self._first is not None and now >= self._next:
            self._next = now + _LINE_S
            logger.warning("deduper: still compiling, for %d s", now - self._first)


event.register("numba:compile", _Lines())  # type: ignore[no-untyped-call]


def cache_folder(function: Any) -> str | None:
    """The folder of a kernel's compiled code; None when it is in memory alone."""
    return cast("str | None", function.stats.cache_path)
