"""PURE. The one decorator of all kernels: compiled by numba, cached where a folder allows it, run without the GIL.

numba caches compiled code in the folder of NUMBA_CACHE_DIR, beside the module, or in the user's cache folder. For a
package that is installed read-only and a user without a home there is no such folder: then every process compiles for
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])
_NO_FOLDER = "no locator available"


def kernel(*signature: Any, inline: Literal["never", "always"] = "never") -> Callable[[_F], _F]:
    """Decorates a kernel; with a signature it compiles at once, else at the first call."""

    compile_it: Any = njit

    def compiled(function: _F) -> _F:
        try:
            return cast("_F", compile_it(*signature, cache=True, nogil=True, inline=inline)(function))
        except RuntimeError as exc:
            if _NO_FOLDER not in str(exc):
                raise
            return cast("_F", compile_it(*signature, nogil=True, inline=inline)(function))

    return compiled


def cache_folder(function: Any) -> str | None:
    """The folder of a kernel's compiled code; None when it is in memory alone."""
    return cast("str | None", function.stats.cache_path)
