"""The bytes of a log record."""

from __future__ import annotations

import struct
from dataclasses import replace

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.framing import frame
from bucket_store.log.codec import decode_record, encode_record, record_name, record_number
from bucket_store.log.records import (
    ArchiveRef,
    ClaimRecord,
    CompactionRecord,
    DeletionRecord,
    JudgedRef,
    LogRecord,
    LogSnapshot,
    LogState,
    RebaseRecord,
    SourcesFoldRecord,
)
from bucket_store.log.state import fold_all
from tests.bucket_store.log_samples import NONCE, commit, envelope, logs, piece
from tests.tiers import examples

STATE = fold_all(
    LogState(),
    [
        envelope(0, LogSnapshot(LogState())),
        envelope(1, ClaimRecord(1, "me", 5)),
        envelope(2, commit(0)),
        envelope(3, commit(1)),
        envelope(4, DeletionRecord((piece(0, 0),), 9, 0)),
    ],
)

ARCHIVE = ArchiveRef("000000000007-000001-0a1b2c3d.archive", 2, 7, 2**63, 800)
JUDGED = JudgedRef("000000000007-000001-0a1b2c3d.judged", 7, 12, 2**63, 500)
SAMPLES = {
    "claim": envelope(1, ClaimRecord(7, "host:4711", 1_700_000_000_000_000)),
    "commit": envelope(2, commit(0), published=3, purged=2),
    "deletion": envelope(3, DeletionRecord((piece(0), piece(1)), 5, 1)),
    "compaction": envelope(3, CompactionRecord((piece(0), piece(1)), (piece(0, last=1),), 5)),
    "snapshot": envelope(5, LogSnapshot(STATE)),
    "folded snapshot": envelope(5, LogSnapshot(replace(STATE, archives=(ARCHIVE,), judged=JUDGED))),
    "fold of sources": envelope(3, SourcesFoldRecord(7, ARCHIVE, JUDGED, 5)),
    "fold of a source that counts": envelope(3, SourcesFoldRecord(7, None, None, 5)),
    "rebase": envelope(5, RebaseRecord(replace(STATE, shards=7, notes=({"action": "reshard"},)), 6)),
    "rebased snapshot": envelope(5, LogSnapshot(replace(STATE, shards=7))),
}


@pytest.mark.slow
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(records=logs())
def test_every_record_comes_back_equal(records: list[LogRecord]) -> None:
    """Round trip of all kinds with all fields, ints as ints and floats as floats."""
    for record in records:
        again = decode_record(encode_record(record), number=record.number, file="f")
        assert again == record
        assert encode_record(again) == encode_record(record)  # 1 == 1.0, but not here


def test_a_record_under_another_number_is_corruption() -> None:
    """A file that was copied or renamed to another number is not read as that number."""
    with pytest.raises(CorruptionError, match="number 1"):
        decode_record(encode_record(SAMPLES["claim"]), number=2, file="f")


def test_a_later_version_is_refused() -> None:
    """Whole, but of a release to come."""
    with pytest.raises(UnknownFormatError):
        decode_record(frame(b"BSLOGREC", 5, b"whatever"), number=1, file="f")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (1, [1, "me"]),
        (1, [1, "me", 2, 3]),
        (1, [1, "me", 2, "/a", 3]),
        (3, [[], 1, 1, 1]),
        (2, [1, 2, 3]),
        (3, [[[1, 2]], 1, 1]),
        (5, []),
        (9, [1, "me", 2]),
        (1, 7),
        (1, None),
    ],
)
def test_whole_bytes_that_say_something_else_are_corruption(kind: int, payload: object) -> None:
    """A right checksum round wrong fields, or an unknown kind, is still refused."""
    packed = msgpack.packb(payload)
    head = struct.pack("<BBIQQ16sqq", kind, 0, len(packed), 1, 1, NONCE, -1, -1)
    with pytest.raises(CorruptionError) as caught:
        decode_record(frame(b"BSLOGREC", 1, head + packed), number=1, file="f")
    assert caught.value.offset == 64


def test_a_framed_file_without_an_envelope_is_corruption() -> None:
    """Shorter than the fixed part."""
    with pytest.raises(CorruptionError, match="envelope"):
        decode_record(frame(b"BSLOGREC", 1, b"short"), number=1, file="f")


def test_names_sort_as_numbers_and_nothing_else_is_a_name() -> None:
    """20 digits; temporary files and strays are no records."""
    assert record_name(1000) == "00000000000000001000"
    assert record_number(record_name(10**19)) == 10**19
    assert [record_number(name) for name in ("", "1", ".00000000000000000001.ab.tmp", "٠" * 20, "x" * 20)] == [None] * 5
