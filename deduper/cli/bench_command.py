"""The answers of `deduper bench`: names, progress on standard error, and the tables at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from deduper.bench import report
from deduper.bench.contenders import CONTENDERS, PRESETS
from deduper.bench.plan import PRESET_FAMILIES, BenchOptions, plan
from deduper.bench.targets import FAMILIES, TARGETS
from deduper.cli.terminal import answer_console, print_json, table
from deduper.errors import UsageError


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the command."""

    options: BenchOptions
    spark: tuple[str, ...]
    out: Path
    work: Path | None
    only_names: bool
    as_json: bool


def answer(call: Call) -> None:
    """Run the benchmark, or list the names, and print the answer.

    Raises:
        UsageError: an unknown name, or a number out of its range.
    """
    if call.only_names:
        _names(as_json=call.as_json)
        return
    to_do = plan(call.options)
    settings = spark_settings(call.spark)
    # Spark, numba and the rest load for a benchmark only.
    from deduper.bench.command import DOCUMENT, Benchmark

    document = Benchmark(to_do, call.out, settings, tell=_tell, work=call.work).run()
    if call.as_json:
        print_json(document)
    else:
        for part in tables(document):
            answer_console().print(part)
    typer.echo(f"numbers: {call.out / DOCUMENT}", err=True)


def tables(document: Mapping[str, Any]) -> list[Any]:
    """The document as tables: the contenders, then the measures."""
    parts = []
    if document["lanes"]:
        rows = [
            (name, lane["group"], *cells)
            for lane, (name, *cells) in zip(document["lanes"], report.lane_rows(document["lanes"]), strict=True)
        ]
        head = ("contender", "group", "rows/s", "least", "most", "ms", "batches", "load", "")
        parts.append(table(head, rows))
    parts.append(table(("measure", "reached", "target", "met?", ""), report.measure_rows(document)))
    return parts


def spark_settings(given: Sequence[str]) -> dict[str, str]:
    """Settings for the session of all contenders: all cores and 8 GB of heap, unless given.

    Raises:
        UsageError: a setting without `=`.
    """
    cores = len(os.sched_getaffinity(0))
    settings = {"spark.master": f"local[{cores}]", "spark.driver.memory": "8g"}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise UsageError(f"--spark {text}: write a Spark setting as spark.driver.memory=8g")
        settings[name] = value
    return settings


def _names(*, as_json: bool) -> None:
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
    console.print(table(("contender", "", "in"), rows))
    measures = [
        (
            target.family,
            target.text,
            target.shown,
            ", ".join(name for name, families in PRESET_FAMILIES.items() if target.family in families),
        )
        for target in TARGETS.values()
    ]
    console.print(table(("measure", "", "target", "in"), measures))


def _tell(text: str) -> None:
    typer.echo(text, err=True)
