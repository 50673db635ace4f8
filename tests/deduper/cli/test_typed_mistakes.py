"""Mistakes on the command line and in files, each as it was made: the exit code and the exact message.

Those inside a config's values are in `tests/deduper/config/test_mistakes.py`.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deduper.admin.errors.report import REASONS
from deduper.cli.command import print_error
from deduper.cli.main import app
from deduper.errors import ExitCode
from tests.deduper.config.cases import cases
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

NOTHING = "\n\n1 problem; nothing was started."
EACH = "give one for each, in this order"
UNITS = "units are w, d, h, m, s, ms, us"
DURATION = "write a number and a unit, such as `90s`, `24h`, `7d` or `1h30m`"
IN_YAML = "indent with spaces, and put a value with `: `, `#`, `[` or `{{` in quotes"
NO_COLON = f"put a colon and a blank behind each name, here and in the line before; {IN_YAML}"

# The words of a command, by blanks; its exit code, and what it writes to standard error.
CASES = cases(
    r"""
too-few-values | explain job.yaml a | 2
  error: the key has 2 columns (user string, id bigint), and 1 value was given; <EACH>
named-values | explain job.yaml id=1 user=a | 2
  error: write the values alone, in the order of the key: a 1
config-as-an-option | explain --config nowhere.yaml a 1 | 2
  nowhere.yaml: there is no such file; `deduper init nowhere.yaml` writes one to start from<NOTHING>
page-that-is-no-page | status job.yaml --page r.pdf | 2
  error: --page r.pdf: the page is HTML; write --page r.html
near-file | run job.yml | 2
  job.yml: there is no such file; did you mean `job.yaml`? Else `deduper init job.yml` writes one to start from<NOTHING>
file-with-a-blank | check job.yaml# | 2
  job.yaml : there is no such file; did you mean `job.yaml`? Else `deduper init job.yaml ` writes one to start
      from<NOTHING>
near-reason | errors job.yaml --reason nul_key | 2
  error: `nul_key` is no reason of an error; did you mean `null_key`? Else reasons are <REASONS>
windows-by-dash | errors job.yaml --window 3-5 | 2
  error: --window: `3-5` names no windows; write a number or a range such as 7..9
table-file-for-a-job | run table.yaml | 2
  table.yaml: is the config file of `deduper table`; `deduper init` writes the file of a job<NOTHING>
job-file-for-a-table | table load job.yaml | 2
  job.yaml: is the config file of a job (`deduper run`); docs/tables.md has one to copy<NOTHING>
seed-of-nothing | seed job.yaml | 2
  error: name one input: --files PATH or --topic NAME
set-of-no-number | run job.yaml --set store.shards=eight | 2
  --set store.shards: store.shards: must be a whole number, found `eight`; write digits only<NOTHING>
too-many-values | explain job.yaml a 1 2 | 2
  error: the key has 2 columns (user string, id bigint), and 3 values were given; <EACH>
value-of-another-type | explain job.yaml a x | 2
  error: column id: `x` is no bigint; write a whole number
number-too-large | explain job.yaml a 9223372036854775808 | 2
  error: 9223372036854775808 is no bigint
at-no-time | explain job.yaml a 1 --at soon | 2
  error: column ts: `soon` is no timestamp; write 2024-12-31T23:59:59Z (UTC when no zone is written)
at-of-never | explain never.yaml a 1 --at 5 | 2
  error: with `expiry.by: never` a copy has no expiry key of its own; leave out --at
at-without-config | explain state a 1 --at 2025-01-01 | 2
  error: --at needs the config, because a verdict depends on the period
since-no-time | explain job.yaml a 1 --since soon | 2
  error: --since soon: write a time as 2024-12-31T23:00Z, or how long ago as 7d
no-file | explain nowhere.yaml a 1 | 2
  nowhere.yaml: there is no such file; `deduper init nowhere.yaml` writes one to start from<NOTHING>
never-run | status new.yaml | 2
  error: {}/none-yet: there is no store yet; the first start of `deduper run` makes it
store-url-nowhere | status rocksdb:nowhere | 2
  error: {}/nowhere: there is no store here; check the place
folder-without-store | status . | 2
  error: .: this folder holds no store; name a config file, or the folder of a store
no-folder | status nowhere | 2
  error: nowhere: there is no such file or folder; name a config file, or a store by folder or URL
data-for-config | run data.csv | 2
  data.csv:1:1: is not a mapping; write `name: value` lines<LF>    1 | user,id<LF>      | ^<NOTHING>
bytes-for-config | show bytes.yaml | 2
  bytes.yaml: is not UTF-8 at byte 128; save the file as UTF-8<NOTHING>
folder-for-config | check state | 2
  state: is a folder; name the config file in it<NOTHING>
