"""PURE. The bytes of a log record: encode, decode.

Layout of `log/<number as 20 digits>` (framed, version 1 to 4). Integers are little endian:

    0  magic              8 bytes  "BSLOGREC"
    8  version            u16      the first that has all its fields: 1 to 4; any other: UnknownFormatError
   10  kind               u8       1 claim, 2 commit, 3 deletion, 4 compaction, 5 snapshot, 6 fold of sources, 7 rebase
   11  zero               u8
   12  payload length     u32
   16  number             u64      the same as in the file's name
   24  epoch              u64      the writer's; of a snapshot the greatest one claimed below its number
   32  nonce              16 bytes random, unlike any other record's
   48  published through  i64      every window up to it is published; -1: none
   56  purged through     i64      the bytes of every piece that left the store in a record up to it are gone; -1: none
   64  payload            msgpack, one array: the fields of the kind in the order of its class in `log.records`
   -8  checksum           u64      xxh3_64 of all bytes before it

Inside a payload a dataclass is an array of its fields in order, a tuple is an array, a dict keyed by numbers is an
array of [key, value] pairs ascending by key, a dict keyed by strings is a map, None is nil. The last fields of a kind
may be of version 2: `root` of a claim, `lineage`, `root`, `archives` and `judged` of a
snapshot; so is the fold of sources. `shards` and `notes` of a snapshot are of version 3; so is a rebase. `inline` of
sources is of version 4, in whatever kind they are. Another number of fields, a field of another type or an unknown kind
is a CorruptionError; nothing is skipped or guessed.
"""

from __future__ import annotations

import struct
from typing import Any

from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from bucket_store.log.records import (
    Body,
    ClaimRecord,
    CommitRecord,
    CompactionRecord,
    DeletionRecord,
    LogRecord,
    LogSnapshot,
    LogState,
    RebaseRecord,
    SourcesFoldRecord,
)
from bucket_store.wire import decode, encode, version_of

MAGIC = b"BSLOGREC"
VERSION = 4
_OLDEST_VERSION = 1
_ENVELOPE = struct.Struct("<BBIQQ16sqq")
_PAYLOAD_OFFSET = BODY_OFFSET + _ENVELOPE.size
_NAME_DIGITS = 20
HEADER_BYTES = 48
"""A record up to its nonce."""
_NONCE_BYTES = 16

_KINDS: dict[int, type[Any]] = {
    1: ClaimRecord,
    2: CommitRecord,
    3: DeletionRecord,
    4: CompactionRecord,
    5: LogState,
    6: SourcesFoldRecord,
    7: RebaseRecord,
}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def record_name(number: int) -> str:
    """The file name of a record: names sort as numbers do."""
    return f"{number:0{_NAME_DIGITS}d}"


def record_number(name: str) -> int | None:
    """The number of the record in a file of this name; None when no record has such a name."""
    return int(name) if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit() else None


def nonce_of(header: bytes) -> bytes:
    """The nonce in the first `HEADER_BYTES` of a record's file; of fewer bytes none, or a part of it."""
    return header[HEADER_BYTES - _NONCE_BYTES : HEADER_BYTES]


def encode_record(record: LogRecord) -> bytes:
    """The bytes of the record's file."""
    payload = _payload(record.body)
    packed = encode(payload)
    envelope = _ENVELOPE.pack(
        _NUMBERS[type(payload)],
        0,
        len(packed),
        record.number,
        record.epoch,
        record.nonce,
        record.published_through,
        record.purged_through,
    )
    return frame(MAGIC, _version(record.body), envelope + packed)


def decode_record(data: bytes, *, number: int, file: str) -> LogRecord:
    """The record in the bytes of the file that is named for `number`; `file` is the name for the errors.

    Raises:
        CorruptionError: not what was written, or another record's bytes under this name.
        UnknownFormatError: of a later release.
    """
    body = unframe(data, magic=MAGIC, version=VERSION, oldest=_OLDEST_VERSION, file=file)
    if len(body) < _ENVELOPE.size:
        raise CorruptionError(
            "envelope", file=file, offset=BODY_OFFSET, expected=f"{_ENVELOPE.size} bytes", found=f"{len(body)} bytes"
        )
    kind, zero, length, found_number, epoch, nonce, published, purged = _ENVELOPE.unpack_from(body)
    payload = body[_ENVELOPE.size :]
    if (zero, length, found_number) != (0, len(payload), number):
        raise CorruptionError(
            "envelope",
            file=file,
            offset=BODY_OFFSET,
            expected=f"zero 0, payload of {len(payload)} bytes, number {number}",
            found=f"zero {zero}, payload of {length} bytes, number {found_number}",
        )
    try:
        found = decode(_KINDS[kind], payload)
    except (ValueError, KeyError) as exc:
        raise CorruptionError(
            "payload",
            file=file,
            offset=_PAYLOAD_OFFSET,
            expected=f"the fields of kind {kind}",
            found=f"{type(exc).__name__}: {exc}",
        ) from exc
    return LogRecord(
        number, epoch, nonce, published, purged, LogSnapshot(found) if isinstance(found, LogState) else found
    )


def demand_kind(record: LogRecord, snapshot_every: int, file: str) -> None:
    """A snapshot stands at every number that is a multiple of `snapshot_every`, and at no other.

    Raises:
        CorruptionError: it does not, or another kind of record does.
    """
    due = record.number % snapshot_every == 0
    if isinstance(record.body, LogSnapshot) != due:
        expected = "a snapshot" if due else "no snapshot"
        raise CorruptionError("kind", file=file, offset=0, expected=expected, found=type(record.body).__name__)


def _version(body: Body) -> int:
    """The first version that has all its fields: a release that reads no later one must not call them damage."""
    state = getattr(body, "state", None)
    sources = [getattr(body, "sources", None)] if state is None else [*state.sources.values()]
    if any(ref is not None and ref.inline for ref in sources):
        return 4
    if isinstance(body, RebaseRecord):
        return 3
    return max(2 if isinstance(body, SourcesFoldRecord) else 1, version_of(_payload(body)))


def _payload(body: Body) -> Any:
    return body.state if isinstance(body, LogSnapshot) else body
