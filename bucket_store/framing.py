"""PURE. The frame around every small file of a store: a magic and a version before the body, a checksum after it.

Layout, the same for every version that will ever be:

    0  magic     8 bytes, one per kind of file
    8  version   u16, little endian
   10  body      as the kind and the version say
   -8  checksum  u64, little endian: xxh3_64 of all bytes before it

The checksum is checked before the version, so a flipped bit is a CorruptionError even in the version, and only a whole
file of a later release is an UnknownFormatError.
"""

from __future__ import annotations

import struct

import xxhash

from bucket_store.errors import CorruptionError, UnknownFormatError

_HEAD = struct.Struct("<8sH")
_CHECKSUM = struct.Struct("<Q")
FRAME_BYTES = _HEAD.size + _CHECKSUM.size
BODY_OFFSET = _HEAD.size


def frame(magic: bytes, version: int, body: bytes) -> bytes:
    """The bytes of a file of this kind (`magic` has 8 bytes) and version."""
    before = _HEAD.pack(magic, version) + body
    return before + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(before))


def unframe(data: bytes, *, magic: bytes, version: int, file: str, oldest: int | None = None) -> bytes:
    """The body of a whole file of `version`, or of one from `oldest` on; `file` is the name for the errors.

    Raises:
        CorruptionError: too short, another magic, or a checksum that does not fit.
        UnknownFormatError: whole, but of another version.
    """
    if len(data) < FRAME_BYTES:
        raise CorruptionError(
            "shorter than any whole file",
            file=file,
            offset=len(data),
            expected=f"{FRAME_BYTES} bytes or more",
            found=f"{len(data)} bytes",
        )
    found_magic, found_version = _HEAD.unpack_from(data)
    if found_magic != magic:
        raise CorruptionError("magic", file=file, offset=0, expected=magic, found=found_magic)
    end = len(data) - _CHECKSUM.size
    (stated,) = _CHECKSUM.unpack_from(data, end)
    computed = xxhash.xxh3_64_intdigest(memoryview(data)[:end])
    if stated != computed:
        raise CorruptionError("checksum", file=file, offset=end, expected=f"{computed:016x}", found=f"{stated:016x}")
    if not (oldest or version) <= found_version <= version:
        raise UnknownFormatError(f"{file}: format version {found_version}; this release reads version {version}")
    return data[BODY_OFFSET:end]
