"""The first ten minutes: a web log, a config to edit, the real job, and its result beside the expected one.

    DIRECTORY/in/             the log (`weblog`), generated once; files that a user adds are read too
    DIRECTORY/deduper.yaml    the config, written once; a user's changes stay
    DIRECTORY/state/weblog    the store
    DIRECTORY/out/<port>      the four outputs
    DIRECTORY/table.yaml      loads the unique rows into a Delta table; written once

Every step is safe to repeat, and an interrupted run continues from the last commit. The expected result is known while
log and config are unchanged.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bucket_store.errors import StoreMissingError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import LogState
from bucket_store.places.local import local_place
from deduper.cli.terminal import TextTable, print_parts, table
from deduper.cli.weblog import DEFAULT_DAYS, MANIFEST, SCHEMA, WeblogError, WeblogSummary, write_weblog
from deduper.config.load import load_config
from deduper.config.sections import PORTS
from deduper.core.verdict import PORT_OF_REASON
from deduper.errors import CheckFailedError, UsageError
from deduper.units import approximate_size, counted
from deduper.window.progress import progress_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from deduper.config.model import Config
    from deduper.window.progress import BatchProgress, RunSummary

_ALL: Final = "all"
"""The row that sums the ports up."""
CONFIG_TEXT: Final = f"""\
# A deduplication job: every record of in/ leaves as unique, duplicate, expired or error, exactly once.
# Relative paths start at this file's folder. `deduper show --schema` describes every setting.
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

_TABLE_TEXT: Final = """\
# `deduper table load` adds the unique rows to a Delta Lake table; those that it has are not added again.
source: {path: "out/unique/*.parquet"}
table: {path: table, format: delta}
key: [user, id]
"""


def quickstart(
    directory: Path, *, records: int, seed: int, console: Console, run: Callable[..., RunSummary] | None = None
) -> None:
    """Generates the missing files in `directory`, runs the job until the log is drained, and prints the result.

    `run` is a stand-in for `deduper.service.job.run`, in tests.

    Raises:
        UsageError: fewer than 100 records, or the directory has other contents.
        CheckFailedError: the result differs from the expected one; the table shows where.
        And whatever the job raises.
    """
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if not (directory / "in" / MANIFEST).exists():
        console.print(f"Log      {_shown(directory / 'in')}/: writing {records:,} lines …")
    try:
        log = write_weblog(directory / "in", records=records, days=DEFAULT_DAYS, seed=seed)
    except (ValueError, WeblogError) as error:
        raise UsageError(str(error)) from error
    console.print(
        f"Log      {_shown(directory / 'in')}/: {log.records:,} lines of {log.days} days in {len(log.files)} files, "
        f"{approximate_size(sum(log.files.values()))} ({time.monotonic() - started:.1f} s)"
    )
    config_file = directory / "deduper.yaml"
    for file, text in ((config_file, CONFIG_TEXT), (directory / "table.yaml", _TABLE_TEXT)):
        if not file.exists():
            _write_whole(file, text)
    console.print(f"Config   {_shown(config_file)}")
    # Not the environment: DEDUPER__STORE__URL of a real job must not take the keys of a demo.
    config = load_config(config_file, environment={})

    before = _read_store(config.store.path)
    judged, summary = _judge(config, log.records, sum(before.totals.values()), console, run)
    if summary.stopped_by == "signal":
        console.print("Stopped before the end. The same command continues from the last committed window.")
        return

    state = _read_store(config.store.path)
    why_not = _why_unknown(directory / "in", log, config_file.read_text(encoding="utf-8"))
    expected = None if why_not else log
    console.print()
    for remark in filter(None, (_done(before, state, judged, summary), why_not)):
        console.print(remark)
    results = [_ports_table(state, expected), _reasons_table(state, expected)]
    print_parts(console, [*(shown for shown, _ in results), Text()])
    for name, place in _places(config):
        console.print(f"  {name:10} {place}", highlight=False, markup=False, soft_wrap=True)
    console.print("\n[bold]Next steps[/bold]")
    for why, command in _next_steps(directory, log, config_file):
        console.print(f"  [dim]# {why}[/dim]", highlight=False, soft_wrap=True)
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    if not all(is_right for _, is_right in results):
        raise CheckFailedError("the result differs from the expected one; the tables show where")


