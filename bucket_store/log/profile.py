"""The phases of the last windows in seconds: the file `profile`, for people who ask why a job is slow.

It is no record and no truth: no decision rests on it, it is not synced, and a torn or damaged file, or one of another
version, counts as absent. It is replaced whole after every window and holds the newest `KEPT`.

The file is framed (magic `BSPROFIL`, version 1). The body is a msgpack array of two:

    names     [string]: the phases that any of the windows has
    windows   [[window, epoch, wall clock of the intent in µs, rows, µs in all, {index into names: µs}]], ascending

Packed windows are kept as bytes, so that a window costs its own packing and one write.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from bucket_store.errors import StoreError
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place

MAGIC = b"BSPROFIL"
VERSION = 1
FILE_NAME = "profile"
KEPT = 256

_BODY = msgspec.msgpack.Decoder(tuple[list[str], list[tuple[int, int, int, int, int, dict[int, int]]]])


@dataclass(frozen=True, slots=True)
class WindowProfile:
    """One published window: how long it took from its batch until the next one could begin, and its phases in seconds.

    The upper package defines the phases.
    """

    window: int
    epoch: int
    wall_us: int
    rows: int
    seconds: float
    phases: dict[str, float]


class Profiles:
    """The profiles of a store's newest windows, in memory and in the file. For the owner's thread alone."""

    def __init__(self, root: Place) -> None:
        self._path = root / FILE_NAME
        self._names: dict[str, int] = {}
        self._packed: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        for profile in read_profiles(root):
            self._remember(profile)

    def add(self, profile: WindowProfile) -> None:
        """Add a window; remembered windows at or beyond it are of a store that was set back."""
        while self._packed and self._packed[-1][0] >= profile.window:
            self._packed.pop()
        self._remember(profile)

    def write(self) -> None:
        """Replace the file by these windows. Raises OSError."""
        self._path.replace(_encode(self._names, [packed for _, packed in self._packed]))

    def _remember(self, profile: WindowProfile) -> None:
        self._packed.append((profile.window, _packed(profile, self._names)))


def decode_profiles(data: bytes, *, file: str) -> tuple[WindowProfile, ...]:
    """The profiles of a file, ascending by window.

    Raises:
        CorruptionError, UnknownFormatError: as `unframe`.
        ValueError: whole, but no release writes such a file.
    """
    names, windows = _BODY.decode(unframe(data, magic=MAGIC, version=VERSION, file=file))
    if not all(0 <= index < len(names) for found in windows for index in found[5]):
        raise ValueError(f"{file}: a phase without a name")
    return tuple(
        WindowProfile(*found[:4], found[4] / 1e6, {names[index]: us / 1e6 for index, us in found[5].items()})
        for found in windows
    )


def read_profiles(root: Place) -> tuple[WindowProfile, ...]:
    """The profiles of a store's newest windows, ascending; none when there is no file that can be read."""
    path = root / FILE_NAME
    try:
        return decode_profiles(path.read(), file=str(path))
    except (OSError, StoreError, ValueError):
        return ()


def _packed(profile: WindowProfile, names: dict[str, int]) -> bytes:
    phases = {names.setdefault(name, len(names)): _us(seconds) for name, seconds in profile.phases.items()}
    fixed = (profile.window, profile.epoch, profile.wall_us, profile.rows, _us(profile.seconds))
    return msgspec.msgpack.encode((*fixed, phases))


def _encode(names: dict[str, int], packed: list[bytes]) -> bytes:
    return frame(MAGIC, VERSION, msgspec.msgpack.encode((list(names), [msgspec.Raw(window) for window in packed])))


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
