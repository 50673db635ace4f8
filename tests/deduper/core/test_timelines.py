"""The timelines of SEMANTICS.md, one test each, through engine and oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deduper.testing import Oracle, Row, Settings
from tests.deduper.engine import Engine, Shape, comparable

ORDERED = Settings("ordered", period=10, span=5)
LETTERS = {"unique": "U", "duplicate": "D", "expired": "X", "error": "E"}


def ports(settings: Settings, *windows: list[list[Any]], walls: list[int] | None = None) -> list[list[str]]:
    """A letter a row, a text a source partition, a list a window; a row is an expiry key, or with its dedup key."""
    engine, oracle = Engine(settings, ["string"], Shape(shards=3)), Oracle(settings)
    result = []
    number = 0
    for index, window in enumerate(windows):
        now_us = walls[index] if walls else 0
        partitions = []
        for part in window:
            rows = []
            for given in part:
                number += 1
                key, expiry = given if isinstance(given, tuple) else (f"key {number}", given)
                rows.append(Row((key,), expiry))
            partitions.append(rows)
        answers = engine.judge(partitions, now_us)
        assert answers == comparable(oracle.judge(partitions, now_us), settings, keep_first_seen=True)
        result.append(["".join(LETTERS[port] for port, _, _ in part) for part in answers])
    return result


def test_the_edge_of_the_period() -> None:
    """Exactly one period old is expired; an unset clock expires nothing."""
    assert ports(ORDERED, [[100, 90, 91, 89]]) == [["UXUX"]]
    assert ports(ORDERED, [[10, 20, 25, 40, 21, 35, 45, 57]]) == [["UUUUXUUU"]]
    assert ports(ORDERED, [[-1000, -1009, -1010]]) == [["UUX"]]


def test_a_late_tuple_in_a_live_bucket() -> None:
    """Bucket 18 lives, 91 is expired in it, and a copy of 92 is still a duplicate."""
    assert ports(ORDERED, [[("a", 92), 101]], [[91, ("a", 92), 93]]) == [["UU"], ["XDU"]]


def test_own_bucket_and_all_live() -> None:
    """The same key at 85, 86, 95: own_bucket does not look into the neighbour."""
    copies: list[Any] = [("k", 85), ("k", 86), ("k", 95)]
    rules = Settings("ordered", period=60, span=10)
    assert ports(rules, [copies]) == [["UDU"]]
    assert ports(replace(rules, lookup="all_live"), [copies]) == [["UDD"]]


def test_renewal() -> None:
    """Duplicates do not prolong; the copy at 32 is remembered anew."""
    rows: list[Any] = [("k", 20), ("k", 25), ("k", 29), ("k", 31), ("k", 32), 41, ("k", 41)]
    rules = replace(ORDERED, lookup="all_live")
    assert ports(rules, [rows]) == [["UDDDUUD"]]
    assert ports(rules, *[[[row]] for row in rows]) == [[letter] for letter in "UDDDUUD"]


def test_clocks() -> None:
    """A batch clock knows only earlier windows."""
    windows: list[list[list[Any]]] = [[[100, 120, 105]], [[105]]]
    assert ports(ORDERED, *windows) == [["UUX"], ["X"]]
    assert ports(replace(ORDERED, clock="batch"), *windows) == [["UUU"], ["X"]]


def test_several_source_partitions() -> None:
    """Each begins at the committed latest point; the commit takes the greatest."""
    assert ports(ORDERED, [[100]], [[100, 150, 139], [100, 95, 104, 94]], [[140, 141]]) == [
        ["U"],
        ["UUX", "UUUX"],
        ["XU"],
    ]


def test_ties_in_a_batch() -> None:
    """The first in source order."""
    assert ports(ORDERED, [[("k", 1)], [("k", 1), ("k", 1)]]) == [["U", "DD"]]


def test_guards() -> None:
    """Both sides of both edges, and the poisoned timestamp with and without."""
    times = Settings("event_time", period=10_000, span=5, ahead=60)
    assert ports(times, [[1060, 1061]], walls=[1000]) == [["UE"]]
    jump = replace(ORDERED, jump=20)
    assert ports(jump, [[100]], [[121, 120]]) == [["U"], ["EU"]]
    assert ports(ORDERED, [[100, 9999, 101, 102]]) == [["UUXX"]]
    assert ports(jump, [[100, 9999, 101, 102]]) == [["UEUU"]]


def test_a_silent_weekend() -> None:
    """Silence is allowed on top of the jump, until the clock moves; for numbers it is not."""
    times = Settings("event_time", period=10_000, span=5, jump=20)
    assert ports(times, [[100]], [[1121, 1120, 1141, 1140]], walls=[0, 1000]) == [["U"], ["EUEU"]]
    assert ports(replace(times, by="ordered"), [[100]], [[1120, 121, 120]], walls=[0, 1000]) == [["U"], ["EEU"]]


def test_categories() -> None:
    """Two live: c drops a."""
    rules = Settings("category", live_categories=2)
    assert ports(rules, [[("k", "a"), ("k", "b"), ("k", "a"), ("k", "c"), ("k", "a"), ("k", "b")]]) == [["UUDUXD"]]


def test_processing_time() -> None:
    """Seen at 90, a duplicate at 99, unique at 100."""
    rules = Settings("processing_time", period=10, span=5)
    assert ports(rules, [[("k", None)]], [[("k", None)]], [[("k", None)]], walls=[90, 99, 100]) == [["U"], ["D"], ["U"]]


def test_a_wrong_wall_clock() -> None:
    """A clock that is years ahead for two windows: from the right one on a key lives for one period again."""
    rules = Settings("processing_time", period=10, span=5)
    walls = [90, 91, 27_000, 27_001, 92, 93, 101, 102, 103]
    said = ports(rules, *[[[("k", None)]] for _ in walls], walls=walls)
    assert said == [[letter] for letter in "UDUDDDUDD"]
