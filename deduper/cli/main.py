"""The command line: arguments, answers and exit codes of every command; other rooms do the work.

Answers go to standard output, everything else to standard error. Every command ends with an `ExitCode`. Heavy
modules (pyspark, numba, pyarrow, rocksdict, pydantic) are imported by the command that needs them: help is instant.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from bucket_store.threads import are_left
from deduper.config.problems import ConfigError
from deduper.errors import ExitCode, UsageError, exit_code_of
from deduper.sinks.publish_state import OnUnknown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from deduper.admin.errors.rows import Windows
    from deduper.config.load import LoadedConfig
    from deduper.window.progress import BatchProgress

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CONTEXT = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="deduper",
    help="Deduplicate a stream: every record leaves as unique, duplicate, expired or error, exactly once.",
    epilog="Exit codes: " + ", ".join(f"{code.value} {code.meaning.partition(';')[0]}" for code in ExitCode),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)
config_app = typer.Typer(
    help="Check a config file, show the effective settings, describe every setting.",
    no_args_is_help=True,
    context_settings=_CONTEXT,
)
inspect_app = typer.Typer(
    help="Inspect a store: one key, one window, one bucket, its errors.",
    no_args_is_help=True,
    context_settings=_CONTEXT,
)
app.add_typer(config_app, name="config")
app.add_typer(inspect_app, name="inspect")

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The job's config file.", show_default=False)]
StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG_OR_STORE",
        help="A config file, a store's URL such as rocksdb:state/clicks, or the store's folder.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a setting, as store.shards=8. Repeatable."),
]
ExecuteOption = Annotated[bool, typer.Option("--execute", help="Do it; without it, only show the plan.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON with stable keys.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log more, to standard error.")]

_BASIC = (ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE)
_READING = (*_BASIC, ExitCode.UNHEALTHY, ExitCode.INTEGRITY)


def _command(group: typer.Typer, name: str, *codes: ExitCode, raw_values: bool = False) -> Callable[..., Any]:
    """Registers a command, lists its exit codes in its help, and turns its errors into messages and exit codes.

    `raw_values` lets an argument begin with a dash, as negative numbers do.
    """
    epilog = "Exit codes: " + "; ".join(f"{code.value} {code.meaning.partition(';')[0]}" for code in codes)
    context = {**_CONTEXT, "ignore_unknown_options": raw_values}

    def register(function: Callable[_P, _T]) -> Callable[_P, _T]:
        group.command(name, epilog=epilog, context_settings=context)(_with_exit_codes(function))
        return function

    return register


def _with_exit_codes(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function; its errors are printed on standard error and raised as `typer.Exit` with their code."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            code = exit_code_of(error)
            _print_error(error, code, verbose=bool(kwargs.get("verbose")))
            raise typer.Exit(code) from error

    return guarded


def _print_error(error: Exception, code: ExitCode, *, verbose: bool) -> None:
    if code is ExitCode.BUG:
        traceback.print_exception(error)
        typer.secho("\nThis is a bug in deduper. Please report it with the lines above.", fg="red", err=True)
    elif isinstance(error, ConfigError):
        _print_problems(error)
    else:
        if verbose:
            traceback.print_exception(error)
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(_message(error, verbose=verbose), err=True)


def _message(error: Exception, *, verbose: bool) -> str:
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        return str(error).strip() or type(error).__name__
    from deduper.spark.failures import plain_cause

    more = "" if verbose else "; nothing half done is committed; --verbose shows the whole trace"
    return f"Spark failed: {plain_cause(error)}{more}"


def _print_problems(error: ConfigError) -> None:
    for problem in error.problems:
        typer.secho(problem.headline, bold=True, err=True)
        for number, line in enumerate(problem.picture):
            typer.secho(line, fg="red" if number else None, err=True)
    from deduper.cli.terminal import counted

    typer.echo(f"\n{counted(len(error.problems), 'problem')}; nothing was started.", err=True)


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


@_command(app, "init", *_BASIC)
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


@_command(app, "quickstart", *_BASIC, ExitCode.UNHEALTHY)
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


@_command(app, "run", *_READING, ExitCode.FENCED, ExitCode.BUG, ExitCode.INTERRUPTED)
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


@_command(app, "jars", *_BASIC, ExitCode.UNHEALTHY)
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


@_command(app, "doctor", *_BASIC, ExitCode.UNHEALTHY)
def doctor(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check whether a job can start, by the checks of `run` itself; changes nothing."""
    from deduper.admin.doctor import diagnose
    from deduper.cli.views.doctor import render
    from deduper.config.load import load_config

    diagnosis = diagnose(load_config(config, overrides=overrides or ()))
    _answer(diagnosis, render, as_json=as_json)
    if not diagnosis.is_healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)


@_command(app, "status", *_READING)
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
        _answer(read(), shown, as_json=as_json)


@_command(app, "explain", *_READING, raw_values=True)
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
    _answer(found, render, as_json=as_json)


