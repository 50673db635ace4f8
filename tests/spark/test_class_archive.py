"""The archive of Spark's classes: a driver's Java has it mapped, and starts without it where it does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deduper.spark.installed import require_java
from deduper.spark.session import _find_spark_home

pytestmark = [pytest.mark.spark, pytest.mark.night]

_START = """
import sys
import psutil
from pathlib import Path
from deduper.spark.session import end_session, start_session
session = start_session("archive", {"spark.master": "local[1]"})
(java,) = (child for child in psutil.Process().children() if child.name() == "java")
print(sys.argv[1] in Path(f"/proc/{java.pid}/maps").read_text())
end_session(session)
"""


def test_made_once_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other classes on the path Java leaves it alone, without a word."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    made = _run("-m", "deduper.spark.class_archive")
    assert _run("-m", "deduper.spark.class_archive") == made
    (archive,) = (tmp_path / "a cache" / "deduper").iterdir()
    assert made == f"{archive}\n"
    assert require_java().class_archives(_find_spark_home()).whole() == archive
    assert _run("-c", _START, str(archive)) == "True\n"
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.app.id mine\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    assert _run("-c", _START, str(archive)) == "False\n"


def _run(*words: str) -> str:
    """What a Python prints; it must end with 0 and say nothing else."""
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return ran.stdout
