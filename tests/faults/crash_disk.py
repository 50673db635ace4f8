"""A disk in memory, and the machines that write to it: what a power cut may leave is modelled, not hoped for.

The disk knows of every file and directory what the kernel shows (`data`, `names`) and what has certainly reached it
(`filesystem`), with all that was done in between (`pending`). A power cut keeps any part of what is pending:

- of a file's bytes since its last sync: each write is lost, whole, torn at any byte from either end, or there by its
  length only, as zeros;
- of a directory's names since its last sync: none, all, a prefix, or any selection of the operations, each directory
  for itself. A rename is one operation in the two directories it touches: both names, or neither, are never seen.

A directory whose own name is lost is lost with all below it. Locks are gone. Nodes are values: a disk at one moment is
a dict of them, so every moment of a run can be kept, and cut again and again.

A `Machine` is the file system of one process on a disk. `step` is called before each operation that changes or syncs
something, and may kill the process (`Machine.kill`), or run another one in between. `lies` names the syncs that say
they were done and were not.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

ROOT = 0
Nodes = dict[int, "File | Directory"]


class Killed(BaseException):
    """The process is dead: nothing of the product catches this, and no clean-up of its own reaches the disk."""


class Write(NamedTuple):
    """One write that is not synced; `data` None cuts the file to `at`."""

    at: int
    data: bytes | None

    def over(self, before: bytes) -> bytes:
        """The bytes after it."""
        if self.data is None:
            return before[: self.at]
        if len(before) < self.at:
            before = before.ljust(self.at, b"\0")
        return before[: self.at] + self.data + before[self.at + len(self.data) :]


class File(NamedTuple):
    """A file's bytes as they are read, those that are durable, and what lies between."""

    data: bytes = b""
    durable: bytes = b""
    pending: tuple[Write, ...] = ()
    links: int = 0
    modified_us: int = 0


class Change(NamedTuple):
    """One change of a directory: a name goes, a name comes.

    `other` is the second directory of a rename; `forced` says that the rename is durable through that one.
    """

    number: int
    gone: str | None
    come: tuple[str, int] | None
    other: int | None = None
    forced: bool = False

    def apply(self, names: dict[str, int]) -> None:
        """Do it to these names."""
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.come is not None:
            names[self.come[0]] = self.come[1]


class Directory(NamedTuple):
    """A directory's names as they are listed, those that are durable, and what lies between. No dict is changed."""

    names: dict[str, int]
    durable: dict[str, int]
    pending: tuple[Change, ...] = ()


class Disk:
    """What outlives processes. `moments` keeps the disk after every operation, once `is_kept` is set."""

    def __init__(self, nodes: Nodes | None = None) -> None:
        self.nodes: Nodes = {ROOT: Directory({}, {})} if nodes is None else nodes
        self.locks: dict[int, object] = {}
        self.now_us = 0
        self.is_kept = False
        self.moments: list[Nodes] = []
        self.operations: list[str] = []
        self._next = max(self.nodes) + 1
        self._changes = 0

    def new_number(self) -> int:
        """A number for a node that nothing has had."""
        self._next += 1
        return self._next

    def new_change(self) -> int:
        """A number for an operation on names."""
        self._changes += 1
        return self._changes

    def done(self, name: str, path: Path) -> None:
        """An operation is over."""
        if self.is_kept:
            self.moments.append(dict(self.nodes))
            self.operations.append(f"{name} {path}")

    def files(self) -> dict[str, bytes]:
        """Every file that has a name, by its path."""
        return dict(_walk(self.nodes, ROOT, ""))


def _walk(nodes: Nodes, number: int, path: str) -> Iterator[tuple[str, bytes]]:
    node = nodes[number]
    if isinstance(node, File):
        yield path, node.data
        return
    for name, child in sorted(node.names.items()):
        yield from _walk(nodes, child, f"{path}/{name}")


