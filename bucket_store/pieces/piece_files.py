"""Pieces that are files of their own, on any storage of places: the common part of `hdfs:` and of object stores.

Names: `pieces/<shard, 4 digits>/<epoch, 6 digits>-<piece name>[~<8 hex>].piece`. The file has the piece's bytes and
nothing else, so listing gives shard, epoch, name and length of every piece. Nothing is appended to, locked, or marked.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator

from bucket_store import failpoints
from bucket_store.pieces.store import Located, PieceLocation, PieceStore, StoredPiece, read_located, write_error
from bucket_store.places.new_file import create_own
from bucket_store.places.place import Place

SUFFIX = ".piece"
_TRY = re.compile(r"~[0-9a-f]+$")


def try_name(file: str) -> str:
    """A new name for the file of a try to write a piece."""
    return f"{file}~{secrets.token_hex(4)}{SUFFIX}"


class PieceFiles:
    """Pieces below a place. Its client belongs to the process, as the place's does.

    Reads and listings raise OSError, TimeoutError after the bound of the storage.
    """

    def __init__(self, root: Place) -> None:
        self._root = root

    @property
    def url(self) -> str:
        return self._root.url

    @property
    def is_remote(self) -> bool:
        return True

    def append(
        self,
        *,
        shard: int,
        epoch: int,
        name: str,
        data: bytes | memoryview,
        stays_open: bool = False,  # noqa: ARG002  nothing is kept
    ) -> PieceLocation:
        failpoints.hit("piece.half")
        try:
            file = self._put(f"pieces/{shard:04d}/{epoch:06d}-{name}", bytes(data))
        except OSError as error:
            raise write_error(error, f"piece {name}") from error
        failpoints.hit("piece.entered")
        return PieceLocation(file, name, 0, len(data))

    def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
        file = self._root / piece.file
        return read_located(
            piece, start, length, lambda at, wanted: file.read_range(at, wanted) if wanted > 0 <= at else b""
        )

    def delete(
        self,
        pieces: Iterable[Located],
        *,
        keep: Collection[str] = (),
        writing_epoch: int | None = None,  # noqa: ARG002
    ) -> tuple[Located, ...]:
        """See `PieceStore`. No file is held, and none is written twice, so writers do not matter."""
        self._remove([self._root / file for file in sorted({piece.file for piece in pieces} - set(keep))])
        return ()

    def pieces(self) -> Iterator[StoredPiece]:
        for shard in (self._root / "pieces").entries():
            for entry in (self._root / "pieces" / shard.name).entries():
                epoch, _, name = _TRY.sub("", entry.name.removesuffix(SUFFIX)).partition("-")
                if entry.name.endswith(SUFFIX) and epoch.isdigit() and shard.name.isdigit():
                    file = f"pieces/{shard.name}/{entry.name}"
                    yield StoredPiece(file, name, int(shard.name), int(epoch), 0, entry.size)

    def close_writers(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""

    def _put(self, file: str, data: bytes) -> str:
        """Put a new file in place, durable on return; gives its name, which is `file` with a suffix."""
        create_own(self._root / f"{file}{SUFFIX}", data)
        return f"{file}{SUFFIX}"

    def _remove(self, files: list[Place]) -> None:
        for file in files:
            file.remove()


def _keeps_the_protocol(pieces: PieceFiles) -> PieceStore:
    return pieces  # checked by mypy
