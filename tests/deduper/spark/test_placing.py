"""The map of shards to executors: it stays put, it is even, and a lost executor moves no more than it must."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deduper.spark.placing import Executor, ShardPlaces


def executors(*numbers: int, hosts: int = 1) -> list[Executor]:
    return [Executor(str(number), f"host{number % hosts}") for number in numbers]


@given(
    shards=st.integers(1, 40),
    alive=st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=8),
    hosts=st.integers(1, 4),
)
def test_every_map_is_even_and_moves_little(shards: int, alive: list[set[int]], hosts: int) -> None:
    """Whatever executors come and go, and every shard that may stay does."""
    places = ShardPlaces(shards)
    before: list[Executor | None] = [None] * shards
    known = False
    for numbers in alive:
        now = executors(*sorted(numbers), hosts=hosts)
        after = places.on(now)
        if not now:
            assert after == [None] * shards
            continue
        counts = Counter(after)
        assert set(counts) <= set(now)
        assert max(counts.values()) - min(counts[one] for one in now) <= 1
        if known:
            held = Counter(one for one in before if one in now)
            most = -(-shards // len(now))
            moved = sum(one != other for one, other in zip(before, after, strict=True))
            lost = sum(one not in now for one in before)
            # Beyond the lost ones only as many as make it even.
            needed = sum(max(0, count - shards // len(now)) for count in held.values())
            assert lost <= moved <= lost + needed
            assert all(counts[one] <= most for one in now)
        before, known = after, True


def test_nothing_moves_while_nobody_comes_or_goes() -> None:
    """Window after window."""
    places = ShardPlaces(8)
    now = executors(0, 1, 2)
    first = places.on(now)
    assert all(places.on(list(reversed(now))) == first for _ in range(20))


def test_those_that_came_last_go_to_a_new_executor() -> None:
    """The shards of the dead one go to the living; when another comes, the same shards move on, and no other."""
    places = ShardPlaces(8)
    before = places.on(executors(0, 1))
    places.on(executors(1))
    after = places.on(executors(1, 2))
    stayed = [shard for shard in range(8) if before[shard] == after[shard]]
    assert stayed == [shard for shard in range(8) if before[shard] == executors(1)[0]]
    assert len(stayed) == 4


def test_a_shard_goes_to_its_old_host_if_there_is_a_choice() -> None:
    """Its tables are there."""
    places = ShardPlaces(4)
    before = places.on(executors(0, 1, 2, 3, hosts=2))
    after = places.on(executors(2, 3, 4, 5, hosts=2))
    assert [one and one.host for one in after] == [one and one.host for one in before]
