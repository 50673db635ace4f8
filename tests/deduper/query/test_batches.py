"""What a batch is to its store: each row of the table in SEMANTICS.md."""

from __future__ import annotations

import pytest

from deduper.errors import NewCheckpointError, OldCheckpointError, exit_code_of
from deduper.query.batches import Answer, answer

ABOUT = {"planned_ms": 1_000, "name": "clicks", "next_window": 9, "refuses_new": False}


@pytest.mark.parametrize("batch_id", [0, 7])
def test_a_first_query_is_judged(batch_id: int) -> None:
    """Whatever batch it begins with: the Deduper may be new to it."""
    assert answer({}, "q", batch_id, **ABOUT) == (Answer.JUDGE, None)


def test_the_next_batch_is_judged_and_the_last_is_not() -> None:
    """Other queries make no difference."""
    known = {"p": (40, 1), "q": (7, 1_000), "r": (2, 1)}
    assert answer(known, "q", 8, **ABOUT) == (Answer.JUDGE, None)
    assert answer(known, "q", 7, **ABOUT) == (Answer.NOTHING, None)


def test_batches_that_never_came_are_named() -> None:
    """A function that does not pass on every batch, or a store that was put back."""
    found, warning = answer({"q": (7, 900)}, "q", 11, **ABOUT)
    assert found is Answer.JUDGE
    assert warning is not None
    assert "batches 8 to 10 of query q never came here" in warning


def test_an_older_checkpoint_stops_with_what_to_do() -> None:
    """A batch before the last one may hold other rows than then."""
    with pytest.raises(
        OldCheckpointError, match="asks for batch 6 of query q, and the store has judged batch 7"
    ) as told:
        answer({"q": (7, 1_000)}, "q", 6, **ABOUT)
    assert "Put the newest checkpoint back" in str(told.value)
    assert exit_code_of(told.value) == 4


def test_a_batch_that_was_planned_anew_is_of_an_older_checkpoint() -> None:
    """It may hold rows that came since. An earlier time too: clocks are set back."""
    for planned_ms in (999, 1_001):
        with pytest.raises(OldCheckpointError, match="has planned batch 7 of query q anew") as told:
            answer({"q": (7, planned_ms)}, "q", 7, **ABOUT)
        assert "Put the newest checkpoint back" in str(told.value)


@pytest.mark.parametrize(("then", "now"), [(None, 1_000), (1_000, None), (None, None)])
def test_a_batch_of_unknown_time_is_a_warning_when_it_comes_again(then: int | None, now: int | None) -> None:
    """Of a release of Spark that does not say it; rows that are no query's have no time."""
    found, warning = answer({"q": (7, then)}, "q", 7, **{**ABOUT, "planned_ms": now})
    assert found is Answer.NOTHING
    assert warning is not None
    assert "does not say when it was planned" in warning
    assert answer({"": (7, None)}, "", 7, **{**ABOUT, "planned_ms": None}) == (Answer.NOTHING, None)


def test_a_new_checkpoint_is_named_or_refused() -> None:
    """The three ways out are in the message."""
    found, warning = answer({"p": (40, 1), "q": (7, 1)}, "new", 0, **ABOUT)
    assert found is Answer.JUDGE
    assert warning is not None
    for part in ("batch 7 of query q", "Go on", "start the source where the store stands", "another store"):
        assert part in warning
    with pytest.raises(NewCheckpointError, match="another store"):
        answer({"q": (7, 1)}, "new", 0, **{**ABOUT, "refuses_new": True})
    assert answer({}, "new", 0, **{**ABOUT, "refuses_new": True}) == (Answer.JUDGE, None)
