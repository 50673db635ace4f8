"""The first ten minutes: a web log, a config to edit, the real job, and its result beside the expected one.

    DIRECTORY/in/             the log (`weblog`), generated once; files that a user adds are read too
    DIRECTORY/deduper.yaml    the config, written once; a user's changes stay
    DIRECTORY/state/weblog    the store
    DIRECTORY/out/<port>      the four outputs
    DIRECTORY/report.md       the result, rewritten by every run

Every step is safe to repeat, and an interrupted run continues from the last commit. The expected result is known while
log and config are unchanged.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import CommitRecord, LogState
from bucket_store.places.local import local_place
from deduper.cli.quickstart.report import ALL, NUMBERS, Expected, Outcome, Table
from deduper.cli.quickstart.weblog import DEFAULT_DAYS, MANIFEST, SCHEMA, WeblogError, WeblogSummary, write_weblog
from deduper.cli.terminal import counted
from deduper.config.load import load_config
from deduper.errors import CheckFailedError, UsageError
from deduper.units import approximate_size
from deduper.window.progress import progress_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from deduper.config.model import Config
    from deduper.window.progress import BatchProgress, RunSummary

CONFIG_TEXT: Final = f"""\
# A deduplication job: every record of in/ leaves as unique, duplicate, expired or error, exactly once.
# Relative paths start at this file's folder. `deduper config schema` describes every setting.
name: weblog

source:
  format: files
  path: in/
  file_format: json               # one JSON object a line; or csv, parquet
  schema: "{SCHEMA}"
  max_files_per_batch: 12         # the log has a file an hour: a window takes half a day

key: [user, id]                   # equal in all of these = the same record

expiry:
  by: event_time
  field: ts
  period: 24h                     # a key is remembered until ts is 24 h behind the latest one
  span: 1h                        # forgotten hour by hour
  lookup: own_bucket              # a copy has the same ts; all_live also finds copies with another ts
  clock: arrival                  # the latest point moves record by record
  max_ahead_of_now: 1h            # a record from further in the future is an error and moves no clock

store:
  url: rocksdb:state/weblog
  shards: 4
  memory: 512MiB

sinks:
  unique:    {{format: parquet, path: out/unique}}
  duplicate: {{format: parquet, path: out/duplicate}}
  expired:   {{format: parquet, path: out/expired}}
  error:     {{format: json, path: out/error}}

