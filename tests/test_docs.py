"""The pages for users: they build as a site; commands and configs in them are run, or checked against the program.

A comment before a fenced block says how: `<!-- test: run -->` runs it, in a folder that the page's blocks share, and
`<!-- test: write -->` writes a program into it, under the name in its first line, and
`<!-- test: shows -->` compares what the last one printed; `…` stands for anything. All other commands of `deduper`, in
blocks, in sentences, in files of deploy and in the program's own messages, are parsed by its command tree, and configs
are loaded. `NOT_RUN` lists what no test runs, with the reason.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import typer
from ruamel.yaml import YAML
from typer.main import get_command
from typer.testing import CliRunner

from deduper import DISTRIBUTION
from deduper.cli.main import app
from deduper.config.load import load_config
from tests.deduper.store_samples import BEGIN_US, HOUR_US, SeenKey, Window, make_store, write_config

ROOT = Path(__file__).parent.parent
COMMANDS: Any = get_command(app)
UsageError = typer.BadParameter.__bases__[0]
PAGES = [ROOT / "README.md", ROOT / "examples/kafka/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?:^ *<!-- test: (\w+) -->\n)?^( *)```(\w+)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    how: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, how, language, textwrap.dedent(text)) for how, _, language, text in found]


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def commands_of(script: str) -> Iterator[list[str]]:
    """The words of each simple command of a script: comments and assignments are dropped, pipes and lists are cut."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if re.fullmatch(r"[;&|<>]+", word):
                if words:
                    yield words
                words = []
            elif words or not re.match(r"[A-Z_]+=", word):
                words.append(word)


def check_deduper(words: list[str]) -> None:
    """Parses the words as the program does; words in capitals stand for values.

    Raises:
        UsageError: no such command, option, or number of arguments.
    """
    command, left = COMMANDS, words[1:]
    while hasattr(command, "commands") and left and not left[0].startswith("-"):
        if left[0] not in command.commands:
            raise UsageError(f"no command {left[0]}")
        command, left = command.commands[left[0]], left[1:]
    if left in (["--help"], ["--version"], ["--install-completion"]):
        return
    command.make_context("deduper", ["1" if re.fullmatch(r"[A-Z/]+", word) else word for word in left])


def check_mentioned(words: list[str]) -> None:
    """As `check_deduper` for a command in a sentence, which may be without its arguments, or name a group alone."""
    if words[-1] not in ("table",):
        try:
            check_deduper(words)
        except UsageError as exc:
            if type(exc).__name__ not in ("MissingParameter", "BadOptionUsage"):  # a value that is left out, too
                raise


def mentioned(command: str) -> list[str]:
    """The words of a command in a sentence: `…` and the brackets of what may be left out are no part of it."""
    return re.sub(r"[…\[\]]", "", command).split()


def nested(words: list[str]) -> list[str] | None:
    """The command of `deduper` in the words of a simple command: its own, or one that another program starts."""
    found = [at for at, word in enumerate(words) if re.fullmatch(r"([^=]*/)?deduper(:[\d.]+)?", word)]
    at = found[-1] if found else None
    if at is None or (at and (words[0] not in STARTERS or (words[at - 1].startswith("-") and words[at - 1] != "--"))):
        return None
    return words[at:]


STARTERS = ("docker", "kubectl", "runuser")
RUN = {
    "make": "tests/services/kafka_broker.py is what `make kafka` starts; targets are checked to exist",
    "pip": "tests/test_package.py installs the wheel",
    "prometheus": "tests/services/prometheus.py; tests/test_deploy.py reads the file of the example",
    "python": "tests/services/test_kafka_example.py and the tutorial",
    "scripts/quickstart.sh": "tests/deduper/cli/test_quickstart.py runs what it starts",
    "scripts/test.sh": "CI itself",
    "spark-class": "tests/services/spark_standalone.py",
    **dict.fromkeys((".", "cat", "cp", "echo", "export", "mkdir", "printf", "python3", "rm"), "a shell's own, or run"),
}
NOT_RUN = {
    "curl": "asks a job that runs at a fixed port; tests/deduper/service/test_healthz.py asks the same paths",
    "docker": "needs a Docker daemon; tests/test_deploy.py reads Dockerfile and docker-compose.yml, and has linters",
    "install": "writes to /etc and /var as root",
    "journalctl": "needs systemd as process 1; tests/test_deploy.py has the unit checked",
    "kafka-topics.sh": "of a Kafka installation; tests/services/test_kafka_pages.py makes these topics by the protocol",
    "kubectl": "needs a cluster; tests/test_deploy.py validates the manifest",
    "scripts/archive.sh": "takes minutes and gigabytes: it compiles every kernel; tests/test_deploy.py parses it",
    "spark-submit": "the job is the same but for options of its JVM, which tests/deduper/spark/test_session.py checks",
    "runuser": "needs root and another user; the command behind it is parsed",
    "systemctl": "needs systemd as process 1; tests/test_deploy.py has the unit checked",
    "useradd": "changes the users of the machine",
}
"""Programs that begin a command of a page, and where they run, or why no test runs them."""

