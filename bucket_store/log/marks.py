"""Intent and published mark: small files that are replaced whole, never synced, and may be lost without harm.

A frozen owner may be overtaken at any moment, and must not set a mark back when it thaws. So a mark is first prepared,
then the claims are read, and only then it is put in place. After its claim every start removes what lower epochs have
prepared, and an owner that finds a later claim discards what it has prepared itself. A storage without renames refuses
what was prepared before the last change (`Names.prepare`); S3 compares contents for that. A rewind sets marks back, so
the windows in them may come again, and the epoch makes each owner's marks differ from all earlier ones.

Both are framed, an intent as version 1, a mark as 1 or 2; the body is one msgpack array. One with a bad magic, length,
checksum or field counts as absent: without its intent a batch is judged as a new one, without the mark windows are
published once more, which changes nothing. Of a later release they are refused.

- `intents/<epoch as 6 digits>` (magic `BSINTENT`): the fields of `Intent` in order; partitions are bin of 16 bytes.
- `published` in the store, `_published` in a port's directory (magic `BSPUBLSH`): the store's id, the greatest of its
  windows whose ports are all published, and since version 2 the epoch of the owner that set it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from bucket_store.errors import CorruptionError
from bucket_store.framing import frame, unframe
from bucket_store.log.records import ExpiryKey
from bucket_store.places.place import Place, Prepared
from bucket_store.wire import LATER, decode, encode, version_of

INTENT_MAGIC = b"BSINTENT"
PUBLISHED_MAGIC = b"BSPUBLSH"
INTENT_VERSION = 1
PUBLISHED_VERSION = 2

INTENTS_DIRECTORY = "intents"
PUBLISHED_NAME = "published"
_EPOCH_DIGITS = 6
_Mark = TypeVar("_Mark")


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
    return frame(INTENT_MAGIC, INTENT_VERSION, encode(intent))


def decode_intent(data: bytes, *, file: str) -> Intent | None:
    """The intent in these bytes; None for damaged ones. Raises UnknownFormatError."""
    return _decode(INTENT_MAGIC, INTENT_VERSION, Intent, data, file)


def write_intent(root: Place, intent: Intent) -> None:
    """Replace the intent of the intent's epoch."""
    directory = root / INTENTS_DIRECTORY
    place, data = directory / f"{intent.epoch:0{_EPOCH_DIGITS}d}", encode_intent(intent)
    try:
        place.replace(data)
    except FileNotFoundError:  # the first one of a store
        directory.make_directories()
        place.replace(data)


def read_intents(root: Place) -> list[Intent]:
    """The intents that can be read, one an epoch, ascending by epoch. Raises UnknownFormatError."""
    directory = root / INTENTS_DIRECTORY
    intents = []
    for epoch in _epochs(directory):
        path = directory / f"{epoch:0{_EPOCH_DIGITS}d}"
        try:
            data = path.read()
        except FileNotFoundError:
            continue
        intent = decode_intent(data, file=str(path))
        if intent is not None and intent.epoch == epoch:
            intents.append(intent)
    return intents


def remove_intents(root: Place, *, below_epoch: int, but: int | None = None) -> None:
    """Remove the intents of lower epochs, but one, once they have been taken over. Safe to repeat."""
    directory = root / INTENTS_DIRECTORY
    for epoch in _epochs(directory):
        if epoch < below_epoch and epoch != but:
            (directory / f"{epoch:0{_EPOCH_DIGITS}d}").remove()


@dataclass(frozen=True, slots=True)
class Published:
    """Every port of every window of this store up to `window` is published; `epoch` is 0 in version 1."""

    store_id: str
    window: int
    epoch: int = field(default=0, metadata=LATER)


def prepare_published(path: Place, mark: Published) -> Prepared:
    """The next mark for `path`, prepared by the owner of the mark's epoch.

    Before the owner puts it in place it reads the claims once more. A FileNotFoundError from `put`
    means that a later owner has removed it, or has put one of its own there.
    """
    return path.prepare(frame(PUBLISHED_MAGIC, version_of(mark), encode(mark)), epoch=mark.epoch)


def read_published(path: Place) -> Published | None:
    """The mark at `path`; None when there is none that can be read. Raises UnknownFormatError."""
    try:
        data = path.read()
    except FileNotFoundError:
        return None
    return _decode(PUBLISHED_MAGIC, PUBLISHED_VERSION, Published, data, str(path))


def _epochs(directory: Place) -> list[int]:
    return sorted(int(name) for name in directory.listed() if name.isascii() and name.isdigit())


def _decode(magic: bytes, version: int, kind: type[_Mark], data: bytes, file: str) -> _Mark | None:
    try:
        return decode(kind, unframe(data, magic=magic, version=version, oldest=1, file=file))
    except (CorruptionError, ValueError):
        return None
