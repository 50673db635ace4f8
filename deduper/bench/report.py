"""Rows of the tables that `deduper bench` prints, from its document alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deduper.bench.targets import shown


def measure_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """measure, reached, target, met?, remark."""
    rows: list[tuple[str, ...]] = []
    for measure in document["measures"]:
        value = "–" if measure["value"] is None else shown(measure["value"], measure["unit"])
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
            rows.append((lane["name"], "–", "–", "–", "–", "0", "–", remark))
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


def _kept(kept: Mapping[str, float]) -> str:
    if not kept:
        return ""
    return (
        f"{kept['keys']:,} keys, {kept['memory_per_key']:.1f} B resident and {kept['disk_per_key']:.1f} B on disk a key"
    )