SCRIPTS = [block for page in PAGES for block in blocks(page) if block.language == "sh"]
TEXTS = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    ROOT / "bucket_store/FORMAT.md",
    ROOT / "deduper/SEMANTICS.md",
    ROOT / "Makefile",
    ROOT / "docker-compose.yml",
    *sorted(
        path
        for path in (ROOT / "deploy").rglob("*")
        if path.suffix in {"", ".service", ".yaml", ".yml"} and path.is_file()
    ),
    *sorted((ROOT / "scripts").glob("*.sh")),
]
SOURCES = sorted(path for room in ("deduper", "bucket_store") for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_pages_are_those_of_the_program(page: Path) -> None:
    """Fenced and indented commands of `deduper` parse; files, targets and distributions that commands name exist."""
    text = page.read_text(encoding="utf-8")
    scripts = [block.text for block in blocks(page) if block.language == "sh"]
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    scripts += [line.split("…")[0] for line in re.findall(r"^    (deduper [a-z].*)$", text, re.MULTILINE)]
    for words in (words for script in scripts for words in commands_of(script)):
        command = nested(words)
        if command is not None and "[" not in "".join(command):
            check_deduper(command)
        for word in words:
            if re.match(r"(deploy|examples|scripts|tests)/", word):
                assert (ROOT / word.partition("::")[0]).exists(), (words, word)
        if words[:2] == ["pip", "install"] or words[0].endswith("bin/pip"):
            assert re.match(rf"{DISTRIBUTION}(\[|$)|\.|dist/", words[-1]), words
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), words


@pytest.mark.parametrize("file", TEXTS, ids=name_of)
def test_commands_in_sentences_are_those_of_the_program(file: Path) -> None:
    """Between backquotes: command and options exist, and arguments are right where there are some."""
    for command in re.findall(r"`(deduper [^`]+)`", file.read_text(encoding="utf-8")):
        check_mentioned(mentioned(command))


def test_commands_in_messages_are_those_of_the_program() -> None:
    """Of errors, remedies and help texts; a value that is filled in is one word."""
    count = 0
    texts = [text for source in SOURCES if "`deduper " in (text := source.read_text(encoding="utf-8"))]
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in parts)
            for command in re.findall(r"`(deduper (?!(?:table )?1\b)[^`]+)`", said):
                check_mentioned(mentioned(command))
                count += 1
    assert count > 50


def test_messages_in_the_recovery_page_are_those_of_the_program() -> None:
    """Each in its parts: `…`, numbers and single capitals stand for values."""
    # A long message is several literals, one a line.
    said = re.sub(r'"\s+[fr]?"', "", "\n".join(source.read_text(encoding="utf-8") for source in SOURCES))
    table = (ROOT / "docs/recovery.md").read_text(encoding="utf-8").split("## By message")[1].split("\n## ")[0]
    quoted = re.findall(r"`(.*?)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    parts = [part.strip(" ,:;") for quote in quoted for part in re.split(r"…|\b[A-Z]\b|\d+", quote)]
    assert len(parts) > 30
    assert [part for part in parts if part not in said] == []


def test_deployments_start_commands_of_the_program() -> None:
    """The image, its services, the unit of systemd, the pod; the targets of `make` and the scripts."""
    compose, manifest = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", "deploy/kubernetes/deduper.yaml")
    )
    started = [YAML(typ="safe").load(compose)["services"]["deduper"]["command"]]
    started += [YAML(typ="safe").load(args) for args in re.findall(r"^ +args: (\[.*\])$", manifest, re.MULTILINE)]
    lines = re.findall(
        r"^(?:RUN|ExecStart=|exec|\t@?)\s*(\S*deduper .*)$",
        "\n".join(path.read_text(encoding="utf-8") for path in TEXTS if path.suffix != ".md"),
        re.MULTILINE,
    )
    for line in lines:
        started += [
            words[1:]
            for words in commands_of(re.sub(r"\$\(.*\)|\"\$@\"|%i", "1", line))
            if Path(words[0]).name == "deduper"
        ]
    assert len(started) >= 5
    for words in started:
        check_deduper(["deduper", *words])


