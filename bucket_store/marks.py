"""Intent and published mark: small files that are replaced whole, never synced, and may be lost without harm.

An owner that sleeps may be overtaken at any moment, and must not set a mark back when it wakes. So a mark is first
prepared under a temporary name that holds the epoch, then the claims are looked at, and only then it is put in place by
a rename. Every start removes what lower epochs have prepared, after its claim: the sleeper's rename finds nothing.

Both are sealed, version 1, the body one msgpack array. One with a bad magic, length, checksum or field counts as
absent: without its intent a batch is judged as a new one, without the mark windows are published once more, which
changes nothing. Of a later release they are refused.

- `intents/<epoch as 6 digits>` (magic `BSINTENT`): the fields of `Intent` in order; partitions are bin of 16 bytes.
- `published` in the store, `_published` in a port's directory (magic `BSPUBLSH`): the store's id, and the greatest of
  its windows of which every port is out.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no type information

from bucket_store.durable import LOCAL, FileSystem, is_temporary, make_directories, replace_whole, stage
from bucket_store.errors import CorruptionError
from bucket_store.log_values import ExpiryKey
from bucket_store.sealed import seal, unseal
from bucket_store.wire import POINT, each, fields

INTENT_MAGIC = b"BSINTENT"
PUBLISHED_MAGIC = b"BSPUBLSH"
VERSION = 1

INTENTS_DIRECTORY = "intents"
PUBLISHED_NAME = "published"
_EPOCH_DIGITS = 6
_PREPARED = re.compile(r"\.(\w+)\.(\d{6,})\.\w+\.tmp")


@dataclass(frozen=True, slots=True)
class Intent:
    """What an owner is about to judge. A new start that finds equal partitions and settings takes over its wall clock.

    `partitions` are the 16-byte digests of the batch's source partitions, in source order. `latest_point` and
    `log_position` (the log's next number) are those before the batch.
    """

    window: int
    epoch: int
    query_id: str
    batch_id: int
    partitions: tuple[bytes, ...]
    wall_us: int
    latest_point: ExpiryKey | None
    log_position: int
    settings_hash: str


def encode_intent(intent: Intent) -> bytes:
    """The bytes of an intent's file."""
    return _encode(INTENT_MAGIC, astuple(intent))


def decode_intent(data: bytes, *, file: str) -> Intent | None:
    """The intent in these bytes; None when they are not what was written. Raises UnknownFormatError."""
    wire = _decode(INTENT_MAGIC, data, file)
    try:
        intent = Intent(*fields(wire, int, int, str, int, list, int, POINT, int, str))
        return replace(intent, partitions=tuple(each(intent.partitions, bytes)))
    except TypeError:
        return None


def write_intent(root: Path, intent: Intent, *, fs: FileSystem = LOCAL) -> None:
    """Replace the intent of the intent's epoch."""
    directory = root / INTENTS_DIRECTORY
    if not fs.exists(directory):
        make_directories(fs, directory)
    replace_whole(fs, directory / f"{intent.epoch:0{_EPOCH_DIGITS}d}", encode_intent(intent))


def read_intents(root: Path, *, fs: FileSystem = LOCAL) -> list[Intent]:
    """The intents that can be read, one an epoch, ascending by epoch. Raises UnknownFormatError."""
    directory = root / INTENTS_DIRECTORY
    intents = []
    for epoch in _epochs(fs, directory):
        path = directory / f"{epoch:0{_EPOCH_DIGITS}d}"
        try:
            data = fs.read(path)
        except FileNotFoundError:
            continue
        intent = decode_intent(data, file=str(path))
        if intent is not None and intent.epoch == epoch:
            intents.append(intent)
    return intents


def remove_intents(root: Path, *, below_epoch: int, fs: FileSystem = LOCAL) -> None:
    """Remove the intents of lower epochs, when what they say has been taken over. Safe to repeat."""
    directory = root / INTENTS_DIRECTORY
    for epoch in _epochs(fs, directory):
        if epoch < below_epoch:
            fs.remove(directory / f"{epoch:0{_EPOCH_DIGITS}d}")


@dataclass(frozen=True, slots=True)
class Published:
    """Every port of every window of this store up to `window` is out."""

    store_id: str
    window: int


def prepare_published(path: Path, mark: Published, *, epoch: int, fs: FileSystem = LOCAL) -> Path:
    """The mark that is to stand at `path`, under a temporary name beside it that only `epoch` uses.

    After this the owner looks at the claims once more, and then replaces `path` by it. FileNotFoundError from that
    means that a later owner has removed it.
    """
    name = f"{path.name}.{epoch:0{_EPOCH_DIGITS}d}"
    return stage(fs, path.parent, name, _encode(PUBLISHED_MAGIC, astuple(mark)), sync=False)


def remove_prepared(path: Path, *, below_epoch: int, fs: FileSystem = LOCAL) -> None:
    """Remove the marks that lower epochs have prepared for `path`: from here on they can replace nothing.

    Called by a start after its claim and before it reads or writes a mark. Safe to repeat.
    """
    for name in fs.listdir(path.parent):
        prepared = _PREPARED.fullmatch(name)
        if prepared and is_temporary(name) and prepared[1] == path.name and int(prepared[2]) < below_epoch:
            fs.remove(path.parent / name)


def read_published(path: Path, *, fs: FileSystem = LOCAL) -> Published | None:
    """The mark at `path`; None when there is none that can be read. Raises UnknownFormatError."""
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    try:
        return Published(*fields(_decode(PUBLISHED_MAGIC, data, str(path)), str, int))
    except TypeError:
        return None


def _epochs(fs: FileSystem, directory: Path) -> list[int]:
    try:
        names = fs.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _encode(magic: bytes, fields: tuple[Any, ...]) -> bytes:
    return seal(magic, VERSION, msgpack.packb(fields, use_bin_type=True))


def _decode(magic: bytes, data: bytes, file: str) -> list[Any] | None:
    try:
        body = unseal(data, magic=magic, version=VERSION, file=file)
        wire = msgpack.unpackb(body, raw=False)
    except (CorruptionError, ValueError, msgpack.UnpackException):
        return None
    return wire if isinstance(wire, list) else None
