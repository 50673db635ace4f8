"""Opens a backend by its URL."""

from __future__ import annotations

from bucket_store.errors import StoreError
from bucket_store.filesystem import LOCAL, FileSystem
from bucket_store.pieces.store import PieceStore


def open_backend(url: str, fs: FileSystem = LOCAL) -> PieceStore:
    """The backend of a `store.url`: `file:PATH`, `rocksdb:PATH`, `hdfs://HOST:PORT/PATH`, or `s3:`, `gs:` or `az:`
    with `//BUCKET/PREFIX`.

    Opening touches nothing. `fs` is the file system of `file:`; the others have their own I/O.

    Raises:
        StoreError: another scheme, no path, or a client that is not installed.
    """
    scheme, _, path = url.partition(":")
    if path and scheme == "file":
        from bucket_store.pieces.file_backend import FilePieces  # a backend loads when it is used

        return FilePieces(path, fs)
    if path and scheme == "rocksdb":
        from bucket_store.pieces.rocksdb_backend import RocksPieces  # the extension module is 20 MB

        return RocksPieces(path)
    if path and scheme in ("s3", "gs", "az", "objects"):
        try:
            from bucket_store.pieces.object_backend import ObjectPieces  # obstore need not be installed

            return ObjectPieces(url)
        except (ImportError, ValueError) as error:
            raise StoreError(f"store.url: {error}") from error
    if path and scheme == "hdfs":
        try:
            from bucket_store.pieces.hdfs_backend import HdfsPieces  # hdfs-native need not be installed

            return HdfsPieces(url)
        except (ImportError, ValueError) as error:
            raise StoreError(f"store.url: {error}") from error
    raise StoreError(f"store.url {url!r}: write file:PATH or rocksdb:PATH, hdfs://HOST:PORT/PATH or s3://BUCKET/PREFIX")
