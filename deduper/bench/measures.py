"""PURE. The values of measures, from the lanes of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from deduper.bench.figures import LaneResult, rates, ratio, times
from deduper.bench.targets import TARGETS, Reached

LANES_OF: dict[str, tuple[str, ...]] = {
    "passthrough": ("deduper", "passthrough"),
    "watermark": ("deduper", "watermark-hdfs", "watermark-rocksdb", "watermark-rocksdb-changelog"),
    "bytes": ("deduper", "deduper-no-first-seen"),
    "clock": ("deduper", "deduper-clock-batch"),
    "lookup": ("deduper", "deduper-all-live"),
}
"""Families of measures that the table of contenders answers, and the contenders that each needs."""


def of_table(family: str, lanes: Sequence[LaneResult]) -> list[Reached]:
    """The measures of a family from the table of contenders; without a value where a contender is missing."""
    by_name = {lane.contender: lane for lane in lanes if lane.group == "table"}
    ours = by_name.get("deduper")
    if family == "passthrough":
        return [Reached(TARGETS["passthrough"], ratio(rates(ours), rates(by_name.get("passthrough"))), _syncs(ours))]
    if family == "watermark":
        rocks = [lane for name, lane in by_name.items() if name.startswith("watermark-rocksdb")]
        best = max(rocks, default=None, key=lambda lane: statistics.median(rates(lane) or [0.0]))
        return [
            Reached(TARGETS["watermark-hdfs"], ratio(rates(ours), rates(by_name.get("watermark-hdfs"))), _keys(ours)),
            Reached(
                TARGETS["watermark-rocksdb"],
                ratio(rates(ours), rates(best)),
                "" if best is None else f"against {best.contender}, the best of {len(rocks)}",
            ),
        ]
    if family == "bytes":
        return _bytes(ours, by_name.get("deduper-no-first-seen"))
    if family == "clock":
        return [Reached(TARGETS["clock"], ratio(times(ours), times(by_name.get("deduper-clock-batch"))))]
    if family == "lookup":
        return [Reached(TARGETS["lookup"], ratio(times(by_name.get("deduper-all-live")), times(ours)))]
    raise ValueError(f"{family} is not answered by the table")


def of_small_batches(lanes: Sequence[LaneResult]) -> list[Reached]:
    """Trigger times of small batches, ours against the pipeline's."""
    found = {lane.contender: times(lane) for lane in lanes if lane.group == "small-batch"}
    ours, plain = found.get("deduper", []), found.get("passthrough", [])
    remark = f"{statistics.median(ours):.0f} ms against {statistics.median(plain):.0f} ms" if ours and plain else ""
    return [Reached(TARGETS["small-batch"], ratio(ours, plain), remark)]


def of_states(lanes: Sequence[LaneResult]) -> list[Reached]:
    """The largest state against the smallest."""
    found = sorted((lane for lane in lanes if lane.group == "state"), key=lambda lane: lane.x or 0)
    if len(found) < 2:
        return [Reached(TARGETS["state"], None, "both states are needed")]
    small, large = found[0], found[-1]
    remark = f"{large.x:,.0f} keys against {small.x:,.0f}, both written straight into the store"
    return [Reached(TARGETS["state"], ratio(rates(large), rates(small)), large.failure or small.failure or remark)]


def _bytes(with_first: LaneResult | None, without: LaneResult | None) -> list[Reached]:
    kept = {} if without is None else without.kept
    also = {} if with_first is None else with_first.kept
    reached = []
    for name, field in (("memory-per-key", "memory_per_key"), ("disk-per-key", "disk_per_key")):
        remark = f"first_seen: true takes {also[field]:.1f} B" if field in also else ""
        reached.append(Reached(TARGETS[name], kept.get(field), remark))
    return reached


def _keys(lane: LaneResult | None) -> str:
    return f"{lane.workload['state_keys']:,} keys before the first measured batch" if lane is not None else ""


def _syncs(lane: LaneResult | None) -> str:
    """The time of syncs and commit, which the pipeline does not do."""
    if lane is None or not lane.phases:
        return ""
    parts = [(name, lane.phases.get(phase, 0.0)) for name, phase in _OURS_ALONE]
    return "of it " + ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in parts)


_OURS_ALONE = (("syncs", "durable"), ("record", "commit"), ("publishing", "publish"), ("pieces in tasks", "task.piece"))
