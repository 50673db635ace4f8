"""The command line: the commands of a job, and of its store; other rooms do the work.

Heavy modules (pyspark, numba, pyarrow, rocksdict, pydantic) are imported by the command that needs them: help is
instant.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bucket_store.threads import are_at_work
from deduper.cli import (
    inspect_commands,  # noqa: F401  its commands are registered by the import
    move_commands,
)
from deduper.cli.commands import (
    BASIC,
    READING,
    ConfigArgument,
    JsonOption,
    SetOption,
    StoreArgument,
    VerboseOption,
    answer,
    app,
    command,
    config_app,
    loaded_config,
    windows_of,
)
from deduper.config.problems import ConfigError
from deduper.errors import ExitCode, UsageError
from deduper.sinks.publish_state import OnUnknown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deduper.window.progress import BatchProgress


def _version(wanted: bool) -> None:
    if wanted:
        from deduper import __version__

        typer.echo(f"deduper {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """The options of `deduper` itself; `version` is acted on by its callback."""


@command(app, "init", *BASIC)
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("deduper.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a commented config file to start from."""
    from deduper.cli.starter import starter_config

    name = re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-._") or "deduper"
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(starter_config(str(file), name))
    except FileExistsError:
        raise UsageError(f"{file} exists; name another file, or replace it with --force") from None
    except FileNotFoundError:
        raise UsageError(f"{file.parent}: there is no such folder; make it (mkdir -p {file.parent})") from None
    typer.echo(f"{file} is written. Set `source`, `key` and `expiry`, then: deduper config validate {file}")


@command(app, "quickstart", *BASIC, ExitCode.UNHEALTHY)
def quickstart(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for all files of the quickstart.")] = Path(
        "demo"
    ),
    records: Annotated[int, typer.Option(min=100, metavar="N", help="Records in the generated log.")] = 1_050_000,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the generated log.")] = 7,
    verbose: VerboseOption = False,
) -> None:
    """Generate a web log with known duplicates, run the real job on it, and compare the result."""
    from deduper.cli.quickstart.guide import quickstart as run_quickstart
    from deduper.cli.terminal import answer_console
    from deduper.service.logs import configure_logging

    configure_logging(as_json=False, verbose=verbose)
    run_quickstart(directory, records=records, seed=seed, console=answer_console())


@command(app, "run", *READING, ExitCode.FENCED, ExitCode.BUG, ExitCode.INTERRUPTED)
def run(
    config: ConfigArgument,
    once: Annotated[bool, typer.Option("--once", help="Stop when the source is drained.")] = False,
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", min=1, metavar="N", help="Stop after N windows.")
    ] = None,
    overrides: SetOption = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Take the store over from another owner, even a running one, which is then fenced."
        ),
    ] = False,
    unpublished: Annotated[
        OnUnknown,
        typer.Option(
            "--unpublished",
            help="Publish or skip a committed window, if Kafka has lost the record of its publication.",
        ),
    ] = OnUnknown.REFUSE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for every window.")] = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the job and print a line for every window. SIGTERM and Ctrl-C finish the current window first."""
    from deduper.spark.allocator import keep_few_arenas

    keep_few_arenas()

    from deduper.config.load import load_config

    loaded = load_config(config, overrides=overrides or ())

    from deduper.service.job import run as run_job
    from deduper.service.logs import configure_logging
    from deduper.window.progress import json_line, summary_line

    configure_logging(as_json=as_json, verbose=verbose, waits=not as_json)
    if not as_json:
        typer.echo(f"{loaded.name}: {loaded.source.place} into {loaded.store.url}", err=True)
    summary = run_job(
        loaded,
        once=once,
        max_batches=max_batches,
        take_over=take_over,
        unpublished=unpublished,
        on_progress=_progress_printer(as_json=as_json, verbose=verbose),
    )
    typer.echo(json_line(summary.to_json()) if as_json else summary_line(summary))


def _progress_printer(*, as_json: bool, verbose: bool) -> Callable[[BatchProgress], None]:
    from deduper.cli.terminal import WindowLines, answer_console
    from deduper.window.progress import json_line, phases_line

    console = answer_console()
    lines = WindowLines(console)

    def print_progress(progress: BatchProgress) -> None:
        if as_json:
            typer.echo(json_line(progress.to_json()))
        else:
            lines.add(progress)
            if verbose and progress.phases:
                console.print("    " + phases_line(progress), style="dim", soft_wrap=True)
        # Through a pipe too, a window's line is readable as soon as the window is done.
        sys.stdout.flush()

    return print_progress


