"""The tables of a run, from its document alone, and the names that a run can be given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deduper.cli.terminal import answer_console, print_json, print_parts, table
from tests.bench.contenders import CONTENDERS, PRESETS
from tests.bench.plan import PRESET_FAMILIES, PROCESSES, SWEEPS
from tests.bench.targets import FAMILIES, TARGETS, shown

NOTHING = "–"


def tables(document: Mapping[str, Any]) -> list[Any]:
    """The document as tables: the contenders, their CPU time, latencies, then the measures."""
    parts = []
    if document["lanes"]:
        rows = [
            (name, lane["group"], *cells)
            for lane, (name, *cells) in zip(document["lanes"], lane_rows(document["lanes"]), strict=True)
        ]
        head = ("contender", "group", "rows/s", "least", "most", "ms", "batches", "load", "")
        parts.append(table(head, rows))
    if spent := cpu_rows(document["lanes"]):
        parts.append(table(CPU_HEAD, spent, title="CPU, µs a row, by process and, as parts of them, by step"))
    if document.get("latency"):
        parts.append(table(LATENCY_HEAD, latency_rows(document["latency"]), title="latency, ms"))
    measures = measure_rows(document)
    if "families" not in document["settings"]:
        measures = [row for row in measures if row[1] != NOTHING]
    if measures:
        parts.append(table(("measure", "reached", "target", "met?", ""), measures))
    return parts


def print_names(*, as_json: bool) -> None:
    """The names of contenders, presets and measures."""
    if as_json:
        print_json(
            {
                "contenders": {contender.name: contender.text for contender in CONTENDERS.values()},
                "presets": {name: list(members) for name, members in PRESETS.items()},
                "measures": {
                    family: [target.text for target in TARGETS.values() if target.family == family]
                    for family in FAMILIES
                },
                "sweeps": {name: text for name, (text, _) in SWEEPS.items()},
            }
        )
        return
    console = answer_console()
    rows = [
        (
            contender.name,
            contender.text,
            ", ".join(name for name, members in PRESETS.items() if contender.name in members),
        )
        for contender in CONTENDERS.values()
    ]
    print_parts(console, [table(("contender", "", "in"), rows)])
    measures = [
        (
            target.family,
            target.text,
            target.shown,
            f"--measure {target.family}"
            if target.family in PROCESSES
            else ", ".join(name for name, families in PRESET_FAMILIES.items() if target.family in families),
        )
        for target in TARGETS.values()
    ]
    print_parts(console, [table(("measure", "", "target", "in"), measures)])
    print_parts(console, [table(("sweep, by --measure", ""), [(name, text) for name, (text, _) in SWEEPS.items()])])


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
