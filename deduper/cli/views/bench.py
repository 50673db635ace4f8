"""The answers of `deduper bench`: names, progress on standard error, and the tables at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from deduper.bench.contenders import CONTENDERS, PRESETS
from deduper.bench.plan import PRESET_FAMILIES, LatencyPlan, Plan
from deduper.bench.results import report
from deduper.bench.results.targets import FAMILIES, TARGETS
from deduper.cli.terminal import answer_console, print_json, print_parts, table


def measure(plan: Plan | LatencyPlan, out: Path, *, as_json: bool) -> None:
    """Run the benchmark and print its answer; `out` is the folder of bench.json."""
    # Spark, numba and the rest load for a benchmark only.
    from deduper.bench.command import DOCUMENT, Benchmark, spark_settings

    document = Benchmark(plan, out, spark_settings(), report=_print_progress).run()
    if as_json:
        print_json(document)
    else:
        for part in tables(document):
            print_parts(answer_console(), [part])
    typer.echo(f"numbers: {out / DOCUMENT}", err=True)


def tables(document: Mapping[str, Any]) -> list[Any]:
    """The document as tables: the contenders, their CPU time, latencies, then the measures."""
    parts = []
    if document["lanes"]:
        rows = [
            (name, lane["group"], *cells)
            for lane, (name, *cells) in zip(document["lanes"], report.lane_rows(document["lanes"]), strict=True)
        ]
        head = ("contender", "group", "rows/s", "least", "most", "ms", "batches", "load", "")
        parts.append(table(head, rows))
    if spent := report.cpu_rows(document["lanes"]):
        parts.append(table(report.CPU_HEAD, spent, title="CPU, µs a row, by process and, as parts of them, by step"))
    if document.get("latency"):
        parts.append(table(report.LATENCY_HEAD, report.latency_rows(document["latency"]), title="latency, ms"))
    measures = report.measure_rows(document)
    if document.get("latency"):
        measures = [row for row in measures if row[1] != report.NOTHING]
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
            ", ".join(name for name, families in PRESET_FAMILIES.items() if target.family in families),
        )
        for target in TARGETS.values()
    ]
    print_parts(console, [table(("measure", "", "target", "in"), measures)])


def _print_progress(text: str) -> None:
    typer.echo(text, err=True)
