"""One function for each decoder: takes any bytes, and fails where the decoder does what no decoder may do.

Allowed is a value that is right in every type and gives the same when written and read again, or else the errors that
the decoder's docstring names. Everything else (another exception, another value after a round trip) comes out as it is.
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
import struct
import tempfile
import types
import typing
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np

from bucket_store import framing, wire
from bucket_store.errors import CorruptionError, StoreError, UnknownFormatError
from bucket_store.log import (
    codec,
    heartbeat,
    history,
    judged_files,
    last_end,
    leak_sample,
    manifest,
    marks,
    profile,
    sources_archive,
    sources_file,
)
from bucket_store.log.records import LogState
from bucket_store.log.state import fold
from bucket_store.pieces import piece
from bucket_store.pieces import reader as piece_reader
from bucket_store.places.local import local_place
from bucket_store.tables import generation
from deduper import columns as ddl
from deduper import units
from deduper.admin.keys import stored
from deduper.admin.keys import values as key_values
from deduper.config import load, yaml_document
from deduper.config.problems import ConfigError
from deduper.core import digests
from deduper.errors import UsageError
from deduper.ranges.aggregate import aggregates
from deduper.table.index import bloom_filter
from deduper.text import block, csv_exact, json_exact, kernels, log_exact, values
from deduper.text.format import TextFormat
from tests.deduper.text import csv_lines, differential, json_lines, log_lines
from tests.fuzz import shapes

LOG_FILES = Path(__file__).parent.parent / "data" / "log_v1"
PIECES = Path(__file__).parent.parent / "bucket_store" / "data"


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder under test: the modules it stands for, what to do with an input, and inputs to begin with."""

    modules: tuple[types.ModuleType, ...]
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


# --- what must be true of whatever a decoder gives


def assert_typed(value: Any, kind: Any = None) -> None:
    """Every field of a dataclass, however deep, is of its annotated type; exactly: True is no int."""
    if is_dataclass(value):
        assert kind is None or type(value) in (typing.get_args(kind) or (kind,)), f"{value!r:.100} is no {kind}"
        hints = _hints(type(value))
        for field in fields(value):
            assert_typed(getattr(value, field.name), hints[field.name])
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        matching = [one for one in arguments if type(value) is (typing.get_origin(one) or one)]
        assert matching, f"{value!r:.100} is none of {arguments}"
        assert_typed(value, matching[0])
    elif origin is tuple:
        assert type(value) is tuple, f"{value!r:.100} is no {kind}"
        for item in value:
            assert_typed(item, arguments[0])
    elif origin is dict:
        assert type(value) is dict, f"{value!r:.100} is no {kind}"
        for key, item in value.items():
            assert_typed(key, arguments[0])
            assert_typed(item, arguments[1])
    elif kind is not Any and kind is not None:
        assert type(value) is kind, f"{value!r:.100} is no {kind}"


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class OneFile:
    """Files of which every one has these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, path: Path) -> bytes:
        return self._data

    def is_dir(self, path: Path) -> bool:
        return False

    def modified_us(self, path: Path) -> int:
        return 0

    @contextmanager
    def open(self, path: Path) -> Iterator[OneFile]:
        yield self

    def size(self) -> int:
        return len(self._data)


def _sample(name: str) -> bytes:
    return (LOG_FILES / f"{name}.bin").read_bytes()


def _body(name: str) -> bytes:
    return _sample(name)[framing.BODY_OFFSET : -8]


def _three_ways(data: bytes, tree: Any = None) -> Iterator[bytes]:
    """A sound file as it is and without its frame; and one change to it of every kind in turn."""
    yield bytes([shapes.RAW]) + data
    yield bytes([shapes.BODY]) + data[framing.BODY_OFFSET : -8]
    if tree is not None:
        for at in range(shapes.count_of_nodes(tree)):
            yield shapes.replacing(at, at)


# --- the frame, manifest, log


def _run_framed(data: bytes) -> None:
    whole = shapes.unwrapped(data, b"TESTTEST", [], msgpack.packb)
    with suppress(CorruptionError, UnknownFormatError):
        body = framing.unframe(whole, magic=b"TESTTEST", version=1, file="f")
        assert framing.frame(b"TESTTEST", 1, body) == whole


def _seeds_framed() -> Iterator[bytes]:
    yield from _three_ways(framing.frame(b"TESTTEST", 1, b"body"))
    yield b"\0" + framing.frame(b"TESTTEST", 2, b"body")


def _run_manifest(data: bytes) -> None:
    tree = json.loads(_body("manifest"))
    whole = shapes.unwrapped(data, manifest.MAGIC, tree, _json)
    with suppress(CorruptionError, UnknownFormatError):
        found = manifest.decode_manifest(whole, file="f")
        assert_typed(found)
        assert found.snapshot_every >= 2
        with suppress(RecursionError):  # of writing settings that nobody writes
            again = manifest.decode_manifest(manifest.encode_manifest(found), file="f")
            assert repr(again) == repr(found)


def _json(tree: Any) -> bytes:
    try:
        return json.dumps(tree).encode()
    except (TypeError, RecursionError):
        return b"[" * 5000


def _record_kinds() -> dict[int, tuple[int, Any]]:
    """Of each kind of record: the number of the sample and its payload."""
    numbers = {"claim": 1, "commit": 2, "deletion": 3, "compaction": 4, "snapshot": 5}
    return {
        kind: (numbers[name], msgpack.unpackb(_body(name)[54:]))
        for kind, name in enumerate(("claim", "commit", "deletion", "compaction", "snapshot"), 1)
    }


RECORDS = _record_kinds()


def _run_record(data: bytes) -> None:
    """Kind and number come from the second byte, so that the payload alone is the fuzzer's."""
    kind = data[1] % 7 if len(data) > 1 else 0
    number, tree = RECORDS.get(kind, (1, []))

    def enveloped(payload: bytes) -> bytes:
        head = codec._ENVELOPE.pack(kind, 0, len(payload), number, 1, bytes(16), -1, -1)
        return framing.frame(codec.MAGIC, 1, head + payload)

    match data[:1]:
        case b"\x01":
            whole = enveloped(data[2:])
        case b"\x02":
            whole = enveloped(msgpack.packb(shapes.changed(tree, data[2:])))
        case b"\x03":
            whole = framing.frame(codec.MAGIC, 1, data[2:])
        case _:
            whole = data[2:]
    with suppress(CorruptionError, UnknownFormatError):
        record = codec.decode_record(whole, number=number, file="f")
        assert_typed(record)
        encoded = codec.encode_record(record)
        again = codec.decode_record(encoded, number=number, file="f")
        assert again == record or "nan" in repr(record)
        # What is sound by itself is folded, where it may still not follow.
        fold(LogState(next_number=number, epoch=record.epoch), record)


