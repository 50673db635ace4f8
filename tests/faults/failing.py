"""A file system whose n-th call goes wrong, once or for good, in one of the ways that real ones do.

| kind | what happens |
|---|---|
| `EIO`, `ETIMEDOUT` | the call fails undone |
| `ENOSPC` | a call that needs room fails undone |
| `done` | the call fails and has happened: a rename, a link, a creation, a removal, a sync |
| `short read`, `short write` | fewer bytes than asked, as system calls may |
| `unseen` | a name that was created is not there yet for the first who looks: in a listing, by opening, by asking |

Every call counts, reading ones too. A process that makes very many more calls than an undisturbed one hangs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.crash_disk import Machine, OpenFileOnDisk

WRITING = {"write_file", "link", "replace", "mkdir", "create", "pwrite"}
CHANGING = {*WRITING, "remove", "rmdir", "truncate", "sync", "fsync_dir"}
CREATING = {"write_file", "link", "replace", "mkdir", "create"}
KINDS: dict[str, Callable[[str], bool]] = {
    "EIO": lambda name: name != "close",
    "ETIMEDOUT": lambda name: name != "close",
    "ENOSPC": lambda name: name in WRITING,
    "done": lambda name: name in CHANGING - {"pwrite"},
    "short read": lambda name: name == "pread",
    "short write": lambda name: name == "pwrite",
    "unseen": lambda name: name in CREATING,
}


class Hang(BaseException):
    """A process that goes on and on."""


class FailingFiles:
    """The files of a machine, with a fault at call `at`, and at all after it when it is `lasting`.

    `calls` notes the names of all calls. Only calls that the kind is about are hit.
    """

    def __init__(self, machine: Machine, kind: str, at: int, *, lasting: bool, most_calls: int) -> None:
        self.machine, self.disk = machine, machine.disk
        self.calls: list[str] = []
        self._kind, self._at, self._lasting, self._most_calls = kind, at, lasting, most_calls
        self._unseen: set[Path] = set()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> FailingFile:
        """As the machine's; one that creates counts as `create`."""
        name = "create" if create and not self.machine.exists(path) else "open"
        return FailingFile(self, self.call(name, path, lambda: self.machine.open(path, write=write, create=create)))

    def listdir(self, path: Path) -> list[str]:
        """Without the names that are not seen yet."""
        names = self.call("listdir", path, lambda: self.machine.listdir(path))
        hidden = {other.name for other in self._unseen if other.parent == path}
        self._unseen -= {path / name for name in hidden}
        return [name for name in names if name not in hidden]

    def exists(self, path: Path) -> bool:
        """Not, the first time, when it is not seen yet."""
        return self.call("exists", path, lambda: self.machine.exists(path)) and not self._is_unseen(path)

    def is_dir(self, path: Path) -> bool:
        """As `exists`."""
        return self.call("is_dir", path, lambda: self.machine.is_dir(path)) and not self._is_unseen(path)

    def read(self, path: Path) -> bytes:
        """Absent, the first time, when it is not seen yet."""
        if self._is_unseen(path):
            raise FileNotFoundError(errno.ENOENT, "not seen yet", str(path))
        return self.call("read", path, lambda: self.machine.read(path))  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self.machine, name)

        def call(*args: Any, **options: Any) -> Any:
            # The path that matters is the last one: the target of a link or of a rename.
            path = next(arg for arg in reversed(args) if isinstance(arg, Path))
            return self.call(name, path, lambda: real(*args, **options))

        return call

    def call(self, name: str, path: Path, do: Callable[[], Any]) -> Any:
        """Do it, or what the fault makes of it."""
        number = len(self.calls)
        self.calls.append(name)
        if number > self._most_calls:
            raise Hang(f"{number} calls")
        hit = self.is_hit(name, number)
        if name in ("open", "create") and self._is_unseen(path):
            raise FileNotFoundError(errno.ENOENT, "not seen yet", str(path))
        if hit and self._kind in ("EIO", "ETIMEDOUT", "ENOSPC"):
            raise OSError(getattr(errno, self._kind), f"injected before {name}", str(path))
        result = do()
        if hit and self._kind == "done":
            raise OSError(errno.EIO, f"injected after {name}", str(path))
        if hit and self._kind == "unseen":
            self._unseen.add(path)
        return result

    def is_hit(self, name: str, number: int) -> bool:
        """Whether the fault is for this call."""
        return (number == self._at or (self._lasting and number > self._at)) and KINDS[self._kind](name)

    def shortened(self, name: str, length: int) -> int:
        """How many bytes the call that comes now may move."""
        return (length + 1) // 2 if self.is_hit(name, len(self.calls)) and "short" in self._kind else length

    def _is_unseen(self, path: Path) -> bool:
        """Whether it is; a second check sees it."""
        if path in self._unseen:
            self._unseen.remove(path)
            return True
        return False


class FailingFile:
    """An open file of `FailingFiles`."""

    def __init__(self, files: FailingFiles, file: OpenFileOnDisk) -> None:
        self._files, self._file = files, file

    def pread(self, length: int, at: int) -> bytes:
        """Fewer bytes when reads are short, but never none before the end."""
        fewer = self._files.shortened("pread", length)
        return self._call("pread", lambda: self._file.pread(fewer, at))  # type: ignore[no-any-return]

    def pwrite(self, data: bytes | memoryview, at: int) -> int:
        """Fewer bytes when writes are short, but some."""
        fewer = data[: self._files.shortened("pwrite", len(data))]
        return self._call("pwrite", lambda: self._file.pwrite(fewer, at))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Never fails, nor counts."""
        self._file.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._file, name)
        return lambda *args: self._call(name, lambda: real(*args))

    def _call(self, name: str, do: Callable[[], Any]) -> Any:
        return self._files.call(name, self._file.path, do)

    def __enter__(self) -> FailingFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
