"""Rows of the tables that `deduper bench` prints, from its document alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deduper.bench.results.targets import shown

NOTHING = "–"


def measure_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """measure, reached, target, met?, remark."""
    rows: list[tuple[str, ...]] = []
    for measure in document["measures"]:
        value = NOTHING if measure["value"] is None else shown(measure["value"], measure["unit"])
        target = measure["target"]
        if measure["bar"] is not None:
            target += f" (here {shown(measure['bar'], measure['unit'])})"
        met = {True: "met", False: "NOT MET", None: "not measured"}[measure["met"]]
        rows.append((measure["text"], value, target, met, measure["remark"]))
    return rows


def lane_rows(lanes: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A contender a row; one that failed says why."""
    rows: list[tuple[str, ...]] = []
    for lane in lanes:
        spread, times = lane["rows_per_second"], lane["milliseconds"]
        remark = lane["failure"] or _kept(lane["kept"])
        if not spread:
            rows.append((lane["name"], *[NOTHING] * 4, "0", NOTHING, remark))
            continue
        loads = [turn["load"] for turn in lane["turns"]]
        rows.append(
            (
                lane["name"],
                f"{spread['median']:,.0f}",
                f"{spread['minimum']:,.0f}",
                f"{spread['maximum']:,.0f}",
                f"{times['median']:,.0f}",
                str(spread["count"]),
                f"{min(loads):.1f}–{max(loads):.1f}",
                remark,
            )
        )
    return rows


CPU_HEAD = ("contender", "group", "driver", "jvm", "workers", "all", "read", "judge", "write", "send")


def cpu_rows(lanes: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """µs of CPU a row of every contender that has them: by process, and the part of each step."""
    rows: list[tuple[str, ...]] = []
    for lane in lanes:
        spent = lane.get("cpu_us")
        if spent:
            whole = sum(value for name, value in spent.items() if name not in _STEPS)
            steps = [spent.get(name) for name in _STEPS]
            cells = (spent.get("driver"), spent.get("jvm"), spent.get("workers"), whole, *steps)
            rows.append(
                (lane["name"], lane["group"], *(NOTHING if value is None else f"{value:.2f}" for value in cells))
            )
    return rows


LATENCY_HEAD = ("contender", "records/s", "trigger", "to", "p50", "p90", "p95", "p99", "most", "behind, s", "load", "")


def latency_rows(results: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Two rows a contender, in ms: until the output is appended, and until it is read."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        about = (result["contender"], f"{result['rate']:,.0f}", result["trigger"])
        for end in ("appended", "read"):
            found = result[end]
            cells = (f"{found[part]:,.0f}" if found else NOTHING for part in ("p50", "p90", "p95", "p99", "max"))
            rest = (f"{result['behind_s']:.1f}", f"{result['load']:.1f}", result["failure"] or "")
            rows.append((*about, end, *cells, *rest))
    return rows


_STEPS = ("tasks.read", "tasks.judge", "tasks.write", "driver.send")


def _kept(kept: Mapping[str, float]) -> str:
    if not kept:
        return ""
    return (
        f"{kept['keys']:,} keys, {kept['memory_per_key']:.1f} B resident and {kept['disk_per_key']:.1f} B on disk a key"
    )
