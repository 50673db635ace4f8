"""Mutation testing: `python -m tests.mutation [MODULE...] [--sample N] [--seed S] [--jobs N] [--again FILE]`.

A mutant is a module with one small change: an operator of cosmic-ray's, or one statement left out. The tests that
pyproject.toml names for the module must fail on it. A mutant that they pass lives: it is printed with its change, and
the exit code is 1, unless `equivalent.toml` says why it cannot be killed. `--again` runs only those mutants that lived
in an earlier run, whose output is in a file.

Nothing is written into the checkout. A process loads the libraries once and forks for each mutant, and the child
imports the mutated source in place of the file's. So the tests must use the module in their own process.

Modules under `as_python` hold numba kernels: they run as plain Python, since compiling takes longer than the tests, and
numba's cache on disk could answer with code that was never mutated.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.abc
import importlib.util
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parent.parent.parent
_NEVER_RUN = 5
"""pytest's exit code when a selection holds no test."""

# One replacement an operator, and for an order both its other edge and its opposite: more of them are killed by
# whatever kills these, and would only flatter the score.
_BINARY = "Add_Sub Sub_Add Mul_Add Div_Mul FloorDiv_Mul Mod_Mul LShift_RShift RShift_LShift BitOr_BitAnd BitAnd_BitOr"
_ORDER = "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
_UNARY = "Delete_Not USub_UAdd Invert_UAdd"
_OTHER = (
    "AddNot ReplaceAndWithOr ReplaceOrWithAnd ReplaceTrueWithFalse ReplaceFalseWithTrue NumberReplacer "
    "ReplaceBreakWithContinue ReplaceContinueWithBreak ZeroIterationForLoop ExceptionReplacer"
)
_OPERATORS = [
    *(f"ReplaceBinaryOperator_{pair}" for pair in _BINARY.split()),
    *(f"ReplaceComparisonOperator_{pair}" for pair in _ORDER.split()),
    *(f"ReplaceUnaryOperator_{pair}" for pair in _UNARY.split()),
    *_OTHER.split(),
]


class DropStatement(Operator):  # type: ignore[misc]
    """Leaves a statement out: cosmic-ray has no operator for it, and a call that is missing is a common mistake."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Assignments, calls, `raise`, `return`, `continue`; no texts, no imports, no bare names."""
        if node.type == "simple_stmt" and _may_go(node.children[0]):
            yield node.start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The statement as `pass`."""
        node.children[0] = parso.python.tree.Keyword("pass", node.start_pos, node.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


def _may_go(statement: Any) -> bool:
    if statement.type in ("string", "strings", "name", "pass_stmt", "import_name", "import_from", "keyword"):
        return False
    function = parso.tree.search_ancestor(statement, "funcdef")
    if function is None:
        return False  # names of a module or class are missed at once
    return statement.get_code().strip() != "return None"  # most are the last statement, and say what is so without them


@dataclass(frozen=True)
class Mutant:
    """One change of a module. `name` finds it again while the module stays as it is."""

    module: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """One word."""
        return f"{self.module}:{self.line}:{self.operator}:{self.occurrence}"

    def source(self, code: str) -> str:
        """The module with the change."""
        mutated = mutate_code(code, _operator(self.operator), self.occurrence)
        assert mutated is not None
        return str(mutated)


def _operator(name: str) -> Any:
    return DropStatement() if name == "DropStatement" else get_operator(f"core/{name}")()


def mutants(module: str, code: str) -> list[Mutant]:
    """All mutants of a module, but those that change only types or words."""
    tree = get_ast(code)
    kept = _Kept(ast.parse(code))
    found = []
    for name in [*_OPERATORS, "DropStatement"]:
        operator = _operator(name)
        positions = (at for node in ast_nodes(tree) for at in operator.mutation_positions(node))
        for occurrence, (begin, _) in enumerate(positions):
            if not kept.holds(begin):
                found.append(Mutant(module, name, occurrence, begin[0]))
    return sorted(found, key=lambda mutant: mutant.line)


class _Kept:
    """Where nothing is mutated, because nothing that is promised would change.

    Annotations, decorators and numba's types; the words of messages and log lines; the tests' own failpoints; what
    compiles kernels before they are needed (`warm`); hints to the processor's cache.
    """

    def __init__(self, tree: ast.AST) -> None:
        self._spans = [
            ((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0))
            for node in ast.walk(tree)
            for part in _unmutated(node)
        ]

    def holds(self, position: tuple[int, int]) -> bool:
        """Whether a place in the source lies in one of them."""
        return any(begin <= position < end for begin, end in self._spans)


def _unmutated(node: ast.AST) -> Iterator[Any]:
    if isinstance(node, ast.FunctionDef):
        yield from filter(None, [node.returns, *node.decorator_list])
        if node.name in ("warm", "_judge_two_rows", "compiled", "_prefetch_code"):
            yield node
    elif isinstance(node, ast.ClassDef):
        yield from node.decorator_list
    elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        yield node.annotation
    elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _gives_nothing(ast.unparse(node.func))):
        yield node


def _gives_nothing(function: str) -> bool:
    return function.startswith(("logger.", "types.")) or function in ("failpoints.hit", "_prefetch_row")


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module from a text in place of its file."""

    def __init__(self, module: str, source: str) -> None:
        self._path = ROOT / module
        self._name = module.removesuffix(".py").replace("/", ".")
        self._source = source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Of this module alone."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: Any) -> None:
        """The text, run as the module."""
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)  # what a loader does


