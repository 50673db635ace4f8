"""The file of the leak meter's sample: one layout for ever, whole or refused."""

from __future__ import annotations

from pathlib import Path
from pprint import pformat

import pytest

from bucket_store import wire
from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.framing import frame
from bucket_store.log.leak_sample import FILE_NAME, MAGIC, read_leak_sample, write_leak_sample
from bucket_store.places.local import local_place

FILES = Path(__file__).parents[2] / "data" / "leaks_v1"


def test_a_file_of_version_1_says_what_it_said(tmp_path: Path) -> None:
    """Read it is the dump beside it, written again it is the same bytes."""
    sample = read_leak_sample(local_place(FILES))
    assert sample is not None
    assert pformat(sample, width=118) + "\n" == (FILES / "leaks.txt").read_text()
    write_leak_sample(local_place(tmp_path), sample)
    assert (tmp_path / FILE_NAME).read_bytes() == (FILES / FILE_NAME).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_absent_later_and_wrong(tmp_path: Path) -> None:
    """No file is none; a later version and a body with other fields are errors of their own."""
    assert read_leak_sample(local_place(tmp_path)) is None
    sample = read_leak_sample(local_place(FILES))
    (tmp_path / FILE_NAME).write_bytes(frame(MAGIC, 2, wire.encode(sample)))
    with pytest.raises(UnknownFormatError):
        read_leak_sample(local_place(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(frame(MAGIC, 1, b"\x91\x07"))
    with pytest.raises(CorruptionError, match="the fields of a sample"):
        read_leak_sample(local_place(tmp_path))
