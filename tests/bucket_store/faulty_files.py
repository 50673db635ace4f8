"""A file system that fails on call. One that forgets what was not synced is `tests/faults/crash_disk.py`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from bucket_store.filesystem import LOCAL


class FaultyFiles:
    """The local files, with every call noted in `calls`, and with faults.

    `fault(index, name, path)` is asked before every call: "before" fails it undone, "after" fails it done, both with
    EIO. It may also do things of its own, as another process would in that moment.
    """

    def __init__(self, fault: Callable[[int, str, Path], str | None] | None = None) -> None:
        self.fault = fault
        self.calls: list[tuple[str, Path]] = []

    def __getattr__(self, name: str) -> Callable[..., object]:
        real = getattr(LOCAL, name)

        def call(*args: Path, **options: object) -> object:
            # The path that matters is the last one: the target of a link or of a rename.
            path = next(arg for arg in reversed(args) if isinstance(arg, Path))
            index = len(self.calls)
            self.calls.append((name, path))
            fails = None if self.fault is None else self.fault(index, name, path)
            if fails == "before":
                raise OSError(errno.EIO, f"injected before {name}", str(path))
            result = real(*args, **options)
            if fails == "after":
                raise OSError(errno.EIO, f"injected after {name}", str(path))
            return result

        return call

    def count(self, name: str) -> int:
        """How often a method was called."""
        return sum(called == name for called, _ in self.calls)