def _seeds_record() -> Iterator[bytes]:
    for kind, name in enumerate(("claim", "commit", "deletion", "compaction", "snapshot"), 1):
        head = bytes([kind])
        yield b"\0" + head + _sample(name)
        yield b"\1" + head + _body(name)[54:]
        yield b"\3" + head + _body(name)
        for at in range(shapes.count_of_nodes(RECORDS[kind][1])):
            yield b"\2" + head + shapes.replacing(at, at)[1:]


# --- intents, marks, sources, heartbeat


def _run_intent(data: bytes) -> None:
    whole = shapes.unwrapped(data, marks.INTENT_MAGIC, msgpack.unpackb(_body("intent")), msgpack.packb)
    with suppress(UnknownFormatError):
        found = marks.decode_intent(whole, file="f")
        if found is not None:
            assert_typed(found)
            assert repr(marks.decode_intent(marks.encode_intent(found), file="f")) == repr(found)


def _run_mark(data: bytes) -> None:
    whole = shapes.unwrapped(data, marks.PUBLISHED_MAGIC, msgpack.unpackb(_body("published")), msgpack.packb)
    with suppress(UnknownFormatError):
        found = marks.read_published(local_place(Path("f"), typing.cast(Any, OneFile(whole))))
        if found is not None:
            assert_typed(found)


def _run_sources(data: bytes) -> None:
    tree = msgpack.unpackb(_body("sources")[12 + 16 * _COUNT :])
    if data[:1] == bytes([shapes.CHANGES]):
        packed = msgpack.packb(shapes.changed(tree, data[1:]))
        whole = framing.frame(sources_file.MAGIC, 1, _body("sources")[: 12 + 16 * _COUNT] + packed)
    else:
        whole = shapes.unwrapped(data, sources_file.MAGIC, tree, msgpack.packb)
    with suppress(CorruptionError, UnknownFormatError):
        found = sources_file.decode_sources(whole, window=3, file="f")
        assert_typed_all(found)
        assert sources_file.decode_sources(sources_file.encode_sources(3, found), window=3, file="f") == found


