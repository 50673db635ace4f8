"""Mutation testing: `python -m tests.mutation [NAME...] [--rooms] [--tier T] [--sample N] [--total N] [--seed S]`.

A mutant is a module with one small change: an operator of cosmic-ray's, or one statement left out. The tests that
pyproject.toml names for the module, or for its room, must fail on it. One line a mutant says which tier's tests do,
and which one of them. A mutant that they pass lives: it is printed with its change, and the exit code is 1, unless
`equivalent.toml` says why it cannot be killed.

Nothing is written into the checkout: a mutant is a copy of it with one other file, where the tests find it in whatever
process they start. A process loads the libraries once and forks for each run of pytest.

Modules under `as_python` hold numba kernels: they run as plain Python, since compiling takes longer than the tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import importlib
import itertools
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parent.parent.parent
CHANGE, NIGHT = "change", "night"
EXPLAINED, LIVES = "explained", "lives"
_TIMEOUT_S = {CHANGE: 100, NIGHT: 600}
"""How long one test may take: a mutant may wait, or work, without an end."""
_NO_END_S = 3600
_FORK = multiprocessing.get_context("fork")
_PASSED = (0, 5)
"""pytest's exit codes when all tests pass, and when a tier has none of them."""

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
    return function.startswith(("logger.", "types.")) or function in ("failpoints.hit", "prefetch_row")


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the tier that kills it, and by which test; or that it is explained, or lives."""

    mutant: Mutant
    fate: str
    seconds: float
    test: str

    def __str__(self) -> str:
        return f"{self.fate:9} {self.seconds:6.1f} s  {self.mutant.name}  {self.test}"


def _load_libraries(as_python: bool) -> None:
    """All that the tests import and that is not ours: once, for all children."""
    if as_python:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    for name in ("numba", "numpy", "pyarrow.parquet", "pyspark.sql", "hypothesis.strategies", "pytest", "xdist"):
        importlib.import_module(name)
    for name in ("confluent_kafka.admin", "pydantic", "rocksdict", "typer", "rich", "structlog", "prometheus_client"):
        importlib.import_module(name)
    assert not any(name.partition(".")[0] in ("deduper", "bucket_store") for name in sys.modules)


def run(mutant: Mutant, stages: list[tuple[str, list[str]]], unchanged: Path, explained: Iterable[str]) -> Outcome:
    """The stages, each a tier and tests of it, until a test fails that passes on the unchanged copy."""
    began = time.monotonic()

    def outcome(fate: str, test: str = "") -> Outcome:
        return Outcome(mutant, fate, time.monotonic() - began, test)

    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(shutil.copytree(unchanged, Path(directory, "tree"), symlinks=True))
        path = copy / mutant.module
        code = path.read_text(encoding="utf-8")
        path.write_text(mutant.source(code), encoding="utf-8")
        if "@kernel" in code:
            for kept in (copy / "deduper").rglob("*.nb[ci]"):
                kept.unlink()  # numba looks at the file of a kernel, and not at those of the kernels that it calls
        is_explained = _key(code, mutant) in explained
        for tier, tests in stages[:1] if is_explained else stages:
            while (failed := _failed(copy, tier, tests)) is not None:
                if _passes(unchanged, tier, (failed,) if failed else ("--collect-only", *tests)):
                    return outcome(tier, failed or "at collection")
                print(f"fails without any mutation too, and is left out: {failed or tests}", flush=True)
                assert failed
                tests = [*tests, f"--deselect={failed}"]
        return outcome(EXPLAINED if is_explained else LIVES)


@functools.cache
def _passes(unchanged: Path, tier: str, tests: tuple[str, ...]) -> bool:
    return _failed(unchanged, tier, list(tests)) is None


def _failed(tree: Path, tier: str, tests: list[str]) -> str | None:
    """The first test that fails in this copy; empty when none begins, None when all pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        scratch = Path(directory)
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.setsid()
                status = _test(tree, tier, tests, scratch)
            finally:
                os._exit(status)
        until = time.monotonic() + _NO_END_S
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and what it has started
        if ended[0] and os.waitstatus_to_exitcode(ended[1]) in _PASSED:
            return None
        if not ended[0]:
            os.waitpid(pid, 0)
        begun = scratch / "begun"
        return begun.read_text(encoding="utf-8") if begun.exists() else ""


