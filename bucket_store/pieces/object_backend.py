"""Pieces in an object store: a piece is an object.

Names: `pieces/<shard, 4 digits>/<epoch, 6 digits>-<piece name>.piece`. The object has the piece's bytes and nothing
else, so listing gives shard, epoch, name and length of every piece. Nothing can be half written, locked, or marked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.pieces.store import Located, PieceLocation, PieceStore, StoredPiece, write_error
from bucket_store.places.objects import ObjectNames, object_place

_SUFFIX = ".piece"


class ObjectPieces:
    """The backend of `s3:`, `gs:` and `az:`. Its client belongs to the process: see `ObjectNames`.

    Reads and listings raise OSError, TimeoutError after the bound of `ObjectNames`.
    """

    def __init__(self, url: str) -> None:
        """
        Raises:
            ValueError: not the URL of a bucket and a prefix.
        """
        self._root = object_place(url)
        self._names = self._root.names

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectPieces, (self.url,)

    @property
    def url(self) -> str:
        return self._root.url

    def append(
        self,
        *,
        shard: int,
        epoch: int,
        name: str,
        data: bytes | memoryview,
        stays_open: bool = False,  # noqa: ARG002  nothing is kept
    ) -> PieceLocation:
        location = PieceLocation(f"pieces/{shard:04d}/{epoch:06d}-{name}{_SUFFIX}", name, 0, len(data))
        place = self._root / location.file
        failpoints.hit("piece.half")
        try:
            place.create(bytes(data))
        except FileExistsError as error:
            # After an unclear answer the object may be of this very call.
            if place.read() != data:
                raise write_error(error, f"piece {name}") from error
        except OSError as error:
            raise write_error(error, f"piece {name}") from error
        failpoints.hit("piece.entered")
        return location

    def read(self, piece: Located, start: int = 0, length: int | None = None) -> bytes:
        wanted = piece.length - start if length is None else length
        at = piece.offset + start
        try:
            data = self._names.read_range(self._path(piece), at, wanted) if wanted > 0 <= at else b""
        except FileNotFoundError as error:
            raise CorruptionError(
                f"piece {piece.name}", file=piece.file, offset=at, expected=f"{wanted} bytes", found="no object"
            ) from error
        if len(data) != wanted or start + wanted > piece.length:
            raise CorruptionError(
                f"truncated piece {piece.name}", file=piece.file, offset=at, expected=wanted, found=len(data)
            )
        return data

    def delete(
        self,
        pieces: Iterable[Located],
        *,
        keep: Collection[str] = (),
        writing_epoch: int | None = None,  # noqa: ARG002
    ) -> tuple[Located, ...]:
        """See `PieceStore`. Nothing is held, and nobody writes to an object again, so writers do not matter."""
        doomed = sorted({piece.file for piece in pieces} - set(keep))
        for at in range(0, len(doomed), 1000):
            self._remove_all([(self._root / file).path for file in doomed[at : at + 1000]])
        return ()

    def pieces(self) -> Iterator[StoredPiece]:
        for shard in (self._root / "pieces").entries():
            for entry in (self._root / "pieces" / shard.name).entries():
                epoch, _, name = entry.name.removesuffix(_SUFFIX).partition("-")
                if entry.name.endswith(_SUFFIX) and epoch.isdigit() and shard.name.isdigit():
                    file = f"pieces/{shard.name}/{entry.name}"
                    yield StoredPiece(file, name, int(shard.name), int(epoch), 0, entry.size)

    def close_writers(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, piece: Located) -> PurePosixPath:
        return (self._root / piece.file).path

    def _remove_all(self, paths: list[PurePosixPath]) -> None:
        assert isinstance(self._names, ObjectNames)
        self._names.remove_all(paths)


def _keeps_the_protocol(pieces: ObjectPieces) -> PieceStore:
    return pieces  # checked by mypy