tab | check tab.yaml | 2
  tab.yaml:2:1: is not YAML: found character '\t' that cannot start any token; <IN_YAML><LF>    2 | <TAB>format:
      files<LF>      | ^<NOTHING>
no-colon | check colon.yaml | 2
  colon.yaml:2:4: is not YAML: mapping values are not allowed here; <NO_COLON><LF>    2 | key:
      user<LF>      |    ^<NOTHING>
no-blank | check blank.yaml | 2
  blank.yaml:3:1: is not YAML: could not find expected ':'; <NO_COLON><LF>    3 |
      expiry: {{by: never}}<LF>      | ^<NOTHING>
another-column | check column.yaml | 2
  column.yaml:3:4: is not YAML: expected <block end>, but found '<block mapping start>'; begin the names of a section
      in one column, here and in the lines before; <IN_YAML><LF>    3 |    error:
      {{}}<LF>      |    ^<NOTHING>
set-typo | run job.yaml --set store.shard=8 | 2
  --set store.shard: store.shard: unknown setting; did you mean `shards`?<NOTHING>
set-without-value | run job.yaml --set shards | 2
  --set shards: is not a setting; write `--set path=value`, as in `--set store.shards=8`<NOTHING>
set-foreign-type | check job.yaml --set source.schema=user#int64 | 2
  --set source.schema: source.schema: `int64` is not a type; did you mean `bigint`?
window-beyond | status job.yaml --window 99 | 3
  error: window 99 is not committed; the newest window is 0
window-of-none | status empty.yaml --window 0 | 3
  error: window 0 is not committed; the store has no window yet
bucket-no-time | status job.yaml --bucket soon | 2
  error: `soon` is no bucket key; write a whole number, or a time as 2024-12-31T23:00Z
bucket-of-never | status never.yaml --bucket 2025-01-01 | 2
  error: `2025-01-01` is no bucket key; write a whole number
two-looks | status job.yaml --window 0 --watch | 2
  error: --window and --watch: leave one out, each shows something else
nothing-to-show | show | 2
  error: name a config file, or give --schema, which describes every setting
grace-without-unit | gc job.yaml --grace 5 | 2
  error: --grace a duration needs a unit, found `5`; write `5s` for seconds; <UNITS>
grace-no-duration | gc job.yaml --grace soon | 2
  error: --grace `soon` is not a duration; <DURATION>
seed-outputs-have-a-format | seed job.yaml --files out --outputs --format csv | 2
  error: --format: the endings of --outputs say it, leave it out
init-in-no-folder | init no/such.yaml | 2
  error: no: there is no such folder; make it (mkdir -p no)
init-over-a-file | init job.yaml | 2
  error: job.yaml exists; name another file, or replace it with --force
init-onto-a-folder | init state --force | 1
  error: state: Is a directory
