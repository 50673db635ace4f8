"""PURE. Measures of the service that need processes of their own: their targets, and their values."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from deduper.bench.results.figures import ratio
from deduper.bench.results.targets import Reached, Target

TARGETS = {
    target.name: target
    for target in (
        Target("drop-small-bucket", "drop-bucket", "dropping an expired bucket of 1 M keys", False, 10.0, "ms"),
        Target("drop-large-bucket", "drop-bucket", "dropping a large expired bucket", False, 10.0, "ms"),
        Target("restart-warm", "restart", "restart to the first commit, warm tables, against empty", False, 1.1, "x"),
        Target("restart-cold", "restart", "restart to the first commit, cold, above empty", False, 10.0, "s"),
        Target("compiled-at-run", "first-batch", "kernels compiled by a process after the first one", False, 0.0, ""),
        Target(
            "first-judging", "first-batch", "first kernel calls in a forked worker above later ones", False, 5.0, "ms"
        ),
        Target("cores", "cores", "speed-up from 1 to 2 cores", True, 1.7, "x"),
    )
}


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
    bar = None if plain is None or plain >= _FULL_SPEED_UP else plain
    remark = "" if plain is None else f"the pass-through has {plain:.2f}x from {least} to {most}"
    return [Reached(TARGETS["cores"], ours, remark, bar)]


_FULL_SPEED_UP = 1.7
