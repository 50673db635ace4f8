"""The commands as a shell sees them: help, answers, messages, exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bucket_store import errors as store_errors
from deduper.admin import open_store
from deduper.cli.main import app
from deduper.cli.weblog import DEFAULT_RECORDS
from deduper.config.problems import ConfigError
from deduper.errors import CheckFailedError, ExitCode, IntegrityError, OwnerAliveError, UsageError, exit_code_of
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

ROOT = Path(__file__).parent.parent.parent.parent
HEAVY = (
    "pydantic",
    "pyspark",
    "numba",
    "pyarrow",
    "rocksdict",
    "numpy",
    "ruamel",
    "confluent_kafka",
    "msgspec",
)


def commands(prefix: tuple[str, ...] = (), command: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command by the words it is called with."""
    command = typer.main.get_command(app) if command is None else command
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands((*prefix, name), inner)
    else:
        yield prefix, command


COMMANDS = dict(commands())


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> Any:
    """The command in this process; wide, so that no line is broken."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300", **(env or {})})


def shell(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a shell starts it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEDUPER__")}
    return subprocess.run(
        [sys.executable, "-m", "deduper", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A config whose store has one window with one key."""
    file = write_config(tmp_path)
    make_store(file, [Window([SeenKey(("a", 1), BEGIN_US // HOUR_US, BEGIN_US, 3)], BEGIN_US)])
    return file


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_exit_codes_and_a_line_in_the_documentation(words: tuple[str, ...]) -> None:
    """What it does, what each parameter is, how it ends, and where to read about it."""
    result = run(*words, "--help")
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "Exit codes: 0 ok" in text
    assert COMMANDS[words].help
    assert all(parameter.help for parameter in COMMANDS[words].params)
    documents = [(ROOT / "README.md"), (ROOT / "docs/cli.md")]
    documented = "".join(path.read_text(encoding="utf-8") for path in documents if path.exists())
    assert f"deduper {' '.join(words)}" in documented


@pytest.mark.parametrize(
    "words",
    [words for words in COMMANDS if words[0] in ("check", "status", "errors", "verify", "gc", "explain", "run")],
    ids=" ".join,
)
def test_every_reading_command_answers_in_json_too(words: tuple[str, ...]) -> None:
    """For programs."""
    assert any("--json" in parameter.opts for parameter in COMMANDS[words].params)


def test_the_help_fits_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 lines of 80 columns, one for each command; what is not in it works all the same."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--help").stdout.splitlines()
    assert len(lines) <= 40
    named = [line.split()[1] for line in lines if line.startswith("│ ") and not line.startswith("│ -")]
    assert sorted(named) == sorted({words[0] for words in COMMANDS})
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))  # it looks among its ancestors
    assert run("--show-completion").exit_code == 0


def test_the_generated_documentation_is_up_to_date() -> None:
    """Otherwise: python scripts/reference.py."""
    reference = _script("reference")
    for name, make in reference.REFERENCES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert reference.with_reference(text, make()) == text, f"{name} is stale"


def test_quickstart_makes_the_log_that_its_author_means() -> None:
    """The number stands in the command too, because importing it would make every help slow."""
    defaults = {parameter.name: parameter.default for parameter in COMMANDS["quickstart",].params}
    assert defaults["records"] == DEFAULT_RECORDS


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loaded_by_help() -> dict[str, list[str]]:
    """The heavy modules that each command's help loads, by the command's words; all in one new process."""
    code = (
        "import contextlib, io, json, sys\n"
        "from deduper.cli.main import main\n"
        "loaded = {}\n"
        f"for words in {list(map(list, [(), *COMMANDS]))!r}:\n"
        "    sys.argv = ['deduper', *words, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):\n"
        "        main()\n"
        "    assert not words or 'Exit codes: 0 ok' in text.getvalue(), words\n"
        "    known = sum(loaded.values(), [])\n"
        f"    loaded[' '.join(words)] = [name for name in {HEAVY!r} if name in sys.modules and name not in known]\n"
        "print(json.dumps(loaded))\n"
    )
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    loaded: dict[str, list[str]] = json.loads(done.stdout)
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), *COMMANDS], ids=lambda words: " ".join(words) or "deduper")
def test_help_loads_nothing_heavy(words: tuple[str, ...], loaded_by_help: dict[str, list[str]]) -> None:
    """So that it answers at once; the console script is `deduper.cli.main:main`."""
    assert loaded_by_help[" ".join(words)] == []