_COUNT = int.from_bytes(_body("sources")[8:12], "little")


def _run_archive(data: bytes) -> None:
    packed = data if data[:1] == b"\1" else msgpack.packb(_ARCHIVED)
    head = struct.pack("<QQI", 3, 4, len(packed))
    whole = data if data[:1] == b"\0" else framing.frame(sources_archive.MAGIC, 1, head + zlib.compress(packed))
    try:
        found = sources_archive.decode_archive(whole, file="f")
    except StoreError:
        return
    assert sources_archive.decode_archive(sources_archive.encode_archive(found), file="f") == found


_ARCHIVED = [[3, [[bytes(16), "in/a.json", 5, 0, 7, 1]]], [4, []]]


def _run_judged(data: bytes) -> None:
    whole = data if data[:1] == b"\0" else framing.frame(judged_files.MAGIC, 1, data)
    try:
        through, files = judged_files.decode_judged(whole, file="f")
    except StoreError:
        return
    assert judged_files.decode_judged(judged_files.encode_judged(through, files), file="f")[0] == through


def _seeds_judged() -> Iterator[bytes]:
    files = judged_files.JudgedFiles.empty("/in").joined({(1, 2): (3, 4), (1, 5): (6, 7)}, "/in")
    whole = judged_files.encode_judged(3, files)
    yield whole[framing.BODY_OFFSET : -8]
    yield b"\0" + whole
    yield struct.pack("<QQI", 3, 2**60, 0)
    yield struct.pack("<QQI", 3, 0, 2**31)


def _seeds_archive() -> Iterator[bytes]:
    yield b"\1" + msgpack.packb(_ARCHIVED)
    yield b"\2"
    yield b"\0" + bytes(40)


def assert_typed_all(values: tuple[Any, ...]) -> None:
    """As `assert_typed`, of each."""
    for value in values:
        assert_typed(value)


_PROFILE: list[Any] = [
    ["judge", "publish"],
    [[0, 1, 5, 1000, 1_500_000, {0: 1_250_000, 1: 250_000}], [1, 1, 6, 0, 7, {}]],
]


def _run_profile(data: bytes) -> None:
    whole = shapes.unwrapped(data, profile.MAGIC, _PROFILE, msgpack.packb)
    with suppress(CorruptionError, UnknownFormatError, TypeError, ValueError):
        found = profile.decode_profiles(whole, file="f")
        assert_typed_all(found)
        if all(0 <= moment < 1e12 for each in found for moment in (each.seconds, *each.phases.values())):
            names: dict[str, int] = {}
            packed = [profile._packed(each, names) for each in found]
            again = profile.decode_profiles(profile._encode(names, packed), file="f")
            assert [replace(each, seconds=0.0, phases={}) for each in again] == [
                replace(each, seconds=0.0, phases={}) for each in found
            ]
    # For everybody who asks it is there or not.
    assert profile.read_profiles(local_place(Path("store"), cast(Any, OneFile(whole)))) is not None


_HISTORY: list[Any] = ["id", ["unique", "seconds"], [[[5, 1, {0: 7, 1: 0.5}]], [], [[5, 1, {}]]]]


def _run_history(data: bytes) -> None:
    whole = shapes.unwrapped(data, history.MAGIC, _HISTORY, msgpack.packb)
    with suppress(CorruptionError, UnknownFormatError):
        store_id, levels = history.decode_history(whole, file="f")
        assert type(store_id) is str
        assert len(levels) == len(history.LEVELS)
        for sample in (sample for level in levels for sample in level):
            assert type(sample.wall_us) is type(sample.next_window) is int
            assert all(type(name) is str and type(value) in (int, float) for name, value in sample.values.items())
    # A start goes on with it, or begins anew.
    assert len(history.read_history(local_place(Path("store"), cast(Any, OneFile(whole))), "id")) == len(history.LEVELS)


_LEAKS: list[Any] = ["id", 3, 0, 5, 1, "{}", 8, 30, 2, 1, {"words": bytes(8), "seen": b"\1"}]


_FILTERED = bloom_filter.FilterOwner("00112233445566778899aabbccddeeff", 7, 40)


