"""Framed files of the room: a dataclass as the body of `bucket_store.framing`."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from bucket_store.errors import CorruptionError
from bucket_store.framing import unframe
from bucket_store.wire import decode

_T = TypeVar("_T")


def read_framed(kind: type[_T], path: Path, *, magic: bytes, version: int, what: str) -> _T | None:
    """The dataclass in a file, None when there is no file; `what` it is, for the error.

    Raises:
        CorruptionError, UnknownFormatError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    body = unframe(data, magic=magic, version=version, file=str(path))
    try:
        return decode(kind, body)
    except ValueError as error:
        raise CorruptionError(
            f"{what}: {error}", file=str(path), offset=0, expected="its fields", found="others"
        ) from error