""",
    {
        "NOTHING": NOTHING,
        "REASONS": ", ".join(REASONS),
        "EACH": EACH,
        "UNITS": UNITS,
        "DURATION": DURATION,
        "NO_COLON": NO_COLON,
        "IN_YAML": IN_YAML,
        "LF": "\n",
        "TAB": "\t",
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configs with their stores, and files that are none; no mistake changes anything in it."""
    folder = tmp_path_factory.mktemp("typed")
    file = write_config(folder)
    make_store(file, [Window([SeenKey(("a", 1), BEGIN_US // HOUR_US, BEGIN_US, 3)], BEGIN_US)])
    text = file.read_text(encoding="utf-8")
    file.rename(folder / "job.yaml")
    kept = [line for line in text.splitlines() if not line.startswith("expiry:")]
    by_time = "expiry: {by: event_time, field: ts, period: 24h, span: 1h}"
    for url, expiry in (("never", "expiry: {by: never}"), ("empty", by_time), ("none-yet", by_time)):
        other = folder / f"{url}.yaml"
        other.write_text("\n".join([*kept, expiry]).replace("file:state", f"file:{url}") + "\n", encoding="utf-8")
        if url != "none-yet":
            make_store(other, [Window()] if url == "never" else [])
    (folder / "none-yet.yaml").rename(folder / "new.yaml")
    table = "source: {path: 'out/*.parquet'}\ntable: {path: t, format: delta}\nkey: [user]\n"
    (folder / "table.yaml").write_text(table, encoding="utf-8")
    (folder / "data.csv").write_text("user,id\na,1\n", encoding="utf-8")
    (folder / "bytes.yaml").write_bytes(bytes(range(256)))
    (folder / "tab.yaml").write_text("source:\n\tformat: files\n", encoding="utf-8")
    (folder / "colon.yaml").write_text("name clicks\nkey: user\n", encoding="utf-8")
    (folder / "blank.yaml").write_text("name: a\nkey:[user, id]\nexpiry: {by: never}\n", encoding="utf-8")
    (folder / "column.yaml").write_text("sinks:\n  unique: {format: none}\n   error: {}\n", encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_mistake_gets_its_message(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on standard output, no trace, and what to do; no file is made or changed."""
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    command, code, (message,) = CASES[name]
    result = CliRunner().invoke(app, [word.replace("#", " ") for word in command.split()])
    expected = message.format(folder)
    shown = result.stderr.rstrip("\n")
    assert (result.exit_code, result.stdout) == (int(code), "")
    assert shown == expected or (name == "set-foreign-type" and shown.startswith(expected))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_right_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """The place, the system's words, and what to do."""
    print_error(PermissionError(errno.EACCES, "Permission denied", "t/lock"), ExitCode.FAILED, verbose=False)
    assert capsys.readouterr().err == "error: t/lock: Permission denied; let this user read and write there\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("clicks.yaml", "`deduper run clicks.yaml` runs the job, `deduper check clicks.yaml` checks it"),
        ("start", "`deduper run CONFIG` starts the job"),
        ("validate job.yaml", "`deduper check CONFIG` checks the file"),
        ("doctor", "`deduper check CONFIG` checks the file"),
        ("runn", "Did you mean 'run'?"),
        ("Run job.yaml", "Did you mean 'run'?"),
        ("stop job.yaml", "SIGTERM or Ctrl-C: it finishes its window first"),
        ("restart job.yaml", "then `deduper run CONFIG`"),
        ("logs", "a job logs to standard error"),
        ("list", "`deduper status CONFIG` shows one job"),
        ("repair job.yaml", "`deduper verify CONFIG` finds what is damaged"),
        ("delete job.yaml a", "`deduper forget CONFIG VALUE...` takes a key out"),
        ("run job.yaml --once true", "--once takes no value: leave out `true`"),
        ("run job.yaml --set store.shards 8", "one word: write `--set store.shards=8`"),
        ("--config job.yaml run", "options of a command stand behind it: `deduper run --config …`"),
        ("-v run job.yaml", "options of a command stand behind it: `deduper run -v …`"),
        ("run job.yaml -once", "`-once` is no option: write `--once`"),
        ("run job.yaml --Once", "(Possible options: --once)"),
        ("run job.yaml --max-windows 0", "0 is not in the range x>=1"),
        ("run job.yaml other.yaml", "Got unexpected extra argument(s) (other.yaml)"),
        ("status job.yaml --last x", "'x' is no whole number"),
        ("status job.yaml --windows 3", "(Possible options: --window)"),
        ("status --every x --watch job.yaml", "'x'"),
        ("quickstart --records ten", "'ten' is no whole number"),
        ("reshard job.yaml", "Missing option '--shards'"),
        ("reshard job.yaml --shards 0", "0 is not in the range 1<=x<=4096"),
        ("backup job.yaml", "Missing option '--into'"),
        ("restore job.yaml", "Missing option '--from'"),
        ("export job.yaml", "Missing option '--out'"),
        ("rewind job.yaml", "Missing option '--to'"),
        ("forget job.yaml", "Missing argument 'VALUE...'"),
        ("explain job.yaml", "Missing argument 'VALUE...'"),
    ],
)
def test_a_slip_names_what_is_meant(words: str, meant: str) -> None:
    """A command, an option or a value: with exit code 2, before anything is read."""
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, words.split())
    assert result.exit_code == 2
    assert meant in result.stderr


@pytest.mark.parametrize("words", ["help", "help check", "table help"])
def test_help_is_a_word_too(words: str) -> None:
    """The same as --help."""
    as_option = [word for word in words.split() if word != "help"] + ["--help"]
    result, expected = CliRunner().invoke(app, words.split()), CliRunner().invoke(app, as_option)
    assert (result.exit_code, result.stdout.strip()) == (0, expected.stdout.strip())


def test_a_config_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the folder are named, or how to make one."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"COLUMNS": "300"})
    assert "Missing argument 'CONFIG'. `deduper init` writes one to start from" in runner.invoke(app, ["run"]).stderr
    (tmp_path / "job.yaml").touch()
    assert "Missing argument 'CONFIG_OR_STORE'. In this folder: job.yaml" in runner.invoke(app, ["status"]).stderr
    assert "Possible options" not in runner.invoke(app, ["verify", "--deep", "job.yaml"]).stderr


@pytest.mark.parametrize("target", ["file:state", "file://state", "file://{}/state", "state", "./state", "job.yaml"])
def test_a_store_has_many_names(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL with slashes names no host, here as in a config."""
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["status", target.format(folder), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["windows"]) == (0, 1)
