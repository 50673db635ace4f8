"""Which merges run at once on a cluster."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deduper.spark.placing import Executor
from deduper.window.jobs.merges import rounds

ONE, OTHER = Executor("0", "a"), Executor("1", "a")


def test_each_executor_has_one_merge_at_a_time() -> None:
    """A shard without a place yet waits for no other place; without any place there is one merge a round."""
    assert list(rounds([0, 1, 2, 3], [ONE, ONE, OTHER])) == [([0, 2, 3], [ONE, OTHER, None]), ([1], [ONE])]
    assert list(rounds([5, 6], [])) == [([0], [None]), ([1], [None])]
    assert list(rounds([], [ONE])) == []


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.sampled_from([ONE, OTHER, None]), max_size=8))
def test_every_merge_is_in_one_round(shards: list[int], places: list[Executor | None]) -> None:
    """At its shard's place, and in as few rounds as the fullest place needs."""
    expected = [places[shard] if shard < len(places) else None for shard in shards]
    found = list(rounds(shards, places))
    assert sorted(number for numbers, _ in found for number in numbers) == list(range(len(shards)))
    for numbers, at in found:
        assert at == [expected[number] for number in numbers]
        assert len(set(at)) == len(at)
    assert len(found) == max(Counter(expected).values(), default=0)
