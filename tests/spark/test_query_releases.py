"""The tests of `Deduper` on other releases of PySpark, each in a process of its own: those that clusters have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deduper.spark.installed import RELEASE
from tests import tiers
from tests.spark.pyspark_releases import OLDEST, RELEASES, installed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_ALWAYS = "values_of_all_types or each_row_of_the_table or split_inside or one_batch_older"


@pytest.mark.night(but=[OLDEST])
@pytest.mark.parametrize("release", RELEASES)
def test_the_tests_of_deduper_pass(release: str, tmp_path: Path) -> None:
    """All of them by night; always those of batches, checkpoints, types and `split`, on the oldest."""
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
