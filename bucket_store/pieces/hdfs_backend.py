"""Pieces in HDFS: a piece is a file, created, written and closed in one breath.

Pieces of many windows in one file would cost the NameNode less. But an append goes to the replicas that are reported at
that moment: with hdfs-native, and a DataNode killed, acknowledged bytes were cut off when the lease was recovered. And
readers see nothing of a block while somebody appends to it.
"""

from __future__ import annotations

import errno
from pathlib import PurePosixPath

from bucket_store.pieces.piece_files import AGAIN, SUFFIX, PieceFiles
from bucket_store.places.hdfs import HdfsNames, hdfs_place

_REFUSALS = (errno.EACCES, errno.EAGAIN, errno.EDQUOT, errno.ENOSPC)


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
        try:
            self._begin(f"{file}{SUFFIX}", data)
        except OSError as error:
            if error.errno in _REFUSALS:
                raise
        else:
            return f"{file}{SUFFIX}"
        # A DataNode died under it, or the answer is late: that file may become whole or stay a part.
        self._begin(f"{file}{AGAIN}{SUFFIX}", data)
        return f"{file}{AGAIN}{SUFFIX}"

    def _begin(self, file: str, data: bytes) -> None:
        names, path = self._root.names, self._root.path / PurePosixPath(file)
        assert isinstance(names, HdfsNames)
        names.begin(path, data, parents=True)