def _run_filter(data: bytes) -> None:
    """A filter, or an error; whatever its bits, each key gets an answer."""
    try:
        words = bloom_filter.decode_filter(data, _FILTERED, "f")
    except (CorruptionError, UnknownFormatError):
        return
    assert len(bloom_filter.may_have(words, np.arange(3, dtype=np.uint64))) == 3


def _seeds_filter() -> Iterator[bytes]:
    keys = np.arange(_FILTERED.keys, dtype=np.uint64) << np.uint64(58)
    words = bloom_filter.empty_words(len(keys), 12)
    bloom_filter.add_keys(words, keys)
    yield bloom_filter.encode_filter(_FILTERED, words)


def _run_leaks(data: bytes) -> None:
    whole = shapes.unwrapped(data, leak_sample.MAGIC, _LEAKS, msgpack.packb)
    with suppress(CorruptionError, UnknownFormatError):
        found = leak_sample.read_leak_sample(local_place(Path("store"), cast(Any, OneFile(whole))))
        assert_typed(found)
        again = framing.frame(leak_sample.MAGIC, 1, wire.encode(found))
        assert leak_sample.read_leak_sample(local_place(Path("store"), cast(Any, OneFile(again)))) == found


_BEAT = ["host:1", bytes(8), 3]


def _run_heartbeat(data: bytes) -> None:
    whole = shapes.unwrapped(data, heartbeat.MAGIC, _BEAT, msgpack.packb)
    with suppress(UnknownFormatError):
        found = heartbeat.read_beat(local_place(Path(), typing.cast(Any, OneFile(whole))))
        if found is not None:
            assert_typed(found)


_END = [3, "host:1", 1, "no broker answers", 5]


def _run_end(data: bytes) -> None:
    whole = shapes.unwrapped(data, last_end.MAGIC, _END, msgpack.packb)
    found = last_end.read_end(local_place(Path(), typing.cast(Any, OneFile(whole))))
    if found is not None:
        assert_typed(found)


_GENERATION = ["5a" * 16, "inc", "boot", bytes(16), 3, 1000, False]


def _run_generation(data: bytes) -> None:
    """The header of a shard's tables has a frame of its own."""
    directory = _scratch()
    kind, rest = data[:1], data[1:]
    if kind in (b"\x01", b"\x02"):
        body = rest if kind == b"\x01" else msgpack.packb(shapes.changed(_GENERATION, rest))
        covered = generation._HEAD.pack(generation._MAGIC, 1, len(body) % 2**16) + body
        rest = covered + generation._CHECKSUM.pack(shapes.checksum(covered))
    (directory / "header").write_bytes(rest.ljust(512, b"\0"))
    found = generation._read_header(directory)
    if found is not None:
        assert_typed(found)


# --- pieces and segments


class OnePiece:
    """A backend of one piece, which notes where it was read."""

    is_remote = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, located: Any, start: int = 0, length: int | None = None) -> bytes:
        end = len(self._data) if length is None else start + length
        if not 0 <= start <= end <= len(self._data):
            raise CorruptionError("truncated", file="f", offset=start, expected=end, found=len(self._data))
        return self._data[start:end]


def _sound_pieces() -> list[bytes]:
    return [path.read_bytes() for path in sorted(PIECES.glob("*.bin"))]


def _piece_of(data: bytes) -> bytes:
    """Raw, reframed, or a sound piece with some words changed and reframed; the second byte says which sound one."""
    if len(data) < 2:
        return data
    if data[0] == shapes.CHANGES:
        sound = _sound_pieces()
        return shapes.reframed_piece(shapes.changed_words(sound[data[1] % len(sound)], data[2:]))
    return shapes.reframed_piece(data[2:]) if data[0] == shapes.BODY else data[2:]


def _run_piece(data: bytes) -> None:
    """The whole piece: everything in it is read, and nothing that contradicts itself is let through."""
    whole = _piece_of(data)
    with suppress(CorruptionError, UnknownFormatError):
        header, buckets = piece.decode_piece(whole, file="f", offset=100)
        rows = [(bucket.bucket, len(bucket.digests)) for bucket in buckets]
        assert [bucket for bucket, _ in rows] == header.buckets.tolist() == sorted({bucket for bucket, _ in rows})
        assert sum(count for _, count in rows) == header.entries
        assert header.header_length + sum(header.lengths.tolist()) == header.length == len(whole)
        piece.dump_piece(whole)


