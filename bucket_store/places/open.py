"""The place that a URL names."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from bucket_store.places.local import local_place
from bucket_store.places.place import Place


def open_place(url: str, *, is_public: bool = False) -> Place:
    """The place of a URL, or of a bare path of this machine. Nothing is connected to yet.

    In HDFS the files that are made through the place are their owner's alone, or with `is_public` readable by all. On
    this machine the umask decides, in an object store its own rules.

    Raises:
        ValueError: no storage has this scheme, or the URL holds more than a place.
        ImportError: the client of this storage is not installed; the message names the package.
    """
    scheme = urlsplit(url).scheme
    if not scheme:
        return local_place(url)
    if scheme in ("file", "rocksdb"):
        _, _, path = url.partition(":")
        # Only a URL with an authority is quoted; in a configuration a path stands as it is, with any % and #.
        return local_place(unquote(urlsplit(url).path) if path.startswith("//") else path)
    if scheme in ("s3", "gs", "az", "objects"):
        from bucket_store.places.objects import object_place  # obstore need not be installed

        return object_place(url)
    if scheme == "hdfs":
        from bucket_store.places.hdfs import hdfs_place  # hdfs-native need not be installed

        return hdfs_place(url, is_public=is_public)
    raise ValueError(f"{url}: no storage has the scheme {scheme}:")
