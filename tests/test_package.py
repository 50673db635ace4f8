"""The package as others install it: its name, the contents of a wheel, a first result without the clone, completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import deduper
from deduper.kafka.errors import INSTALL_CLIENT
from tests.test_repository import tracked_texts

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_messages_name_the_distribution_that_is_installed() -> None:
    """One constant has the name; what says how to install the extra takes it from there, or agrees with it."""
    assert PROJECT["name"] == deduper.DISTRIBUTION
    assert f"pip install '{deduper.DISTRIBUTION}[kafka]'" == INSTALL_CLIENT
    assert "kafka" in PROJECT["optional-dependencies"]
    wrong = [name for name, text in tracked_texts().items() if "pip install 'deduper" in text.replace('"', "'")]
    assert [name for name in wrong if name != "tests/test_package.py"] == []


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a source distribution of this tree."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)], check=True, capture_output=True
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.mark.night
def test_a_wheel_has_what_the_service_needs_and_no_tests(wheel: Path) -> None:
    """Every module and data file of both packages, under the names that are imported, and nothing else."""
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        (described,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = opened.read(described).decode()
    assert f"\nName: {deduper.DISTRIBUTION}\n" in metadata
    for needed in (
        *("deduper/py.typed", "bucket_store/py.typed", "deduper/spark/log4j2.properties"),
        *("deduper/SEMANTICS.md", "bucket_store/FORMAT.md", "deduper/admin/report/page.css"),
        *(
            "deduper/core/kernels.py",
            "deduper/avro/kernels.py",
            "deduper/text/kernels.py",
            "bucket_store/tables/kernels.py",
        ),
    ):
        assert needed in names
    modules = {
        str(path.relative_to(ROOT)) for room in ("deduper", "bucket_store") for path in (ROOT / room).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules
    assert not any(name.startswith("tests") or "__pycache__" in name for name in names)


@pytest.mark.spark
@pytest.mark.night
def test_a_wheel_gives_a_first_result_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    """A new environment, another folder: `deduper quickstart` runs the real job, and its numbers are as expected."""
    venv.create(tmp_path / "venv", with_pip=True)
    program = tmp_path / "venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    install = [str(program / "pip"), "install", "--quiet", "--disable-pip-version-check", f"{wheel}[service,kafka]"]
    subprocess.run(install, check=True, cwd=tmp_path, env=environment)
    done = subprocess.run(
        [str(program / "deduper"), "quickstart", "--records", "2000"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"all +2,000 +100\.00% +2,000 +as expected", done.stdout), done.stdout
    assert (tmp_path / "demo" / "out" / "unique").is_dir()


PROGRAM = Path(sys.executable).with_name("deduper")
SHELLS = {
    "bash": (
        'eval "$(_DEDUPER_COMPLETE=source_bash deduper)"; COMP_WORDS=(deduper {words}); COMP_CWORD={count}; '
        '_deduper_completion deduper; echo "${{COMPREPLY[@]}}"'
    ),
    "zsh": (
        "autoload -Uz compinit; compinit -u -D; _arguments() {{ print -r -- $1 }}; "
        'eval "$(_DEDUPER_COMPLETE=source_zsh deduper)"; words=(deduper {words}); CURRENT={count}+1; '
        "_deduper_completion"
    ),
}


@pytest.mark.slow
@pytest.mark.night(but=["table roll-rollback-bash", "table roll-rollback-zsh"])
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("words", "found"), [("qui", "quickstart"), ("table roll", "rollback"), ("che", "check")])
def test_shells_complete_commands(shell: str, words: str, found: str) -> None:
    """The shell itself evaluates the script that `--show-completion` prints, and asks it for the rest of a word."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    script = SHELLS[shell].format(words=words, count=len(words.split()))
    flags = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}[shell]
    done = subprocess.run([shell, *flags, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert found in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_help_names_completion() -> None:
    """`deduper --help` says how to get it."""
    shown = subprocess.run([str(PROGRAM), "--help"], capture_output=True, text=True, check=True).stdout
    assert "--install-completion" in shown
