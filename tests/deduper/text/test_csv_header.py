"""The header of a CSV file: what counts as that of the declared columns, and the words for what does not."""

from __future__ import annotations

import pytest

from deduper.text.csv_header import header_fault

_EXPECTED = "the header id, user is expected; "


@pytest.mark.parametrize("line", [b"id,user", b"ID, User ", b'"id","user"\r', b"id", b'"id" ,user'])
def test_the_declared_names_in_their_order(line: bytes) -> None:
    """In any case, quoted or not; the columns at the end may be missing."""
    assert header_fault(line, ["id", "user"], ",") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"user,id", "the first line is user, id"),
        (b"id,user,more", "the first line is id, user, more"),
        (b"id,name", 'the first line has fields like "aa", "aaaa"'),  # half of the names: it may be a record
        (b"7,zoe", 'the first line has fields like "9", "aaa"'),
        (b"id;user", 'the first line has fields like "aa;aaaa"'),
        (b"", "the first line is empty"),
        (b" \r", "the first line is empty"),
        (b"\xff\xfei\x00", "the first line is not UTF-8"),
        (b'"id,user', "in the first line a quote is never closed"),
    ],
)
def test_any_other_line(line: bytes, said: str) -> None:
    """What is expected and what was found; of a line that is a record, no value."""
    fault = header_fault(line, ["id", "user"], ",")
    assert fault == _EXPECTED + said


def test_many_names_and_long_ones() -> None:
    """The text has a bound."""
    names = [f"column_{number}" for number in range(1000)]
    fault = header_fault(",".join(reversed(names)).encode(), names, ",")
    assert fault is not None
    assert fault.count("and 980 more") == 2
    assert len(header_fault(b"id," + b"x" * 10**6, ["id", "user"], ",") or "") < 200


def test_a_file_without_columns_of_its_own() -> None:
    """All of them stand in the names of its folders: its lines count for nothing but their number."""
    assert header_fault(b"anything", [], ",") is None
