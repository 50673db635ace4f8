"""Pieces in HDFS: a piece is a file, created, written and closed at once.

Pieces of many windows in one file would cost the NameNode less. But an append goes to the replicas that are reported at
that moment: with hdfs-native, and a DataNode killed, acknowledged bytes were cut off when the lease was recovered. And
readers see nothing of a block during an append.
"""

from __future__ import annotations

from bucket_store.pieces.piece_files import PieceFiles, try_name
from bucket_store.places import steps
from bucket_store.places.hdfs import HdfsNames, hdfs_place


class HdfsPieces(PieceFiles):
    """The backend of `hdfs:`. A dead writer may leave a part of a piece, which no record names."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            ValueError: not the URL of a folder in HDFS.
        """
        super().__init__(hdfs_place(url))

    def __reduce__(self) -> tuple[object, ...]:
        return HdfsPieces, (self.url,)

    def _put(self, file: str, data: bytes) -> str:
        names, path = self._root.names, self._root.path
        assert isinstance(names, HdfsNames)
        # A twin of this task may write the same piece: the file of a failed try is deleted, and must not be the twin's.
        found = names.written(data, lambda: path / try_name(file), parents=True, failpoint=steps.PIECE)
        return str(found.relative_to(path))