def test_each_program_of_a_page_is_run_or_listed() -> None:
    """With the place or the reason; nothing is listed that no page has."""
    lines = (words for block in SCRIPTS for words in commands_of(block.text))
    programs = {words[0] if words[0].startswith("scripts/") else words[0].rpartition("/")[2] for words in lines}
    assert {name for name in programs if not name.endswith(".json")} == {"deduper", *RUN, *NOT_RUN}


@pytest.mark.slow
def test_options_of_scripts_in_pages_are_theirs() -> None:
    """Of the examples that are Python programs."""
    asked = 0
    for words in (words for block in SCRIPTS for words in commands_of(block.text)):
        if words[0] == "python" and words[1].startswith("examples/"):
            help_text = subprocess.run(
                [sys.executable, str(ROOT / words[1]), "--help"], capture_output=True, text=True, check=True
            ).stdout
            for word in words[2:]:
                assert not word.startswith("--") or re.search(rf"{word}\b", help_text), words
            asked += 1
    assert asked >= 3


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_programs_in_pages_import_what_there_is(page: Path) -> None:
    """Blocks of Python compile, and their imports are run."""
    for block in (block for block in blocks(page) if block.language == "python"):
        tree = ast.parse(block.text)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), str(page), "exec"), {})


def test_a_wrong_command_is_seen() -> None:
    """The checks of the tests above can fail: options, commands, missing arguments."""
    for line in ("deduper rum", "deduper run --twice", "deduper table keys", "deduper status a.yaml b c"):
        with pytest.raises(UsageError):
            check_mentioned(shlex.split(line))
    for line in ("deduper table", "deduper rewind --to 1", "deduper run --take-over"):
        check_mentioned(shlex.split(line))
    assert nested(shlex.split("docker compose exec deduper deduper status a")) == ["deduper", "status", "a"]
    assert nested(shlex.split("useradd --home-dir /var/lib/deduper deduper")) is None
    for line in ("deduper run --twice a.yaml", "deduper rum a.yaml", "deduper explain", "deduper status a b"):
        with pytest.raises(UsageError):
            check_deduper(shlex.split(line))
    check_deduper(shlex.split("deduper status deduper.yaml --window WINDOW"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configs_in_pages_are_valid(page: Path, tmp_path: Path) -> None:
    """A block that begins with a job's name is a whole config; others are YAML."""
    for block in (block for block in blocks(page) if block.language == "yaml"):
        YAML(typ="safe").load(block.text)
        if block.text.startswith("name:"):
            (tmp_path / "job.yaml").write_text(block.text, encoding="utf-8")
            load_config(tmp_path / "job.yaml", environment={})


def test_sizes_are_the_measured_ones() -> None:
    """The figures of the sizing page stand in docs/performance.md, and its examples follow from them."""
    page = (ROOT / "docs/how-to/sizing.md").read_text(encoding="utf-8")
    measured = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    (tables, tables_alone) = re.findall(r"^\| in memory \(tables\) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)[0]
    (disk, disk_alone) = re.findall(r"^\| on disk \(live pieces\) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)[0]
    assert f"(`true`: {tables}, {disk})" in measured
    assert f"| {tables_alone}, {disk_alone} at the start" in measured
    examples = re.findall(r"^\| ([\d,]+) \| (24|1)h.*? \| (\d+) M \| ([\d.]+) GB \| ([\d.]+) GB \|", page, re.MULTILINE)
    assert len(examples) == 4
    for rate, period, keys, memory, room in examples:
        live = int(rate.replace(",", "")) * 3600 * (25 if period == "24" else 65 / 60)
        assert live == pytest.approx(int(keys) * 1e6, rel=0.01)
        assert live * float(tables) == pytest.approx(float(memory) * 1e9, rel=0.1)
        assert live * float(disk) == pytest.approx(float(room) * 1e9, rel=0.1)


@pytest.mark.night
def test_pages_build_as_a_site_without_a_warning(tmp_path: Path) -> None:
    """Every link leads to a page and a heading, every page has a place in the navigation."""
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-n",
        "-q",
        "--keep-going",
        "-b",
        "html",
        "-d",
        str(tmp_path / "trees"),
    ]
    done = subprocess.run(
        [*build, str(ROOT / "docs"), str(tmp_path / "site")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'href="how-to/kafka.html"' in (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert "format.html" in (tmp_path / "site/architecture.html").read_text(encoding="utf-8")
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html"))
    assert re.findall(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//[^>]*>""", pages) == []
    assert re.findall(r"""<link(?![^>]*rel=["']canonical)[^>]*\shref=["'](?:https?:)?//[^>]*>""", pages) == []
    assert re.findall(r"""(?:import|from)\s*\(?["'](?:https?:)?//""", pages) == []


def test_the_picture_of_the_processes_is_that_of_its_source() -> None:
    """Drawn by `scripts/diagram.py`: the same boxes, arrows and texts."""
    source = (ROOT / "docs/processes.dot").read_text(encoding="utf-8")
    picture = ElementTree.parse(ROOT / "docs/_static/processes.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    titles = {title.text for title in picture.iter(f"{svg}title")}
    boxes = set(re.findall(r"^ +(\w+) \[label=", source, re.MULTILINE))
    arrows = {f"{one}->{other}" for one, other in re.findall(r"^ +(\w+) -> (\w+)", source, re.MULTILINE)}
    clusters = set(re.findall(r"subgraph (\w+)", source))
    assert titles == {"processes", *boxes, *arrows, *clusters}
    texts = [line for label in re.findall(r'label="([^"]*)"', source) for line in label.split("\\n")]
    assert sorted(texts) == sorted(text.text or "" for text in picture.iter(f"{svg}text"))


@pytest.mark.spark
@pytest.mark.night
@pytest.mark.parametrize("pages", [("tutorial", "how-to/backup"), ("tutorial-query",)])
def test_tutorials_and_the_back_up_run_as_written(pages: tuple[str, ...], tmp_path: Path) -> None:
    """From an empty folder, block by block; each shows what the page says."""
    folder = tmp_path / "job"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEDUPER__")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}
    printed, ran = "", 0
    for block in (block for page in pages for block in blocks(ROOT / f"docs/{page}.md")):
        if block.how == "run":
            shell = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            printed, ran = done.stdout, ran + 1
        elif block.how == "write":
            (folder / block.text.split()[1]).write_text(block.text, encoding="utf-8")
        elif block.how == "shows":
            for line in block.text.splitlines():
                pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("…"))
                assert re.search(pattern, " ".join(printed.split())), (line, printed)
    assert ran > 3
    assert (folder / "state").is_dir()


@pytest.mark.slow
def test_moves_of_state_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each section of the page on a store of its own, with values in place of examples; `seed` needs Spark."""
    places = {"VALUE...": "a 1", "--to 1234": "--to 1", "/backup/": f"{tmp_path}/backup/"}
    ran = []
    for section in (ROOT / "docs/how-to/move-state.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, scripts = section.partition("\n")[0], [text for *_, language, text in FENCE.findall(section)]
        if "deduper seed" in "".join(scripts):
            continue
        folder = tmp_path / title
        folder.mkdir()
        monkeypatch.chdir(folder)
        keys = [SeenKey((user, 1), BEGIN_US // HOUR_US, BEGIN_US, row) for row, user in enumerate("ab")]
        make_store(write_config(folder), [Window(keys, BEGIN_US), Window(), Window()], published=2)
        for script in scripts:
            if "restore" in script:
                Path("state").rename("lost")
            for example, value in places.items():
                script = script.replace(example, value)
            for words in commands_of(script):
                done = CliRunner().invoke(app, words[1:])
                assert (words[0], done.exit_code) == ("deduper", 0), (title, words, done.output)
                ran.append(words[1])
    assert ran == [
        *("reshard", "reshard", "rewind", "rewind", "forget", "forget", "export", "export"),
        *("backup", "backup", "verify", "restore", "restore"),
    ]