def fingerprint(nodes: Nodes) -> int:
    """Equal for disks that nobody can tell apart."""
    return hash((tuple(_walk(nodes, ROOT, "")), tuple(_folders(nodes, ROOT, ""))))


def _folders(nodes: Nodes, number: int, path: str) -> Iterator[str]:
    node = nodes[number]
    if isinstance(node, Directory):
        yield path
        for name, child in sorted(node.names.items()):
            yield from _folders(nodes, child, f"{path}/{name}")


def unsynced(nodes: Nodes) -> int:
    """How many operations a power cut at this moment may undo."""
    return sum(len(node.pending) for node in nodes.values())


def cut(nodes: Nodes, seed: int) -> Disk:
    """The disk after a power cut at this moment. Seed 0 keeps nothing that is pending, 1 everything, others a part."""
    draw = random.Random(seed)
    chosen: dict[int, bool] = {}
    kept: Nodes = {}
    links: dict[int, int] = {}
    waiting = [ROOT]
    while waiting:
        number = waiting.pop()
        node = nodes[number]
        if isinstance(node, File):
            links[number] = links.get(number, 0) + 1
            if number not in kept:
                kept[number] = _cut_file(node, seed, draw)
            continue
        names = _cut_directory(node, seed, draw, chosen)
        kept[number] = Directory(names, names)
        waiting.extend(names[name] for name in sorted(names))
    for number, count in links.items():
        file = kept[number]
        assert isinstance(file, File)
        kept[number] = file._replace(links=count)
    disk = Disk(kept)
    disk._next = max(nodes) + 1
    return disk


def _cut_directory(node: Directory, seed: int, draw: random.Random, chosen: dict[int, bool]) -> dict[str, int]:
    if not node.pending:
        return node.durable
    mode = "none" if seed == 0 else "all" if seed == 1 else draw.choice(("none", "all", "prefix", "any", "any"))
    length = draw.randint(0, len(node.pending)) if mode == "prefix" else 0
    names = dict(node.durable)
    for place, change in enumerate(node.pending):
        wanted = mode == "all" or (mode == "prefix" and place < length) or (mode == "any" and draw.random() < 0.5)
        if change.forced or chosen.setdefault(change.number, wanted):
            change.apply(names)
    return names


def _cut_file(node: File, seed: int, draw: random.Random) -> File:
    data = node.durable
    for write in node.pending:
        data = _torn(write, seed, draw).over(data)
    return File(data, data, modified_us=node.modified_us)


_NOTHING = Write(0, b"")


def _torn(write: Write, seed: int, draw: random.Random) -> Write:
    """What has reached the disk of one write."""
    if seed < 2 or write.data is None or not write.data:
        return write if seed == 1 or (seed > 1 and draw.random() < 0.5) else _NOTHING
    admission = draw.choice(("lost", "whole", "head", "head", "tail", "zeros"))
    at = draw.randint(0, len(write.data))
    match admission:
        case "whole":
            return write
        case "head":
            return Write(write.at, write.data[:at])
        case "tail":
            return Write(write.at + at, write.data[at:])
        case "zeros":
            return Write(write.at, bytes(len(write.data)))
    return _NOTHING


