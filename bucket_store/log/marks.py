"""Intent and published mark: small files that are replaced whole, never synced, and may be lost without harm.

A frozen owner may be overtaken at any moment, and must not set a mark back when it thaws. So a mark is first prepared
under a temporary name that holds the epoch, then the claims are read, and only then a rename puts it in place. After
its claim every start removes the marks that lower epochs have prepared: the old owner's rename finds no file.

Both are framed, version 1, the body one msgpack array. One with a bad magic, length, checksum or field counts as
absent: without its intent a batch is judged as a new one, without the mark windows are published once more, which
changes nothing. Of a later release they are refused.

- `intents/<epoch as 6 digits>` (magic `BSINTENT`): the fields of `Intent` in order; partitions are bin of 16 bytes.
- `published` in the store, `_published` in a port's directory (magic `BSPUBLSH`): the store's id, and the greatest of
  its windows whose ports are all published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bucket_store.errors import CorruptionError
from bucket_store.filesystem import LOCAL, FileSystem, is_temporary, make_directories, replace_whole, stage
from bucket_store.framing import frame, unframe
from bucket_store.log.records import ExpiryKey
from bucket_store.wire import decode, encode

INTENT_MAGIC = b"BSINTENT"
PUBLISHED_MAGIC = b"BSPUBLSH"
VERSION = 1

INTENTS_DIRECTORY = "intents"
PUBLISHED_NAME = "published"
_EPOCH_DIGITS = 6
_Mark = TypeVar("_Mark")
_PREPARED = re.compile(r"\.(\w+)\.(\d{6,})\.\w+\.tmp")


@dataclass(frozen=True, slots=True)
class Intent:
    """The batch an owner is about to judge. A start that finds equal partitions and settings takes over its wall clock.

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
    return frame(INTENT_MAGIC, VERSION, encode(intent))


def decode_intent(data: bytes, *, file: str) -> Intent | None:
    """The intent in these bytes; None for damaged ones. Raises UnknownFormatError."""
    return _decode(INTENT_MAGIC, Intent, data, file)


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
    """Remove the intents of lower epochs, once they have been taken over. Safe to repeat."""
    directory = root / INTENTS_DIRECTORY
    for epoch in _epochs(fs, directory):
        if epoch < below_epoch:
            fs.remove(directory / f"{epoch:0{_EPOCH_DIGITS}d}")


@dataclass(frozen=True, slots=True)
class Published:
    """Every port of every window of this store up to `window` is published."""

    store_id: str
    window: int


def prepare_published(path: Path, mark: Published, *, epoch: int, fs: FileSystem = LOCAL) -> Path:
    """The next mark for `path`, under a temporary name beside it that only `epoch` uses.

    After this the owner reads the claims once more, and then replaces `path` by it. A FileNotFoundError from that means
    that a later owner has removed it.
    """
    name = f"{path.name}.{epoch:0{_EPOCH_DIGITS}d}"
    return stage(fs, path.parent, name, frame(PUBLISHED_MAGIC, VERSION, encode(mark)), sync=False)


def remove_prepared(path: Path, *, below_epoch: int, fs: FileSystem = LOCAL) -> None:
    """Remove the marks that lower epochs have prepared for `path`: from here on they replace nothing.

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
    return _decode(PUBLISHED_MAGIC, Published, data, str(path))


def _epochs(fs: FileSystem, directory: Path) -> list[int]:
    try:
        names = fs.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _decode(magic: bytes, kind: type[_Mark], data: bytes, file: str) -> _Mark | None:
    try:
        return decode(kind, unframe(data, magic=magic, version=VERSION, file=file))
    except (CorruptionError, ValueError):
        return None
