"""The frame: what was framed comes back, anything else is named as damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucket_store.errors import CorruptionError, UnknownFormatError
from bucket_store.framing import FRAME_BYTES, frame, unframe

MAGIC = b"TESTTEST"


@given(body=st.binary(max_size=200))
def test_what_was_framed_comes_back(body: bytes) -> None:
    """Any body, the empty one too."""
    data = frame(MAGIC, 1, body)
    assert len(data) == len(body) + FRAME_BYTES
    assert unframe(data, magic=MAGIC, version=1, file="f") == body


def test_a_whole_file_of_a_later_release_is_refused_as_such() -> None:
    """Not as corruption, and never guessed."""
    with pytest.raises(UnknownFormatError, match="version 2"):
        unframe(frame(MAGIC, 2, b"body"), magic=MAGIC, version=1, file="f")


def test_another_kind_of_file_is_corruption_at_byte_0() -> None:
    """A manifest where a record should be is not read as one."""
    with pytest.raises(CorruptionError) as caught:
        unframe(frame(b"OTHERONE", 1, b"body"), magic=MAGIC, version=1, file="f")
    assert (caught.value.file, caught.value.offset, caught.value.found) == ("f", 0, b"OTHERONE")
