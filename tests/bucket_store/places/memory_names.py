"""A storage in this process's memory: places that are no paths of this machine, without a server."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from bucket_store import failpoints
from bucket_store.places.place import Entry, Place, Prepared


@dataclass(eq=False)
class MemoryNames:
    """Files by path, with directories; its clock is what a test makes it, and goes one microsecond a change."""

    now_us: int = 1_000_000
    can_rename: bool = True
    files: dict[PurePosixPath, tuple[bytes, int]] = field(default_factory=dict)
    directories: dict[PurePosixPath, int] = field(default_factory=lambda: {PurePosixPath("/"): 0})
    calls: list[tuple[str, PurePosixPath]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def scheme(self) -> str:
        """See `Names`."""
        return "memory"

    def url(self, path: PurePosixPath) -> str:
        """See `Names`; nothing opens it elsewhere."""
        return f"memory://{path}"

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """See `Names`."""
        if failpoint:
            failpoints.hit(f"{failpoint}.written")
        with self._lock:
            if path in self.files:
                raise FileExistsError(str(path))
            self.replace(path, data)
        if failpoint:
            failpoints.hit(f"{failpoint}.linked")

    def write_own(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> PurePosixPath:
        """See `Names`."""
        self.make_directories(path.parent)
        self.create(path, data)
        return path

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`."""
        with self._lock:
            if path.parent not in self.directories:
                raise FileNotFoundError(str(path.parent))
            self.files[path] = (bytes(data), self._tick())

    def prepare(self, path: PurePosixPath, data: bytes, *, epoch: int, is_durable: bool = False) -> Prepared:
        """See `Names`: by the contents, as S3 does; they are no version of their own where they come back."""
        version = self._version(path)

        def put() -> None:
            with self._lock:
                if self._version(path) != version:
                    raise FileNotFoundError(str(path))
                self.replace(path, data)

        return Prepared(put, lambda: None)

    def remove_prepared(self, path: PurePosixPath, *, below_epoch: int) -> None:
        """See `Names`."""

    def _version(self, path: PurePosixPath) -> bytes | None:
        return self.files[path][0] if path in self.files else None

    def read(self, path: PurePosixPath) -> bytes:
        """See `Names`."""
        self.calls.append(("read", path))
        return self._file(path)[0]

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """See `Names`."""
        self.calls.append(("read_range", path))
        return self._file(path)[0][start : start + length]

    def stat(self, path: PurePosixPath) -> Entry:
        """See `Names`."""
        self.calls.append(("stat", path))
        return self._entry(path)

    def exists(self, path: PurePosixPath) -> bool:
        """See `Names`."""
        return path in self.files or path in self.directories

    def listed(self, path: PurePosixPath, *, after: str = "") -> list[str]:
        """See `Names`."""
        return [entry.name for entry in self.entries(path) if entry.name > after]

    def entries(self, path: PurePosixPath) -> list[Entry]:
        """See `Names`."""
        self.calls.append(("entries", path))
        with self._lock:
            if path in self.files:
                raise NotADirectoryError(str(path))
            inside = {one for one in (*self.files, *self.directories) if one.parent == path != one}
            return [self._entry(one) for one in sorted(inside)]

    def remove(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self.files.pop(path, None)

    def remove_all(self, paths: list[PurePosixPath]) -> None:
        """See `Names`."""
        for path in paths:
            self.remove(path)

    def remove_tree(self, path: PurePosixPath) -> None:
        """See `Names`."""
        with self._lock:
            for known in (self.files, self.directories):
                for one in [one for one in known if one.is_relative_to(path)]:
                    del known[one]

    def make_directories(self, path: PurePosixPath) -> None:
        """See `Names`."""
        with self._lock:
            for one in (path, *path.parents):
                self.directories.setdefault(one, self._tick())

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """See `Names`."""
        if not self.can_rename:
            raise NotImplementedError("rename")
        with self._lock:
            found = self._file(source)
            if target in self.files:
                raise FileExistsError(str(target))
            self.files[target] = found
            del self.files[source]

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`: the time moves on alone."""
        with self._lock:
            if path not in self.files:
                self.replace(path, data)
            self.files[path] = (self.files[path][0], self._tick())

    def sync(self, path: PurePosixPath) -> None:
        """See `Names`."""

    def _file(self, path: PurePosixPath) -> tuple[bytes, int]:
        if path not in self.files:
            raise FileNotFoundError(str(path))
        return self.files[path]

    def _entry(self, path: PurePosixPath) -> Entry:
        if path in self.directories:
            return Entry(path.name, True, 0, self.directories[path])
        data, modified_us = self._file(path)
        return Entry(path.name, False, len(data), modified_us)

    def _tick(self) -> int:
        self.now_us += 1
        return self.now_us


def memory_place(names: MemoryNames | None = None) -> Place:
    """The root of an empty storage."""
    return Place(MemoryNames() if names is None else names, PurePosixPath("/"))
