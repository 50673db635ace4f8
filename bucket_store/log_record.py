"""PURE. The bytes of a log record: encode, decode.

Layout of `log/<number as 20 digits>` (sealed, version 1). Integers are little endian:

    0  magic              8 bytes  "BSLOGREC"
    8  version            u16      1; any other: UnknownFormatError
   10  kind               u8       1 claim, 2 commit, 3 deletion, 4 collation, 5 snapshot
   11  zero               u8
   12  payload length     u32
   16  number             u64      the same as in the file's name
   24  epoch              u64      the writer's; of a snapshot the greatest one claimed below its number
   32  nonce              16 bytes random, unlike any other record's
   48  published through  i64      every window up to it is published; -1: none
   56  purged through     i64      the bytes of every piece that left the store in a record up to it are gone; -1: none
   64  payload            msgpack, one array: the fields of the kind in the order of its class in `log_values`
   -8  checksum           u64      xxh3_64 of all bytes before it

Inside a payload a dataclass is an array of its fields in order, a tuple is an array, a dict keyed by numbers is an
array of [key, value] pairs ascending by key, a dict keyed by strings is a map, None is nil. Another number of fields, a
field of another type or an unknown kind is a CorruptionError; nothing is skipped or guessed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]  # ships no type information

from bucket_store import wire as wired
from bucket_store.errors import CorruptionError
from bucket_store.log_values import (
    Body,
    ClaimRecord,
    CollationRecord,
    CommitRecord,
    DeletionRecord,
    LogRecord,
    LogState,
    OutputFile,
    RetiredPiece,
    Snapshot,
    SourcesRef,
    WindowInfo,
)
from bucket_store.piece import PieceRef
from bucket_store.sealed import BODY_OFFSET, seal, unseal

__all__ = [
    "Body",
    "ClaimRecord",
    "CollationRecord",
    "CommitRecord",
    "DeletionRecord",
    "LogRecord",
    "OutputFile",
    "Snapshot",
    "SourcesRef",
    "decode_record",
    "encode_record",
    "record_name",
    "record_number",
]

MAGIC = b"BSLOGREC"
VERSION = 1
_ENVELOPE = struct.Struct("<BBIQQ16sqq")
_PAYLOAD_OFFSET = BODY_OFFSET + _ENVELOPE.size
_NAME_DIGITS = 20

_CLAIM, _COMMIT, _DELETION, _COLLATION, _SNAPSHOT = 1, 2, 3, 4, 5

V = TypeVar("V")

_COMMIT_FIELDS: tuple[wired.Kinds, ...] = (
    *(int, int, int, str, int, int, str),
    *(wired.POINT, (int, NoneType)),
    *(dict, dict),
    *(list, list, list),
    wired.POINT,
    (list, NoneType),
    dict,
)
_STATE_FIELDS: tuple[wired.Kinds, ...] = (
    *(int, int, int),
    *(wired.POINT, (int, NoneType)),
    *(int, int, int),
    *(dict, dict),
    *(list, list),
    dict,
    *(list, list, list),
)


def record_name(number: int) -> str:
    """The file name of a record: names sort as numbers do."""
    return f"{number:0{_NAME_DIGITS}d}"


def record_number(name: str) -> int | None:
    """The number of the record in a file of this name; None when no record has such a name."""
    return int(name) if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit() else None


def encode_record(record: LogRecord) -> bytes:
    """The bytes of the record's file."""
    kind, payload = _pack_body(record.body)
    packed = msgpack.packb(payload, use_bin_type=True)
    envelope = _ENVELOPE.pack(
        kind,
        0,
        len(packed),
        record.number,
        record.epoch,
        record.nonce,
        record.published_through,
        record.purged_through,
    )
    return seal(MAGIC, VERSION, envelope + packed)


def decode_record(data: bytes, *, number: int, file: str) -> LogRecord:
    """The record in the bytes of the file that is named for `number`; `file` is the name for the errors.

    Raises:
        CorruptionError: not what was written, or another record's bytes under this name.
        UnknownFormatError: of a later release.
    """
    body = unseal(data, magic=MAGIC, version=VERSION, file=file)
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
        unpack = _UNPACK[kind]
        fields = msgpack.unpackb(payload, raw=False, strict_map_key=True)
        return LogRecord(number, epoch, nonce, published, purged, unpack(fields))
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as exc:
        raise CorruptionError(
            "payload",
            file=file,
            offset=_PAYLOAD_OFFSET,
            expected=f"the fields of kind {kind}",
            found=f"{type(exc).__name__}: {exc}",
        ) from exc


def _pack_body(body: Body) -> tuple[int, list[Any]]:
    match body:
        case ClaimRecord():
            return _CLAIM, [body.epoch, body.owner, body.wall_us]
        case CommitRecord():
            return _COMMIT, _pack_commit(body)
        case DeletionRecord():
            return _DELETION, [_pack_pieces(body.pieces), body.wall_us, body.through_window]
        case CollationRecord():
            return _COLLATION, [_pack_pieces(body.merged), _pack_pieces(body.added), body.wall_us]
        case Snapshot():
            return _SNAPSHOT, _pack_state(body.state)


def _unpack_claim(wire: list[Any]) -> ClaimRecord:
    return ClaimRecord(*wired.fields(wire, int, str, int))


