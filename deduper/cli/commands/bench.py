"""The command that measures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deduper.cli.command import (
    BASIC,
    JsonOption,
    VerboseOption,
    app,
    command,
)
from deduper.errors import UsageError

if TYPE_CHECKING:
    pass


@command(app, "bench", *BASIC)
def bench(
    preset: Annotated[str, typer.Option(metavar="NAME", help="Size of the run: quick, standard or all.")] = "standard",
    contender: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this contender. Repeatable; see --list.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Turns of each contender.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rows a batch.")] = None,
    source_format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="The source: parquet, json, json.gz, csv or kafka.")
    ] = "parquet",
    sinks: Annotated[
        str | None, typer.Option(metavar="NAME", help="The outputs: parquet or kafka. Default: kafka for kafka.")
    ] = None,
    payload: Annotated[
        str, typer.Option(metavar="NAME", help="repeating: one of 4,096 texts; random: no text repeats.")
    ] = "repeating",
    bad_lines: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Share of malformed lines, such as 0.01.")
    ] = 0.0,
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Brokers for topics, without login.")
    ] = None,
    measured: Annotated[
        str, typer.Option("--measure", metavar="NAME", help="throughput, or latency under a steady load on a topic.")
    ] = "throughput",
    minutes: Annotated[
        float | None, typer.Option(min=0.05, metavar="N", help="Latency: minutes of each contender. Default: 30.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1, metavar="N", help="Latency: records a second. Default: 1,000.")
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Latency: time between the starts of two batches. Default: 100ms."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for bench.json.")] = Path("bench"),
    names: Annotated[bool, typer.Option("--list", help="List contenders and measures; run nothing.")] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Measure the service, the same pipeline without it and Spark's own dedup side by side; writes JSON."""
    from deduper.spark.allocator import keep_few_arenas

    keep_few_arenas()  # as `run` does: what is measured is the service

    from deduper.bench.plan import LatencyPlan, Plan, latency_plan, plan
    from deduper.cli.views.bench import measure, print_names
    from deduper.service.logs import configure_logging

    if names:
        print_names(as_json=as_json)
        return
    configure_logging(as_json=False, verbose=verbose)
    if measured not in ("throughput", "latency"):
        raise UsageError(f"--measure {measured}: unknown name; choose from throughput, latency")
    to_do: Plan | LatencyPlan
    if measured == "latency":
        to_do = latency_plan(
            contender or (), bootstrap_servers=bootstrap_servers, minutes=minutes, rate=rate, trigger=trigger
        )
    elif minutes is not None or rate is not None or trigger is not None:
        raise UsageError("--minutes, --rate and --trigger: need --measure latency")
    else:
        to_do = plan(
            preset,
            contender or (),
            rounds,
            source_format=source_format,
            payload=payload,
            batch_rows=rows,
            bad_lines=bad_lines,
            sinks=sinks,
            bootstrap_servers=bootstrap_servers,
        )
    measure(to_do, out, as_json=as_json)