trigger: 10s                      # how often `deduper run` looks for new files
"""


class Run(Protocol):
    """`deduper.service.job.run`, or a stand-in for it in tests."""

    def __call__(
        self,
        config: Config,
        *,
        once: bool,
        max_batches: int | None,
        take_over: bool,
        on_progress: Callable[[BatchProgress], None],
    ) -> RunSummary: ...


def quickstart(directory: Path, *, records: int, seed: int, console: Console, run: Run | None = None) -> None:
    """Generates the missing files in `directory`, runs the job until the log is drained, and prints the result.

    Raises:
        UsageError: fewer than 100 records, or the directory has other contents.
        CheckFailedError: the result differs from the expected one; the table and the report show where.
        And whatever the job raises.
    """
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        log = write_weblog(directory / "in", records=records, days=DEFAULT_DAYS, seed=seed)
    except (ValueError, WeblogError) as error:
        raise UsageError(str(error)) from error
    console.print(
        f"Log      {_shown(directory / 'in')}/: {log.records:,} lines of {log.days} days in {len(log.files)} files, "
        f"{approximate_size(log.size_bytes)} ({time.monotonic() - started:.1f} s)"
    )
    config_file = directory / "deduper.yaml"
    if not config_file.exists():
        _write_whole(config_file, CONFIG_TEXT)
    console.print(f"Config   {_shown(config_file)}")
    # Not the environment: DEDUPER__STORE__URL of a real job must not take the keys of a demo.
    config = load_config(config_file, environment={})

    before, _ = _read_store(config.store.path)
    judged, summary = _judge(config, log.records, sum(before.totals.values()), console, run)
    if summary.stopped_by == "signal":
        console.print("Stopped before the end. The same command continues from the last committed window.")
        return

    state, windows = _read_store(config.store.path)
    expected, why_not = _expected(directory / "in", log, config_file.read_text(encoding="utf-8"))
    outcome = Outcome(state, windows, expected)
    report = directory / "report.md"
    remarks = [remark for remark in (_done(before, state, judged, summary), why_not) if remark]
    places = [*_places(config), ("report", _shown(report))]
    _write_whole(
        report, outcome.as_markdown(remarks=remarks, places=places, config_text=config_file.read_text("utf-8"))
    )

    _print_result(console, outcome, remarks, places, _next_steps(directory, log, config_file))
    if not outcome.is_as_expected:
        raise CheckFailedError(f"the result differs from the expected one; {_shown(report)} shows where")


def _judge(
    config: Config, records: int, already: int, console: Console, run: Run | None
) -> tuple[list[BatchProgress], RunSummary]:
    """Run the job beside a progress bar that begins at `already` of `records`; gives its windows and its summary."""
    if run is None:
        from deduper.service.job import run as run_job  # imports pyspark, for a second: not for a wrong argument

        run = run_job
    judged: list[BatchProgress] = []
    with _progress_bar(console) as bar:
        task = bar.add_task("Starting Spark", total=records, completed=already)

        def on_progress(batch: BatchProgress) -> None:
            judged.append(batch)
            bar.update(task, description="Judging ", advance=batch.rows)
            if not console.is_terminal:  # there is no bar to watch
                console.print(progress_line(batch), highlight=False, soft_wrap=True)

        summary = run(config, once=True, max_batches=None, take_over=False, on_progress=on_progress)
    return judged, summary


def _print_result(
    console: Console,
    outcome: Outcome,
    remarks: Sequence[str],
    places: Sequence[tuple[str, str]],
    next_steps: Sequence[tuple[str, str]],
) -> None:
    console.print()
    for remark in remarks:
        console.print(remark)
    for table in (outcome.ports_table(), outcome.reasons_table()):
        console.print(_rich(table))
    for name, place in places:
        console.print(f"  {name:10} {place}", highlight=False, markup=False, soft_wrap=True)
    console.print("\n[bold]Next steps[/bold]")
    for why, command in next_steps:
        console.print(f"  [dim]# {why}[/dim]", highlight=False, soft_wrap=True)
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _read_store(path: Path) -> tuple[LogState, list[CommitRecord]]:
    """The state of a store and its windows, oldest first; an empty one when there is none yet."""
    try:
        log = CommitLog.open(local_place(path))
    except StoreMissingError:
        return LogState(), []
    return log.state, [record.body for record in log.records() if isinstance(record.body, CommitRecord)]


def _expected(log_directory: Path, log: WeblogSummary, config_text: str) -> tuple[Expected | None, str]:
    """The expected result; or why it is unknown."""
    if config_text != CONFIG_TEXT:
        return None, "The config was edited, so there is no expected result."
    generated = {MANIFEST, *(file.name for file in log.files)}
    added = sorted(entry.name for entry in log_directory.iterdir() if entry.name not in generated)
    if added:
        return None, f"The log has files of your own ({', '.join(added[:3])}), so there is no expected result."
    return Expected(log.counts(), log.error_reasons()), ""


def _done(before: LogState, after: LogState, judged: Sequence[BatchProgress], summary: RunSummary) -> str:
    windows = after.next_window - before.next_window
    if windows == 0:
        return f"Nothing new: {counted(after.next_window, 'window')} already committed, and nothing was added twice."
    rows = sum(after.totals.values()) - sum(before.totals.values())
    seconds = sum(batch.seconds for batch in judged)
    rate = f", {sum(batch.rows for batch in judged) / seconds:,.0f} rows/s" if seconds > 0 else ""
    earlier = f" ({counted(before.next_window, 'window')} already committed before)" if before.next_window else ""
    seconds_of_all = f"{summary.seconds:.1f} s with the start of Spark"
    return f"{rows:,} rows judged in {counted(windows, 'window')}{rate}; {seconds_of_all}{earlier}."


def _places(config: Config) -> list[tuple[str, str]]:
    outputs = [
        (port, f"{_shown(sink.path) if sink.is_local else sink.url}/") for port, sink in config.file_ports.items()
    ]
    return [*outputs, ("store", f"{_shown(config.store.path)}/")]


def _next_steps(directory: Path, log: WeblogSummary, config_file: Path) -> list[tuple[str, str]]:
    """Pairs of a purpose and the command to type."""
    config = _typed(config_file)
    last = directory / "in" / log.files[-1].name
    again = last.with_name(f"again-{last.name}")
    read = "import sys, pyarrow.dataset as d; print(d.dataset(sys.argv[1]).head(2).to_pylist())"
    steps = [
        ("the contents of the store", f"deduper status {config}"),
        ("a page with plots", f"deduper report {config} --out {_typed(directory / 'report.html')}"),
        ("the first copy of a key", f"deduper inspect key {config} {log.sample_user} {log.sample_id}"),
        (
            "the rows of a port, with _dedup",
            f"python -c '{read}' {_typed(directory / 'out' / 'duplicate')}",
        ),
        (
            "a file delivered twice: none of its rows is unique",
            f"cp {_typed(last)} {_typed(again)} && deduper run --once {config}",
        ),
    ]
    if sys.prefix != sys.base_prefix:
        steps.insert(0, ("once in a new shell", f". {_typed(Path(sys.prefix) / 'bin' / 'activate')}"))
    return steps


def _rich(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=True)
    for index, name in enumerate(table.head):
        shown.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=index == 0)
    for row in table.rows:
        shown.add_row(*row, style="bold" if row[0] == ALL else None)
    return shown


def _write_whole(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def _shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _typed(path: Path) -> str:
    return shlex.quote(_shown(path))
