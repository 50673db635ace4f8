"""Opens a backend by its URL."""

from __future__ import annotations

from bucket_store.errors import StoreError
from bucket_store.filesystem import LOCAL, FileSystem
from bucket_store.pieces.store import PieceStore


def open_backend(url: str, fs: FileSystem = LOCAL) -> PieceStore:
    """The backend of a `store.url`: `file:PATH` or `rocksdb:PATH`. Opening touches nothing on disk.

    `fs` is the file system of `file:`; RocksDB has its own I/O.

    Raises:
        StoreError: another scheme, or no path.
    """
    scheme, _, path = url.partition(":")
    if path and scheme == "file":
        from bucket_store.pieces.file_backend import FilePieces  # a backend loads when it is used

        return FilePieces(path, fs)
    if path and scheme == "rocksdb":
        from bucket_store.pieces.rocksdb_backend import RocksPieces  # the extension module is 20 MB

        return RocksPieces(path)
    raise StoreError(f"store.url {url!r}: write file:PATH or rocksdb:PATH")
