"""The tests of `Deduper` on other releases of PySpark, each in a process of its own: those that clusters have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deduper.spark.home import RELEASE
from tests import tiers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1")
_BESIDE = ("pandas", "python-dateutil", "pytz", "six", "tzdata")
"""What PySpark before 4.2 needs for its Arrow functions, and no part of this project uses."""
_ALWAYS = "values_of_all_types or each_row_of_the_table or split_inside"


def installed(release: str) -> Path:
    """The folder of a PySpark, kept between runs; the Python packages are those of this environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "deduper"
    target = cache / f"pyspark-{release}"
    if not target.exists():
        making = cache / f".pyspark-{release}.{os.getpid()}"
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
        subprocess.run(
            [*uv, "--no-deps", "--target", str(making), f"pyspark=={release}", *_BESIDE], check=True, timeout=900
        )
        making.rename(target)
    return target


@pytest.mark.night(but=["3.5.9"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_tests_of_deduper_pass(release: str, tmp_path: Path) -> None:
    """All of them by night; always those of the table of batches, of types, and of `split`, on the oldest."""
    assert release != RELEASE
    chosen = [] if tiers.is_night() else ["-k", _ALWAYS]
    own = ("TESTS_", "PYTEST_", "SPARK_")  # of this run: its notes, its worker, its Spark
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(own)},
        "PYTHONPATH": f"{installed(release)}{os.pathsep}{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(tmp_path),
    }
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--tier", "change"]
    ran = subprocess.run(
        [*tests, "tests/spark/test_query.py", *chosen],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout or "[100%]" in ran.stdout
