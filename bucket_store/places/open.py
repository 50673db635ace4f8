"""The place that a URL names."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from bucket_store.places.local import local_place
from bucket_store.places.place import Place


def open_place(url: str) -> Place:
    """The place of a URL, or of a bare path of this machine. Nothing is connected to yet.

    Raises:
        ValueError: no storage has this scheme, or the URL holds more than a place.
        ImportError: the client of this storage is not installed; the message names the package.
    """
    parts = urlsplit(url)
    if not parts.scheme or parts.scheme in ("file", "rocksdb"):
        return local_place(unquote(parts.path) if parts.scheme else url)
    if parts.scheme in ("s3", "gs", "az", "objects"):
        from bucket_store.places.objects import object_place  # obstore need not be installed

        return object_place(url)
    if parts.scheme == "hdfs":
        from bucket_store.places.hdfs import hdfs_place  # hdfs-native need not be installed

        return hdfs_place(url)
    raise ValueError(f"{url}: no storage has the scheme {parts.scheme}:")
