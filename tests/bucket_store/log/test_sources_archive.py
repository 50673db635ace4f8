"""The sources of many windows in one file, and who reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.errors import CorruptionError
from bucket_store.log.records import ArchiveRef, LogState
from bucket_store.log.sources_archive import (
    SourcesReader,
    archive_ref,
    decode_archive,
    encode_archive,
    files_of,
)
from bucket_store.log.sources_file import FOLDED_DIRECTORY, SourcePartition, write_sources
from bucket_store.places.local import local_place
from tests.bucket_store.log.test_sources_file import FILE, TOPIC, partitions_of_a_window


@given(st.dictionaries(st.integers(0, 2**40), partitions_of_a_window, min_size=1, max_size=4))
def test_an_archive_gives_what_it_was_made_of(windows: dict[int, tuple[SourcePartition, ...]]) -> None:
    """Round trip, whatever the windows and partitions."""
    assert decode_archive(encode_archive(windows), file="f") == windows


def archived(root: Path, windows: dict[int, tuple[SourcePartition, ...]], name: str) -> ArchiveRef:
    data = encode_archive(windows)
    (root / FOLDED_DIRECTORY).mkdir(exist_ok=True)
    (root / FOLDED_DIRECTORY / name).write_bytes(data)
    return archive_ref(name, windows, data)


def test_a_reader_finds_each_window_wherever_it_lies(tmp_path: Path) -> None:
    """In an archive, in a file of its own, or forgotten; files are named as they lie."""
    first = archived(tmp_path, {3: (FILE,), 4: (TOPIC, FILE)}, "a.archive")
    second = archived(tmp_path, {5: (TOPIC,), 7: ()}, "b.archive")
    own = write_sources(local_place(tmp_path), window=8, epoch=1, attempt=0, partitions=(FILE,))
    state = LogState(archives=(first, second), sources={8: own}, next_window=9)
    reader = SourcesReader(local_place(tmp_path), state)
    assert [reader.of(window) for window in range(10)] == [
        *(None, None, None, (FILE,), (TOPIC, FILE)),
        *((TOPIC,), None, (), (FILE,), None),
    ]
    assert reader.archived(first) == [3, 4]
    assert reader.file(4).local == tmp_path / "folded" / "a.archive"
    assert reader.file(8).local == tmp_path / "sources" / own.name
    assert {path.name for path in files_of(state)} == {"a.archive", "b.archive", own.name}


def test_an_archive_that_is_not_the_named_one_is_corruption(tmp_path: Path) -> None:
    """Missing, cut off, or another whole archive in its place."""
    ref = archived(tmp_path, {3: (FILE,)}, "a.archive")
    path = tmp_path / FOLDED_DIRECTORY / ref.name
    for bad in (encode_archive({3: (TOPIC,)}), path.read_bytes()[:-1], None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
        with pytest.raises(CorruptionError) as caught:
            SourcesReader(local_place(tmp_path), LogState(archives=(ref,))).of(3)
        assert caught.value.file == str(path)
