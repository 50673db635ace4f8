"""PURE. From what was measured to what was reached of each target."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from deduper.bench.figures import LaneResult, rates, ratio, times
from deduper.bench.targets import Reached

LANES_OF: dict[str, tuple[str, ...]] = {
    "passthrough": ("deduper", "passthrough"),
    "watermark": ("deduper", "watermark-hdfs", "watermark-rocksdb", "watermark-rocksdb-changelog"),
    "bytes": ("deduper", "deduper-no-first-seen"),
    "clock": ("deduper", "deduper-clock-batch"),
    "lookup": ("deduper", "deduper-all-live"),
}
"""Families that are answered by the table of contenders, and whom each needs."""


def of_table(family: str, lanes: Sequence[LaneResult]) -> list[Reached]:
    """What the table of contenders says of a family; a value None where somebody is missing."""
    by_name = {lane.contender: lane for lane in lanes if lane.group == "table"}
    ours = by_name.get("deduper")
    if family == "passthrough":
        return [Reached("passthrough", ratio(rates(ours), rates(by_name.get("passthrough"))), _syncs(ours))]
    if family == "watermark":
        rocks = [by_name.get("watermark-rocksdb"), by_name.get("watermark-rocksdb-changelog")]
        best = max(rocks, key=lambda lane: statistics.median(rates(lane) or [0.0]))
        return [
            Reached("watermark-hdfs", ratio(rates(ours), rates(by_name.get("watermark-hdfs"))), _keys(ours)),
            Reached(
                "watermark-rocksdb",
                ratio(rates(ours), rates(best)),
                "" if best is None else f"against {best.contender}, the better of the two",
            ),
        ]
    if family == "bytes":
        return _bytes(ours, by_name.get("deduper-no-first-seen"))
    if family == "clock":
        return [Reached("clock", ratio(times(ours), times(by_name.get("deduper-clock-batch"))))]
    if family == "lookup":
        return [Reached("lookup", ratio(times(by_name.get("deduper-all-live")), times(ours)))]
    raise ValueError(f"{family} is not answered by the table")


def of_small_batches(lanes: Sequence[LaneResult]) -> list[Reached]:
    """Trigger times of small batches, ours against the pipeline's."""
    found = {lane.contender: times(lane) for lane in lanes if lane.group == "small-batch"}
    ours, plain = found.get("deduper", []), found.get("passthrough", [])
    remark = f"{statistics.median(ours):.0f} ms against {statistics.median(plain):.0f} ms" if ours and plain else ""
    return [Reached("small-batch", ratio(ours, plain), remark)]


def of_states(lanes: Sequence[LaneResult]) -> list[Reached]:
    """The largest state against the smallest."""
    found = sorted((lane for lane in lanes if lane.group == "state"), key=lambda lane: lane.x or 0)
    if len(found) < 2:
        return [Reached("state", None, "both states are needed")]
    small, large = found[0], found[-1]
    remark = f"{large.x:,.0f} keys against {small.x:,.0f}, both written straight into the store"
    return [Reached("state", ratio(rates(large), rates(small)), large.failure or small.failure or remark)]


def of_dropping(found: Mapping[int, Sequence[Mapping[str, float]]]) -> list[Reached]:
    """Of each number of keys the median; the smallest and the largest."""
    reached = []
    for name, keys in zip(("drop-small-bucket", "drop-large-bucket"), sorted(found), strict=False):
        waited = ("record", "tables", "pieces")
        told = ", ".join(f"{part} {statistics.median(run[part] for run in found[keys]):.1f}" for part in waited)
        beside = statistics.median(run["beside"] for run in found[keys])
        total = statistics.median(sum(run[part] for part in waited) for run in found[keys])
        remark = f"{keys:,} keys: {told} ms; beside the windows {beside:.1f} ms; {len(found[keys])} times"
        reached.append(Reached(name, total, remark))
    return reached


def of_restarts(seconds: Mapping[str, Sequence[float]], keys: int) -> list[Reached]:
    """From the process's start to its first commit."""
    middle = {kind: statistics.median(values) for kind, values in seconds.items() if values}
    if len(middle) < 3:
        return [Reached("restart-warm", None, "no starts"), Reached("restart-cold", None, "no starts")]
    remark = f"{keys:,} keys; empty {middle['empty']:.1f} s, warm {middle['warm']:.1f} s, cold {middle['cold']:.1f} s"
    return [
        Reached("restart-warm", middle["warm"] / middle["empty"], remark),
        Reached(
            "restart-cold",
            middle["cold"] - middle["empty"],
            "resident tables thrown away; pieces may lie in the page cache",
        ),
    ]


def of_compiling(found: Mapping[str, Any]) -> list[Reached]:
    """What a process after the first one still compiles, and what a forked worker's first call costs."""
    starts = (
        f"first start {found['first_start_seconds']:.1f} s with {found['compiled_first']} compiled, "
        f"later {found['later_start_seconds']:.1f} s"
    )
    loading = f"kernels load in {found['load_seconds']:.2f} s before the fork"
    return [
        Reached("compiled-at-run", float(found["compiled_later"]), starts),
        Reached("first-judging", max(0.0, found["first_call_ms"] - found["later_call_ms"]), loading),
    ]


def of_cores(by_cores: Mapping[int, Mapping[str, Sequence[float]]]) -> list[Reached]:
    """The speed-up of ours; where the pipeline itself has less than the target, its own is the bar."""
    least, most = min(by_cores), max(by_cores)
    ours = ratio(by_cores[most].get("deduper", ()), by_cores[least].get("deduper", ()))
    plain = ratio(by_cores[most].get("passthrough", ()), by_cores[least].get("passthrough", ()))
    bar = None if plain is None or plain >= _FULL_SPEED_UP else plain
    remark = "" if plain is None else f"the pass-through has {plain:.2f}x from {least} to {most}"
    return [Reached("cores", ours, remark, bar)]


_FULL_SPEED_UP = 1.7


def _bytes(with_first: LaneResult | None, without: LaneResult | None) -> list[Reached]:
    kept = {} if without is None else without.kept
    also = {} if with_first is None else with_first.kept
    reached = []
    for name, field in (("memory-per-key", "memory_per_key"), ("disk-per-key", "disk_per_key")):
        remark = f"first_seen: true takes {also[field]:.1f} B" if field in also else ""
        reached.append(Reached(name, kept.get(field), remark))
    return reached


def _keys(lane: LaneResult | None) -> str:
    return f"{lane.workload['state_keys']:,} keys before the first measured batch" if lane is not None else ""


def _syncs(lane: LaneResult | None) -> str:
    """What our syncs and the commit take, which the pipeline does not do."""
    if lane is None or not lane.phases:
        return ""
    parts = [(name, lane.phases.get(phase, 0.0)) for name, phase in _OURS_ALONE]
    return "of it " + ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in parts)


_OURS_ALONE = (("syncs", "durable"), ("record", "commit"), ("publishing", "publish"), ("pieces in tasks", "task.piece"))
