"""The page of a benchmark, made from its stored document alone: one HTML file that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bucket_store.profile_file import WindowProfile
from deduper.bench import plots
from deduper.bench.targets import TARGETS, shown
from deduper.profile_view import steps_of

PAGE = "bench.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .25em .8em; border-bottom: 1px solid #ddd }
th { text-align: left; font-weight: 600 } td.n { text-align: right; font-variant-numeric: tabular-nums }
.met { color: #1b5e20 } .not { color: #b71c1c; font-weight: 600 } .un { color: #777 }
svg { max-width: 100%; height: auto }
"""
Rows = Sequence[Sequence[str]]


def page(document: Mapping[str, Any]) -> str:
    """The whole page. Raises UsageError when there is nothing to plot with."""
    plots.require_plots()
    lanes = document["lanes"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>deduper bench</title>",
        f"<style>{_STYLE}</style></head><body><h1>deduper bench</h1>",
        _paragraph(_what(document)),
        "<h2>Measures</h2>",
        _table(("measure", "reached", "target", "met?", ""), measure_rows(document)),
    ]
    for group, title in _GROUPS.items():
        members = [lane for lane in lanes if lane["group"] == group]
        if members:
            parts += [f"<h2>{html.escape(title)}</h2>", _table(_LANE_HEAD, lane_rows(members))]
            if any(lane["rows_per_second"] for lane in members):
                is_sweep = group == "sweep"
                parts.append(
                    plots.sweep_plot(members, document["sweep"]["label"]) if is_sweep else plots.rates_plot(members)
                )
            divided = steps(members)
            if divided:
                parts += ["<h3>Where a window's time goes</h3>", plots.steps_plot(divided)]
    parts += ["<h2>Machine and settings</h2>", _table(("", ""), _facts(document)), "</body></html>"]
    return "\n".join(parts)


_GROUPS = {
    "table": "Contenders",
    "small-batch": "Small batches",
    "state": "State",
    "sweep": "Sweep",
}
_LANE_HEAD = ("contender", "rows/s", "least", "most", "trigger, ms", "batches", "load", "")


def measure_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """measure, reached, target, met?, remark."""
    rows: list[tuple[str, ...]] = []
    for measure in document["measures"]:
        value = "–" if measure["value"] is None else shown(measure["value"], measure["unit"])
        target = measure["target"]
        if measure["bar"] is not None:
            target += f" (here {shown(measure['bar'], measure['unit'])})"
        met = {True: "met", False: "NOT MET", None: "not measured"}[measure["met"]]
        rows.append((TARGETS[measure["name"]].text, value, target, met, measure["remark"]))
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


def steps(lanes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Median seconds by step of a window, for those that tell their phases."""
    divided = {}
    for lane in lanes:
        phases, times = lane["phases"], lane["milliseconds"]
        if phases and times:
            # All of the trigger: what Spark does around our window is `other`.
            profile = WindowProfile(0, 0, 0, 0, times["median"] / 1000, phases)
            divided[lane["name"]] = steps_of(profile)
    return divided


def _kept(kept: Mapping[str, float]) -> str:
    if not kept:
        return ""
    return (
        f"{kept['keys']:,} keys, {kept['memory_per_key']:.1f} B resident and {kept['disk_per_key']:.1f} B on disk a key"
    )


def _what(document: Mapping[str, Any]) -> str:
    workload = document["settings"]["workload"]
    return (
        f"{document['started']}; {document['seconds']:,.0f} s. {workload['batch_rows']:,} rows a batch, "
        f"{workload['state_keys']:,} keys of state, {workload['duplicates']:.0%} repeated, "
        f"{workload['payload_bytes']} bytes of payload, seed {workload['seed']}. "
        f"Load {document['load_at_start'][0]} at the start, {document['load_at_end'][0]} at the end. "
        "Rows/s by Spark's own triggerExecution. The service syncs what it writes, Spark's sink does not."
    )


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    spark = ", ".join(f"{name}={value}" for name, value in document["settings"]["spark"].items())
    return [
        ("command", " ".join(document["command"])),
        ("cpu", f"{machine['cpu']}, {machine['cores']} cores"),
        ("memory", f"{machine['memory_kib'] / 2**20:.0f} GiB, {machine['free_kib'] / 2**20:.0f} GiB free at the start"),
        ("file system", machine["file_system"]),
        ("system", f"{machine['system']}, Python {machine['python']}, {machine['java']}"),
        ("packages", packages),
        ("spark", spark),
    ]


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = ["<table><tr>", *(f"<th>{html.escape(name)}</th>" for name in head), "</tr>"]
    for row in rows:
        lines += ["<tr>", *(_cell(cell) for cell in row), "</tr>"]
    return "".join([*lines, "</table>"])


def _cell(cell: str) -> str:
    kind = {"met": "met", "NOT MET": "not", "not measured": "un"}.get(cell)
    if kind is None and cell[:1].isdigit() and len(cell) < _LONGEST_NUMBER:
        kind = "n"
    return f"<td class='{kind}'>{html.escape(cell)}</td>" if kind else f"<td>{html.escape(cell)}</td>"


_LONGEST_NUMBER = 14
