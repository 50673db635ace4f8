"""What the committed state says of the next window: which pieces are dead, to the step, and by which rule it judges."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bucket_store.log.records import LogState
from bucket_store.pieces.piece import PieceRef
from deduper.core.verdict import bucket_key
from deduper.testing import Row, Settings
from deduper.window import policy
from tests.bucket_store.log_samples import piece
from tests.deduper.small_service import Process, Trial, World, machine_of

PERIOD, SPAN, LATEST = 20, 10, 45
"""The expiry point is 25, and the least bucket that lives is 2: [20, 30)."""


def dead(directory: Path, lookup: str, refs: list[PieceRef], latest: int | None = LATEST) -> list[int]:
    """The windows of the dead ones among some pieces."""
    config = Trial(Settings("ordered", PERIOD, SPAN, lookup)).config(directory)
    state = LogState(latest_point=latest, pieces={0: tuple(refs)})
    (view,) = policy.shard_views(config, MANIFEST, state)
    gone = policy.dead_pieces(config, state)
    assert set(view.pieces) == set(refs) - set(gone), "the tasks are shown the others"
    return [ref.first_window for ref in gone]


MANIFEST = policy.Manifest(
    store_id="5a" * 16, incarnation="i", salt=bytes(16), settings={}, snapshot_every=10, created_us=0
)


def test_a_piece_of_the_whole_period_is_dead_when_its_last_entry_is(tmp_path: Path) -> None:
    """Its greatest expiry key at the expiry point: dead. One step beyond: live. Its buckets do not matter."""
    refs = [replace(piece(window), max_expiry=22 + window, max_bucket=-9) for window in range(6)]
    assert dead(tmp_path, "all_live", refs) == [0, 1, 2, 3]


def test_a_piece_of_buckets_is_dead_when_its_last_bucket_is(tmp_path: Path) -> None:
    """The bucket of the expiry point lives, the one before is dead; its expiry keys do not matter."""
    refs = [replace(piece(window), max_expiry=0, max_bucket=window) for window in range(4)]
    assert dead(tmp_path, "own_bucket", refs) == [0, 1]


@pytest.mark.parametrize("lookup", ["all_live", "own_bucket"])
def test_nothing_is_dead_before_the_clock_is_set(tmp_path: Path, lookup: str) -> None:
    """However old."""
    assert dead(tmp_path, lookup, [replace(piece(0), max_expiry=-(2**62), max_bucket=-(2**62))], latest=None) == []


@pytest.mark.parametrize(("lookup", "unique"), [("all_live", 1), ("own_bucket", 2)])
@pytest.mark.parametrize("windows", [1, 2])
def test_a_copy_with_another_time_is_a_duplicate_where_all_that_lives_is_asked(
    tmp_path: Path, lookup: str, unique: int, windows: int
) -> None:
    """A producer's retry, in the same window or later: its expiry key lies in another bucket than the first copy's."""
    world = World(tmp_path, Trial(Settings("ordered", PERIOD, SPAN, lookup)))
    copies = [Row(("a",), 5), Row(("a",), 15)]
    with machine_of(world):
        process = Process(world)
        for rows in [copies] if windows == 1 else [copies[:1], copies[1:]]:
            process.offer(world.put([rows]))
    assert process.log.state.totals["unique"] == unique


@pytest.mark.parametrize("seen", [5, 6])
def test_a_key_is_remembered_for_a_period_and_not_a_step_longer(tmp_path: Path, seen: int) -> None:
    """The latest point is 25, the period 20: a copy seen first at 5 is forgotten, one seen at 6 is not."""
    world = World(tmp_path, Trial(Settings("ordered", PERIOD, SPAN, "all_live")))
    with machine_of(world):
        process = Process(world)
        for rows in ([Row(("a",), seen)], [Row(("b",), 25)], [Row(("a",), 25)]):
            process.offer(world.put([rows]))
    assert process.log.state.totals["unique"] == (3 if seen == 5 else 2)


@pytest.mark.parametrize(("shards", "every"), [(1, 1000), (8, 1000), (16, 500), (160, 50), (4096, 50)])
def test_a_store_of_many_shards_has_more_snapshots(shards: int, every: int) -> None:
    """A start reads at most so many records, and they grow with the shards."""
    assert policy.snapshot_every(shards) == every


@pytest.mark.parametrize("greatest", [1e308, math.inf, -math.inf, 2.0**70, 25.0, -0.5, 10**18, -(2**63)])
def test_a_piece_of_any_expiry_key_has_a_time_bucket(greatest: float) -> None:
    """That of the verdicts: a quotient beyond all integers is one too, and the bucket never falls as keys rise."""
    one = replace(piece(0), max_expiry=greatest)
    span = 10 if isinstance(greatest, int) else 0.001
    found = policy.time_bucket_of("all_live", "ordered", span, one)
    assert -(2**63) <= found == bucket_key(greatest, span) < 2**63
    assert policy.time_bucket_of("all_live", "never", None, one) == 0
    assert policy.time_bucket_of("own_bucket", "never", None, one) == 0
    assert policy.time_bucket_of("own_bucket", "ordered", span, one) == one.max_bucket
