"""docs/guarantees.md names tests that are there: by their names, as pytest would select them, without running any."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
COMMANDS = list(dict.fromkeys(re.findall(r"`pytest ([^`]+)`", PAGE)))
CORPUS = ROOT / "tests/fuzz/corpus"


@cache
def parsed(file: Path) -> ast.Module:
    """The statements of a module."""
    return ast.parse(file.read_text(encoding="utf-8"))


def values_of(node: ast.AST, file: Path) -> Iterator[str]:
    """The constants of an expression; a name stands for what it is given in its module, or where that has it from."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant):
            yield str(inner.value)
        if not isinstance(inner, ast.Name):
            continue
        for statement in parsed(file).body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if inner.id in {target.id for target in targets if isinstance(target, ast.Name)}:
                    yield from values_of(statement.value, file)
            elif isinstance(statement, ast.ImportFrom) and inner.id in {one.name for one in statement.names}:
                module = ROOT / f"{(statement.module or '').replace('.', '/')}.py"
                if module.is_relative_to(ROOT / "tests") and module.is_file():
                    yield from values_of(inner, module)


def searched(path: Path) -> list[str]:
    """What `-k` looks for in each test of a file or a folder: its module, its name, and values of its parameters."""
    found = []
    for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                values = [value for one in node.decorator_list for value in values_of(one, file)]
                found.append(" ".join([file.name, node.name, *values]).lower())
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_selects_tests(command: str) -> None:
    """Its files are there; each word after `-k` is in one of their tests, and one test has all that is asked."""
    words = shlex.split(command)
    tests = [test for word in words if word.startswith("tests/") for test in searched(ROOT / word)]
    assert tests
    asked = words[words.index("-k") + 1] if "-k" in words else ""
    for word in re.findall(r"\b(?!(?:and|or|not)\b)\w+", asked):
        assert any(word in test for test in tests), word
    if asked:
        expression = Expression.compile(asked)
        assert any(expression.evaluate(lambda word, /, test=test, **_: word in test) for test in tests)


def test_a_test_that_the_page_names_is_there() -> None:
    """Files and folders, by their path or by their name, and tests by their name."""
    named = set(re.findall(r"`((?:tests/[\w/]*)?(?:test_\w+\*?\.py)?|tests/[\w/]+|test_\w+)`", PAGE)) - {""}
    assert len(named) > 50
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    there = {name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}
    there |= {file.name for file in files}
    assert {one for one in named if one not in there and not any(ROOT.glob(one))} == set()


def test_the_page_counts_what_the_fuzzer_keeps() -> None:
    """Targets and inputs."""
    (figures,) = re.findall(r"(\d+) targets, ([\d,]+) inputs kept", PAGE)
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert [int(one.replace(",", "")) for one in figures] == [len([*CORPUS.iterdir()]), len(files)]
