"""A name on some storage: `Place`, and the protocol of the storages, `Names`.

A place has no method of `pathlib.Path` that touches a disk, so the type checker finds every module that passes by this
seam.

What a storage promises:

| | `file:` | `hdfs:` | object stores |
|---|---|---|---|
| create | temporary file, sync, link, directory sync | temporary file, rename without overwrite | conditional put |
| replace | temporary file, rename | temporary file, rename with overwrite | put |
| prepare, put | temporary file with the epoch in its name, rename | the same | put if the version is as it was |
| touch | replace | the time is set | put |
| rename | look, then rename(2) | rename without overwrite | not supported |
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from bucket_store.filesystem import temporary_name


class NotPlacedError(OSError):
    """A new file is certainly not in place, and will not be: the storage refused it before anything could be named."""


class NotDurableError(OSError):
    """A new file is in place, and may be gone after a power cut; a repeated `sync` may succeed without any effect."""


class UnansweredError(TimeoutError):
    """The storage gave no answer, and may still act: a file may come into place after it was found to be absent."""


def try_of(path: PurePosixPath) -> PurePosixPath:
    """A new name for a try to write a file, with `~` and 8 hex digits before its ending."""
    return path.with_name(f"{path.stem}~{secrets.token_hex(4)}{path.suffix}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A replacement of a file that is ready.

    `put` puts it in place, once, as `Names.replace` does; see `Names.prepare`. `discard` removes what was written for
    it elsewhere, and nothing else; after `put`, or when another process has removed it, it does nothing.
    """

    put: Callable[[], None]
    discard: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory. A directory's `size` is 0; `modified_us` is µs since the epoch, by the storage's clock."""

    name: str
    is_directory: bool
    size: int
    modified_us: int


class Names(Protocol):
    """The storage under a `Place`. Safe for several threads, and pickles; each process makes its own connections.

    Every method raises OSError, FileNotFoundError for an absent file, TimeoutError when an outage lasts longer than the
    storage's bound: no call waits for ever. Paths are absolute.
    """

    @property
    def scheme(self) -> str:
        """`file`, `hdfs`, `s3`, `gs`, `az`, or in tests `objects`."""

    def url(self, path: PurePosixPath) -> str:
        """The URL by which `open_place` gives the same place."""

    def create(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> None:
        """Put a new file in place: whole, and durable with its name on return. Of all racers one wins.

        `failpoint`: the kind of file, of `places.steps`: its failpoints are hit.

        Raises:
            FileExistsError: the name is taken; its file is untouched. After an outage this very call may have taken it.
            NotPlacedError: it is not in place and will not be.
            NotDurableError: it is in place, and may not be durable.
            UnansweredError: unclear, and the storage may still put it in place: reading it back may show it, and does
                not show its absence.
            OSError: unclear; only reading it back shows it, and if it is there, `sync` of the directory makes it
                durable.
        """

    def write_own(self, path: PurePosixPath, data: bytes, *, failpoint: str = "") -> PurePosixPath:
        """Write a file under a name that no other writer uses, and make its folder; gives its path.

        Its bytes are durable on return, its name after `sync` of the directory. Where a writer that dies leaves a part
        of a file, each try has a name of its own (`try_of`), and a failed one removes its file.
        """

    def replace(self, path: PurePosixPath, data: bytes) -> None:
        """Put a file in place of the old one, if any. Readers see one of both, whole; the new one may be lost."""

    def prepare(self, path: PurePosixPath, data: bytes, *, epoch: int, is_durable: bool = False) -> Prepared:
        """Get a replacement of a file ready; with `is_durable` its bytes are durable, its name after `sync`.

        Its `put` raises FileNotFoundError when an owner of a higher epoch has removed the replacement, or when another
        file was put in place since it was prepared: a storage sees one of the two, and refuses for it.
        """

    def remove_prepared(self, path: PurePosixPath, *, below_epoch: int) -> None:
        """Remove what lower epochs have prepared for this name. Where a changed file refuses them, do nothing."""

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""

    def read_range(self, path: PurePosixPath, start: int, length: int) -> bytes:
        """`length` bytes from `start` on; fewer only where the file ends."""

    def stat(self, path: PurePosixPath) -> Entry:
        """The entry of a file or a directory."""

    def exists(self, path: PurePosixPath) -> bool:
        """Whether the name is there now."""

    def listed(self, path: PurePosixPath, *, after: str = "") -> list[str]:
        """The names in a directory that sort after `after`, sorted; as `entries`, and cheaper."""

    def entries(self, path: PurePosixPath) -> list[Entry]:
        """What is in a directory, by name; none when it is absent. Entries added meanwhile may be missing."""

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file; an absent one is no error."""

    def remove_all(self, paths: list[PurePosixPath]) -> None:
        """Remove files, in as few requests as the storage can; absent ones are no error."""

    def remove_tree(self, path: PurePosixPath) -> None:
        """Remove a directory and all below it; what is absent, or goes away meanwhile, is no error."""

    def make_directories(self, path: PurePosixPath) -> None:
        """Make a directory and its missing parents, durable on return; safe to repeat and to race."""

    def rename(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """Give a file another name, never over another file; durable after `sync` of both directories.

        A crash leaves the old name or the new one. Two callers may race for one source, but with two sources for one
        target `file:` may lose a file: `create` is for that.

        Raises:
            FileExistsError: the target is taken.
            FileNotFoundError: there is no source.
            NotImplementedError: this storage cannot.
        """

    def touch(self, path: PurePosixPath, data: bytes) -> None:
        """Show that the writer of a file lives: its modification time moves on, or its bytes become `data`, or both.

        The storage takes what costs it least. An absent file is written.
        """

    def sync(self, path: PurePosixPath) -> None:
        """Make a file's bytes, or the names in a directory, durable as they are; where every write is, do nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """A name on a storage: a file's or a directory's, whether it is there or not."""

    names: Names
    path: PurePosixPath

    def __truediv__(self, relative: str | PurePosixPath) -> Place:
        return Place(self.names, self.path / relative)

    def __str__(self) -> str:
        """For people: the bare path of a local place, else the URL."""
        return str(self.path) if self.names.scheme == "file" else self.url

    @property
    def url(self) -> str:
        """The URL by which `open_place` gives the same place."""
        return self.names.url(self.path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def parent(self) -> Place:
        """The directory that the name is in."""
        return Place(self.names, self.path.parent)

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system of this machine."""
        return self.names.scheme == "file"

    @property
    def local(self) -> Path:
        """The path on this machine, for what only a local disk can do.

        Raises:
            ValueError: the place is elsewhere.
        """
        if self.names.scheme != "file":
            raise ValueError(f"{self.url} is not on this machine")
        return Path(self.path)

    def resolved(self) -> Place:
        """The same place without symbolic links in its path; raises OSError."""
        return self if self.names.scheme != "file" else Place(self.names, PurePosixPath(self.local.resolve()))

    def is_same(self, other: Place) -> bool:
        """Whether both name one directory or file, by whatever paths. Raises OSError, as when one of them is absent."""
        if self.names.scheme == other.names.scheme == "file":
            return self.local.samefile(other.local)
        return self.url == other.url

    def create(self, data: bytes, *, failpoint: str = "") -> None:
        """See `Names.create`."""
        self.names.create(self.path, data, failpoint=failpoint)

    def write_own(self, data: bytes, *, failpoint: str = "") -> Place:
        """See `Names.write_own`."""
        return Place(self.names, self.names.write_own(self.path, data, failpoint=failpoint))

    def replace(self, data: bytes) -> None:
        """See `Names.replace`."""
        self.names.replace(self.path, data)

    def prepare(self, data: bytes, *, epoch: int, is_durable: bool = False) -> Prepared:
        """See `Names.prepare`."""
        return self.names.prepare(self.path, data, epoch=epoch, is_durable=is_durable)

    def remove_prepared(self, *, below_epoch: int) -> None:
        """See `Names.remove_prepared`."""
        self.names.remove_prepared(self.path, below_epoch=below_epoch)

    def read(self) -> bytes:
        """See `Names.read`."""
        return self.names.read(self.path)

    def read_range(self, start: int, length: int) -> bytes:
        """See `Names.read_range`."""
        return self.names.read_range(self.path, start, length)

    def stat(self) -> Entry:
        """See `Names.stat`."""
        return self.names.stat(self.path)

    def exists(self) -> bool:
        """See `Names.exists`."""
        return self.names.exists(self.path)

    def listed(self, *, after: str = "") -> list[str]:
        """See `Names.listed`."""
        return self.names.listed(self.path, after=after)

    def entries(self) -> list[Entry]:
        """See `Names.entries`."""
        return self.names.entries(self.path)

    def files(self) -> Iterator[tuple[Place, Entry]]:
        """Every file below with its entry, in no order: one listing a directory, and no look at each file."""
        for entry in self.entries():
            inner = self / entry.name
            if entry.is_directory:
                yield from inner.files()
            else:
                yield inner, entry

    def walk(self) -> Iterator[Place]:
        """Every file below, in no order."""
        return (file for file, _ in self.files())

    def remove(self) -> None:
        """See `Names.remove`."""
        self.names.remove(self.path)

    def remove_tree(self) -> None:
        """See `Names.remove_tree`."""
        self.names.remove_tree(self.path)

    def make_directories(self) -> None:
        """See `Names.make_directories`."""
        self.names.make_directories(self.path)

    def rename(self, target: Place) -> None:
        """See `Names.rename`; both places are of one storage."""
        if target.names != self.names:
            raise ValueError(f"{self} and {target} are on different storages")
        self.names.rename(self.path, target.path)

    def touch(self, data: bytes) -> None:
        """See `Names.touch`."""
        self.names.touch(self.path, data)

    def sync(self) -> None:
        """See `Names.sync`."""
        self.names.sync(self.path)


_DIGITS = 6
_PREPARED = re.compile(r"\.(\w+)\.(\d{6,})\.\w+\.tmp")


def prepared_name(name: str, epoch: int) -> str:
    """A new name for the replacement of the file `name` that an epoch has prepared."""
    return temporary_name(f"{name}.{epoch:0{_DIGITS}d}")


def prepared_below(names: list[str], name: str, epoch: int) -> list[str]:
    """Those of the names that lower epochs have given to replacements of the file `name`."""
    found = [(one, _PREPARED.fullmatch(one)) for one in names]
    return [one for one, parts in found if parts and parts[1] == name and int(parts[2]) < epoch]
