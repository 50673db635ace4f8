"""The public names: what `import deduper` gives, and the examples in their docstrings."""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

import deduper
from tests.deduper.query.examples import run_examples

FACE = Path(deduper.__file__).with_suffix(".pyi")


def test_all_names_are_there_and_typed() -> None:
    """Each can be had, and the stub that type checkers read has the same ones."""
    for name in deduper.__all__:
        assert getattr(deduper, name) is not None, name
    typed: set[str] = set()
    for node in ast.parse(FACE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            typed |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            typed |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            typed.add(node.target.id)
    assert {name for name in typed if not name.startswith("_load")} - {"__all__"} == set(deduper.__all__)
    assert dir(deduper) == sorted(deduper.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        deduper.nothing  # type: ignore[attr-defined]  # noqa: B018 - asking for it is the test


def test_importing_it_costs_nothing() -> None:
    """Neither PySpark nor NumPy nor pydantic comes with it."""
    code = "import sys, deduper; print(sorted({'pyspark', 'numpy', 'pydantic', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("module", ["query.rules", "query.ports", "testing"])
def test_examples_in_docstrings_run(module: str) -> None:
    """As they are written."""
    ran = doctest.testmod(import_module(f"deduper.{module}"))
    assert ran.attempted > 2
    assert ran.failed == 0


@pytest.mark.parametrize("name", ["load", "upsert", "delete", "filter_exists", "tag", "read", "table_config"])
def test_examples_of_tables_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a `load.yaml` whose table has two rows."""
    monkeypatch.chdir(tmp_path)
    Path("load.yaml").write_text("source: {path: in}\ntable: {path: prices}\nkey: [id]\n")
    deduper.load(pa.table({"id": [1, 2], "price": [10, 20]}), "prices", key=["id"])
    run_examples(getattr(deduper, name), {"pa": pa, "table_config": deduper.table_config})