@command(app, "jars", *BASIC, ExitCode.UNHEALTHY)
def jars(
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="Folder for the jars; without it, the one in which `run` looks."),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option(
            "--repository",
            metavar="URL",
            envvar="DEDUPER_MAVEN_URL",
            show_envvar=False,
            help="A repository of Maven's layout, instead of Maven Central; also by DEDUPER_MAVEN_URL.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch the jars of Spark's Kafka connector, which a job with a source of topics needs; checks each SHA-256."""
    from deduper.cli.terminal import print_json
    from deduper.spark.kafka_jars import VARIABLE, connector_jars, default_folder
    from deduper.spark.maven_jars import fetch_jars

    folder = into or default_folder()
    if folder is None:
        raise UsageError("this user has no home; name a folder with --into DIR")
    folder = folder.absolute()
    wanted = connector_jars()
    fetched = fetch_jars(wanted, folder, repository or None)
    if as_json:
        names = [jar.file_name for jar in wanted]
        print_json({"folder": str(folder), "jars": names, "fetched": [jar.file_name for jar in fetched]})
        return
    typer.echo(f"{folder}: {len(wanted)} jars, {len(fetched)} of them fetched now, all with the known SHA-256")
    if folder != default_folder():
        typer.echo(f"`deduper run` uses them with {VARIABLE}={folder}")


@command(app, "doctor", *BASIC, ExitCode.UNHEALTHY)
def doctor(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check whether a job can start, by the checks of `run` itself; changes nothing."""
    from deduper.admin.doctor import diagnose
    from deduper.cli.views.doctor import render
    from deduper.config.load import load_config

    diagnosis = diagnose(load_config(config, overrides=overrides or ()))
    answer(diagnosis, render, as_json=as_json)
    if not diagnosis.is_healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)


@command(app, "status", *READING)
def status(
    store: StoreArgument,
    last: Annotated[int, typer.Option("--last", min=0, metavar="N", help="Show the newest N windows.")] = 5,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show the time of the newest windows by step, too.")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Show it again and again until Ctrl-C; in a pipe, a line each time.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="The time between two looks of --watch.")
    ] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Show the health, the contents and the progress of a store; safe beside a running job."""
    from deduper.admin.open_store import open_store
    from deduper.admin.status import StoreStatus, store_status
    from deduper.cli.views.status import render

    def read() -> StoreStatus:
        return store_status(open_store(store), last=last)

    def shown(report: StoreStatus) -> list[RenderableType]:
        return render(report, timings=timings)

    if watching:
        from deduper.cli.watch import watch

        watch(read, shown, every_s=every, as_json=as_json)
    else:
        answer(read(), shown, as_json=as_json)


@command(app, "explain", *READING, raw_values=True)
def explain(
    config: ConfigArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="One value for each column of the key.", show_default=False)
    ],
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="The text that stands for a null.")] = r"\N",
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Only windows begun at this time or later, or so long ago, as 7d."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every copy seen of a key, with its verdict, time, place and reason, from the outputs and the store."""
    from deduper.admin.keys import explain as explaining
    from deduper.admin.keys.values import parse_key
    from deduper.admin.open_store import open_store
    from deduper.cli.views.explain import ScanProgress, render

    opened = open_store(str(config))
    since_us = None if since is None else explaining.since(since)
    key = parse_key(values, opened.key_columns, null=null)
    progress = ScanProgress()
    try:
        found = explaining.explain(opened, key, since_us=since_us, on_progress=progress)
    except ValueError as error:
        raise UsageError(str(error)) from error
    finally:
        progress.end()
    answer(found, render, as_json=as_json)


@command(app, "report", *READING)
def report(
    store: StoreArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a page with plots to this file, such as report.html."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Summarise a store over time: ports, lateness, distances, missed copies, advice; safe beside a running job."""
    from deduper.admin.open_store import open_store
    from deduper.admin.report.collect import report_of
    from deduper.cli.views.report import render

    found = report_of(open_store(store))
    answer(found, render, as_json=as_json)
    if out is not None:
        from deduper.admin.report.page import page

        try:
            out.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}") from error
        typer.echo(f"{out} is written", err=True)