def _test(tree: Path, tier: str, tests: list[str], scratch: Path) -> int:
    """In a child: pytest's exit code."""
    with (scratch / "output").open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(tree)
    multiprocessing.process.ORIGINAL_DIR = str(tree)  # where processes that are spawned go
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ROOT) != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    for name in ("TESTS_TIER", "TESTS_SEED", "TESTS_NOTES", "NUMBA_CACHE_DIR"):
        os.environ.pop(name, None)
    os.environ["PYTHONPATH"] = str(tree)
    import hypothesis
    import pytest

    from tests import tiers

    class Begun:
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            (scratch / "begun").write_text(nodeid, encoding="utf-8")

    # The first failure is enough, and the same examples are tried for every mutant.
    tiers.begin(tier, tiers.FIXED_SEED)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutation",
        max_examples=tiers.examples(200),
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("mutation")
    limits = [f"--timeout={_TIMEOUT_S[tier]}", "--override-ini=timeout_method=thread"]
    words = ["-x", "--tier", tier, "-p", "no:cacheprovider", f"--basetemp={scratch / 'tmp'}", *limits, *tests]
    return int(pytest.main(words, [Begun()]))


def _key(code: str, mutant: Mutant) -> str:
    """How `equivalent.toml` names a mutant, wherever its line moves: what is there and what it becomes."""
    return " ".join(" ".join(line.split()) for line in _change(code, mutant.source(code)))


