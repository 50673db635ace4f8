"""What a slot's committed offset says about a window, and what it cannot say any more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduper.errors import IntegrityError
from deduper.sinks.publish_state import REMEMBERED, Position, PublishDecision, after, decision

BROKERS_DEFAULT_METADATA_BYTES = 4096


def published(windows: list[int]) -> Position | None:
    """A slot that has published these windows; a record's checksum is its window plus 1000."""
    position = None
    for window in windows:
        position = after(position, window, window + 1000)
    return position


def judged(
    position: Position | None, window: int, checksum: int | None = None, *, forgotten: bool = False
) -> PublishDecision:
    """The verdict on a window; its record has the checksum it was published with unless another is given."""
    checksum = window + 1000 if checksum is None else checksum
    return decision(position, window, checksum, may_be_forgotten=forgotten, where="here")


@given(st.sets(st.integers(0, 1 << 62), min_size=1, max_size=150).map(sorted), st.integers(0, (1 << 64) - 1))
def test_metadata_is_read_as_it_was_written(windows: list[int], checksum: int) -> None:
    """Whatever windows and checksums; never more than brokers take by default."""
    position = after(published(windows[:-1]), windows[-1], checksum)
    assert Position.of(position.offset, position.metadata, "here") == position
    assert len(position.metadata) < BROKERS_DEFAULT_METADATA_BYTES
    assert position.offset == windows[-1] + 1


@pytest.mark.parametrize(
    ("offset", "metadata"),
    [
        (8, ""),
        (8, "1"),
        (8, "2 7:00000000000000ff"),
        (8, "1 7:ff"),
        (8, "1 6:00000000000000ff"),
        (8, "1 8:00000000000000ff 7:00000000000000ff"),
        (8, "1 7:00000000000000ff "),
        (8, "seen by hand"),
    ],
)
def test_an_offset_that_is_not_ours(offset: int, metadata: str) -> None:
    """Another tool's, another version's or a damaged one is refused, not guessed."""
    with pytest.raises(IntegrityError, match="another program commits to this group"):
        Position.of(offset, metadata, "here")


def test_verdicts() -> None:
    """Both sides of every edge.

    published 3 . 5 6:    0  1  2  3  4  5  6  7  8
                          ?  ?  ?  p  x  p  p  -  -     ? unknown  p published  x passed over  - to publish
    """
    position = published([3, 5, 6])
    found = {window: judged(position, window) for window in (0, 2, 3, 5, 6, 7, 8)}
    assert found == {
        0: PublishDecision.UNKNOWN,
        2: PublishDecision.UNKNOWN,
        3: PublishDecision.PUBLISHED,
        5: PublishDecision.PUBLISHED,
        6: PublishDecision.PUBLISHED,
        7: PublishDecision.PUBLISH,
        8: PublishDecision.PUBLISH,
    }
    with pytest.raises(IntegrityError, match="passed over when window 6 was published"):
        judged(position, 4)
    for window in (3, 5, 6):
        with pytest.raises(IntegrityError, match=f"window {window} was published from the record with checksum"):
            judged(position, window, 7)


def test_no_offset() -> None:
    """Never published, unless it may have been forgotten."""
    assert judged(None, 0) is PublishDecision.PUBLISH
    assert judged(None, 0, forgotten=True) is PublishDecision.UNKNOWN
    # An offset that is there is not forgotten, however old the window.
    assert judged(published([3]), 4, forgotten=True) is PublishDecision.PUBLISH


def test_only_the_last_windows_are_remembered() -> None:
    """64 of them: the oldest is known, the one before it is not."""
    position = published(list(range(100)))
    assert judged(position, 100 - REMEMBERED) is PublishDecision.PUBLISHED
    assert judged(position, 100 - REMEMBERED - 1) is PublishDecision.UNKNOWN


def test_the_offset_never_goes_back() -> None:
    """An old window that the operator has published again leaves the newer ones published."""
    position = after(published([5, 6]), 2, 1002)
    assert position.offset == 7
    assert judged(position, 2) is PublishDecision.PUBLISHED
    assert judged(position, 6) is PublishDecision.PUBLISHED
