"""Files written side by side, one a core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

_MOST_THREADS = 8


def each_written(write: Callable[[_T], _R], files: Iterable[_T], size: Callable[[_T], int]) -> list[_R]:
    """What `write` gives for each, in the order in which they are begun.

    Large ones first: one that is begun last keeps one core busy and leaves the others idle.
    """
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, thread_name_prefix="writer") as pool:
        return list(pool.map(write, sorted(files, key=size, reverse=True)))
