"""The sample of the leak meter: the file `leaks`, an accessory of the owner.

It is no record and no truth: no decision rests on it, it is not synced, and the upper package begins a new measurement
when it is absent, damaged, of another version, or of another store.

The file is framed (magic `BSLEAKS\\n`, version 1). The body is a msgpack array of the fields of `LeakSample`, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from bucket_store import wire
from bucket_store.errors import CorruptionError
from bucket_store.framing import frame, unframe
from bucket_store.places.place import Place

MAGIC = b"BSLEAKS\n"
VERSION = 1
FILE_NAME = "leaks"


@dataclass(frozen=True, slots=True)
class LeakSample:
    """The measurement up to a window.

    next_window: every window below it was counted, or counts as missed. first_window, since_us: where it began, and
    the wall clock of that window. settings: a text; a measurement goes on under equal ones only. bits: one key of
    2**bits is in the sample. keys: how many it has. columns: arrays by name, little endian.
    """

    store_id: str
    next_window: int
    first_window: int
    since_us: int
    missed_windows: int
    settings: str
    bits: int
    records: int
    seen: int
    keys: int
    columns: dict[str, bytes]


def write_leak_sample(root: Place, sample: LeakSample) -> None:
    """Replace the file. Not synced."""
    (root / FILE_NAME).replace(frame(MAGIC, VERSION, wire.encode(sample)))


def read_leak_sample(root: Place) -> LeakSample | None:
    """The sample of a store; None without a file.

    Raises:
        CorruptionError, UnknownFormatError: as `unframe`, or a whole body that no release writes.
        OSError: it cannot be read.
    """
    path = root / FILE_NAME
    try:
        data = path.read()
    except FileNotFoundError:
        return None
    body = unframe(data, magic=MAGIC, version=VERSION, file=str(path))
    try:
        return wire.decode(LeakSample, body)
    except ValueError as exc:
        raise CorruptionError("body", file=str(path), offset=10, expected="the fields of a sample", found=exc) from exc
