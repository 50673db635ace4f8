"""The manifest: written once, read whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from bucket_store.errors import CorruptionError, StoreError, StoreMissingError, UnknownFormatError
from bucket_store.framing import frame
from bucket_store.log.manifest import (
    MAGIC,
    Manifest,
    decode_manifest,
    encode_manifest,
    new_manifest,
    place_manifest,
    read_manifest,
)
from bucket_store.places.local import local_place
from tests.tiers import examples

MANIFEST = Manifest("5" * 32, "1" * 16, bytes(range(16)), {"key": ["user", "id"], "shards": 4}, 1000, 17)


@pytest.mark.slow
@example_settings(max_examples=examples(30))
@given(
    settings=st.dictionaries(
        st.text("abé", max_size=3), st.recursive(st.none() | st.integers(-9, 9) | st.text("abé"), st.lists), max_size=3
    ),
    salt=st.binary(min_size=16, max_size=16),
)
def test_a_manifest_comes_back_equal(settings: dict[str, object], salt: bytes) -> None:
    """Round trip by property."""
    manifest = Manifest("5" * 32, "1" * 16, salt, settings, 1000, 17)
    assert decode_manifest(encode_manifest(manifest), file="f") == manifest


@pytest.mark.parametrize("body", [b"{}", b"[]", b"{", b'{"salt": 3}', b'{"salt": "00", "more": 1}', b"\xff"])
def test_whole_bytes_that_are_no_manifest_are_corruption(body: bytes) -> None:
    """A right checksum round something else."""
    with pytest.raises(CorruptionError, match="fields"):
        decode_manifest(frame(MAGIC, 1, body), file="m")


def test_a_later_version_is_refused() -> None:
    """Not guessed."""
    with pytest.raises(UnknownFormatError):
        decode_manifest(frame(MAGIC, 2, b"{}"), file="m")


def test_two_new_stores_share_nothing() -> None:
    """Identity, incarnation and salt are random, of the agreed sizes, and the salt is in no repr."""
    one, two = (new_manifest({}, snapshot_every=2, created_us=1) for _ in range(2))
    assert (one.store_id, one.incarnation, one.salt) != (two.store_id, two.incarnation, two.salt)
    assert (len(bytes.fromhex(one.store_id)), len(bytes.fromhex(one.incarnation)), len(one.salt)) == (16, 8, 16)
    assert "salt" not in repr(one)


@pytest.mark.parametrize(("settings", "every"), [({}, 1), ({}, 0), ({"a": (1, 2)}, 2), ({1: "a"}, 2)])
def test_what_could_not_be_read_again_is_refused(settings: dict[str, object], every: int) -> None:
    """Settings that JSON would change, or no number left for a commit."""
    with pytest.raises(ValueError, match=r"must be|survive"):
        new_manifest(settings, snapshot_every=every, created_us=1)


def test_the_manifest_is_placed_once(tmp_path: Path) -> None:
    """None is StoreMissingError, a second one StoreError."""
    for missing in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreMissingError):
            read_manifest(local_place(missing))
    place_manifest(local_place(tmp_path), MANIFEST)
    with pytest.raises(StoreError, match="already"):
        place_manifest(local_place(tmp_path), new_manifest({}, snapshot_every=2, created_us=1))
    assert read_manifest(local_place(tmp_path)) == MANIFEST
    with pytest.raises(StoreMissingError):
        read_manifest(local_place(tmp_path / "manifest"))
