"""A window's source partitions, as a file or in its commit record. They identify a repeated batch, and name origins.

Layout of `sources/<window, 12 digits>-<epoch, 6>-<attempt, 3>` (framed, magic `BSSOURCE`, version 1). Integers are
little endian:

    0  magic     8 bytes
    8  version   u16
   10  window    u64
   18  count     u32   number of source partitions
   22  digests   count x 16 bytes, in the order of the ordinals in an origin
       fields    msgpack: one array a partition: [name, version, start, end, rows]
   -8  checksum  u64   xxh3_64 of all bytes before it

The commit record holds these bytes while they are few (`keep_sources`), and says their count, checksum and length. Else
the file is placed durably before the record that names it; one that no record
names belongs to an abandoned try, or is forgotten: FORMAT.md says when. The digests are kept while the source can give
the same partition again. A damaged file is a CorruptionError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from bucket_store import failpoints
from bucket_store.errors import CorruptionError
from bucket_store.framing import BODY_OFFSET, frame, unframe
from bucket_store.log.records import LogState, SourcesRef
from bucket_store.places.new_file import create_own
from bucket_store.places.place import Place

MAGIC = b"BSSOURCE"
VERSION = 1
DIRECTORY = "sources"
FOLDED_DIRECTORY = "folded"
DIGEST_BYTES = 16
INLINE_BYTES = 64 << 10
INLINE_STATE_BYTES = 4 << 20
"""The most bytes of sources in a record, and in a state: every snapshot has those of the state."""
GONE = "gone"
"""The `version` of a file that was gone before it was read: it does not count as judged."""

_HEAD = struct.Struct("<QI")
_FIELDS = msgspec.msgpack.Decoder(list[tuple[str, str | int, int, int, int]])
_CHECKSUM = struct.Struct("<Q")

# Of windows' files and of folded ones; also the temporary names, which begin with a dot.
TRY = re.compile(r"\.?(?P<window>\d{12,})-(?P<epoch>\d{6,})-(\d{3,}|[0-9a-f]{8}\.(archive|judged))(\..*)?")


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """One source partition of one window: a Kafka partition's [start, end) offsets, or a file's [start, end) bytes.

    `version` distinguishes a recreated source from the old one of that name: a file's modification time in ms, or
    `GONE`; a topic's id. `rows` is the number of its records. `digest` is 16 bytes, equal when and only when the source
    partition is the same.
    """

    name: str
    version: str | int
    start: int
    end: int
    rows: int
    digest: bytes


def encode_sources(window: int, partitions: Sequence[SourcePartition]) -> bytes:
    """The bytes of the window's sources file, partitions in the order of their ordinals.

    Raises:
        ValueError: a digest that has not 16 bytes.
    """
    if any(len(partition.digest) != DIGEST_BYTES for partition in partitions):
        raise ValueError(f"a source partition's digest has {DIGEST_BYTES} bytes")
    digests = b"".join(partition.digest for partition in partitions)
    packed = msgspec.msgpack.encode([(p.name, p.version, p.start, p.end, p.rows) for p in partitions])
    return frame(MAGIC, VERSION, _HEAD.pack(window, len(partitions)) + digests + packed)


def decode_sources(data: bytes, *, window: int, file: str) -> tuple[SourcePartition, ...]:
    """The source partitions of `window`, in the order of their ordinals.

    Raises:
        CorruptionError: damaged, or another window's.
        UnknownFormatError: of a later release.
    """
    digests, packed = _split(data, window=window, file=file)
    offset = BODY_OFFSET + _HEAD.size + DIGEST_BYTES * len(digests)
    try:
        fields = zip(_FIELDS.decode(packed), digests, strict=True)
        return tuple(SourcePartition(*of_partition, digest) for of_partition, digest in fields)
    except ValueError as exc:
        raise CorruptionError(
            "fields", file=file, offset=offset, expected=f"{len(digests)} source partitions", found=str(exc)
        ) from exc


def keep_sources(
    root: Place,
    state: LogState,
    *,
    epoch: int,
    attempt: int,
    partitions: Sequence[SourcePartition],
    is_kept: bool,
) -> SourcesRef:
    """The sources of the window after `state` for its commit record: in it while they are few, else in a file.

    Raises:
        FileExistsError, OSError: as `write_sources`.
    """
    window = state.next_window
    data = encode_sources(window, partitions)
    if len(data) <= INLINE_BYTES and inline_bytes(state) + len(data) <= INLINE_STATE_BYTES:
        ref = sources_ref(sources_name(window, epoch, attempt), partitions, data, is_kept=is_kept)
        return replace(ref, inline=data)
    return write_sources(root, window=window, epoch=epoch, attempt=attempt, partitions=partitions, is_kept=is_kept)


def inline_bytes(state: LogState) -> int:
    """The bytes of all sources that the state itself holds."""
    return sum(len(ref.inline) for ref in state.sources.values())


def write_sources(
    root: Place,
    *,
    window: int,
    epoch: int,
    attempt: int,
    partitions: Sequence[SourcePartition],
    is_kept: bool = True,
) -> SourcesRef:
    """Place the file of this try, durable on return, and give its reference. `is_kept` as in `SourcesRef`.

    Raises:
        FileExistsError: this try has written its sources.
        OSError: it may or may not be in place.
    """
    data = encode_sources(window, partitions)
    path = root / DIRECTORY / sources_name(window, epoch, attempt)
    # An existing directory was made durable by this owner's start, so a window need not sync it again.
    if not path.parent.exists():
        path.parent.make_directories()
    create_own(path, data)
    return sources_ref(path.name, partitions, data, is_kept=is_kept)


def sources_ref(name: str, partitions: Sequence[SourcePartition], data: bytes, *, is_kept: bool = True) -> SourcesRef:
    """A commit record's reference to a sources file of this name with these partitions, encoded as `data`."""
    return SourcesRef(name, len(partitions), stated_checksum(data), len(data), is_kept)