def _judge(
    config: Config, records: int, already: int, console: Console, run: Callable[..., RunSummary] | None
) -> tuple[list[BatchProgress], RunSummary]:
    """Run the job beside a progress bar that begins at `already` of `records`; gives its windows and its summary."""
    if run is None:
        from deduper.service.job import run as run_job  # imports pyspark, for a second: not for a wrong argument

        run = run_job
    judged: list[BatchProgress] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Starting Spark", total=records, completed=already)

        def on_progress(batch: BatchProgress) -> None:
            judged.append(batch)
            bar.update(task, description="Judging ", advance=batch.rows)
            if not console.is_terminal:  # there is no bar to watch
                console.print(progress_line(batch), highlight=False, soft_wrap=True)

        summary = run(config, once=True, on_progress=on_progress)
    return judged, summary


def _read_store(path: Path) -> LogState:
    """The state of a store; an empty one when there is none yet."""
    try:
        return CommitLog.open(local_place(path)).state
    except StoreMissingError:
        return LogState()


def _why_unknown(log_directory: Path, log: WeblogSummary, config_text: str) -> str:
    """Why the expected result is unknown; empty if it is known."""
    if config_text != CONFIG_TEXT:
        return "The config was edited, so there is no expected result."
    added = sorted(entry.name for entry in log_directory.iterdir() if entry.name not in (MANIFEST, *log.files))
    return f"The log has files of your own ({', '.join(added[:3])}), so there is no expected result." if added else ""


def _ports_table(state: LogState, expected: WeblogSummary | None) -> tuple[TextTable, bool]:
    """Rows and share of each port and of all, beside the expected rows; and whether they are as expected."""
    counts = {port: state.totals.get(port, 0) for port in PORTS}
    counts[_ALL] = rows = sum(counts.values())
    wanted = None if expected is None else {**expected.counts, _ALL: expected.records}
    cells = [
        (port, found, f"{found / max(1, rows):.2%}", *_compared(found, wanted, port)) for port, found in counts.items()
    ]
    return _table("Result", ("port", "rows", "share"), cells, wanted), wanted is None or counts == wanted


def _reasons_table(state: LogState, expected: WeblogSummary | None) -> tuple[TextTable, bool]:
    """Rows of each reason that occurs or was expected, grouped as the ports are; and whether they are as expected."""
    found = +Counter(state.reason_totals)
    wanted = None if expected is None else expected.error_reasons
    names = sorted({*found, *(wanted or ())}, key=lambda name: (PORTS.index(PORT_OF_REASON[name]), -found[name], name))
    cells = [(name, PORT_OF_REASON[name], found[name], *_compared(found[name], wanted, name)) for name in names]
    is_right = all(found[reason] == rows for reason, rows in (wanted or {}).items())
    return _table("Reasons", ("reason", "port", "rows"), cells, wanted), is_right


def _table(
    title: str, head: tuple[str, ...], cells: Iterable[tuple[object, ...]], wanted: Mapping[str, int] | None
) -> TextTable:
    return table((*head, *(() if wanted is None else ("expected", ""))), cells, title=title)


def _compared(found: int, expected: Mapping[str, int] | None, name: str) -> tuple[object, ...]:
    """The cells beside a count: none if nothing is expected, empty ones if nothing is expected for this name."""
    if expected is None:
        return ()
    wanted = expected.get(name)
    if wanted is None:
        return None, ""
    return wanted, "as expected" if found == wanted else f"differs by {found - wanted:+,}"


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
    last = directory / "in" / max(log.files)
    again = last.with_name(f"again-{last.name}")
    read = "import sys, pyarrow.dataset as d; print(d.dataset(sys.argv[1]).head(2).to_pylist())"
    steps = [
        ("the contents of the store", f"deduper status {config}"),
        ("a page with plots", f"deduper status {config} --page {_typed(directory / 'status.html')}"),
        ("every copy of a key, and its verdict", f"deduper explain {config} {log.sample[0]} {log.sample[1]}"),
        (
            "the rows of a port, with _dedup",
            f"python -c '{read}' {_typed(directory / 'out' / 'duplicate')}",
        ),
        (
            "a file delivered twice: none of its rows is unique",
            f"cp {_typed(last)} {_typed(again)} && deduper run --once {config}",
        ),
        (
            "a Delta table of the unique rows; a second load adds none",
            f"deduper table load {_typed(directory / 'table.yaml')}",
        ),
    ]
    if sys.prefix != sys.base_prefix:
        steps.insert(0, ("once in a new shell", f". {_typed(Path(sys.prefix) / 'bin' / 'activate')}"))
    return steps


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