def _run_piece_header(data: bytes) -> None:
    """The header alone, and the room that it asks for before its checksum is looked at."""
    whole = _piece_of(data)
    with suppress(CorruptionError, UnknownFormatError):
        assert 88 <= piece.header_length(whole, file="f", offset=0) <= 88 + 64 * 2**32
    with suppress(CorruptionError, UnknownFormatError):
        header = piece.decode_header(whole, file="f", offset=0)
        assert header.header_length <= len(whole)
        ref = header.to_ref(file="f", name="n", offset=0)
        assert ref.min_bucket <= ref.max_bucket
        assert [header.index_of(bucket) for bucket in header.buckets.tolist()] == list(range(len(header.buckets)))


def _run_piece_bucket(data: bytes) -> None:
    """By ranged reads, as a job reads it, against the whole decoding."""
    whole = _piece_of(data)
    ref = piece.PieceRef(3, "f", "n", 0, len(whole), 0, 0, 0, 1, 0, 0, None)
    with suppress(CorruptionError, UnknownFormatError):
        header = piece.decode_header(whole, file="f", offset=0)
        ref = header.to_ref(file="f", name="n", offset=0)
    piece_reader._headers.clear()
    reader = piece_reader.PieceReader(typing.cast(Any, OnePiece(whole)), bytes(range(16)).hex())
    with suppress(CorruptionError, UnknownFormatError):
        for part in reader.all_parts([ref]):
            assert len(reader.read(part).digests) == part.count


def _seeds_piece() -> Iterator[bytes]:
    for number, data in enumerate(_sound_pieces()):
        yield bytes([shapes.RAW, 0]) + data
        yield bytes([shapes.BODY, 0]) + data
        for word in (2, 3, 8, 11, 12, 15, 18, 20, 22, 24, 26, 28):
            yield bytes([shapes.CHANGES, number]) + bytes([word, 0, word % 4, word])


# --- the upper package


_CONFIG = """\
source: {format: files, path: in, schema: "id long, at timestamp, user string", file_format: json}
key: id
expiry: {by: event_time, field: at, period: 24h, span: 1h, clock: arrival, lookup: own_bucket}
store: {shards: 4, memory: 1GiB, url: "rocksdb:state/x"}
trigger: 10s
sinks:
  unique: {format: parquet, path: out/unique}
  duplicate: {format: json, path: out/duplicate}
  expired: {format: csv, path: out/expired}
  error: {format: none}
"""


def _run_yaml(data: bytes) -> None:
    """No text is an error that is raised: mistakes are listed, with their places."""
    document = yaml_document.read_document(data.decode("utf-8", "replace"), "f", {"HOME": "h"})
    for problem in document.problems:
        assert problem.place.source == "f"
        str(problem)


def _run_config(data: bytes) -> None:
    """A file of any bytes, read to the end: a configuration, or all its mistakes as one ConfigError."""
    path = _scratch() / "job.yaml"
    path.write_bytes(data)
    with suppress(ConfigError):
        load.load_config(path, environment={})


def _seeds_config() -> Iterator[bytes]:
    yield _CONFIG.encode()
    for old, new in (
        ("id\n", "[id, user]\n"),
        ("24h", "9" * 5000 + "h"),
        ("long", "decimal(²,1)"),
        ("long", "array<" * 400 + "int" + ">" * 400),
        ("4", "9" * 5000),
        ("10s", "${X:-10s}"),
        ("in,", "${X},"),
        ("in,", "[" * 900 + "]" * 900 + ","),
        ("in,", "&a [*a],"),
        ("in,", "!!python/object:os.system x,"),
        ("1GiB", "1e400"),
        ("1GiB", ".inf"),
        ("4", "0x10"),
        ("by: event_time", "by: ordered"),
        ("by: event_time", "by: category"),
        ("by: event_time", "by: processing_time"),
        ("by: event_time", "by: never"),
    ):
        yield _CONFIG.replace(old, new).encode()


def _run_ddl(data: bytes) -> None:
    """Columns, and the same columns again from their printed types."""
    with suppress(ddl.DdlError):
        columns = ddl.parse_columns(data.decode("utf-8", "replace"))
        assert_typed_all(columns)
        printed = ", ".join(f"`{column.name.replace('`', '``')}` {column.type.text}" for column in columns)
        assert ddl.parse_columns(printed) == columns