class Machine:
    """The `FileSystem` of one process on a disk. Not for threads that write."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.step: Callable[[str, Path], None] = lambda name, path: None
        self.lies: Callable[[str, Path], bool] = lambda name, path: False
        self.is_dead = False
        self._open: list[OpenFileOnDisk] = []

    def die(self) -> None:
        """The process ends: what it has written stays as it is, its locks go."""
        self.is_dead = True
        for file in self._open:
            file.unlock()

    def kill(self) -> None:
        """SIGKILL, to be called from `step`."""
        self.die()
        raise Killed

    def read(self, path: Path) -> bytes:
        return self._file(path)[1].data

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> OpenFileOnDisk:
        try:
            number, _ = self._file(path)
        except FileNotFoundError:
            if not create:
                raise
            number = self._create("open", path)
        file = OpenFileOnDisk(self, path, number, is_writable=write or create)
        self._open.append(file)
        return file

    def write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        number = self._create("write_file", path)
        self.write(path, number, Write(0, bytes(data)))
        if sync:
            self.sync(path, number)

    def link(self, source: Path, target: Path) -> None:
        self._step("link", target)
        number, file = self._file(source)
        into, directory = self._directory(target.parent)
        if target.name in directory.names:
            raise FileExistsError(errno.EEXIST, "taken", str(target))
        self._change(into, gone=None, come=(target.name, number))
        self.disk.nodes[number] = file._replace(links=file.links + 1)
        self.disk.done("link", target)

    def replace(self, source: Path, target: Path) -> None:
        self._step("replace", target)
        out_of, old = self._directory(source.parent)
        into, new = self._directory(target.parent)
        if source.name not in old.names:
            raise _absent(source)
        number = old.names[source.name]
        over = new.names.get(target.name)
        if over is not None and over != number:
            self._unlinked(over)
        change = self.disk.new_change()
        if out_of == into:
            self._change(into, gone=source.name, come=(target.name, number), number=change)
        else:
            self._change(out_of, gone=source.name, come=None, number=change, other=into)
            self._change(into, gone=None, come=(target.name, number), number=change, other=out_of)
        self.disk.done("replace", target)

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        try:
            parent, directory = self._directory(path.parent)
        except FileNotFoundError:
            return
        number = directory.names.get(path.name)
        if number is None:
            return
        if isinstance(self.disk.nodes[number], Directory):
            raise IsADirectoryError(errno.EISDIR, "a directory", str(path))
        self._change(parent, gone=path.name, come=None)
        self._unlinked(number)
        self.disk.done("remove", path)

    def mkdir(self, path: Path) -> None:
        self._step("mkdir", path)
        parent, directory = self._directory(path.parent)
        if path.name in directory.names:
            return
        number = self.disk.new_number()
        self.disk.nodes[number] = Directory({}, {})
        self._change(parent, gone=None, come=(path.name, number))
        self.disk.done("mkdir", path)

    def rmdir(self, path: Path) -> None:
        self._step("rmdir", path)
        try:
            parent, _ = self._directory(path.parent)
            _, directory = self._directory(path)
        except FileNotFoundError:
            return
        if directory.names:
            raise OSError(errno.ENOTEMPTY, "not empty", str(path))
        self._change(parent, gone=path.name, come=None)
        self.disk.done("rmdir", path)

    def fsync_dir(self, path: Path) -> None:
        self._step("fsync_dir", path)
        number, directory = self._directory(path)
        if self.lies("fsync_dir", path):
            return
        self.disk.nodes[number] = Directory(directory.names, directory.names)
        for change in directory.pending:
            if change.other is not None:
                self._force(change.other, change.number)
        self.disk.done("fsync_dir", path)

    def listdir(self, path: Path) -> list[str]:
        return list(self._directory(path)[1].names)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def is_dir(self, path: Path) -> bool:
        number = self._find(path)
        return number is not None and isinstance(self.disk.nodes[number], Directory)

    def modified_us(self, path: Path) -> int:
        return 0 if self.is_dir(path) else self._file(path)[1].modified_us

    # --- for open files

    def node(self, number: int) -> File:
        """An open file, whatever became of its names."""
        self._alive()
        node = self.disk.nodes[number]
        assert isinstance(node, File)
        return node

    def write(self, path: Path, number: int, write: Write) -> None:
        """A write, or a cut, that is not synced."""
        self._step("write" if write.data is not None else "truncate", path)
        file = self.node(number)
        self.disk.nodes[number] = File(
            write.over(file.data), file.durable, (*file.pending, write), file.links, self.disk.now_us
        )
        self.disk.done("write", path)

    def sync(self, path: Path, number: int) -> None:
        """An fsync of a file."""
        self._step("sync", path)
        file = self.node(number)
        if self.lies("sync", path):
            return
        self.disk.nodes[number] = File(file.data, file.data, (), file.links, file.modified_us)
        self.disk.done("sync", path)

    # --- names

    def _alive(self) -> None:
        if self.is_dead:
            raise Killed

    def _step(self, name: str, path: Path) -> None:
        self._alive()
        self.step(name, path)
        self._alive()

    def _find(self, path: Path) -> int | None:
        self._alive()
        number: int | None = ROOT
        for part in path.parts[1:]:
            node = self.disk.nodes[number]  # type: ignore[index]
            if not isinstance(node, Directory):
                return None
            number = node.names.get(part)
            if number is None:
                return None
        return number

    def _file(self, path: Path) -> tuple[int, File]:
        number = self._find(path)
        if number is None:
            raise _absent(path)
        node = self.disk.nodes[number]
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, "a directory", str(path))
        return number, node

    def _directory(self, path: Path) -> tuple[int, Directory]:
        number = self._find(path)
        if number is None:
            raise _absent(path)
        node = self.disk.nodes[number]
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "no directory", str(path))
        return number, node

    def _create(self, name: str, path: Path) -> int:
        self._step(name, path)
        parent, directory = self._directory(path.parent)
        if path.name in directory.names:
            raise FileExistsError(errno.EEXIST, "taken", str(path))
        number = self.disk.new_number()
        self.disk.nodes[number] = File(links=1, modified_us=self.disk.now_us)
        self._change(parent, gone=None, come=(path.name, number))
        self.disk.done("create", path)
        return number

    def _change(
        self,
        into: int,
        *,
        gone: str | None,
        come: tuple[str, int] | None,
        number: int | None = None,
        other: int | None = None,
    ) -> None:
        directory = self.disk.nodes[into]
        assert isinstance(directory, Directory)
        change = Change(self.disk.new_change() if number is None else number, gone, come, other)
        names = dict(directory.names)
        change.apply(names)
        self.disk.nodes[into] = Directory(names, directory.durable, (*directory.pending, change))

    def _force(self, into: int, number: int) -> None:
        """A rename is durable through its other directory: its half in this one cannot be lost any more."""
        directory = self.disk.nodes[into]
        assert isinstance(directory, Directory)
        pending = tuple(
            change._replace(forced=True) if change.number == number else change for change in directory.pending
        )
        self.disk.nodes[into] = Directory(directory.names, directory.durable, pending)

    def _unlinked(self, number: int) -> None:
        file = self.disk.nodes[number]
        assert isinstance(file, File)
        self.disk.nodes[number] = file._replace(links=file.links - 1)


class OpenFileOnDisk:
    """A `FileHandle` of a `Machine`."""

    def __init__(self, machine: Machine, path: Path, number: int, *, is_writable: bool) -> None:
        self._machine, self.path, self._number, self._is_writable = machine, path, number, is_writable

    def size(self) -> int:
        return len(self._machine.node(self._number).data)

    def pread(self, length: int, at: int) -> bytes:
        return self._machine.node(self._number).data[at : at + length]

    def pwrite(self, data: bytes | memoryview, at: int) -> int:
        if not self._is_writable:
            raise OSError(errno.EBADF, "open for reading", str(self.path))
        self._machine.write(self.path, self._number, Write(at, bytes(data)))
        return len(data)

    def sync(self) -> None:
        self._machine.sync(self.path, self._number)

    def try_lock(self) -> bool:
        self._machine.node(self._number)
        return self._machine.disk.locks.setdefault(self._number, self) is self

    def unlock(self) -> None:
        """What closing does to the lock."""
        if self._machine.disk.locks.get(self._number) is self:
            del self._machine.disk.locks[self._number]

    def close(self) -> None:
        self.unlock()

    def __enter__(self) -> OpenFileOnDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _absent(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "absent", str(path))
