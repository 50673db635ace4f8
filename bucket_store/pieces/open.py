"""Opens a backend by its URL."""

from __future__ import annotations

from bucket_store.errors import StoreError
from bucket_store.filesystem import LOCAL, FileSystem
from bucket_store.pieces.piece_files import PieceFiles
from bucket_store.pieces.store import PieceStore
from bucket_store.places.local import local_place
from bucket_store.places.open import open_place


def open_backend(url: str, fs: FileSystem = LOCAL) -> PieceStore:
    """The backend of a `store.url`: `file:PATH`, `rocksdb:PATH`, `hdfs://HOST:PORT/PATH`, or `s3:`, `gs:` or `az:`
    with `//BUCKET/PREFIX`.

    Opening touches nothing. `fs` is the file system of `file:`; the others have their own I/O.

    Raises:
        StoreError: another scheme, no path, or a client that is not installed.
    """
    scheme, _, path = url.partition(":")
    if not path or scheme not in ("file", "rocksdb", "s3", "gs", "az", "objects", "hdfs"):
        what = "write file:PATH or rocksdb:PATH, hdfs://HOST:PORT/PATH or s3://BUCKET/PREFIX"
        raise StoreError(f"store.url {url!r}: {what}")
    if scheme == "rocksdb":
        from bucket_store.pieces.rocksdb_backend import RocksPieces  # the extension module is 20 MB

        return RocksPieces(path)
    try:
        root = open_place(url)
    except (ImportError, ValueError) as error:
        raise StoreError(f"store.url: {error}") from error
    return PieceFiles(local_place(root.local, fs) if root.is_local else root)
