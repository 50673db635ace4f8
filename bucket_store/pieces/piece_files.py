"""Pieces that are files of their own, on any storage of places: the backend of all stores but those in RocksDB.

Names: `pieces/<shard, 4 digits>/<epoch, 6 digits>-<piece name>[~<8 hex>].piece`. The file has the piece's bytes and
nothing else, so listing gives shard, epoch, name and length of every piece. Nothing is appended to, locked, or marked.

Pieces of many windows in one file would cost a NameNode less. But an append goes to the replicas that are reported at
that moment: with hdfs-native, and a DataNode killed, acknowledged bytes were cut off when the lease was recovered. And
readers see nothing of a block during an append.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from bucket_store import failpoints
from bucket_store.pieces.store import Located, PieceLocation, PieceStore, StoredPiece, read_located, write_error
from bucket_store.places import steps
from bucket_store.places.place import Place

_SUFFIX = ".piece"
_TRY = re.compile(r"~[0-9a-f]+$")


class PieceFiles:
    """Pieces below a place. Its client belongs to the process, as the place's does.

    Reads and listings raise OSError, TimeoutError after the bound of the storage. A dead writer may leave a part of a
    piece, which no record names.
    """

    def __init__(self, root: Place) -> None:
        self._root = root
        self._durable: set[Place] = set()
        """Folders of shards whose name, and those above it, this process has made durable."""

    def __reduce__(self) -> tuple[object, ...]:
        return PieceFiles, (self._root,)

    @property
    def url(self) -> str:
        return self._root.url

    @property
    def is_remote(self) -> bool:
        return not self._root.is_local

    def append(
        self,
        *,
        shard: int,
        epoch: int,
        name: str,
        data: bytes | memoryview,
        stays_open: bool = False,  # noqa: ARG002  nothing is kept
    ) -> PieceLocation:
        folder = self._root / f"pieces/{shard:04d}"
        try:
            file = (folder / f"{epoch:06d}-{name}{_SUFFIX}").write_own(bytes(data), failpoint=steps.PIECE)
            above = () if folder in self._durable else (folder.parent, self._root)
            for directory in (folder, *above):
                directory.sync()
            self._durable.add(folder)
        except OSError as error:
            raise write_error(error, f"{self._root}: piece {name}") from error
        failpoints.hit("piece.entered")
        return PieceLocation(str(file.path.relative_to(self._root.path)), name, 0, len(data))

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
        files = sorted({piece.file for piece in pieces} - set(keep))
        if files:
            self._root.names.remove_all([self._root.path / file for file in files])
            failpoints.hit("piece.deleted")
            failpoints.hit("piece.file.gone")
        return ()

    def pieces(self) -> Iterator[StoredPiece]:
        for shard in (self._root / "pieces").entries():
            for entry in (self._root / "pieces" / shard.name).entries() if shard.is_directory else ():
                epoch, _, name = _TRY.sub("", entry.name.removesuffix(_SUFFIX)).partition("-")
                if entry.name.endswith(_SUFFIX) and epoch.isdigit() and shard.name.isdigit():
                    file = f"pieces/{shard.name}/{entry.name}"
                    yield StoredPiece(file, name, int(shard.name), int(epoch), 0, entry.size)

    def close_writers(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


def _keeps_the_protocol(pieces: PieceFiles) -> PieceStore:
    return pieces  # checked by mypy
