"""Inputs that get past checksums: what a fuzzer changes is the inside, and the frame is put round it afterwards.

An input's first byte says what the rest is:

    0  the whole file, as it is
    1  the body; magic, version and checksum are made
    2  a list of changes to the fields of a sound file: 4 bytes each, which field, what to do, with which odd value

A random flip never passes a checksum, so without the last two nothing behind it would ever be tried.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import xxhash

from bucket_store.framing import frame

RAW, BODY, CHANGES = 0, 1, 2

_DEEP: Any = []
for _ in range(600):
    _DEEP = [_DEEP]

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    0.0,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "é☃",
    "0" * 32,
    "x" * 300,
    [],
    [1],
    [[]],
    [None, None],
    {},
    {"a": 1},
    {"a": {"b": []}},
    _DEEP,
)
ODD_BYTES: tuple[Any, ...] = (b"", b"\xff", bytes(16), msgpack.ExtType(1, b""), msgpack.Timestamp(0), {"a": b"\x80"})

_STEP = struct.Struct("<HBB")
_REMOVE, _DOUBLE, _REPLACE, _NUMBER, _SWAP = range(5)


def unwrapped(data: bytes, magic: bytes, fields: Any, pack: Callable[[Any], bytes]) -> bytes:
    """The file that an input stands for. `fields` are those of a sound one, `pack` makes a body of changed ones."""
    kind, rest = (data[0], data[1:]) if data else (RAW, b"")
    if kind == BODY:
        return frame(magic, 1, rest)
    if kind == CHANGES:
        odd = ODD_VALUES if pack is not msgpack.packb and isinstance(fields, dict) else ODD_VALUES + ODD_BYTES
        return frame(magic, 1, pack(changed(fields, rest, odd)))
    return rest


def changed(tree: Any, program: bytes, odd: tuple[Any, ...] = ODD_VALUES + ODD_BYTES) -> Any:
    """A copy of nested lists and dicts after the changes that `program` lists."""
    holder = [_copy(tree)]
    for at in range(0, len(program) - _STEP.size + 1, _STEP.size):
        where, action, value = _STEP.unpack_from(program, at)
        nodes = list(_nodes(holder))
        container, key, depth = nodes[where % len(nodes)]
        match action % 5:
            case 0 if container is not holder:
                del container[key]
            case 1 if isinstance(container, list) and container is not holder:
                container.insert(key, _copy(container[key]))
            case 3:
                container[key] = value - 128
            case 4 if depth < _DEEPEST:
                other, other_key, _ = nodes[value % len(nodes)]
                container[key] = _copy(other[other_key])
            case _:
                container[key] = _copy(odd[value % len(odd)])
    return holder[0]


def replacing(position: int, value: int) -> bytes:
    """The input that puts the odd value of this number in the place of one field of a sound file."""
    return bytes([CHANGES]) + _STEP.pack(position, _REPLACE, value)


def count_of_nodes(tree: Any) -> int:
    """In how many places `changed` can change it."""
    return len(list(_nodes([tree])))


def _nodes(tree: Any, depth: int = 0) -> Any:
    items = enumerate(tree) if isinstance(tree, list) else list(tree.items())
    for key, value in items:
        yield tree, key, depth
        if isinstance(value, list | dict) and value is not _DEEP:
            yield from _nodes(value, depth + 1)


_DEEPEST = 100
"""Of what changes copy into itself again and again; `_DEEP` is deeper than any decoder goes."""


def _copy(value: Any, depth: int = 0) -> Any:
    if value is _DEEP:
        return value
    if depth > _DEEPEST:
        return None
    if isinstance(value, list | tuple):
        return [_copy(item, depth + 1) for item in value]
    return {key: _copy(item, depth + 1) for key, item in value.items()} if isinstance(value, dict) else value


def reframed_piece(data: bytes) -> bytes:
    """A piece with right checksums, as far as its directory leads to blocks."""
    piece = bytearray(data)
    if len(piece) < 80:
        return data
    (buckets,) = struct.unpack_from("<I", piece, 12)
    end = 80 + 64 * buckets
    if end + 8 > len(piece):
        return data
    for row in range(80, end, 64):
        start, length = struct.unpack_from("<QQ", piece, row + 24)
        if start + length <= len(piece):
            struct.pack_into("<Q", piece, row + 40, xxhash.xxh3_64_intdigest(bytes(piece[start : start + length])))
    struct.pack_into("<Q", piece, end, xxhash.xxh3_64_intdigest(bytes(piece[:end])))
    return bytes(piece)


_WORDS = (0, 1, 2, 7, 8, 16, 63, 64, 2**31, 2**32 - 1, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 64)


def changed_words(data: bytes, program: bytes, size: int = 4) -> bytes:
    """Bytes with words of 4 or 8 bytes changed: where, how wide, to what (or by how much)."""
    changed = bytearray(data)
    for at in range(0, len(program) - _STEP.size + 1, _STEP.size):
        where, action, value = _STEP.unpack_from(program, at)
        width = 8 if action & 1 else size
        place = where * size % (len(changed) - width + 1)
        (old,) = struct.unpack_from("<Q" if width == 8 else "<I", changed, place)
        new = old + value - 128 if action & 2 else _WORDS[value % len(_WORDS)]
        struct.pack_into("<Q" if width == 8 else "<I", changed, place, new % (1 << 8 * width))
    return bytes(changed)


def checksum(data: bytes) -> int:
    """As every format has it."""
    return xxhash.xxh3_64_intdigest(data)