@command(app, "verify", *READING)
def verify(
    store: StoreArgument,
    rows: Annotated[
        bool, typer.Option("--rows", help="Check the rows of the output files too; needs the config, and takes longer.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read a whole store and its outputs, and check that they agree; safe beside a running job."""
    from deduper.admin.open_store import named_store
    from deduper.admin.verify.run import verify_target
    from deduper.cli.views.verify import render

    if rows and named_store(store)[1] is None:
        raise UsageError("--rows needs the config: it says where the outputs are")
    report = verify_target(store, rows=rows)
    answer(report, render, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(report.exit_code)


@command(app, "gc", *READING, ExitCode.FENCED)
def gc(
    store: StoreArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the listed files; refused beside a running job.")
    ] = False,
    grace: Annotated[str, typer.Option("--grace", metavar="DURATION", help="Keep younger files.")] = "1h",
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Include the quarantine of `repair`.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List a store's orphans, files that no record names, or delete them; the list is safe beside a running job."""
    from deduper.admin.gc import collect
    from deduper.admin.open_store import open_store
    from deduper.cli.views.gc import render
    from deduper.units import UnitError, parse_duration

    try:
        grace_us = parse_duration(grace)
    except UnitError as error:
        raise UsageError(f"--grace {error}") from error
    opened = open_store(store)
    report = collect(opened, grace_us=grace_us, delete=delete, with_quarantine=quarantine)
    answer(report, render, as_json=as_json)
    if report.is_refused:
        raise typer.Exit(ExitCode.FENCED)


@command(app, "repair", *READING, ExitCode.FENCED)
def repair(
    config: ConfigArgument,
    apply: Annotated[bool, typer.Option("--apply", help="Repair; without it, only show the plan.")] = False,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="DIR", help="Another folder with files of the unique port. Repeatable."),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget",
            metavar="WINDOW[/SHARD]",
            help="Remove a damaged piece that cannot be rebuilt: its keys count as new. Repeatable; FIRST-LAST too.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find damaged pieces and rebuild them from the outputs, byte for byte."""
    from deduper.admin.open_store import folder_of, open_store
    from deduper.admin.repair import apply as repairing
    from deduper.admin.repair.plan import plan
    from deduper.cli.views.repair import render
    from deduper.service.logs import configure_logging

    configure_logging(as_json=as_json, verbose=False)
    act = repairing.apply if apply else plan
    report = act(open_store(str(config)), more_outputs=[folder_of(name) for name in outputs or ()], forget=forget or ())
    answer(report, render, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(ExitCode.INTEGRITY)


move_commands.register()


@command(app, "replay-errors", *READING, ExitCode.FENCED)
def replay_errors(
    config: ConfigArgument,
    window: Annotated[
        str | None, typer.Option("--window", metavar="A..B", help="Only errors of these windows.")
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option("--reason", metavar="R", help="Only errors of this reason. Repeatable.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Send errors that were sent again before and have failed again.")
    ] = False,
    mended_files: Annotated[
        bool,
        typer.Option("--mended-files", help="Take rows of a Parquet file that was changed from the file as it is now."),
    ] = False,
    unpublished: Annotated[
        OnUnknown,
        typer.Option(
            "--unpublished",
            help="Send or skip the records of the last transaction, if Kafka has lost the record of its commit.",
        ),
    ] = OnUnknown.REFUSE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send error records through the job once more, exactly once, after a mend of the config or of a producer."""
    from deduper.admin.errors.replay import replay_errors as replay
    from deduper.admin.open_store import open_store
    from deduper.cli.views.replay import render

    report = replay(
        open_store(str(config)),
        windows_of(window),
        reason or (),
        again=again,
        mended_files=mended_files,
        unpublished=unpublished,
        dry_run=dry_run,
    )
    answer(report, render, as_json=as_json)


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
    from deduper.cli.bench_command import measure, print_names
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


@command(config_app, "validate", *BASIC)
def config_validate(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check a config file: every mistake at once, each with its place and what to write."""
    from deduper.cli.terminal import print_json

    try:
        found = loaded_config(config, overrides).config
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": [problem.to_json() for problem in error.problems]})
        raise typer.Exit(error.exit_code) from error
    if as_json:
        print_json({"valid": True, "problems": []})
    else:
        typer.echo(f"{config} is valid: job {found.name}, key {', '.join(found.key)}")


@command(config_app, "show", *BASIC)
def config_show(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Show the effective settings and their origins; secrets are masked."""
    from deduper.cli.terminal import answer_console, print_json, print_parts, table

    settings = loaded_config(config, overrides).settings
    if as_json:
        print_json({setting.setting: {"value": setting.value, "from": setting.source} for setting in settings})
        return
    rows = [(setting.setting, _setting_text(setting.value), setting.source) for setting in settings]
    print_parts(answer_console(), [table(("setting", "value", "from"), rows, optional=("from",))])


@command(config_app, "schema", *BASIC)
def config_schema() -> None:
    """Print the JSON Schema of a config file, for editors and checkers."""
    from deduper.cli.terminal import print_json
    from deduper.config.schema import json_schema

    print_json(json_schema())


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> None:
    """The `deduper` command."""
    try:
        app()
    except SystemExit as end:
        if not are_at_work():
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
