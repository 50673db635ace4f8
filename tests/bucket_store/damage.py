"""Damaged copies of bytes, and the one way in which every reader must answer them."""

from __future__ import annotations

import random
import re
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bucket_store.errors import CorruptionError, UnknownFormatError

Read = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Format:
    """A file of one kind: its whole bytes, and how the product reads it.

    `file` is the name that an error must give. `offset` is where the bytes begin in it. With `is_absent` a damaged
    one is None and no error. `version_at` is where a version stands that is judged before the checksum. `silent` are
    bytes that no checksum covers because nothing depends on them: a flip there may change nothing, and no more.
    """

    name: str
    data: bytes
    read: Read
    file: str = "f"
    offset: int = 0
    is_absent: bool = False
    version_at: int | None = None
    silent: range = range(0)


def flip(data: bytes, bit: int) -> bytes:
    """The bytes with one bit turned over."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def all_bits(data: bytes) -> Iterable[int]:
    """Every bit."""
    return range(8 * len(data))


def some_bits(data: bytes, seed: int, count: int = 64) -> Iterable[int]:
    """Every bit of the first 10 bytes (magic and version) and as many others at random, always the same for a seed."""
    rest = range(min(80, 8 * len(data)), 8 * len(data))
    return [*range(min(80, 8 * len(data))), *random.Random(seed).sample(rest, min(count, len(rest)))]


def assert_flips_are_found(format: Format, bits: Iterable[int]) -> int:
    """Reads the bytes with each of these bits turned over: how many. Never another value, never another error."""
    good = format.read(format.data)
    assert good is not None
    count = 0
    for bit in bits:
        _assert_answer(format, flip(format.data, bit), f"bit {bit}", good=good, byte=bit // 8)
        count += 1
    return count


def assert_truncations_are_found(format: Format, lengths: Iterable[int]) -> int:
    """Reads the first so many bytes for each of these lengths: how many. And all of them with one more behind."""
    _assert_answer(format, format.data + b"\0", "a byte more", good=format.read(format.data), byte=len(format.data))
    count = 0
    for length in lengths:
        _assert_answer(
            format, format.data[:length], f"first {length} bytes", good=format.read(format.data), byte=length
        )
        count += 1
    return count


def _assert_answer(format: Format, bad: bytes, what: str, *, good: object, byte: int) -> None:
    found, error = _answer(format.read, bad)
    what = f"{format.name}, {what}: {found!r:.200} {type(error).__name__} {error}"
    if error is None:
        assert found is None or (byte in format.silent and found == good), f"another value: {what}"
        assert format.is_absent, f"no error: {what}"
    elif isinstance(error, CorruptionError):
        assert not format.is_absent, f"an error instead of None: {what}"
        assert error.file == format.file, f"another file is named: {what}"
        assert format.offset <= error.offset <= format.offset + len(bad), f"an offset elsewhere: {what}"
        assert str(error.expected) != str(error.found), f"found what was expected: {what}"
    else:
        # Only where a version is judged before the checksum, and only if it was the version; the text says the rest.
        assert isinstance(error, UnknownFormatError), f"another kind of error: {what}"
        assert format.version_at is not None, f"taken for another release: {what}"
        assert byte in range(format.version_at, format.version_at + 2), f"taken for another release: {what}"
        reported = rf"{re.escape(format.file)}: at byte {format.offset + 8}: piece version \d+, this release reads 1"
        assert re.fullmatch(reported, str(error)), what


def _answer(read: Read, bad: bytes) -> tuple[object, Exception | None]:
    try:
        return read(bad), None
    except Exception as error:  # noqa: BLE001  # which one is what the caller looks at
        return None, error


@contextmanager
def little_room(more_bytes: int = 768 << 20) -> Iterator[None]:
    """A request for much more memory than is in use raises MemoryError: no length is trusted unchecked."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
