"""The protocol of all backends of pieces, and the values that locate a piece in one.

A backend stores opaque immutable bytes under names and reads them by range. It has no part in records: only the commit
log says which pieces are live. All its files are under `<root>/pieces/`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from bucket_store.errors import CorruptionError, SpaceError, StoreError
from bucket_store.filesystem import FileSystem
from bucket_store.pieces.cache import PieceCache
from bucket_store.pieces.piece import Entries, PieceHeader, PieceRef, decode_header, encode_piece, piece_name


@dataclass(frozen=True, slots=True)
class PieceLocation:
    """The place of an appended piece. `file` is relative to the store's root, with `/`."""

    file: str
    name: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A piece in a backend, named by a record or not: gc and verify iterate over these."""

    file: str
    name: str
    shard: int
    epoch: int
    offset: int
    length: int


Located: TypeAlias = PieceRef | PieceLocation | StoredPiece
"""The place of bytes in a backend: `file`, relative to its root; `name`, the piece's own; `offset`, `length`."""


class PieceStore(Protocol):
    """A backend. Any number of processes may use one root at once. An instance pickles as its URL.

    Instances may be shared by threads for `read`.
    """

    @property
    def url(self) -> str:
        """The URL by which `open_backend` opens the same store."""

    @property
    def is_remote(self) -> bool:
        """Whether each read is a journey over a network: then few large ones are made, many at a time."""

    def append(
        self, *, shard: int, epoch: int, name: str, data: bytes | memoryview, stays_open: bool = False
    ) -> PieceLocation:
        """Stores a piece; durable (synced, and reachable from the root by synced directories) on return.

        With `stays_open` this process may keep the piece's file, and its lock, for the next piece: see `close_writers`.
        Called by a task when its iterator ends. Never waits for a frozen writer beyond 2 s. A repetition stores a
        second copy: every attempt draws new names, and gc removes pieces that no record names.

        Raises:
            SpaceError: no room; all earlier bytes are unharmed.
        """

    def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of the piece, to its end without a length. Safe to repeat.

        Raises:
            CorruptionError: the file is not there or too short.
        """

    def delete(
        self, pieces: Iterable[Located], *, keep: Collection[str] = (), writing_epoch: int | None = None
    ) -> tuple[Located, ...]:
        """Deletes pieces and skips those already gone. Gives the pieces whose file is held: repeat the call for them.

        Called by the owner for pieces that no record names any more. A file is deleted when it has no live piece. Files
        in `keep` (see `log.state.live_files`) stay whatever they seem to hold: damage can hide a live piece. Safe to
        repeat.

        Without `writing_epoch` no process may be writing a piece that a record will name, and other files without a
        live piece are deleted too. With it, writers of that epoch may be at work: then only files of these pieces are
        examined, and none is deleted that may still get a piece, which is one of a later epoch or the one that gets
        this epoch's next piece. So `keep` may be as old as the call's beginning.

        Raises:
            CorruptionError: a file cannot be listed; it stays as it is.
        """

    def close_writers(self) -> None:
        """Closes the files of this store that this process keeps for its next piece.

        Called before another process appends or deletes; without it, that one finds a lock that is held. Safe for all
        threads, and to repeat.
        """

    def pieces(self) -> Iterator[StoredPiece]:
        """Every piece there, whole or torn, in no order; pieces appended meanwhile may be missing.

        Called by recovery, gc and verify, to find pieces that no record names.
        """

    def close(self) -> None:
        """Closes the handles of this instance, after its last use. Safe to repeat."""


def read_located(piece: Located, start: int, length: int | None, read: Callable[[int, int], bytes]) -> bytes:
    """`PieceStore.read` of a file: `read` gives so many bytes of it from an offset on, fewer where it ends.

    Raises:
        CorruptionError: the file is not there or too short.
    """
    wanted = piece.length - start if length is None else length
    at = piece.offset + start
    try:
        data = read(at, wanted)
    except FileNotFoundError as error:
        raise CorruptionError(
            f"piece {piece.name}", file=piece.file, offset=at, expected=f"{wanted} bytes", found="no file"
        ) from error
    if len(data) != wanted or start + wanted > piece.length:
        raise CorruptionError(
            f"truncated piece {piece.name}", file=piece.file, offset=at, expected=wanted, found=len(data)
        )
    return data


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
    stays_open: bool = False,
    cache: PieceCache | None = None,
) -> PieceRef:
    """Encodes entries, appends them under a new name and gives the reference for the receipt; durable on return.

    A copy of the piece is left in `cache`. Raises what `encode_piece` and `PieceStore.append` raise.
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
    location = pieces.append(shard=shard, epoch=epoch, name=name, data=data, stays_open=stays_open)
    header: PieceHeader = decode_header(data, file=location.file, offset=location.offset)
    ref = header.to_ref(file=location.file, name=name, offset=location.offset)
    if cache is not None:
        cache.add(ref, data)
    return ref


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
