"""The service beside the same pipeline without it and Spark's own deduplication: `python -m tests.bench --help`.

Tables go to standard output, progress to standard error, and everything raw to `bench/bench.json`. A run with topics
starts a Kafka broker of its own, unless `--bootstrap-servers` names others.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from deduper.cli.command import BASIC, JsonOption, VerboseOption, command
from deduper.cli.terminal import answer_console, print_json, print_parts
from deduper.errors import UsageError
from deduper.service.logs import configure_logging
from deduper.spark.allocator import keep_few_arenas
from tests.bench.plan import PROCESSES, SWEEPS, AnyPlan, latency_plan, plan, process_plan, sweep_plan
from tests.bench.tables import print_names, tables

MEASURES = ("throughput", "latency", *PROCESSES, *SWEEPS)
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


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
        str | None, typer.Option(metavar="HOST:PORT", help="Brokers for topics, without login. Default: its own.")
    ] = None,
    measured: Annotated[
        str,
        typer.Option(
            "--measure", metavar="NAME", help=f"{', '.join(MEASURES[:-1])} or {MEASURES[-1]}; the last are sweeps."
        ),
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
    at: Annotated[
        list[float] | None, typer.Option(metavar="X", help="A value of a sweep, or a number of cores. Repeatable.")
    ] = None,
    batches: Annotated[int | None, typer.Option(min=1, metavar="N", help="Sweeps: measured batches a turn.")] = None,
    shards: Annotated[int | None, typer.Option(min=1, metavar="N", help="Sweeps and processes: shards.")] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="restart, drop-bucket: keys of the large state.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for bench.json.")] = Path("bench"),
    names: Annotated[bool, typer.Option("--list", help="List contenders and measures; run nothing.")] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Measure the service, the same pipeline without it and Spark's own dedup side by side; writes JSON."""
    keep_few_arenas()  # as `deduper run` does: what is measured is the service
    if names:
        print_names(as_json=as_json)
        return
    configure_logging(as_json=False, verbose=verbose)
    if measured not in MEASURES:
        raise UsageError(f"--measure {measured}: unknown name; choose from {', '.join(MEASURES)}")
    if measured != "latency" and not (minutes is rate is trigger is None):
        raise UsageError("--minutes, --rate and --trigger: need --measure latency")
    needs_brokers = measured == "latency" or source_format == "kafka"
    with own_broker() if needs_brokers and bootstrap_servers is None else nullcontext(bootstrap_servers) as brokers:
        to_do: AnyPlan
        if measured == "latency":
            to_do = latency_plan(
                contender or (), bootstrap_servers=brokers, minutes=minutes, rate=rate, trigger=trigger
            )
        elif measured in SWEEPS:
            to_do = sweep_plan(
                measured, contender or (), values=at or (), rows=rows, batches=batches, rounds=rounds, shards=shards
            )
        elif measured in PROCESSES:
            to_do = process_plan(measured, contender or (), keys=keys, cores=at or (), rounds=rounds, shards=shards)
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
                bootstrap_servers=brokers,
            )
        from tests.bench.benchmark import DOCUMENT, Benchmark, spark_settings  # Spark and numba: not for --help

        document = Benchmark(to_do, out, spark_settings(), report=_print_progress).run()
    if as_json:
        print_json(document)
    else:
        for part in tables(document):
            print_parts(answer_console(), [part])
    _print_progress(f"numbers: {out / DOCUMENT}")


@contextmanager
def own_broker() -> Iterator[str]:
    """The address of a broker that ends with the run; Spark finds its Kafka connector by SPARK_CONF_DIR."""
    from tests.services.jars import connector_conf
    from tests.services.kafka_broker import Broker

    with (
        tempfile.TemporaryDirectory(prefix="deduper-broker-") as directory,
        Broker(Path(directory), heap="768m", fast_start=False) as broker,
    ):
        os.environ |= connector_conf(Path(directory))
        yield broker.bootstrap


def _print_progress(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    app()