def _change(before: str, after: str) -> Iterator[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return (f"    {line}\n" for line in itertools.islice(lines, 3, None) if line[:1] in "+-")


def _modules(name: str, settings: dict[str, Any]) -> list[str]:
    """The modules that are mutated under a name: one, or those of a room but for rooms and modules of other names."""
    if name in settings["tests"]:
        return [name]
    found = (str(path.relative_to(ROOT)) for path in sorted((ROOT / name).rglob("*.py")))
    inner = [other for other in settings["rooms"] if other.startswith(f"{name}/")]
    return [path for path in found if path not in settings["tests"] and not path.startswith(tuple(inner))]


def _stages(name: str, module: str, settings: dict[str, Any]) -> list[list[str]]:
    """The tests of a module: those named for it; pure ones, the likeliest in front; those named for its room."""
    named, of_room = settings["tests"].get(name, []), settings["rooms"].get(name, [])
    parts = module.removesuffix(".py").split("/")
    ways = [_import_of(parts[:length]) for length in range(len(parts), name.count("/"), -1)]
    ranks: dict[str, tuple[int, bool, bool]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        test = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        rank = next((number for number, way in enumerate(ways) if way.search(text)), len(ways))
        is_near = test.startswith(f"tests/{name}/")
        if test.startswith(("tests/deduper/", "tests/bucket_store/")) and (is_near or rank < len(ways)):
            ranks[test] = rank, test not in of_room, not is_near
    pure = [test for test in sorted(ranks, key=ranks.__getitem__) if test not in named]
    return [stage for stage in (named, pure, [test for test in of_room if test not in pure]) if stage]


def _import_of(parts: list[str]) -> re.Pattern[str]:
    *above, last = parts
    return re.compile(rf"{'[.]'.join(parts)}\b|from {'[.]'.join(above)} import [\w, ]*\b{last}\b")


def _draw(names: list[str], options: argparse.Namespace, settings: dict[str, Any]) -> dict[Mutant, str]:
    """The mutants to run, each with the name it belongs to."""
    found: dict[Mutant, str] = {}
    draw = random.Random(options.seed)
    for name in names:
        codes = {module: (ROOT / module).read_text(encoding="utf-8") for module in _modules(name, settings)}
        every = [mutant for module, code in codes.items() for mutant in mutants(module, code)]
        found |= dict.fromkeys(_some(every, options.sample, draw), name)
    if options.again:
        lines = Path(options.again).read_text(encoding="utf-8").splitlines()
        lived = {line.split()[3] for line in lines if line.startswith(LIVES)}
        found = {mutant: name for mutant, name in found.items() if mutant.name in lived}
    return {mutant: found[mutant] for mutant in _some(list(found), options.total, draw)}


def _some(every: list[Mutant], count: int, draw: random.Random) -> list[Mutant]:
    return sorted(draw.sample(every, count), key=every.index) if 0 < count < len(every) else every


@contextlib.contextmanager
def _unchanged(appended: dict[str, str]) -> Iterator[Path]:
    """A copy of what is tested; mutants are copies of this one."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Path(directory, "tree")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
        (copy / ".venv").symlink_to(ROOT / ".venv")
        for module, code in appended.items():
            with (copy / module).open("a", encoding="utf-8") as file:
                file.write(f"\n{code}\n")
        yield copy


def report(outcomes: dict[Outcome, str]) -> None:
    """A table, and every mutant that `change` does not kill, with its change."""
    for outcome in outcomes:
        if outcome.fate in (NIGHT, LIVES):
            code = (ROOT / outcome.mutant.module).read_text(encoding="utf-8")
            print(f"{outcome}\n{''.join(_change(code, outcome.mutant.source(code)))}", end="")
    print("\n| of | mutants | killed by `change` | by `night` alone | explained | live |\n|---|---|---|---|---|---|")
    for name in dict.fromkeys(outcomes.values()):
        _row(f"`{name}`", [outcome for outcome, other in outcomes.items() if other == name])
    _row("all", list(outcomes))


def _row(name: str, outcomes: list[Outcome]) -> None:
    counts = [sum(outcome.fate == fate for outcome in outcomes) for fate in (CHANGE, NIGHT, EXPLAINED, LIVES)]
    print("|", " | ".join(map(str, [name, len(outcomes), *counts])), "|")
    if name == "all" and outcomes:
        for of, all_of in (("all", len(outcomes)), ("those without an explanation", len(outcomes) - counts[2])):
            shares = [100 * killed / max(all_of, 1) for killed in (counts[0], counts[0] + counts[1])]
            print(f"of {of} `change` kills {shares[0]:.1f} %, and with `night` {shares[1]:.1f} % are killed")


def main(arguments: list[str]) -> int:
    """First what runs as plain Python, then what runs compiled."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutation"]
    equivalent = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser("python -m tests.mutation")
    parser.add_argument("names", nargs="*", choices=[[], *settings["tests"], *settings["rooms"]], metavar="NAME")
    parser.add_argument("--rooms", action="store_true", help="without names: all rooms, in place of all modules")
    parser.add_argument("--tier", choices=[CHANGE, NIGHT], default=NIGHT, help="`change` tries `night` on what lives")
    parser.add_argument("--sample", type=int, default=0, help="this many mutants of each name, drawn by --seed")
    parser.add_argument("--total", type=int, default=0, help="this many mutants in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", default="", help="only what lived in the run whose output is in this file")
    options = parser.parse_args(arguments)
    chosen = _draw(options.names or list(settings["rooms" if options.rooms else "tests"]), options, settings)
    tiers = [CHANGE, NIGHT] if options.tier == CHANGE else [NIGHT]
    outcomes: dict[Outcome, str] = {}
    for as_python in (True, False):
        with (
            _unchanged(settings["appended"] if as_python else {}) as unchanged,
            ProcessPoolExecutor(options.jobs, _FORK, _load_libraries, (as_python,)) as processes,
        ):
            futures = []
            for mutant, name in chosen.items():
                if (mutant.module in settings["as_python"]) is as_python:
                    stages = list(itertools.product(tiers, _stages(name, mutant.module, settings)))
                    explained = equivalent.get(mutant.module, {})
                    futures.append(processes.submit(run, mutant, stages, unchanged, explained))
            for future in as_completed(futures):
                outcome = future.result()
                outcomes[outcome] = chosen[outcome.mutant]
                print(outcome, flush=True)
    report(outcomes)
    return int(any(outcome.fate == LIVES for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
