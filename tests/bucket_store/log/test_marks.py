"""Intents and published marks: read whole, or absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.errors import UnknownFormatError
from bucket_store.framing import frame
from bucket_store.log.marks import (
    INTENT_MAGIC,
    PUBLISHED_MAGIC,
    Intent,
    Published,
    decode_intent,
    encode_intent,
    prepare_published,
    read_intents,
    read_published,
    remove_intents,
    write_intent,
)
from bucket_store.places.local import local_place
from tests.bucket_store.faulty_files import FaultyFiles
from tests.bucket_store.log_samples import points

INTENT = Intent(3, 2, "query", 9, (bytes(16), bytes(range(16))), 1_700_000_000_000_000, -5, 12, "5e77")


@given(
    partitions=st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
    latest=points,
    window=st.integers(0, 2**40),
    query=st.text("aé"),
)
def test_an_intent_comes_back_equal(partitions: Any, latest: Any, window: int, query: str) -> None:
    """Round trip by property, ints as ints and floats as floats."""
    intent = replace(INTENT, partitions=partitions, latest_point=latest, window=window, query_id=query)
    again = decode_intent(encode_intent(intent), file="f")
    assert again == intent
    assert repr(again) == repr(intent)


@pytest.mark.parametrize("body", [b"", b"\x05", b"\x90", b"\x92\x01\x02", b"\x92\xa1a\xa1a", b"\x91\x01", b"\xc1"])
def test_whole_bytes_that_are_no_mark_are_absent(tmp_path: Path, body: bytes) -> None:
    """A right checksum round something else."""
    (tmp_path / "published").write_bytes(frame(PUBLISHED_MAGIC, 1, body))
    assert read_published(local_place(tmp_path / "published")) is None
    assert decode_intent(frame(INTENT_MAGIC, 1, body), file="f") is None


def test_marks_of_a_later_release_are_refused(tmp_path: Path) -> None:
    """They are not damaged, so they are not absent."""
    with pytest.raises(UnknownFormatError):
        decode_intent(frame(INTENT_MAGIC, 2, b""), file="f")
    (tmp_path / "published").write_bytes(frame(PUBLISHED_MAGIC, 3, b""))
    with pytest.raises(UnknownFormatError):
        read_published(local_place(tmp_path / "published"))


def test_the_newest_intent_of_each_epoch_is_found(tmp_path: Path) -> None:
    """Replaced within an epoch, ascending over epochs, without damaged ones, without strays and misplaced ones."""
    assert read_intents(local_place(tmp_path)) == []
    write_intent(local_place(tmp_path), replace(INTENT, epoch=12))
    write_intent(local_place(tmp_path), INTENT)
    later = replace(INTENT, window=4)
    write_intent(local_place(tmp_path), later)
    (tmp_path / "intents" / "000005").write_bytes(b"torn")
    (tmp_path / "intents" / "000006").write_bytes(encode_intent(INTENT))
    (tmp_path / "intents" / ".000007.ab.tmp").write_bytes(encode_intent(INTENT))
    assert read_intents(local_place(tmp_path)) == [later, replace(INTENT, epoch=12)]
    remove_intents(local_place(tmp_path), below_epoch=12)
    remove_intents(local_place(tmp_path), below_epoch=12)
    assert read_intents(local_place(tmp_path)) == [replace(INTENT, epoch=12)]


def test_intents_that_go_away_meanwhile_are_absent(tmp_path: Path) -> None:
    """Another start may be cleaning up."""
    write_intent(local_place(tmp_path), INTENT)

    def meanwhile(index: int, name: str, path: Path) -> None:
        if name == "read":
            path.unlink()

    files: Any = FaultyFiles(meanwhile)  # type: ignore[arg-type]
    assert read_intents(local_place(tmp_path, files)) == []


def test_marks_are_replaced_whole_and_not_synced(tmp_path: Path) -> None:
    """A small batch must not drown in syncs: after the directory is there, an intent and a mark sync nothing."""
    path = tmp_path / "published"
    assert read_published(local_place(path)) is None
    write_intent(local_place(tmp_path), INTENT)
    files: Any = FaultyFiles()
    write_intent(local_place(tmp_path, files), INTENT)
    for window in (3, 4):
        prepare_published(local_place(path, files), Published("ab", window, 1)).put()
    assert read_published(local_place(path)) == Published("ab", 4, 1)
    assert {name for name, _ in files.calls} == {"write_file", "replace"}
    assert sorted(child.name for child in tmp_path.iterdir()) == ["intents", "published"]


def test_a_mark_that_a_lower_epoch_prepared_replaces_nothing(tmp_path: Path) -> None:
    """Who slept before the rename finds its mark gone; a start that slept removes none of a later epoch."""
    path = tmp_path / "published"
    sleeper = prepare_published(local_place(path), Published("ab", 3, 1))
    elsewhere = prepare_published(local_place(tmp_path / "other"), Published("ab", 3, 1))
    owner = prepare_published(local_place(path), Published("ab", 9, 3))
    local_place(path).remove_prepared(below_epoch=2)
    with pytest.raises(FileNotFoundError):
        sleeper.put()
    owner.put()
    assert read_published(local_place(path)) == Published("ab", 9, 3)
    elsewhere.put()
    assert read_published(local_place(tmp_path / "other")) == Published("ab", 3, 1)
