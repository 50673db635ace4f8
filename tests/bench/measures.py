"""PURE. The values of measures, from the lanes of a run and from the times of processes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.figures import LaneResult, LatencyResult, rates, ratio, times
from tests.bench.targets import BARS, TARGETS, Reached

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
    found = sorted(
        (lane for lane in lanes if lane.group == "state" and lane.contender == "deduper"), key=lambda lane: lane.x or 0
    )
    if len(found) < 2:
        return [Reached(TARGETS["state"], None, "both states are needed")]
    small, large = found[0], found[-1]
    remark = f"{large.x:,.0f} keys against {small.x:,.0f}, both written straight into the store"
    return [Reached(TARGETS["state"], ratio(rates(large), rates(small)), large.failure or small.failure or remark)]


def of_dropping(found: Mapping[int, Sequence[Mapping[str, float]]]) -> list[Reached]:
    """Of each number of keys the median; the smallest and the largest."""
    reached = []
    for name, keys in zip(("drop-small-bucket", "drop-large-bucket"), sorted(found), strict=False):
        waited = ("record", "tables", "pieces")
        reported = ", ".join(f"{part} {statistics.median(run[part] for run in found[keys]):.1f}" for part in waited)
        beside = statistics.median(run["beside"] for run in found[keys])
        total = statistics.median(sum(run[part] for part in waited) for run in found[keys])
        remark = f"{keys:,} keys: {reported} ms; beside the windows {beside:.1f} ms; {len(found[keys])} times"
        reached.append(Reached(TARGETS[name], total, remark))
    return reached


def of_restarts(seconds: Mapping[str, Sequence[float]], keys: int) -> list[Reached]:
    """From the process's start to its first commit."""
    middle = {kind: statistics.median(values) for kind, values in seconds.items() if values}
    if len(middle) < 3:
        return [
            Reached(TARGETS["restart-warm"], None, "no starts"),
            Reached(TARGETS["restart-cold"], None, "no starts"),
        ]
    remark = f"{keys:,} keys; empty {middle['empty']:.1f} s, warm {middle['warm']:.1f} s, cold {middle['cold']:.1f} s"
    return [
        Reached(TARGETS["restart-warm"], middle["warm"] / middle["empty"], remark),
        Reached(
            TARGETS["restart-cold"],
            middle["cold"] - middle["empty"],
            "without resident tables; pieces may be in the page cache",
        ),
    ]


def of_compiling(found: Mapping[str, Any]) -> list[Reached]:
    """Kernels that a process after the first one compiles, and the cost of a forked worker's first call."""
    starts = (
        f"first start {found['first_start_seconds']:.1f} s with {found['compiled_first']} compiled, "
        f"later {found['later_start_seconds']:.1f} s"
    )
    loading = f"kernels load in {found['load_seconds']:.2f} s before the fork"
    return [
        Reached(TARGETS["compiled-at-run"], float(found["compiled_later"]), starts),
        Reached(TARGETS["first-judging"], max(0.0, found["first_call_ms"] - found["later_call_ms"]), loading),
    ]


def of_cores(by_cores: Mapping[int, Mapping[str, Sequence[float]]]) -> list[Reached]:
    """The speed-up of ours; where the pipeline itself has less than the target, its own is the bar."""
    least, most = min(by_cores), max(by_cores)
    ours = ratio(by_cores[most].get("deduper", ()), by_cores[least].get("deduper", ()))
    plain = ratio(by_cores[most].get("passthrough", ()), by_cores[least].get("passthrough", ()))
    bar = None if plain is None or plain >= TARGETS["cores"].value else plain
    remark = "" if plain is None else f"the pass-through has {plain:.2f}x from {least} to {most}"
    return [Reached(TARGETS["cores"], ours, remark, bar)]


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
