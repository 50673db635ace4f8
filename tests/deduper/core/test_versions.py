"""Versions of a key: their digests, their order in the store, and their lives by the clocks of source partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bucket_store.pieces.piece import Entries
from bucket_store.tables.matches import Matches
from deduper.core.judge import ShardOutcome, ShardRows, judge_shard
from deduper.core.lookups import JudgeRules
from deduper.core.versions import version_digests
from deduper.payload import MOST_VERSIONS
from deduper.testing import Oracle, Row, Settings
from tests.deduper.engine import Engine, Shape

KEY = (7, 7)
RULES = JudgeRules("ordered", True, False, 10, 5, 64, True, None, has_fingerprint=True, most_versions=3)
Known = dict[tuple[int, int], tuple[int, int, int, int]]
"""By digest: expiry key, origin, window, fingerprint."""


@pytest.mark.parametrize("spread", [1, 3, 64, 65_536])
def test_digests_of_versions_are_those_of_the_format(spread: int) -> None:
    """By FORMAT.md in big ints: all of a key apart, in its shard and bucket, none of them zero, the first its own."""
    turns = min(2**64 // spread, 2**64 - 1)
    of_zero = (turns - turns // 65) * spread  # its second version would lie at zero
    for hi in (0, 1, spread - 1, spread, of_zero, 2**63, 2**64 - 2, 2**64 - 1, 0x0123456789ABCDEF):
        key = np.array([(hi, 5)], np.uint64).repeat(MOST_VERSIONS, axis=0)
        found = version_digests(key, np.arange(1, MOST_VERSIONS + 1), spread).tolist()
        expected = [
            spread * max(1, (hi // spread + (n - 1) * (turns // 65)) % turns) + hi % spread
            for n in range(2, MOST_VERSIONS + 1)
        ]
        assert found == [[hi, 5], *([one, 5] for one in expected)]
        assert len({one for one, _ in found}) == MOST_VERSIONS
        assert {one % spread for one, _ in found} == {hi % spread}


def judge(
    rows: list[tuple[int, int]], known: Known, window: int = 9, *, clocks: list[int] | None = None, **rules: Any
) -> ShardOutcome:
    """Rows of one key, each (expiry key, fingerprint), against what is known, whose clock has not begun.

    `clocks` are those before each row; without them all have the rules' one.
    """

    def find(_: int, digests: Any) -> Matches:
        hits = [known.get((hi, lo)) for hi, lo in digests.tolist()]
        columns = list(zip(*[hit or (0, 0, 0, 0) for hit in hits], strict=True))
        kinds = (np.int64, np.int64, np.uint32, np.uint64)
        expiry, origin, of_window, payload = (np.array(one, kind) for one, kind in zip(columns, kinds, strict=True))
        return Matches(np.array([hit is not None for hit in hits]), expiry, origin, of_window, payload)

    count = len(rows)
    given = ShardRows(
        digests=np.full((count, 2), KEY, np.uint64),
        order=np.arange(count, dtype=np.int64),
        admission=np.zeros(count, np.uint8),
        expiry=np.array([expiry for expiry, _ in rows], np.int64),
        latest_before=None if clocks is None else np.array(clocks, np.int64),
        has_latest=None if clocks is None else np.ones(count, np.bool_),
        category=None,
        fingerprint=np.array([payload for _, payload in rows], np.uint64),
    )
    return judge_shard(given, replace(RULES, **rules), window, find)


def said(outcome: ShardOutcome) -> tuple[list[int], dict[str, int]]:
    """The verdicts and the reasons."""
    return outcome.verdict.tolist(), outcome.reasons()


def stored(entries: Entries | None) -> dict[int, tuple[int, int, int, int]]:
    """What a window leaves, by the number of the version."""
    assert entries is not None
    assert entries.expiry is not None
    assert entries.origin is not None
    assert entries.fingerprint is not None
    window = [9] * len(entries.digests) if entries.window is None else entries.window.tolist()
    columns = (entries.expiry.tolist(), entries.origin.tolist(), window, entries.fingerprint.tolist())
    return {
        DIGESTS.index(tuple(digest)) + 1: values
        for digest, *values in zip(entries.digests.tolist(), *columns, strict=True)
        for values in [tuple(values)]
    }


DIGESTS = [
    (int(hi), int(lo)) for hi, lo in version_digests(np.full((5, 2), KEY, np.uint64), np.arange(1, 6), 1).tolist()
]


def test_a_version_that_outlives_others_takes_their_place() -> None:
    """They move on with their window and origin, one place each; those of equal expiry keys keep their order."""
    known: Known = {DIGESTS[0]: (5, 50, 2, 100), DIGESTS[1]: (5, 51, 3, 101)}
    outcome = judge([(5, 101), (6, 102), (6, 102), (4, 103)], known)
    assert said(outcome) == (
        [1, 0, 1, 3],
        {"earlier_window": 1, "version": 1, "same_window": 1, "too_many_versions": 1},
    )
    assert outcome.first_window.tolist() == [3, 2, 9, 9], "a version names the first entry"
    assert stored(outcome.entries) == {1: (6, 1, 9, 102), 3: (5, 50, 2, 100)}
    assert outcome.max_remembered == 6
    assert outcome.distances.counts == judge([], {}).distances.counts


def test_versions_are_looked_up_bucket_by_bucket() -> None:
    """A bucket without room in memory is read once more for them, not once for each number of each bucket."""
    asked: list[int] = []

    def find(bucket: int, digests: Any) -> Matches:
        asked.append(bucket)
        count = np.zeros(len(digests), np.int64)
        return Matches(
            np.ones(len(digests), np.bool_), count, count, count.astype(np.uint32), 1 + count.view(np.uint64)
        )

    digests = np.array([(hi, 5) for hi in (5, 6, 6 + 64, 7)], np.uint64)
    zeros = np.zeros(4, np.int64)
    payloads = np.array([1, 2, 2, 2], np.uint64)
    rows = ShardRows(digests, np.arange(4), zeros.astype(np.uint8), None, None, None, None, fingerprint=payloads)
    rules = replace(RULES, by="never", lookup_all_live=False, buckets=64)
    assert judge_shard(rows, rules, 9, find).reasons() == {"earlier_window": 1, "too_many_versions": 3}
    assert asked == [5, 6, 7, 6, 6, 7, 7]


def test_versions_lie_in_the_bucket_that_their_key_is_hashed_into() -> None:
    """A look-up finds them in no other one."""
    outcome = judge([(0, 100), (0, 101), (0, 102)], {}, by="never", lookup_all_live=False, buckets=64)
    assert said(outcome) == ([0, 0, 0], {"version": 2})
    assert outcome.entries is not None
    assert outcome.buckets == [7]
    assert (outcome.entries.digests[:, 0] % np.uint64(64)).tolist() == [7, 7, 7]


def test_the_dead_are_the_last_and_make_room() -> None:
    """With a clock at 15 an entry of 5 is dead: the next version takes its place, and the limit counts the living."""
    known: Known = {DIGESTS[0]: (9, 50, 2, 100), DIGESTS[1]: (8, 51, 3, 101), DIGESTS[2]: (5, 52, 3, 102)}
    assert said(judge([(7, 103)], known)) == ([3], {"too_many_versions": 1})
    outcome = judge([(7, 103), (7, 102)], known, latest=15)
    assert said(outcome) == ([0, 3], {"version": 1, "too_many_versions": 1})
    assert stored(outcome.entries) == {3: (7, 0, 9, 103)}
    outcome = judge([(30, 101)], known, latest=30)
    assert said(outcome) == ([0], {}), "all are dead"
    assert stored(outcome.entries) == {1: (30, 0, 9, 101)}


def test_no_entry_is_left_that_the_greatest_clock_of_its_group_has_passed() -> None:
    """By 25 an entry of 12 is dead, though its row has an earlier clock and comes last."""
    outcome = judge([(25, 100), (12, 101)], {}, clocks=[25, 15])
    assert said(outcome) == ([0, 0], {"version": 1})
    assert stored(outcome.entries) == {1: (25, 0, 9, 100)}


def test_no_version_joins_an_unknown_payload() -> None:
    """Its copies are unknown, as ever."""
    outcome = judge([(5, 101)], {DIGESTS[0]: (5, 50, 2, 0), DIGESTS[1]: (5, 51, 2, 101)})
    assert said(outcome) == ([1], {"unknown": 1})
    assert outcome.entries is None


def ahead(most: int, fast: str, slow: list[tuple[str, int]]) -> list[tuple[str, str, Any]]:
    """Payloads Y at 12 and X at 20 are known, latest point 20. Then a partition at 25 has `fast`, one at 20 `slow`.

    What engine and oracle say of these rows. In the next window X, and `fast` again, are duplicates.
    """
    rules = Settings("ordered", 10, 5, "all_live", on_conflict="unique", max_versions=most)

    def row(payload: str, at: int) -> Row:
        return Row(("k",), at, "XYZW".index(payload))

    windows = [
        [[row("Y", 12), row("X", 20)]],
        [[Row(("other",), 25, 0), row(fast, 25)], [row(*one) for one in slow]],
        [[row(*one) for one in (("X", 20), (fast, 25))]],
    ]
    oracle, engine = Oracle(rules), Engine(rules, ["string"], Shape(conflicts="unique"))
    expected = [oracle.judge(window, 0) for window in windows]
    assert [engine.judge(window, 0) for window in windows] == expected
    assert [answer[:2] for answer in expected[2][0]] == [("duplicate", "earlier_window")] * 2
    return [*expected[1][0][1:], *expected[1][1]]


X, Y = (0, 0, 1, 20), (0, 0, 0, 12)


def test_a_fast_partition_kills_no_version_of_a_slow_one() -> None:
    """By 25 Y is dead, by 20 it is not: its copy there is a duplicate, whatever the other partition has."""
    copy_of_x = "duplicate", "earlier_window", X
    assert ahead(2, "X", [("Y", 12), ("X", 20)]) == [copy_of_x, ("duplicate", "earlier_window", Y), copy_of_x]
    assert ahead(2, "X", [("W", 12)]) == [copy_of_x, ("error", "too_many_versions", X)]
    assert ahead(3, "Z", [("Y", 12), ("W", 12)]) == [
        ("unique", "version", X),
        ("duplicate", "earlier_window", Y),
        ("error", "too_many_versions", (1, 0, 1, 25)),
    ]


def test_a_dead_version_gives_its_place_or_comes_again() -> None:
    """Z takes the place of Y, so in the slow partition Y is one too many. Y again is another entry, that dies later."""
    new = 1, 0, 1, 25
    assert ahead(2, "Z", [("Y", 12), ("X", 19)]) == [
        ("unique", "version", X),
        ("error", "too_many_versions", new),
        ("duplicate", "earlier_window", X),
    ]
    assert ahead(3, "Y", [("Y", 12)]) == [("unique", "version", X), ("duplicate", "same_window", new)]
