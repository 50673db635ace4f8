"""A package that is installed read-only, for a user without a home: containers often have no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_JOB = """\
source: {format: files, path: in/, file_format: json, schema: "k string"}
key: k
expiry: {by: never}
sinks: {unique: {format: none}, duplicate: {format: none}, expired: {format: none}, error: {format: none}}
"""
_KERNEL = """
import numpy as np
from bucket_store.tables import kernels
from deduper.preflight import checks
from deduper.core import kernels as judging
assert kernels.home_slot(np.uint64(1 << 63), np.uint64(10)) == 5
assert judging.is_expired(1, 12, 10, 0)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The two packages as they are without a writable folder, and a job beside them."""
    for name in ("deduper", "bucket_store"):
        shutil.copytree(_ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        # No folder is read-only for root; a file in its place is for everybody.
        for path in (tmp_path / name, *(tmp_path / name).rglob("*/")):
            (path / "__pycache__").touch()
    (tmp_path / "in").mkdir()
    (tmp_path / "job.yaml").write_text(_JOB, encoding="utf-8")
    return tmp_path


def without_home(package: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python code run where neither the package nor the home can be written to."""
    given = {"PATH": os.environ["PATH"], "HOME": "/dev/null/home", "PYTHONPATH": str(package), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=package, env=given, capture_output=True, text=True, check=False
    )


@pytest.mark.night
@pytest.mark.slow
def test_kernels_are_compiled_in_memory(package: Path) -> None:
    """Those with a signature and those without."""
    ran = without_home(package, _KERNEL)
    assert ran.returncode == 0
    assert [line for line in ran.stderr.splitlines() if "compiling" not in line] == []


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_check_says_where_compiled_code_is_kept(
    package: Path, tmp_path_factory: pytest.TempPathFactory, named: bool
) -> None:
    """Nowhere is a warning and keeps no job from starting; a folder that is named is used."""
    folder = tmp_path_factory.mktemp("numba")
    code = (
        "import sys; from deduper.cli.main import main; sys.argv = ['deduper', 'check', 'job.yaml', '--json']; main()"
    )
    ran = without_home(package, code, **({"NUMBA_CACHE_DIR": str(folder)} if named else {}))
    (found,) = (diagnostic for diagnostic in json.loads(ran.stdout)["diagnostics"] if diagnostic["check"] == "kernels")
    if named:
        assert (found["severity"], str(folder) in found["what"]) == ("note", True)
    else:
        assert (found["severity"], "NUMBA_CACHE_DIR" in found["remedy"]) == ("warning", True)
