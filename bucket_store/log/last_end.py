"""How the last owner of a store ended: the file `ended`, for people.

No decision rests on it. It is replaced whole when an owner ends, not synced; a torn or damaged file, or one of another
version, counts as absent. An owner that was killed leaves none, so its epoch is not in the file.
The file is framed (magic `BSENDED\\n`, version 1); the body is the msgpack array of `LastEnd`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bucket_store.errors import StoreError
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place
from bucket_store.wire import decode, encode

MAGIC = b"BSENDED\n"
VERSION = 1
FILE_NAME = "ended"


@dataclass(frozen=True, slots=True)
class LastEnd:
    """The owner of an epoch, the exit code of its process, its error or why it stopped, and when, in µs of its clock.

    The upper package defines the codes.
    """

    epoch: int
    owner: str
    exit_code: int
    message: str
    wall_us: int


def write_end(root: Place, end: LastEnd) -> None:
    """Replace the file. Raises OSError."""
    (root / FILE_NAME).replace(frame(MAGIC, VERSION, encode(end)))


def decode_end(data: bytes, *, file: str) -> LastEnd:
    """The end in a file's bytes. Raises CorruptionError, UnknownFormatError, ValueError."""
    return decode(LastEnd, unframe(data, magic=MAGIC, version=VERSION, file=file))


def read_end(root: Place) -> LastEnd | None:
    """None when there is no file that can be read."""
    path = root / FILE_NAME
    try:
        return decode_end(path.read(), file=str(path))
    except (OSError, StoreError, ValueError):
        return None