def _seeds_ddl() -> Iterator[bytes]:
    yield b"user string, id long, price decimal(10,2) NOT NULL, tags array<string>, `odd name` int COMMENT 'x'"
    yield "s struct<a: int, `b``c`: map<string,array<double>>>, ² decimal(²,1)".encode()
    yield b"a " + b"array<" * 300 + b"int" + b">" * 300
    yield b"a decimal(" + b"9" * 5000 + b")"


def _run_duration(data: bytes) -> None:
    """Durations and sizes: what is read is printed so that it is read again as the same number."""
    text = data.decode("utf-8", "replace")
    with suppress(units.UnitError):
        duration = units.parse_duration(text)
        assert 0 <= duration <= units.MAX_I64
        assert units.parse_duration(units.format_duration(duration)) == duration
    with suppress(units.UnitError):
        size = units.parse_size(text)
        assert 0 <= size <= units.MAX_I64
        assert units.parse_size(units.format_size(size)) == size


def _seeds_duration() -> Iterator[bytes]:
    for text in ("90s", "24h", "1h30m", "1.5h", "500ms", "7us", "7µs", "2GiB", "1.5GB", "100B", "٣d", "9" * 30 + "d"):
        yield text.encode()
    yield b"9" * 5000 + b"h"
    yield b"0." + b"0" * 60 + b"1h"


def _run_aggregate(data: bytes) -> None:
    """An aggregate of ranges as it is typed: what is read is written so that it is read again as the same."""
    with suppress(UsageError):
        found = aggregates.parse_aggregate(data.decode("utf-8", "replace"))
        assert_typed(found)
        assert found.k >= 1
        column = "" if found.column is None else f"(`{found.column}`{f', {found.k}' if found.kind == 'top_k' else ''})"
        assert aggregates.parse_aggregate(f"{found.kind}{column}") == found


_AGGREGATES = ("count", "sum(points)", " mean ( `odd, name` ) ", "top_k(points, 3)", "top_k(p,٣)", "count()", "no(a)")


def _seeds_aggregate() -> Iterator[bytes]:
    yield from (text.encode() for text in _AGGREGATES)
    yield b"top_k(points, " + b"9" * 5000 + b")"


def _run_key(data: bytes) -> None:
    """The key of `deduper explain`: the first line declares columns, each other one is a value as it is typed."""
    declared, *texts = data.decode("utf-8", "surrogateescape").split("\n")
    try:
        columns = [column for column in ddl.parse_columns(declared) if column.type.is_scalar][:20]
    except ddl.DdlError:
        return
    with suppress(UsageError, ValueError):  # which the command makes a UsageError
        values = key_values.parse_key(texts, columns, null="null")
        kinds = [column.type for column in columns]
        for secure in (False, True):
            hi, lo = stored.key_digest(values, kinds, bytes(16), secure=secure)
            assert 0 <= hi < 2**64
            assert 0 <= lo < 2**64


def _seeds_key() -> Iterator[bytes]:
    yield b"a string, b long, c boolean\nx\n-7\ntrue"
    yield b"a decimal(10,2), b date, c timestamp, d timestamp_ntz\n1.50\n2024-12-31\n2024-12-31T23:59:59Z\n2024-12-31"
    yield b"a double, b float, c binary, d tinyint\n1e400\nnan\n0x00ff\n300"
    yield b"a decimal(38,0)\n1e999999999"
    yield b"a string\n\xff"
    yield b"a float\n1e300"
    yield b"a long\n" + b"9" * 5000
    yield b"a timestamp\n0001-01-01T00:00:00+14:00"


@cache
def _scratch() -> Path:
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _of(name: str, tree: Any) -> Callable[[], Iterator[bytes]]:
    return lambda: _three_ways(_sample(name), tree)


# --- lines of text

_JSON_LINES = json_lines.text_format(", ".join(f"c{at} {kind}" for at, kind in enumerate(json_lines.KINDS)), "UTC")


_CSV_LINES = replace(_JSON_LINES, delimiter=",")
_WEB_LINES = log_lines.log_format("combined_log", log_lines.MORE)
_SCALARS = tuple(column for column in _JSON_LINES.columns if column.kind.is_scalar)
_LOGFMT_LINES = replace(_JSON_LINES, columns=_SCALARS, log="logfmt")


