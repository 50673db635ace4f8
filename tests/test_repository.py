"""The repository as others clone it: scripts parse, README is right, nothing names a machine."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from typer.main import get_command

from deduper.cli.main import app
from deduper.cli.weblog import write_weblog
from deduper.config.load import load_config
from deduper.config.sections import PORTS

COMMANDS: Any = get_command(app)
ROOT = Path(__file__).parent.parent
BARE_PYTHON = 'bare() { [[ "$2" == *version_info* ]] && echo 3.11; }'
"""A bash function that acts as a Python without its venv module."""
SCRIPTS = ["scripts/setup.sh", "scripts/quickstart.sh", "scripts/test.sh", "scripts/kafka.sh", ".ci/run"]


def test_no_example_of_a_property_has_a_deadline() -> None:
    """A machine that stands still for 0.2 s says nothing of what is tested."""
    assert settings().deadline is None


def tracked_texts() -> dict[str, str]:
    """Every text file under version control, by its path; the files of the tree where there is no git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    texts = {}
    for name in filter(None, listed.stdout.decode().split("\0")):
        if not (ROOT / name).is_file():
            continue
        data = (ROOT / name).read_bytes()
        if b"\0" not in data[:8000]:
            texts[name] = data.decode("utf-8", errors="replace")
    return texts


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language in the README."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_nothing_names_a_package_registry_or_a_machine() -> None:
    """No index address and no path of somebody's home or workplace: a clone works wherever it lies."""
    registry = re.compile(
        r"\b(pypi|pythonhosted|npmjs|anaconda|maven)\.(org|io|com|apache)\b"
        r"|(index|find-links|registry|proxy)[-_]?(url)?\s*[=:]\s*[\"']?https?://",
        re.IGNORECASE,
    )
    machine = re.compile(r"(?<![\w.])/(home|Users|root|work|mnt)/[\w.-]+")
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_texts().items()
        for match in [*registry.finditer(text), *machine.finditer(text)]
    ]
    assert found == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse_and_can_be_started(script: str) -> None:
    """bash reads them without complaint, they stop at the first error, and they are executable."""
    path = ROOT / script
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert path.stat().st_mode & 0o111


