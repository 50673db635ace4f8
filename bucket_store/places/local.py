"""Places on this machine, over `bucket_store.filesystem`."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from bucket_store.filesystem import (
    LOCAL,
    FileSystem,
    LocalFileSystem,
    discard,
    make_directories,
    read_at,
    remove_tree,
    replace_whole,
    stage,
    write_at,
)
from bucket_store.places import steps
from bucket_store.places.place import (
    Entry,
    NotDurableError,
    NotPlacedError,
    Place,
    Prepared,
    prepared_below,
    prepared_name,
    try_of,
)


@dataclass(frozen=True, slots=True)
class LocalNames:
    """The files of this machine; tests give an `fs` that fails, or that loses unsynced bytes."""

    fs: FileSystem = LOCAL

    @property
    def scheme(self) -> str:
        """See `Names`."""
        return "file"

    def url(self, path: PurePosixPath) -> str:
        """See `Names`."""
        return f"file://{quote(str(path))}"

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """See `Names`."""
        target = Path(path)
        try:
            temporary = stage(self.fs, target.parent, target.name, data)
        except OSError as exc:
            raise NotPlacedError(exc.errno, exc.strerror or str(exc), str(target)) from exc
        steps.written(failpoint)
        try:
            self.fs.link(temporary, target)
            steps.linked(failpoint)
            try:
                self.fs.fsync_dir(target.parent)
            except OSError as exc:
                raise NotDurableError(exc.errno, exc.strerror or str(exc), str(target)) from exc
        finally:
            # After the directory sync: the sync covers the link alone, and a later cleaning removes an orphan.
            discard(self.fs, temporary)

    def write_own(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> PurePosixPath:
        """See `Names`."""
        target, half = try_of(path), len(data) // 2
        if not self.fs.is_dir(Path(path.parent)):
            make_directories(self.fs, Path(path.parent))
        with self.fs.open(Path(target), create=True) as file:
            try:
                write_at(file, data[:half], 0)
                steps.half(failpoint)
                write_at(file, data[half:], half)
                file.sync()
            except OSError:
                discard(self.fs, Path(target))
                raise
        return target

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`."""
        replace_whole(self.fs, Path(path), data)

    def prepare(self, path: PurePosixPath, data: bytes, *, epoch: int, is_durable: bool = False) -> Prepared:
        """See `Names`: a temporary file with the epoch in its name."""
        target = Path(path)
        temporary = target.with_name(prepared_name(path.name, epoch))
        try:
            self.fs.write_file(temporary, data, sync=is_durable)
        except OSError:
            discard(self.fs, temporary)
            raise
        return Prepared(lambda: self.fs.replace(temporary, target), lambda: self.fs.remove(temporary))

    def remove_prepared(self, path: PurePosixPath, *, below_epoch: int) -> None:
        """See `Names`."""
        for name in prepared_below(self.listed(path.parent), path.name, below_epoch):
            self.fs.remove(Path(path.parent / name))

    def read(self, path: PurePosixPath) -> bytes:
        """See `Names`."""
        return self.fs.read(Path(path))

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """See `Names`."""
        with self.fs.open(Path(path)) as file:
            # A reference may be wrong: bytes beyond the file are neither read nor allocated.
            held = min(length, file.size() - start)
            return read_at(file, held, start) if held > 0 else b""

    def stat(self, path: PurePosixPath) -> Entry:
        """See `Names`."""
        if isinstance(self.fs, LocalFileSystem):
            return _entry(path.name, Path(path).stat())
        is_directory = self.fs.is_dir(Path(path))
        modified = self.fs.modified_us(Path(path))
        if is_directory:
            return Entry(path.name, True, 0, modified)
        with self.fs.open(Path(path)) as file:
            return Entry(path.name, False, file.size(), modified)

    def exists(self, path: PurePosixPath) -> bool:
        """See `Names`."""
        return self.fs.exists(Path(path))

    def listed(self, path: PurePosixPath, *, after: str = "") -> list[str]:
        """See `Names`."""
        try:
            return sorted(name for name in self.fs.listdir(Path(path)) if name > after)
        except FileNotFoundError:
            return []

    def entries(self, path: PurePosixPath) -> list[Entry]:
        """See `Names`."""
        found = []
        if isinstance(self.fs, LocalFileSystem):
            try:
                with os.scandir(path) as scanned:
                    for one in scanned:
                        with suppress(FileNotFoundError):  # removed since it was listed
                            found.append(_entry(one.name, one.stat(), is_link=one.is_symlink()))
            except FileNotFoundError:
                return []
            return sorted(found, key=attrgetter("name"))
        for name in self.listed(path):
            try:
                found.append(self.stat(path / name))
            except FileNotFoundError:
                continue  # removed since it was listed
        return found

    def remove(self, path: PurePosixPath) -> None:
        """See `Names`."""
        self.fs.remove(Path(path))

    def remove_all(self, paths: list[PurePosixPath]) -> None:
        """See `Names`."""
        for path in paths:
            self.fs.remove(Path(path))

    def remove_tree(self, path: PurePosixPath) -> None:
        """See `Names`."""
        remove_tree(self.fs, Path(path))

    def make_directories(self, path: PurePosixPath) -> None:
        """See `Names`."""
        make_directories(self.fs, Path(path))

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """See `Names`."""
        # One rename, which a power cut keeps whole, and not link and unlink: of these the second may outlive the first.
        if self.fs.exists(Path(target)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self.fs.replace(Path(source), Path(target))

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """See `Names`. Written anew: earlier releases watch the bytes."""
        replace_whole(self.fs, Path(path), data)

    def sync(self, path: PurePosixPath) -> None:
        """See `Names`."""
        if self.fs.is_dir(Path(path)):
            self.fs.fsync_dir(Path(path))
            return
        with self.fs.open(Path(path)) as file:
            file.sync()


def _entry(name: str, found: os.stat_result, *, is_link: bool = False) -> Entry:
    """A link in a directory is a file: nothing behind it belongs to the directory."""
    is_directory = stat.S_ISDIR(found.st_mode) and not is_link
    return Entry(name, is_directory, 0 if is_directory else found.st_size, found.st_mtime_ns // 1000)


def local_place(path: Path | str, fs: FileSystem = LOCAL) -> Place:
    """The place of a path of this machine, which is made absolute."""
    return Place(LocalNames(fs), PurePosixPath(Path(path).absolute()))


def on_one_volume(one: Place, other: Place) -> bool:
    """Whether a file can be renamed from one directory into the other, be they there yet or not."""
    if one.names.scheme != "file" or other.names.scheme != "file":
        return one.names == other.names
    return _device(one.local) == _device(other.local)


def _device(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