@pytest.mark.night
@pytest.mark.slow
def test_exit_codes_in_a_shell(tmp_path: Path) -> None:
    """Wrong usage and wrong configuration end with 2, the message on standard error alone."""
    for arguments in (["nonsense"], ["run"], ["status", "--last", "many", "x"], ["status", "nowhere.yaml"]):
        done = shell(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), arguments
    done = shell("init", "job.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "job.yaml").write_text("nonsense: 1\n", encoding="utf-8")
    done = shell("run", "job.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("job.yaml:1:1: source: is missing")
    assert done.stderr.endswith("\n5 problems; nothing was started.\n")
    assert "\x1b" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError([]), 2),
        (UsageError("x"), 2),
        (CheckFailedError("x"), 3),
        (IntegrityError("x"), 4),
        (OwnerAliveError("x"), 5),
        (store_errors.CorruptionError("x", file="f", offset=0, expected=1, found=2), 4),
        (store_errors.UnknownFormatError("x"), 4),
        (store_errors.FencedError("x"), 5),
        (store_errors.SettingsChangedError("x"), 2),
        (store_errors.StoreMissingError("x"), 2),
        (store_errors.SpaceError("x"), 1),
        (store_errors.MaybeCommittedError("x"), 1),
        (PermissionError(13, "no"), 1),
        (RuntimeError("x"), 70),
        (AssertionError(), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_error_ends_the_process_with_its_code(
    error: Exception, code: int, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the function, and through a whole command; a bug shows its traceback and asks for a report."""

    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(open_store, "open_store", fail)
    result = run("status", config_file)
    assert exit_code_of(error) == result.exit_code == code
    assert result.stdout == ""
    assert ("Please report it" in result.stderr) == (code == ExitCode.BUG) == ("Traceback" in result.stderr)


def test_errors_of_spark_are_failures_and_not_bugs() -> None:
    """They are known by their module, without importing it."""
    spark_error = type("AnalysisException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    assert exit_code_of(spark_error("x")) is ExitCode.FAILED


def test_an_interrupt_ends_with_130(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is no error of anybody's."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(open_store, "open_store", interrupt)
    assert run("status", config_file).exit_code == exit_code_of(KeyboardInterrupt()) == 130


def test_init_writes_a_valid_config_and_replaces_none(tmp_path: Path) -> None:
    """Only with --force."""
    file = tmp_path / "web.yaml"
    made = run("init", file)
    assert (made.exit_code, made.stdout.splitlines()[1]) == (0, f"  deduper check {file}")
    first = file.read_text(encoding="utf-8").splitlines()[1:4]
    assert len({line.rindex("  ") for line in first}) == 1, "its commands are explained in one column"
    assert run("check", file, "--config-only").stdout == f"{file} is valid: job web, key user, id\n"
    file.write_text("mine", encoding="utf-8")
    result = run("init", file)
    assert (result.exit_code, file.read_text(encoding="utf-8")) == (2, "mine")
    assert result.stderr == f"error: {file} exists; name another file, or replace it with --force\n"
    assert run("init", file, "--force").exit_code == 0
    assert "name: web\n" in file.read_text(encoding="utf-8")


def test_check_shows_the_place_and_ends_with_2(tmp_path: Path) -> None:
    """As text on standard error, as JSON on standard output."""
    file = write_config(tmp_path, more="metric: {}\n")
    result = run("check", file, "--set", "store.shards=0")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{file}:11:1: metric: unknown setting; did you mean `metrics`?",
        "   11 | metric: {}",
        "      | ^^^^^^",
        "--set store.shards: store.shards: must be at least 1, found 0; remove it to have the default, 4",
        "",
        "2 problems; nothing was started.",
    ]
    result = run("check", file, "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    assert json.loads(result.stdout) == {
        "valid": False,
        "problems": [
            {
                "source": str(file),
                "line": 11,
                "column": 1,
                "setting": "metric",
                "what": "unknown setting",
                "write": "did you mean `metrics`?",
            }
        ],
    }
    assert json.loads(run("check", write_config(tmp_path), "--config-only", "--json").stdout) == {
        "valid": True,
        "problems": [],
    }


def test_show_tells_where_every_setting_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a table and as JSON; secrets are masked in both."""
    # With a short name for the file: a wide table has no room for a long one, and wraps.
    monkeypatch.chdir(tmp_path)
    file = write_config(tmp_path, more="spark: {spark.my.password: hunter2}\n").relative_to(tmp_path)
    arguments = ("show", file, "--set", "store.shards=8")
    shown = json.loads(run(*arguments, "--json", env={"DEDUPER__TRIGGER": "5s"}).stdout)
    assert shown["store.shards"] == {"value": 8, "from": "--set store.shards"}
    assert shown["trigger"] == {"value": "5s", "from": "DEDUPER__TRIGGER"}
    assert shown["expiry.max_ahead_of_now"] == {"value": "1h", "from": "default"}
    assert shown["key"] == {"value": ["user", "id"], "from": f"{file}:3:1"}
    assert shown["spark.spark.my.password"]["value"] == "***"
    text = run(*arguments, env={"DEDUPER__TRIGGER": "5s"}).stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["store.shards", "8", "--set", "store.shards"] in lines
    assert "hunter2" not in text


def test_the_schema_describes_the_file_and_not_the_code() -> None:
    """Defaults as they are written, and only what must be written is required."""
    schema = json.loads(run("show", "--schema").stdout)
    assert schema["required"] == ["source", "key", "expiry", "sinks"]
    assert schema["properties"]["trigger"]["default"] == "10s"
    event_time = schema["$defs"]["EventTimeExpiry"]["properties"]
    assert (event_time["max_ahead_of_now"]["default"], event_time["max_jump"]["default"]) == ("1h", "off")
    assert "default" not in event_time["span"]
    assert schema["$defs"]["StoreConfig"]["required"] == []
    assert schema["additionalProperties"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "part", "keys"),
    [
        (("status", "{}", "-v"), "1 key in", {"url", "epoch", "windows", "latest_point", "entries", "last_windows"}),
        (("verify", "{}"), "sound: every check", {"sound", "findings", "records", "pieces"}),
        (
            ("explain", "{}", "a", "1"),
            "in/0.json, row 3",
            {"key", "remembered", "next", "entries", "copies", "unread"},
        ),
        (("explain", "{}", "a", "-1", "--only-store"), "remembered  no", {"key", "remembered", "next", "entries"}),
        (
            ("status", "{}", "--window", "0"),
            "2024-12-31T00:00:00Z",
            {"window", "counts", "pieces", "sources", "outputs"},
        ),
        (("status", "{}", "--bucket", "2024-12-31T00:30Z"), "1 in 1 piece", {"bucket", "entries", "pieces", "live"}),
        (("status", "{}", "--bucket", "-7"), "0 in 0 pieces", {"bucket", "entries", "pieces", "live"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_reading_commands_answer_in_text_and_in_json(
    arguments: tuple[str, ...], part: str, keys: set[str], config_file: Path
) -> None:
    """The same facts, and nothing on standard error."""
    called = [argument.format(config_file) for argument in arguments]
    text = run(*called)
    assert (text.exit_code, text.stderr) == (0, "")
    assert part in text.stdout
    answer = run(*called, "--json")
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert keys <= json.loads(answer.stdout).keys()


def test_a_damaged_store_ends_verify_with_4(config_file: Path) -> None:
    """After everything was looked at."""
    piece = next(config_file.parent.glob("state/pieces/*/*.piece"))
    data = bytearray(piece.read_bytes())
    data[-1] ^= 1
    piece.write_bytes(data)
    result = run("verify", config_file)
    assert result.exit_code == 4
    assert "NOT sound: 1 problem found" in result.stdout
    assert json.loads(run("verify", config_file, "--json").stdout)["sound"] is False
