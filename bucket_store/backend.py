"""Where pieces lie: the protocol that every backend keeps, and the URL that names one.

A backend stores opaque immutable bytes under names and gives them back by range. It knows nothing of records: which
of the pieces are live only the commit log says. Everything it writes lies under `<root>/pieces/`.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bucket_store.durable import LOCAL, FileSystem
from bucket_store.errors import SpaceError, StoreError
from bucket_store.piece import Entries, PieceHeader, PieceRef, decode_header, encode_piece, piece_name


class Located(Protocol):
    """What names bytes in a backend; a PieceRef, a PieceLocation and a StoredPiece do."""

    @property
    def file(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PieceLocation:
    """Where an appended piece lies. `file` is relative to the store's root, with `/`."""

    file: str
    name: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Something that lies in a backend, named by a record or not: what gc and verify go through."""

    file: str
    name: str
    shard: int
    epoch: int
    offset: int
    length: int


class PieceStore(Protocol):
    """A backend. Any number of processes may use one root at once. An instance pickles as its URL.

    Instances may be shared by threads for `read`.
    """

    @property
    def url(self) -> str:
        """What `open_backend` takes to open the same store."""

    def append(self, *, shard: int, epoch: int, name: str, data: bytes | memoryview) -> PieceLocation:
        """Stores a piece; durable (synced, and reachable from the root by synced directories) on return.

        Called by a task when its iterator ends. Never waits for a frozen writer beyond 2 s. A repetition stores a
        second copy: names are drawn anew for every attempt, and gc takes what no record names.

        Raises:
            SpaceError: no room; nothing that was there before is harmed.
        """

    def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of the piece, to its end without a length. Safe to repeat.

        Raises:
            CorruptionError: the file is not there or too short.
        """

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """Lets go of pieces; those already gone are skipped. Gives those whose file is held: ask for them again.

        Called by the owner for pieces that no record names any more. A file goes when nothing in it is live. Those in
        `keep` (see `log_state.live_files`) stay whatever a look into them shows: damage can hide a live piece. Safe to
        repeat.

        Without `writing_epoch` nobody may be writing what a record will name, and other files without a live piece go
        too. With it, writers of that epoch may be at work: then only files of these pieces are looked at, and none goes
        that may still get a piece, which is one of a later epoch or the one that this epoch's next piece goes to. So
        `keep` may be as old as the call's beginning.

        Raises:
            CorruptionError: a file cannot be listed; it stays as it is.
        """

    def pieces(self) -> Iterator[StoredPiece]:
        """Everything that lies there, whole or torn, in no order; pieces appended meanwhile may be missing."""

    def close(self) -> None:
        """Lets go of what this instance holds open. Safe to repeat."""


def open_backend(url: str, fs: FileSystem = LOCAL) -> PieceStore:
    """The backend of a `store.url`: `file:PATH` or `rocksdb:PATH`. Opening touches nothing on disk.

    `fs` is what lies under `file:`; RocksDB has its own I/O.

    Raises:
        StoreError: another scheme, or no path.
    """
    scheme, _, path = url.partition(":")
    if path and scheme == "file":
        from bucket_store.file_backend import FilePieces  # a backend loads when it is used

        return FilePieces(path, fs)
    if path and scheme == "rocksdb":
        from bucket_store.rocksdb_backend import RocksPieces  # the extension module is 20 MB

        return RocksPieces(path)
    raise StoreError(f"store.url {url!r}: write file:PATH or rocksdb:PATH")


def append_piece(
    pieces: PieceStore,
    entries: Entries,
    *,
    store_id: bytes,
    shard: int,
    first_window: int,
    last_window: int,
    epoch: int,
    attempt: int,
) -> PieceRef:
    """Encodes entries, appends them under a new name and gives the reference for the receipt; durable on return.

    Raises what `encode_piece` and `PieceStore.append` raise.
    """
    data = encode_piece(
        entries,
        store_id=store_id,
        shard=shard,
        first_window=first_window,
        last_window=last_window,
        epoch=epoch,
        attempt=attempt,
    )
    name = piece_name(window=first_window, epoch=epoch, attempt=attempt, shard=shard)
    location = pieces.append(shard=shard, epoch=epoch, name=name, data=data)
    header: PieceHeader = decode_header(data, file=location.file, offset=location.offset)
    return header.to_ref(file=location.file, name=name, offset=location.offset)


def sync_names(fs: FileSystem, root: Path, directory: Path) -> None:
    """Makes the names in `directory` and in all directories above it up to `root` durable."""
    while True:
        fs.fsync_dir(directory)
        if directory == root:
            return
        directory = directory.parent


def write_error(error: OSError, what: str) -> StoreError:
    """The StoreError that a failed write becomes: SpaceError when there is no room."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpaceError(f"{what}: {error.strerror}")
    return StoreError(f"{what}: {error}")
