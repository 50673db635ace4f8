"""What a batch is to its store: each row of the table in SEMANTICS.md."""

from __future__ import annotations

import pytest

from deduper.errors import NewCheckpointError, OldCheckpointError, exit_code_of
from deduper.query.batches import Answer, answer

ABOUT = {"name": "clicks", "next_window": 9, "refuses_new": False}


@pytest.mark.parametrize("batch_id", [0, 7])
def test_a_first_query_is_judged(batch_id: int) -> None:
    """Whatever batch it begins with: the Deduper may be new to it."""
    assert answer({}, "q", batch_id, **ABOUT) == (Answer.JUDGE, None)


def test_the_next_batch_is_judged_and_the_last_is_not() -> None:
    """Other queries make no difference."""
    known = {"p": 40, "q": 7, "r": 2}
    assert answer(known, "q", 8, **ABOUT) == (Answer.JUDGE, None)
    assert answer(known, "q", 7, **ABOUT) == (Answer.NOTHING, None)


def test_batches_that_never_came_are_named() -> None:
    """A function that does not pass on every batch, or a store that was put back."""
    found, warning = answer({"q": 7}, "q", 11, **ABOUT)
    assert found is Answer.JUDGE
    assert warning is not None
    assert "batches 8 to 10 of query q never came here" in warning


def test_an_older_checkpoint_stops_with_what_to_do() -> None:
    """A batch before the last one may hold other rows than then."""
    with pytest.raises(
        OldCheckpointError, match="asks for batch 6 of query q, and the store has judged batch 7"
    ) as told:
        answer({"q": 7}, "q", 6, **ABOUT)
    assert "Put the newest checkpoint back" in str(told.value)
    assert exit_code_of(told.value) == 4


def test_a_new_checkpoint_is_named_or_refused() -> None:
    """The three ways out are in the message."""
    found, warning = answer({"p": 40, "q": 7}, "new", 0, **ABOUT)
    assert found is Answer.JUDGE
    assert warning is not None
    for part in ("batch 7 of query q", "Go on", "start the source where the store stands", "another store"):
        assert part in warning
    with pytest.raises(NewCheckpointError, match="another store"):
        answer({"q": 7}, "new", 0, **{**ABOUT, "refuses_new": True})
    assert answer({}, "new", 0, **{**ABOUT, "refuses_new": True}) == (Answer.JUDGE, None)
