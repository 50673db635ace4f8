"""PURE. The values of measures, from the lanes of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from deduper.bench.results.figures import LaneResult, LatencyResult, rates, ratio, times
from deduper.bench.results.targets import BARS, TARGETS, Reached

WITH_BAD_LINES = "deduper, 1 % malformed"

LANES_OF: dict[str, tuple[str, ...]] = {
    "passthrough": ("deduper", "passthrough"),
    "one-port": ("deduper-one-port", "passthrough"),
    "watermark": ("deduper", "watermark-hdfs", "watermark-rocksdb-tuned"),
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
        plain = by_name.get("passthrough")
        return [_reached("passthrough", ratio(rates(ours), rates(plain)), _syncs(ours), ours)]
    if family == "one-port":
        one = by_name.get("deduper-one-port")
        return [_reached("one-port", ratio(rates(one), rates(by_name.get("passthrough"))), "", one)]
    if family == "watermark":
        rocks = [lane for name, lane in by_name.items() if name.startswith("watermark-rocksdb")]
        best = max(rocks, default=None, key=lambda lane: statistics.median(rates(lane) or [0.0]))
        remark = "" if best is None else f"against {best.contender}, the best of {len(rocks)}"
        of_hdfs = ratio(rates(ours), rates(by_name.get("watermark-hdfs")))
        return [
            _reached("watermark-hdfs", of_hdfs, _keys(ours), ours),
            _reached("watermark-rocksdb", ratio(rates(ours), rates(best)), remark, ours),
        ]
    if family == "bytes":
        return _bytes(ours, by_name.get("deduper-no-first-seen"))
    if family == "clock":
        return [Reached(TARGETS["clock"], ratio(times(ours), times(by_name.get("deduper-clock-batch"))))]
    if family == "lookup":
        return [Reached(TARGETS["lookup"], ratio(times(by_name.get("deduper-all-live")), times(ours)))]
    raise ValueError(f"{family} is not answered by the table")


def of_formats(lanes: Sequence[LaneResult]) -> list[Reached]:
    """Each format's rows/s against the pipeline's, and those of a file with malformed lines."""
    found = {(lane.group, lane.name): lane for lane in lanes}
    reached = []
    for name in ("json", "json-small", "csv", "json.gz", "parquet"):
        ours, plain = found.get((name, "deduper")), found.get((name, "passthrough"))
        if ours is not None:
            reached.append(Reached(TARGETS[name], ratio(rates(ours), rates(plain)), _rates(ours, plain)))
    bad, good = found.get(("json", WITH_BAD_LINES)), found.get(("json", "deduper"))
    if bad is not None:
        reached.append(Reached(TARGETS["bad-lines"], ratio(rates(bad), rates(good)), _rates(bad, good)))
    return reached


def of_latency(results: Sequence[LatencyResult]) -> list[Reached]:
    """Ours against the contender of Spark's with the least p50."""
    measured = [result for result in results if result.failure is None]
    ours = next((result for result in measured if result.contender == "deduper"), None)
    best = min(
        (result for result in measured if not result.is_service), default=None, key=lambda result: result.read["p50"]
    )
    if ours is None or best is None:
        return []
    reached = []
    for part in ("p50", "p99"):
        remark = f"{ours.read[part]:.0f} ms against {best.read[part]:.0f} ms of {best.contender}"
        reached.append(Reached(TARGETS[f"latency-{part}"], ours.read[part] / best.read[part], remark))
    return reached


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


def _reached(name: str, value: float | None, remark: str, lane: LaneResult | None) -> Reached:
    """With the bound for the source and the sinks of the lane."""
    shape = {} if lane is None else lane.workload
    bars = BARS.get((shape.get("format", "parquet"), shape.get("sinks", "parquet")), {})
    return Reached(TARGETS[name], value, remark, bars.get(name))


def _rates(above: LaneResult, below: LaneResult | None) -> str:
    middle = [statistics.median(rates(lane)) for lane in (above, below) if rates(lane)]
    return " against ".join(f"{rate:,.0f}" for rate in middle) + " rows/s" if middle else ""


def _keys(lane: LaneResult | None) -> str:
    return f"{lane.workload['state_keys']:,} keys before the first measured batch" if lane is not None else ""


def _syncs(lane: LaneResult | None) -> str:
    """The time of syncs and commit, which the pipeline does not do."""
    if lane is None or not lane.phases:
        return ""
    parts = [(name, lane.phases.get(phase, 0.0)) for name, phase in _OURS_ALONE]
    return "of it " + ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in parts)


_OURS_ALONE = (("syncs", "durable"), ("record", "commit"), ("publishing", "publish"), ("pieces in tasks", "task.piece"))