@_command(app, "report", *_READING)
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
    _answer(found, render, as_json=as_json)
    if out is not None:
        from deduper.admin.report.page import page

        try:
            out.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}") from error
        typer.echo(f"{out} is written", err=True)


@_command(app, "verify", *_READING)
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
    _answer(report, render, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(report.exit_code)


@_command(app, "gc", *_READING, ExitCode.FENCED)
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
    _answer(report, render, as_json=as_json)
    if report.is_refused:
        raise typer.Exit(ExitCode.FENCED)


@_command(app, "repair", *_READING, ExitCode.FENCED)
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
    _answer(report, render, as_json=as_json)
    if not report.is_sound:
        raise typer.Exit(ExitCode.INTEGRITY)


@_command(app, "reshard", *_READING, ExitCode.FENCED)
def reshard(
    store: StoreArgument,
    shards: Annotated[
        int,
        typer.Option("--shards", min=1, max=4096, metavar="N", help="The new number of shards.", show_default=False),
    ],
    execute: ExecuteOption = False,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Use about so much memory; more makes larger pieces.")
    ] = "512MiB",
    as_json: JsonOption = False,
) -> None:
    """Divide a store's keys among another number of shards; interrupted, it continues when it is repeated."""
    from deduper.admin.move import reshard as resharding
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import PartsShown, render_reshard

    part_bytes = _size(memory, "--memory") // resharding.MEMORY_PER_PART_BYTE
    opened = open_store(store)
    if execute:
        report = resharding.reshard(opened, shards, part_bytes=part_bytes, on_part=PartsShown())
    else:
        report = resharding.plan_reshard(opened, shards, part_bytes=part_bytes)
    _answer(report, render_reshard, as_json=as_json)


@_command(app, "forget", *_READING, ExitCode.FENCED, raw_values=True)
def forget(
    store: StoreArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="One value for each column of the key.", show_default=False)
    ],
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="The text that stands for a null.")] = r"\N",
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take one key out of a store, with an audit that names its digest; a copy that comes next is unique."""
    from deduper.admin.keys.values import parse_key
    from deduper.admin.move import forget as forgetting
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import render_forget

    opened = open_store(store)
    try:
        key = parse_key(values, opened.key_columns, null=null)
        report = forgetting.forget(opened, key) if execute else forgetting.plan_forget(opened, key)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _answer(report, render_forget, as_json=as_json)


@_command(app, "rewind", *_READING, ExitCode.FENCED)
def rewind(
    config: ConfigArgument,
    to: Annotated[
        int, typer.Option("--to", min=0, metavar="WINDOW", help="The last window that stays.", show_default=False)
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go back to an earlier window, exactly or not at all; later outputs are named and set aside."""
    from deduper.admin.move import rewind as rewinding
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import render_rewind

    opened = open_store(str(config))
    report = rewinding.rewind(opened, to) if execute else rewinding.plan_rewind(opened, to)
    _answer(report, render_rewind, as_json=as_json)


@_command(app, "backup", *_READING)
def backup(
    store: StoreArgument,
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="STORE",
            help="The place of the copy, as file:/backup/clicks; an older copy there is brought up to date.",
            show_default=False,
        ),
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store consistently, also while its job runs; the copy is a store that every command reads."""
    from deduper.admin.move import backup as copying
    from deduper.admin.open_store import open_store, store_url
    from deduper.cli.views.move import PartsShown, render_copy

    copy = copying.backup(open_store(store), store_url(into))
    _answer(copy.run(PartsShown("piece")) if execute else copy.plan(), render_copy, as_json=as_json)


@_command(app, "export", *_READING)
def export(
    store: StoreArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder for the Parquet files.", show_default=False)
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a store's live keys as Parquet, one file a shard: salted digests with expiry key, window and origin."""
    from deduper.admin.move import export as exporting
    from deduper.admin.open_store import open_store
    from deduper.cli.views.move import PartsShown, render_export

    opened = open_store(store)
    report = exporting.export(opened, out, PartsShown("shard")) if execute else exporting.plan_export(opened, out)
    _answer(report, render_export, as_json=as_json)