def _test(module: str, source: str, tests: list[str], scratch: Path, cpu_s: int) -> int:
    """In a child: the tests against a source of the module; pytest's exit code. After `cpu_s` of work it dies."""
    import hypothesis
    import pytest

    with (scratch / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    # The first failure is enough, and the same examples are tried for every mutant.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutation")
    sys.meta_path.insert(0, _Mutated(module, source))
    os.chdir(ROOT)
    return int(pytest.main(["-x", "-p", "no:cacheprovider", f"--basetemp={scratch / 'tmp'}", *tests]))


def _load_libraries() -> None:
    """All that the tests import and that is not ours: once, for all children."""
    for name in ("numba", "numpy", "pyarrow.parquet", "pyspark.sql", "hypothesis.strategies", "pytest", "xdist"):
        importlib.import_module(name)
    for name in ("confluent_kafka.admin", "pydantic", "rocksdict", "typer", "rich", "structlog", "prometheus_client"):
        importlib.import_module(name)
    assert not any(name.partition(".")[0] in ("deduper", "bucket_store") for name in sys.modules)


class _Children:
    """Up to so many tests at once, each in a process group of its own."""

    def __init__(self, jobs: int, tests: list[str], timeout_s: float, cpu_s: int) -> None:
        self._jobs, self._tests, self._timeout_s, self._cpu_s = jobs, tests, timeout_s, cpu_s
        self._running: dict[int, tuple[Mutant, float, Path]] = {}
        self.results: dict[Mutant, str] = {}

    def add(self, mutant: Mutant, source: str) -> None:
        """Begins a test, when there is room for it."""
        while len(self._running) >= self._jobs:
            self._look()
        scratch = Path(tempfile.mkdtemp(prefix="mutant-"))
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.setsid()
                status = _test(mutant.module, source, self._tests, scratch, self._cpu_s)
            finally:
                os._exit(status)
        self._running[pid] = mutant, time.monotonic(), scratch

    def finish(self) -> None:
        """Waits for all."""
        while self._running:
            self._look()

    def _look(self) -> None:
        time.sleep(0.02)
        for pid, (mutant, began, scratch) in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() - began < self._timeout_s:
                continue
            if not ended:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            del self._running[pid]
            self.results[mutant] = self._result(status if ended else None)
            if mutant.operator == "none":
                print((scratch / "output").read_text(errors="replace")[-3000:] if status else "", end="")
            shutil.rmtree(scratch, ignore_errors=True)

    def _result(self, status: int | None) -> str:
        if status is None:
            return "killed: no end"
        code = os.waitstatus_to_exitcode(status)
        assert code != _NEVER_RUN, "no test was selected"
        return "lives" if code == 0 else "killed"


def run_module(module: str, options: argparse.Namespace, settings: dict[str, Any]) -> int:
    """All mutants of a module, or a sample of them; prints those that live."""
    _load_libraries()
    code = (ROOT / module).read_text(encoding="utf-8")
    after = "\n" + settings.get("appended", {}).get(module, "") + "\n"
    tests = settings["tests"][module]
    every = mutants(module, code)
    chosen = every
    if options.again:
        lived = set(Path(options.again).read_text(encoding="utf-8").split())
        chosen = [mutant for mutant in every if mutant.name in lived]
    elif options.sample and options.sample < len(every):
        chosen = sorted(random.Random(options.seed).sample(every, options.sample), key=every.index)
    if not chosen:
        return 0
    began = time.monotonic()
    plain = _Children(1, tests, 1200, 1200)
    plain.add(Mutant(module, "none", 0, 0), code + after)
    plain.finish()
    if list(plain.results.values()) != ["lives"]:
        print(f"{module}: its tests fail without any mutation")
        return 2
    # A loop without an end is found by its work, whatever else the machine does; a wait without an end by the time.
    work = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = 5 + int(5 * (work.ru_utime + work.ru_stime))
    children = _Children(options.jobs, tests, 20 + 5 * (time.monotonic() - began), cpu_s)
    for mutant in chosen:
        children.add(mutant, mutant.source(code) + after)
    children.finish()
    living = [mutant for mutant in chosen if children.results[mutant] == "lives"]
    explained = settings["equivalent"].get(module, {})
    unexplained = [mutant for mutant in living if _key(code, mutant) not in explained]
    for mutant in unexplained:
        print(f"LIVES {mutant.name}\n{''.join(_change(code, mutant.source(code)))}", flush=True)
    killed = len(chosen) - len(living)
    print(
        f"== {module}: {killed} of {len(chosen)} killed ({100 * killed / len(chosen):.1f} %), "
        f"{len(living) - len(unexplained)} explained, {len(unexplained)} live; "
        f"{len(every)} mutants in all, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return 1 if unexplained else 0


def _key(code: str, mutant: Mutant) -> str:
    """How `equivalent.toml` names a mutant, wherever its line moves: what is there and what it becomes."""
    return " ".join(" ".join(line.split()) for line in _change(code, mutant.source(code)))


def _change(before: str, after: str) -> Iterator[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return (f"    {line}\n" for line in itertools.islice(lines, 3, None) if line[:1] in "+-")


def main(arguments: list[str]) -> int:
    """Each module in a process of its own, since libraries are loaded compiled or not."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutation"]
    settings["equivalent"] = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser("python -m tests.mutation")
    parser.add_argument("modules", nargs="*", choices=[[], *settings["tests"]], metavar="MODULE")
    parser.add_argument("--sample", type=int, default=0, help="this many mutants of each module, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", default="", help="only what lived in the run whose output is in this file")
    options = parser.parse_args(arguments)
    if "MUTATION_CHILD" in os.environ:
        return run_module(options.modules[0], options, settings)
    status = 0
    rest = [f"--{name}={getattr(options, name)}" for name in ("sample", "seed", "jobs", "again")]
    for module in options.modules or settings["tests"]:
        environment = {**os.environ, "MUTATION_CHILD": "1", "PYTHONPATH": str(ROOT)}
        if module in settings["as_python"]:
            environment["NUMBA_DISABLE_JIT"] = "1"
        command = [sys.executable, "-m", "tests.mutation", module, *rest]
        status |= subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
