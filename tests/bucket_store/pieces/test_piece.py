"""The bytes of a piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucket_store.pieces.piece import (
    Entries,
    decode_bucket,
    decode_header,
    decode_piece,
    dump_piece,
    encode_piece,
    header_length,
)
from tests.tiers import examples

DATA = Path(__file__).parent.parent / "data"
STORE_ID = bytes(range(16))


def encode(entries: Entries, *, first_window: int = 7, last_window: int = 9) -> bytes:
    return encode_piece(
        entries,
        store_id=STORE_ID,
        shard=3,
        first_window=first_window,
        last_window=last_window,
        epoch=2,
        attempt=1,
    )


def small(*, floats: bool = False, columns: bool = True) -> Entries:
    """Three buckets, one of them of a negative key, all columns."""
    digests = np.array([[0, 1], [5, 2], [5, 3], [1 << 63, 0], [(1 << 64) - 1, (1 << 64) - 1]], np.uint64)
    keys, starts = np.array([-2, 0, 40]), np.array([0, 3, 4, 5])
    if not columns:
        return Entries(keys, starts, digests)
    return Entries(
        keys,
        starts,
        digests,
        expiry=np.array([-1.5, 0.0, 2.25, 1e300, -1e-300])
        if floats
        else np.array([-(1 << 63), -1, 0, 1, (1 << 63) - 1]),
        origin=np.array([0, 1, 1 << 40, -1, 9]),
        window=np.array([7, 8, 9, 7, 8], np.uint32),
        fingerprint=np.array([1, 2, 3, 4, (1 << 64) - 1], np.uint64),
    )


def assert_same(one: object, other: object) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        np.testing.assert_array_equal(one, other)  # type: ignore[arg-type]
        assert one.dtype == other.dtype  # type: ignore[attr-defined]


@st.composite
def some_entries(draw: st.DrawFn) -> Entries:
    word = st.integers(0, (1 << 64) - 1)
    long = st.integers(-(1 << 63), (1 << 63) - 1)
    digest = st.tuples(word, word).filter(any)
    buckets = draw(st.dictionaries(long, st.sets(digest, min_size=1, max_size=6), min_size=1, max_size=5))
    rows = [(bucket, key) for bucket in sorted(buckets) for key in sorted(buckets[bucket])]
    starts = np.cumsum([0, *(len(buckets[bucket]) for bucket in sorted(buckets))])
    count = len(rows)

    def column(values: st.SearchStrategy[int] | st.SearchStrategy[float], kind: type) -> np.ndarray | None:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), kind) if draw(st.booleans()) else None

    expiry = column(st.floats(allow_nan=False), np.float64) if draw(st.booleans()) else column(long, np.int64)
    return Entries(
        np.array(sorted(buckets), np.int64),
        starts.astype(np.int64),
        np.array([key for _, key in rows], np.uint64),
        expiry=expiry,
        origin=column(long, np.int64),
        window=column(st.integers(0, (1 << 32) - 1), np.uint32),
        fingerprint=column(word, np.uint64),
    )


@settings(max_examples=examples(60))
@given(some_entries())
def test_what_is_encoded_comes_back(entries: Entries) -> None:
    """Every column of every bucket, and the header's own fields."""
    data = encode(entries)
    header, buckets = decode_piece(data, file="f", offset=100)
    assert (header.store_id, header.shard, header.epoch, header.attempt) == (STORE_ID, 3, 2, 1)
    assert (header.first_window, header.last_window) == (7, 9)
    assert (header.entries, header.length) == (len(entries.digests), len(data))
    assert_same(header.buckets, entries.bucket_keys)
    for index, bucket in enumerate(buckets):
        part = slice(int(entries.bucket_starts[index]), int(entries.bucket_starts[index + 1]))
        assert header.index_of(bucket.bucket) == index
        assert_same(bucket.digests, entries.digests[part])
        for name in ("expiry", "origin", "window", "fingerprint"):
            column = getattr(entries, name)
            assert_same(getattr(bucket, name), None if column is None else column[part])
        if entries.expiry is not None and header.min_expiry is not None and header.max_expiry is not None:
            assert header.min_expiry[index] == entries.expiry[part].min()
            assert header.max_expiry[index] == entries.expiry[part].max()


def test_a_bucket_is_read_alone() -> None:
    """The header and one block are enough; the header says how much to fetch for itself."""
    data = encode(small())
    length = header_length(data[:80], file="f", offset=0)
    header = decode_header(data[:length], file="f", offset=0)
    assert header.header_length == length
    assert header.index_of(1) is None
    index = header.index_of(40)
    assert index == 2
    start, size = header.block_range(index)
    bucket = decode_bucket(header, index, data[start : start + size], file="f", offset=0)
    assert bucket.digests.tolist() == [[(1 << 64) - 1, (1 << 64) - 1]]


def test_reference_says_what_the_piece_holds() -> None:
    """A reference is made of the header."""
    ref = decode_header(encode(small()), file="f", offset=0).to_ref(file="f", name="n", offset=64)
    assert (ref.min_bucket, ref.max_bucket, ref.max_expiry, ref.entries) == (-2, 40, (1 << 63) - 1, 5)
    plain = decode_header(encode(small(columns=False)), file="f", offset=0).to_ref(file="f", name="n", offset=0)
    assert plain.max_expiry is None


@pytest.mark.parametrize("name", ["piece-v1-all-columns", "piece-v1-digests", "piece-v1-float"])
def test_pieces_of_version_1_stay_readable(name: str) -> None:
    """The committed bytes give the committed text, and today's encoder gives the same bytes."""
    data = (DATA / f"{name}.bin").read_bytes()
    assert dump_piece(data) == (DATA / f"{name}.txt").read_text()
    assert data == encode(small(floats=name.endswith("float"), columns=not name.endswith("digests")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digests": np.zeros((0, 2), np.uint64)}, "at least one entry"),
        ({"digests": np.array([[0, 1], [5, 3], [5, 2], [1, 0], [1, 1]], np.uint64)}, "do not ascend inside"),
        ({"digests": np.array([[0, 1], [0, 1], [5, 2], [1, 0], [1, 1]], np.uint64)}, "do not ascend inside"),
        ({"digests": np.array([[0, 1], [5, 2], [5, 3], [0, 0], [1, 1]], np.uint64)}, "empty slot"),
        ({"bucket_keys": np.array([0, 0, 40])}, "bucket keys"),
        ({"bucket_starts": np.array([0, 3, 3, 5])}, "do not split"),
        ({"bucket_starts": np.array([0, 3, 4])}, "do not split"),
        ({"origin": np.arange(4)}, "column origin"),
        ({"expiry": np.arange(5, dtype=np.int32)}, "column expiry"),
    ],
)
def test_wrong_entries_are_refused_before_they_are_bytes(change: dict[str, np.ndarray], message: str) -> None:
    """A fault of the caller must not become durable."""
    entries = small()
    fields = {name: getattr(entries, name) for name in Entries.__slots__} | change
    with pytest.raises(ValueError, match=message):
        encode(Entries(**fields))
