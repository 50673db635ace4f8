"""What `deduper bench` says: names, progress on standard error, the tables of the end, where the page is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from deduper.bench import report
from deduper.bench.contenders import CONTENDERS, PRESETS
from deduper.bench.plan import PRESET_FAMILIES, Wishes, plan
from deduper.bench.sweeps import SWEEPS
from deduper.bench.targets import FAMILIES, TARGETS
from deduper.errors import UsageError
from deduper.terminal import answer_console, print_json, table


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the command."""

    wishes: Wishes
    spark: tuple[str, ...]
    out: Path
    work: Path | None
    render: Path | None
    only_names: bool
    as_json: bool


def answer(call: Call) -> None:
    """Do what was asked, and say what came of it.

    Raises:
        UsageError: a name or number that cannot be; or nothing to plot with, when everything else is written.
    """
    if call.only_names:
        _names(as_json=call.as_json)
        return
    if call.render is not None:
        document = _stored(call.render)
        _write_page(call.render.with_name(report.PAGE), document)
        return
    to_do = plan(call.wishes)
    settings = spark_settings(call.spark)
    # Spark, numba and the rest are loaded by whoever really measures.
    from deduper.bench.command import Benchmark

    document = Benchmark(to_do, call.out, settings, tell=_tell, work=call.work).run()
    if call.as_json:
        print_json(document)
    else:
        for part in tables(document):
            answer_console().print(part)
    typer.echo(f"numbers: {call.out / 'bench.json'}", err=True)
    _write_page(call.out / report.PAGE, document)


def tables(document: Mapping[str, Any]) -> list[Any]:
    """The document as a person reads it."""
    parts = []
    if document["lanes"]:
        rows = [(lane["group"], *cells[1:]) for lane, cells in zip(document["lanes"], _rows(document), strict=True)]
        names = [lane["name"] for lane in document["lanes"]]
        head = ("contender", "group", "rows/s", "least", "most", "ms", "batches", "load", "")
        parts.append(table(head, [(name, *row) for name, row in zip(names, rows, strict=True)]))
    parts.append(table(("measure", "reached", "target", "met?", ""), report.measure_rows(document)))
    return parts


def spark_settings(given: Sequence[str]) -> dict[str, str]:
    """Settings for the session of all contenders: two cores' worth of everything unless told otherwise.

    Raises:
        UsageError: one without `=`.
    """
    cores = len(os.sched_getaffinity(0))
    settings = {"spark.master": f"local[{cores}]", "spark.driver.memory": "8g"}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise UsageError(f"--spark {text}: write a Spark setting as spark.driver.memory=8g")
        settings[name] = value
    return settings


def _rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return report.lane_rows(document["lanes"])


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
                "sweeps": {name: {"label": label, "values": list(values)} for name, (label, values) in SWEEPS.items()},
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
            ", ".join(n for n, each in PRESET_FAMILIES.items() if target.family in each),
        )
        for target in TARGETS.values()
    ]
    console.print(table(("measure", "", "target", "in"), measures))
    sweeps = [(name, label, ", ".join(f"{value:,g}" for value in values)) for name, (label, values) in SWEEPS.items()]
    console.print(table(("sweep", "", "values"), sweeps))


def _stored(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: not a bench.json: {error}") from error
    if not isinstance(document, dict) or document.get("format") != 1:
        raise UsageError(f"{file}: not a bench.json of this release; its format is to be 1")
    return document


def _write_page(file: Path, document: Mapping[str, Any]) -> None:
    text = report.page(document)
    file.write_text(text, encoding="utf-8")
    typer.echo(f"page:    {file}", err=True)


def _tell(text: str) -> None:
    typer.echo(text, err=True)
