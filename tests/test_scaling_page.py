"""docs/scaling.md has the tables that scripts/scaling.py computes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "scripts" / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scaling"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_has_the_tables_of_now(scaling: ModuleType) -> None:
    """Else: python scripts/scaling.py --write."""
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert {name for name in scaling.TABLES if f"table {name}, by" in page} == set(scaling.TABLES)
    assert scaling.filled(page) == page


def test_records_grow_with_shards_and_files(scaling: ModuleType) -> None:
    """By what the page's formulas say, within a fifth."""
    small = scaling.record_bytes(1000, 0)
    assert small == pytest.approx(130_000, rel=0.2)
    assert scaling.record_bytes(1000, 2000) - small == pytest.approx(2000 * 110, rel=0.2)
    assert scaling.snapshot_bytes(1000, 50) == pytest.approx(50_000 * 116, rel=0.2)


def test_the_needs_follow_the_formulas(scaling: ModuleType) -> None:
    """Twice the keys on twice the executors: twice of everything but what a shard or an executor has."""
    one, two = (scaling.needs(scaling.Job(keys, executors)) for keys, executors in ((1e9, 10), (2e9, 20)))
    for name in ("tables", "pieces", "shuffled_s", "cores_busy"):
        assert getattr(two, name) == pytest.approx(2 * getattr(one, name))
    for name in ("tables_an_executor", "keys_a_shard", "piece", "cold_shard_s"):
        assert getattr(two, name) == pytest.approx(getattr(one, name))
    job = scaling.Job(1e9, 10, file_ports=2)
    assert one.writers == 10
    # A new file is 3 calls and 5 edits, its deletion or renaming one more of both; mergings make files too.
    pieces = (one.puts_s - 1 / scaling.HEARTBEAT_S) * job.window_s - 3
    assert pieces > 80
    assert one.namenode_calls_s * job.window_s == pytest.approx(4 * pieces + 5 * 20 + 4 * 2 + 31)
    assert one.namenode_edits_s * job.window_s == pytest.approx(6 * pieces + 7 * 20 + 6 * 2 + 20)


def test_no_piece_is_lost_in_a_simulated_day(scaling: ModuleType) -> None:
    """What is live has the bytes of the windows of a period, whatever was merged."""
    life = scaling.day_of_pieces(100 << 10, scaling.Job(1e9, window_s=300, period_s=7200, span_s=3600))
    assert life.times_written >= 1
    assert 24 <= life.mean_live <= life.peak_live <= 64