def read_sources(root: Place, window: int, ref: SourcesRef) -> tuple[SourcePartition, ...]:
    """The source partitions of a committed window, checked against its record.

    Raises:
        CorruptionError: the file is missing, damaged, or not the one that the record names.
        UnknownFormatError: of a later release.
    """
    path = root / DIRECTORY / ref.name
    if ref.inline:
        file = f"log, {path.name}"
        data = _as_stated(ref.inline, ref.length, ref.checksum, file)
        return decode_sources(data, window=window, file=file)
    return decode_sources(read_named(path, ref.length, ref.checksum), window=window, file=str(path))


def remove_unnamed(root: Place, *, state: LogState, below_epoch: int) -> list[str]:
    """Remove the files of lower epochs that no record names: their names. For the owner; safe to repeat."""
    unnamed = unnamed_files(root, state=state, below_epoch=below_epoch)
    for path in unnamed:
        path.remove()
        failpoints.hit("sources.removed")
    return [path.name for path in unnamed]


def unnamed_files(root: Place, *, state: LogState, below_epoch: int) -> list[Place]:
    """The files of sources of lower epochs that a state does not name."""
    keep = {ref.name for ref in state.sources.values() if not ref.inline} | {ref.name for ref in state.archives}
    if state.judged is not None:
        keep.add(state.judged.name)
    stale = []
    for directory in (root / DIRECTORY, root / FOLDED_DIRECTORY):
        for name in directory.listed():
            tried = TRY.fullmatch(name)
            if name not in keep and tried is not None and int(tried["epoch"]) < below_epoch:
                stale.append(directory / name)
    return stale


def read_named(path: Place, length: int, checksum: int) -> bytes:
    """The bytes of a framed file with the length and checksum of its record. Raises CorruptionError for any other."""
    try:
        data = path.read()
    except FileNotFoundError as exc:
        raise CorruptionError(
            "file that a record names",
            file=str(path),
            offset=0,
            expected=f"{length} bytes",
            found="no file",
        ) from exc
    return _as_stated(data, length, checksum, str(path))


def _as_stated(data: bytes, length: int, checksum: int, file: str) -> bytes:
    found = (len(data), stated_checksum(data) if len(data) >= _CHECKSUM.size else None)
    if found != (length, checksum):
        raise CorruptionError(
            "length and checksum that the record states",
            file=file,
            offset=max(0, len(data) - _CHECKSUM.size),
            expected=(length, checksum),
            found=found,
        )
    return data


def sources_name(window: int, epoch: int, attempt: int) -> str:
    """The name of an attempt's file."""
    return f"{window:012d}-{epoch:06d}-{attempt:03d}"


def stated_checksum(data: bytes) -> int:
    """The checksum at the end of a framed file."""
    checksum: int = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0]
    return checksum


def _split(data: bytes, *, window: int, file: str) -> tuple[list[bytes], bytes]:
    """The digests, and the packed fields, of a whole file of `window`."""
    body = unframe(data, magic=MAGIC, version=VERSION, file=file)
    found_window, count = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (None, 0)
    end = _HEAD.size + count * DIGEST_BYTES
    if found_window != window or end > len(body):
        raise CorruptionError(
            "head",
            file=file,
            offset=BODY_OFFSET,
            expected=f"window {window} and room for {count} digests",
            found=f"window {found_window} in {len(body)} bytes",
        )
    return [body[at : at + DIGEST_BYTES] for at in range(_HEAD.size, end, DIGEST_BYTES)], body[end:]