def _run_lines(text: TextFormat, data: bytes) -> None:
    """Lines of all kinds of columns: plain ones have their exact values, each other one is a record or malformed."""
    starts, ends, rest = block.lines(data + b"\n")
    assert rest == len(data) + 1
    assert differential.differences(data + b"\n", starts, ends, text).differences == []
    parsed = block.parse(data, starts, ends, text, range(len(text.columns)))
    for column in parsed.columns.values():
        column.validate(full=True)


def _seeds_lines(made: Any, text: TextFormat) -> Iterator[bytes]:
    rng = random.Random(1)
    for _ in range(20):
        yield made.ordinary_line(text, rng)
        yield made.odd_line(text, rng)
    yield b"\n".join(made.samples(text, 2, 3))


TARGETS: dict[str, Target] = {
    "framed": Target((framing,), _run_framed, _seeds_framed),
    "manifest": Target((manifest,), _run_manifest, _of("manifest", json.loads(_body("manifest")))),
    "record": Target((codec,), _run_record, _seeds_record),
    "intent": Target((marks,), _run_intent, _of("intent", msgpack.unpackb(_body("intent")))),
    "mark": Target((marks,), _run_mark, _of("published", msgpack.unpackb(_body("published")))),
    "sources": Target((sources_file,), _run_sources, _of("sources", [[0] * 5] * _COUNT)),
    "archive": Target((sources_archive,), _run_archive, _seeds_archive),
    "judged": Target((judged_files,), _run_judged, _seeds_judged),
    "heartbeat": Target(
        (heartbeat,),
        _run_heartbeat,
        lambda: _three_ways(framing.frame(heartbeat.MAGIC, 1, msgpack.packb(_BEAT)), _BEAT),
    ),
    "ended": Target(
        (last_end,),
        _run_end,
        lambda: _three_ways(framing.frame(last_end.MAGIC, 1, msgpack.packb(_END)), _END),
    ),
    "profile": Target(
        (profile,),
        _run_profile,
        lambda: _three_ways(framing.frame(profile.MAGIC, 1, msgpack.packb(_PROFILE)), _PROFILE),
    ),
    "history": Target(
        (history,),
        _run_history,
        lambda: _three_ways(framing.frame(history.MAGIC, 1, msgpack.packb(_HISTORY)), _HISTORY),
    ),
    "leaks": Target(
        (leak_sample,),
        _run_leaks,
        lambda: _three_ways(framing.frame(leak_sample.MAGIC, 1, msgpack.packb(_LEAKS)), _LEAKS),
    ),
    "bloom_filter": Target((bloom_filter,), _run_filter, _seeds_filter),
    "generation": Target(
        (generation,),
        _run_generation,
        lambda: (b"\2" + shapes.replacing(at, at)[1:] for at in range(len(_GENERATION))),
    ),
    "piece": Target((piece,), _run_piece, _seeds_piece),
    "piece_header": Target((piece,), _run_piece_header, _seeds_piece),
    "piece_bucket": Target((piece, piece_reader), _run_piece_bucket, _seeds_piece),
    "yaml": Target((yaml_document,), _run_yaml, _seeds_config),
    "config": Target((load, yaml_document), _run_config, _seeds_config),
    "ddl": Target((ddl,), _run_ddl, _seeds_ddl),
    "duration": Target((units,), _run_duration, _seeds_duration),
    "aggregate": Target((aggregates,), _run_aggregate, _seeds_aggregate),
    "key": Target((key_values, digests), _run_key, _seeds_key),
    "json_lines": Target(
        (kernels, json_exact, block, values),
        partial(_run_lines, _JSON_LINES),
        partial(_seeds_lines, json_lines, _JSON_LINES),
    ),
    "csv_lines": Target(
        (kernels, csv_exact, block, values),
        partial(_run_lines, _CSV_LINES),
        partial(_seeds_lines, csv_lines, _CSV_LINES),
    ),
    "web_log_lines": Target(
        (kernels, log_exact, block, values),
        partial(_run_lines, _WEB_LINES),
        partial(_seeds_lines, log_lines, _WEB_LINES),
    ),
    "logfmt_lines": Target(
        (kernels, log_exact, block, values),
        partial(_run_lines, _LOGFMT_LINES),
        partial(_seeds_lines, log_lines, _LOGFMT_LINES),
    ),
}