def in_setup(commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Commands run by bash after it has read the setup script."""
    script = f". {ROOT}/scripts/setup.sh; {commands}"
    return subprocess.run(
        ["bash", "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_setup_says_what_takes_long_before_it() -> None:
    """The code of the command is kept; every ten seconds another line says how long it has lasted."""
    quick = "sleep() { [[ $1 != 10 ]] || command sleep 0.1; }"
    slow = "slow() { command sleep 0.35; return 7; }"
    result = in_setup(f"{quick}; {slow}; long 'Installing it' slow || exit $?")
    assert result.returncode == 7
    first, *others = result.stderr.splitlines()
    assert first == "Installing it …"
    assert others[:2] == ["Installing it: 10 s so far", "Installing it: 20 s so far"]


def java(directory: Path, version: str) -> Path:
    """A home with a Java that says it is of this version."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)
    return directory


def test_setup_takes_a_java_that_spark_runs_on(tmp_path: Path) -> None:
    """JAVA_HOME first, if it is 17 or 21; otherwise the one on PATH."""
    old, good, newer = (
        java(tmp_path / "8", "1.8.0_442"),
        java(tmp_path / "17", "17.0.14"),
        java(tmp_path / "21", "21.0.6"),
    )
    path = f"{good / 'bin'}:{os.environ['PATH']}"
    for home, found in [(newer, newer), (old, good), (tmp_path / "gone", good)]:
        result = in_setup("setup_java; echo $JAVA_HOME", JAVA_HOME=str(home), PATH=path)
        assert result.stdout.strip() == str(found), result.stderr


@pytest.mark.parametrize("forbidden", ["id() { echo 1000; }", "DEDUPER_APT=0"])
@pytest.mark.parametrize(
    ("absent", "step", "package"),
    [
        ("find_java() { return 1; }", "setup_java", "openjdk-17-jre-headless"),
        ("find_python() { return 1; }; VENV=/nonexistent", "setup_python", "python3-venv"),
        (f"{BARE_PYTHON}; find_python() {{ echo bare; }}; VENV=/nonexistent", "setup_python", r"python3\.11-venv"),
    ],
)
def test_setup_says_what_to_install(forbidden: str, absent: str, step: str, package: str) -> None:
    """Who may not install is told the command to type; the exit code is 2."""
    result = in_setup(f"{forbidden}; {absent}; {step}")
    assert result.returncode == 2, result.stderr
    assert re.search(rf"^  sudo apt-get .* install .*{package}", result.stderr, re.MULTILINE)


def test_every_make_target_has_a_text() -> None:
    """`make` alone lists all targets."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    # These tests may be started by make, whose variables a make below it obeys: it would say which folder it enters.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    listed = subprocess.run(["make"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in listed.splitlines()] == phony.split()


def test_files_named_in_the_readme_exist() -> None:
    """Links and scripts lead somewhere."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {*re.findall(r"\]\((?!https?:)([^)#]+)\)", readme), *re.findall(r"\bscripts/\w+\.sh", readme)}
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def documents() -> dict[str, str]:
    """Every page for users and maintainers, by its path."""
    pages = [ROOT / "README.md", ROOT / "deduper" / "SEMANTICS.md", ROOT / "bucket_store" / "FORMAT.md"]
    pages += sorted((ROOT / "docs").rglob("*.md"))
    return {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages}


def test_tests_named_in_the_documents_exist() -> None:
    """Paths such as `tests/…/test_x.py` lead to files, and so do bare names such as `test_x*.py`, in some folder."""
    paths, names = r"\btests/[\w/*.-]+\.py\b", r"(?<![\w/])test_[\w*]+\.py\b"
    named = {(page, name) for page, text in documents().items() for name in re.findall(f"{paths}|{names}", text)}
    assert len(named) > 50
    missing = [
        (page, name)
        for page, name in sorted(named)
        if not any(ROOT.glob(name if name.startswith("tests/") else f"tests/**/{name}"))
    ]
    assert missing == []


def test_links_between_the_documents_lead_to_a_heading() -> None:
    """The file exists, and so does the heading behind `#`, by the rules of GitHub."""
    pages = documents()
    anchors = {
        page: {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", pages[page], re.MULTILINE)} for page in pages
    }
    broken = []
    for page, text in pages.items():
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"(?s)```.*?```", "", text)):
            path, _, anchor = target.partition("#")
            file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
            name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else ""
            if not file.exists() or (anchor and anchor not in anchors.get(name, ())):
                broken.append((page, target))
    assert broken == []


def _anchor(heading: str) -> str:
    """The anchor of a heading: small letters, no punctuation, `-` for a space."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_config_in_the_readme_is_valid(tmp_path: Path) -> None:
    """What a reader copies is accepted, and has all four ports."""
    files, kafka = blocks("yaml")
    (whole,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8"), re.DOTALL)[:1]
    # The sections for Kafka take the place of those for files.
    rest = [line for line in files.splitlines() if not line.startswith(("source:", "sinks:", " "))]
    for text in (files, "\n".join([*rest, kafka]), whole):
        (tmp_path / "clicks.yaml").write_text(text, encoding="utf-8")
        config = load_config(tmp_path / "clicks.yaml", environment={})
        assert [port for port, _ in config.sinks.items()] == list(PORTS)


@pytest.mark.slow
def test_the_result_in_the_readme_is_the_default_quickstart() -> None:
    """The numbers in the picture are those of the log that `deduper quickstart` makes, a million lines and more."""
    options = {option.name: option.default for option in COMMANDS.commands["quickstart"].params}
    assert options["records"] >= 1_000_000
    with tempfile.TemporaryDirectory() as directory:  # pytest would keep its 160 MB for three runs
        log = write_weblog(Path(directory) / "in", records=options["records"], seed=options["seed"])
    (picture,) = re.findall(r"```\n(port .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    rows = {line.split()[0]: line.split()[1] for line in picture.splitlines()[2:]}
    assert rows == {**{port: f"{n:,}" for port, n in log.counts.items()}, "all": f"{log.records:,}"}


def test_every_command_is_in_the_readme_and_exists() -> None:
    """The table of commands and the program's own list are the same."""
    table = re.findall(r"^\| `deduper ([a-z -]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(table) == sorted(_leaves(COMMANDS))


def _leaves(command: Any, path: str = "") -> list[str]:
    """The paths of the commands that do something, below this one."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return [path]
    return [leaf for name, child in inner.items() for leaf in _leaves(child, f"{path} {name}".strip())]


def test_changes_are_written_down() -> None:
    """The changelog has an Unreleased section at the top, and something in it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (.*)$", text, re.MULTILINE)
    assert first is not None
    assert first.group(1) == "[Unreleased]"
    assert re.search(r"## \[Unreleased\]\n+### \w+\n+- \S", text)