@_command(app, "restore", *_READING)
def restore(
    config: ConfigArgument,
    source: Annotated[
        str, typer.Option("--from", metavar="STORE", help="The copy, as file:/backup/clicks.", show_default=False)
    ],
    execute: ExecuteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the store of a config from a copy, and read it back; there must be no store yet."""
    from deduper.admin.move import backup as copying
    from deduper.admin.open_store import named_store, open_store, store_url
    from deduper.cli.views.move import PartsShown, render_copy

    copy = copying.restore(open_store(store_url(source)), named_store(str(config))[0])
    _answer(copy.run(PartsShown("piece")) if execute else copy.plan(), render_copy, as_json=as_json)


@_command(app, "replay-errors", *_READING, ExitCode.FENCED)
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send error records through the job once more, exactly once, after a mend of the config or of a producer."""
    from deduper.admin.errors.replay import replay_errors as replay
    from deduper.admin.open_store import open_store
    from deduper.cli.views.replay import render

    report = replay(open_store(str(config)), _windows(window), reason or (), again=again, dry_run=dry_run)
    _answer(report, render, as_json=as_json)


@_command(app, "bench", *_BASIC)
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


@_command(config_app, "validate", *_BASIC)
def config_validate(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Check a config file: every mistake at once, each with its place and what to write."""
    from deduper.cli.terminal import print_json

    try:
        loaded = _loaded(config, overrides).config
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"valid": False, "problems": [problem.to_json() for problem in error.problems]})
        raise typer.Exit(error.exit_code) from error
    if as_json:
        print_json({"valid": True, "problems": []})
    else:
        typer.echo(f"{config} is valid: job {loaded.name}, key {', '.join(loaded.key)}")


@_command(config_app, "show", *_BASIC)
def config_show(config: ConfigArgument, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Show the effective settings and their origins; secrets are masked."""
    from deduper.cli.terminal import answer_console, print_json, print_parts, table

    settings = _loaded(config, overrides).settings
    if as_json:
        print_json({setting.setting: {"value": setting.value, "from": setting.source} for setting in settings})
        return
    rows = [(setting.setting, _setting_text(setting.value), setting.source) for setting in settings]
    print_parts(answer_console(), [table(("setting", "value", "from"), rows, optional=("from",))])


@_command(config_app, "schema", *_BASIC)
def config_schema() -> None:
    """Print the JSON Schema of a config file, for editors and checkers."""
    from deduper.cli.terminal import print_json
    from deduper.config.schema import json_schema

    print_json(json_schema())


@_command(inspect_app, "key", *_READING, raw_values=True)
def inspect_key(
    store: StoreArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE...", help="One value for each column of the key.", show_default=False)
    ],
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="The text that stands for a null.")] = r"\N",
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at", metavar="EXPIRY_KEY", help="Judge a copy with this timestamp, number or category too. Repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show whether a key is remembered, from which record, until when, and the verdict of a copy that comes next."""
    from deduper.admin import inspect
    from deduper.admin.keys.values import parse_expiry, parse_key
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    opened = open_store(store)
    try:
        key = parse_key(values, opened.key_columns, null=null)
        if at and opened.config is None:
            raise UsageError("--at needs the config, because a verdict depends on the period")
        asked = [] if opened.config is None else [parse_expiry(text, opened.config) for text in at or ()]
        report = inspect.inspect_key(opened, key, asked=asked)
    except ValueError as error:
        raise UsageError(str(error)) from error
    _answer(report, views.render_key, as_json=as_json)


@_command(inspect_app, "window", *_READING)
def inspect_window(
    store: StoreArgument,
    window: Annotated[int, typer.Argument(min=0, metavar="N", help="The window's number.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show the commit record of a window in full."""
    from deduper.admin import inspect
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    record = inspect.inspect_window(open_store(store), window)
    _answer(record, views.render_window, as_json=as_json)


@_command(inspect_app, "errors", *_READING)
def inspect_errors(
    store: StoreArgument,
    window: Annotated[
        str | None, typer.Option("--window", metavar="N", help="Only this window; A..B for a range.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, metavar="N", help="Only the newest N windows of the store.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Group the rows of the error port by reason and detail, each with the place of its first record."""
    from deduper.admin.errors.report import errors_report
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    _answer(errors_report(open_store(store), _windows(window), last), views.render_errors, as_json=as_json)


@_command(inspect_app, "bucket", *_READING, raw_values=True)
def inspect_bucket(
    store: StoreArgument,
    bucket: Annotated[
        str,
        typer.Argument(
            metavar="B", help="The bucket key, or a time in the bucket, such as 2024-12-31T23:00Z.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show which pieces hold a bucket, in every shard."""
    from deduper.admin import inspect
    from deduper.admin.open_store import open_store
    from deduper.cli.views import inspect as views

    opened = open_store(store)
    report = inspect.inspect_bucket(opened, inspect.bucket_of(opened, bucket))
    _answer(report, views.render_bucket, as_json=as_json)


def _windows(text: str | None) -> Windows:
    """The windows of `--window`, all without it."""
    from deduper.admin.errors.rows import Windows

    try:
        return Windows() if text is None else Windows.of(text)
    except ValueError as error:
        raise UsageError(f"--window: {error}") from error


def _size(text: str, option: str) -> int:
    from deduper.units import UnitError, parse_size

    try:
        return parse_size(text)
    except UnitError as error:
        raise UsageError(f"{option} {error}") from error


def _answer(report: Any, render: Callable[[Any], Iterable[RenderableType]], *, as_json: bool) -> None:
    """Print a report: as JSON, or as text."""
    from deduper.cli.terminal import answer_console, print_json, print_parts

    if as_json:
        print_json(report if isinstance(report, dict) else report.to_json())
    else:
        print_parts(answer_console(), render(report))


def _loaded(config: Path, overrides: list[str] | None) -> LoadedConfig:
    from deduper.config.load import load_with_sources

    return load_with_sources(config, overrides=overrides or ())


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> None:
    """The `deduper` command."""
    try:
        app()
    except SystemExit as end:
        if not are_left():
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