def _pack_commit(commit: CommitRecord) -> list[Any]:
    return [
        commit.window,
        commit.epoch,
        commit.attempt,
        commit.query_id,
        commit.batch_id,
        commit.wall_us,
        commit.settings_hash,
        commit.latest_point,
        commit.latest_moved_us,
        commit.counts,
        commit.reasons,
        _pack_pieces(commit.pieces),
        _pack_outputs(commit.outputs),
        list(commit.buckets),
        commit.timestamp,
        None if commit.sources is None else _pack_sources(commit.sources),
        commit.extra,
    ]


def _unpack_commit(wire: list[Any]) -> CommitRecord:
    *plain, counts, reasons, pieces, outputs, buckets, timestamp, sources, extra = wired.fields(wire, *_COMMIT_FIELDS)
    fields = [
        *plain,
        wired.counts(counts),
        wired.counts(reasons),
        _unpack_pieces(pieces),
        _unpack_outputs(outputs),
        tuple(wired.each(buckets, int)),
        timestamp,
        None if sources is None else _unpack_sources(sources),
        wired.named(extra),
    ]
    return CommitRecord(*fields)


def _unpack_deletion(wire: list[Any]) -> DeletionRecord:
    pieces, wall_us, through_window = wired.fields(wire, list, int, int)
    return DeletionRecord(_unpack_pieces(pieces), wall_us, through_window)


def _unpack_collation(wire: list[Any]) -> CollationRecord:
    merged, added, wall_us = wired.fields(wire, list, list, int)
    return CollationRecord(_unpack_pieces(merged), _unpack_pieces(added), wall_us)


def _pack_state(state: LogState) -> list[Any]:
    return [
        state.next_number,
        state.epoch,
        state.next_window,
        state.latest_point,
        state.latest_moved_us,
        state.last_wall_us,
        state.published_through,
        state.purged_through,
        state.totals,
        state.reason_totals,
        _pack_by_number(state.pieces, _pack_pieces),
        _pack_by_number(state.windows, _pack_window),
        state.extra,
        _pack_by_number(state.outputs, _pack_outputs),
        _pack_by_number(state.sources, _pack_sources),
        [[piece.ref.to_wire(), piece.at_number, piece.wall_us] for piece in state.retired],
    ]


def _unpack_snapshot(wire: list[Any]) -> Snapshot:
    *plain, totals, reasons, pieces, windows, extra, outputs, sources, retired = wired.fields(wire, *_STATE_FIELDS)
    fields = [
        *plain,
        wired.counts(totals),
        wired.counts(reasons),
        _unpack_by_number(pieces, _unpack_pieces),
        _unpack_by_number(windows, _unpack_window),
        wired.named(extra),
        _unpack_by_number(outputs, _unpack_outputs),
        _unpack_by_number(sources, _unpack_sources),
        tuple(
            RetiredPiece(PieceRef(*wired.piece_fields(ref)), number, wall_us)
            for ref, number, wall_us in (wired.fields(gone, list, int, int) for gone in retired)
        ),
    ]
    return Snapshot(LogState(*fields))


_UNPACK: dict[int, Callable[[list[Any]], Body]] = {
    _CLAIM: _unpack_claim,
    _COMMIT: _unpack_commit,
    _DELETION: _unpack_deletion,
    _COLLATION: _unpack_collation,
    _SNAPSHOT: _unpack_snapshot,
}


def _pack_by_number(values: dict[int, V], pack: Callable[[V], list[Any]]) -> list[Any]:
    return [[number, pack(values[number])] for number in sorted(values)]


def _unpack_by_number(wire: list[Any], unpack: Callable[[list[Any]], V]) -> dict[int, V]:
    pairs = [wired.fields(pair, int, list) for pair in wire]
    return {number: unpack(value) for number, value in pairs}


def _pack_pieces(pieces: tuple[PieceRef, ...]) -> list[Any]:
    return [ref.to_wire() for ref in pieces]


def _unpack_pieces(wire: list[Any]) -> tuple[PieceRef, ...]:
    return tuple(PieceRef(*wired.piece_fields(ref)) for ref in wired.each(wire, list))


def _pack_outputs(outputs: tuple[OutputFile, ...]) -> list[Any]:
    return [[file.port, file.staged, file.final, file.size_bytes, file.checksum, file.rows] for file in outputs]


def _unpack_outputs(wire: list[Any]) -> tuple[OutputFile, ...]:
    return tuple(OutputFile(*wired.fields(file, str, str, str, int, int, int)) for file in wired.each(wire, list))


def _pack_sources(ref: SourcesRef) -> list[Any]:
    plain = [ref.name, ref.count, ref.checksum, ref.length]
    return plain if ref.is_kept else [*plain, False]


def _unpack_sources(wire: list[Any]) -> SourcesRef:
    return SourcesRef(*wired.fields(wire, str, int, int, int, *((bool,) if len(wire) > 4 else ())))


def _pack_window(info: WindowInfo) -> list[Any]:
    return [list(info.buckets), info.timestamp, info.counts, info.wall_us]


def _unpack_window(wire: list[Any]) -> WindowInfo:
    buckets, timestamp, counts, wall_us = wired.fields(wire, list, wired.POINT, dict, int)
    return WindowInfo(tuple(wired.each(buckets, int)), timestamp, wired.counts(counts), wall_us)
