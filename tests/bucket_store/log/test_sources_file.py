"""A window's sources file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.framing import frame
from bucket_store.log.records import ArchiveRef, JudgedRef, LogState, SourcesRef
from bucket_store.log.sources_archive import left_files, remove_left
from bucket_store.log.sources_file import (
    MAGIC,
    SourcePartition,
    decode_sources,
    encode_sources,
    read_sources,
    remove_unnamed,
    write_sources,
)
from bucket_store.places.local import local_place

FILE = SourcePartition("in/a.json", 1_700_000_000_000_000, 0, 4096, 17, bytes(range(16)))
TOPIC = SourcePartition("clicks-3", "topic-id", 2**40, 2**40 + 5, 5, bytes(16))

partitions_of_a_window = st.lists(
    st.builds(
        SourcePartition,
        st.text("aé/", max_size=4),
        st.text("aé", max_size=4) | st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.binary(min_size=16, max_size=16),
    ),
    max_size=4,
).map(tuple)


def write(root: Path, window: int, *partitions: SourcePartition, epoch: int = 1) -> SourcesRef:
    return write_sources(local_place(root), window=window, epoch=epoch, attempt=0, partitions=partitions)


@given(partitions=partitions_of_a_window, window=st.integers(0, 2**63))
def test_source_partitions_come_back_equal(partitions: tuple[SourcePartition, ...], window: int) -> None:
    """Round trip by property, in the order of the ordinals; none at all too."""
    assert decode_sources(encode_sources(window, partitions), window=window, file="f") == partitions


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(8) + b"\x05\0\0\0" + bytes(16),
        bytes(8) + b"\x01\0\0\0" + bytes(16) + msgpack.packb([]),
        bytes(8) + b"\x01\0\0\0" + bytes(16) + msgpack.packb([["name", 1, 2, 3]]),
        bytes(8) + b"\x01\0\0\0" + bytes(16) + msgpack.packb(7),
        bytes(8) + b"\x01\0\0\0" + bytes(16),
    ],
)
def test_whole_bytes_that_say_something_else_are_corruption(body: bytes) -> None:
    """A right checksum round too few digests or other fields."""
    with pytest.raises(CorruptionError):
        decode_sources(frame(MAGIC, 1, body), window=0, file="f")


def test_another_windows_file_and_a_later_version_are_refused() -> None:
    """Neither is read as this window's."""
    with pytest.raises(CorruptionError, match="window 4"):
        decode_sources(encode_sources(3, (FILE,)), window=4, file="f")
    with pytest.raises(UnknownFormatError):
        decode_sources(frame(MAGIC, 2, b""), window=3, file="f")


def test_a_digest_of_another_length_is_refused() -> None:
    """Before anything is written."""
    with pytest.raises(ValueError, match="16 bytes"):
        encode_sources(3, (replace(FILE, digest=b"short"),))


def test_a_written_file_is_what_its_reference_says(tmp_path: Path) -> None:
    """Name, count and length; and it is read back through the reference."""
    ref = write(tmp_path, 3, FILE, TOPIC)
    path = tmp_path / "sources" / "000000000003-000001-000"
    assert (ref.name, ref.count, ref.length) == (path.name, 2, path.stat().st_size)
    assert read_sources(local_place(tmp_path), 3, ref) == (FILE, TOPIC)
    with pytest.raises(FileExistsError):
        write(tmp_path, 3, FILE)


def test_a_file_that_is_not_the_one_its_record_names_is_corruption(tmp_path: Path) -> None:
    """Missing, cut off, empty, or another whole file in its place."""
    ref = write(tmp_path, 3, FILE)
    path = tmp_path / "sources" / ref.name
    for bad in (encode_sources(3, (TOPIC,)), path.read_bytes()[:-1], b"", None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
        with pytest.raises(CorruptionError) as caught:
            read_sources(local_place(tmp_path), 3, ref)
        assert caught.value.file == str(path)


def test_what_a_later_state_does_not_name_is_removed(tmp_path: Path) -> None:
    """Windows' files from the front, archives, and the table that another one replaces; safe to repeat."""
    refs = {window: write(tmp_path, window, FILE) for window in range(4)}
    archive = ArchiveRef("old.archive", 0, 3, 1, 1)
    before = LogState(sources=refs, archives=(archive,), judged=JudgedRef("old.judged", 3, 1, 1, 1))
    after = LogState(sources={window: refs[window] for window in (2, 3)}, judged=JudgedRef("new.judged", 1, 1, 1, 1))
    left = left_files(before, after)
    assert [str(path) for path in left] == [
        "folded/old.archive",
        f"sources/{refs[0].name}",
        f"sources/{refs[1].name}",
        "folded/old.judged",
    ]
    for _ in range(2):
        remove_left(local_place(tmp_path), left)
        assert sorted(path.name for path in (tmp_path / "sources").iterdir()) == [refs[2].name, refs[3].name]
    assert left_files(before, before) == []
    assert left_files(LogState(), before) == []


def test_only_unnamed_files_of_lower_epochs_are_removed(tmp_path: Path) -> None:
    """Named ones, those of the own epoch, and what is none of ours stay; temporary ones of old epochs go."""
    assert remove_unnamed(local_place(tmp_path), state=LogState(), below_epoch=9) == []
    named, orphan, own = write(tmp_path, 0, FILE), write(tmp_path, 1, FILE), write(tmp_path, 1, FILE, epoch=2)
    litter = ".000000000007-000001-000.ab.tmp"
    (tmp_path / "folded").mkdir()
    names = {kind: f"000000000009-{epoch:06d}-0a1b2c3d.{kind}" for kind, epoch in (("archive", 1), ("judged", 1))}
    kept = [names["archive"], "000000000009-000002-0a1b2c3d.judged"]
    for name in (litter, "notes.txt"):
        (tmp_path / "sources" / name).write_bytes(b"")
    for name in (*names.values(), *kept):
        (tmp_path / "folded" / name).write_bytes(b"")
    state = LogState(sources={0: named}, archives=(ArchiveRef(names["archive"], 0, 9, 1, 1),))
    removed = remove_unnamed(local_place(tmp_path), state=state, below_epoch=2)
    assert removed == [litter, orphan.name, names["judged"]]
    assert sorted(path.name for path in (tmp_path / "sources").iterdir()) == sorted([named.name, own.name, "notes.txt"])
    assert sorted(path.name for path in (tmp_path / "folded").iterdir()) == sorted(kept)
