"""Pieces in an object store: a piece is an object. No object is ever half written."""

from __future__ import annotations

from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.places.objects import ObjectNames, object_place
from bucket_store.places.place import Place

_AT_ONCE = 1000


class ObjectPieces(PieceFiles):
    """The backend of `s3:`, `gs:` and `az:`."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            ValueError: not the URL of a bucket and a prefix.
        """
        super().__init__(object_place(url))

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectPieces, (self.url,)

    def _remove(self, files: list[Place]) -> None:
        names = self._root.names
        assert isinstance(names, ObjectNames)
        for at in range(0, len(files), _AT_ONCE):
            names.remove_all([file.path for file in files[at : at + _AT_ONCE]])
