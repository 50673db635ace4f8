"""File systems that misbehave: one that fails on call, and one that forgets at a power cut what was not synced."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

from bucket_store.durable import LOCAL


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


class ForgetfulFiles:
    """Files in memory that know what a disk would still have after a power cut.

    Names are directory -> name -> file; a file is its bytes, or None inside `cut` when they were never synced. What was
    done to a directory since its last sync is lost from some point on: links and removals reach the disk in order.
    """

    def __init__(self) -> None:
        self.names: dict[Path, dict[str, list[bytes]]] = {Path("/"): {}}
        self.synced: set[int] = set()
        self._journal: dict[Path, list[dict[str, list[bytes]]]] = {Path("/"): [{}]}

    def cut(self, seed: int) -> ForgetfulFiles:
        """The files after a power cut now; `seed` picks how much of the unsynced work has reached the disk."""
        rng = random.Random(seed)
        after = ForgetfulFiles()
        after.names = {}
        for directory, versions in self._journal.items():
            names = rng.choice(versions)
            after.names[directory] = {
                name: [file[0] if id(file) in self.synced or rng.random() < 0.5 else file[0][: len(file[0]) // 2]]
                for name, file in names.items()
            }
        after._journal = {directory: [dict(names)] for directory, names in after.names.items()}
        after.synced = {id(file) for names in after.names.values() for file in names.values()}
        return after

    def _changed(self, directory: Path) -> None:
        self._journal[directory].append(dict(self.names[directory]))

    def _file(self, path: Path) -> list[bytes]:
        try:
            return self.names[path.parent][path.name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "absent", str(path)) from None

    def read(self, path: Path) -> bytes:
        return self._file(path)[0]

    def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        file = [bytes(data)]
        self.names[path.parent][path.name] = file
        self._changed(path.parent)
        self._keep(file, sync)

    def _keep(self, file: list[bytes], sync: bool) -> None:
        if sync:
            self.synced.add(id(file))

    def fsync_file(self, path: Path) -> None:
        self._keep(self._file(path), True)

    def link(self, source: Path, target: Path) -> None:
        if target.name in self.names[target.parent]:
            raise FileExistsError(errno.EEXIST, "taken", str(target))
        self.names[target.parent][target.name] = self._file(source)
        self._changed(target.parent)

    def replace(self, source: Path, target: Path) -> None:
        self.names[target.parent][target.name] = self._file(source)
        del self.names[source.parent][source.name]
        self._changed(target.parent)

    def remove(self, path: Path) -> None:
        if self.names[path.parent].pop(path.name, None) is not None:
            self._changed(path.parent)

    def mkdir(self, path: Path) -> None:
        self.names.setdefault(path, {})
        self._journal.setdefault(path, [{}])

    def fsync_dir(self, path: Path) -> None:
        self._journal[path] = [dict(self.names[path])]

    def listdir(self, path: Path) -> list[str]:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "absent", str(path))
        return list(self.names[path])

    def exists(self, path: Path) -> bool:
        return path in self.names or path.name in self.names.get(path.parent, {})

    def modified_us(self, path: Path) -> int:
        return 0
