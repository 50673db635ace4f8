"""A file of any storage as a stream of bytes with seeks, for parsers that want one."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

from bucket_store.places.place import Place

READ_BYTES = 1 << 20
"""Bytes of one ranged read."""


def open_file(place: Place) -> BinaryIO:
    """A file, opened for reading from its first byte on; its size is that of now.

    A local one stays readable when its name is removed; elsewhere the next read raises FileNotFoundError then.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: as `Names.read_range`; reads raise it too.
    """
    if place.names.scheme == "file":
        return place.local.open("rb")
    return cast(BinaryIO, io.BufferedReader(_Ranged(place), READ_BYTES))


class _Ranged(io.RawIOBase):
    """A file by ranged reads; it holds nothing open."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._size = place.stat().size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer has no length
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = self._place.read_range(self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
