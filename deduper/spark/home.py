"""The Spark that PySpark will start: the release that this project is tested with, and the one that is installed."""

from __future__ import annotations

import os
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from deduper import DISTRIBUTION
from deduper.errors import UsageError

RELEASE = "4.3.0"
"""The PySpark that pyproject.toml pins."""
_LEAST = (4, 2)
"""A job has settings of Spark's, and calls, that earlier ones lack. A `Deduper` asks for less."""
_CORE = re.compile(r"spark-core_[\d.]+-(.+)\.jar")


def require_own_spark() -> None:
    """Fails before Spark does: with a PySpark that is too old, or when a variable leads to another Spark.

    Raises:
        UsageError: naming the release or the variable, and what to do.
    """
    installed = installed_pyspark()
    if tuple(map(int, installed.split(".")[:2])) < _LEAST:
        raise UsageError(
            f"PySpark {installed} is installed, and a job needs {RELEASE}; make an environment of its own, and there "
            f"pip install '{DISTRIBUTION}[service]'"
        )
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise UsageError(f"{name} is `{os.environ[name]}`, and the service starts its own Spark; unset {name}")
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    wanted = installed
    jars = (_CORE.fullmatch(jar.name) for jar in Path(home, "jars").glob("spark-core_*.jar"))
    found = sorted({jar[1] for jar in jars if jar is not None})
    # A vendor's build of a release has more behind the number.
    if [version.partition("-")[0] for version in found] != [wanted]:
        what = f"holds Spark {' and '.join(found)}" if found else "holds no Spark"
        raise UsageError(f"SPARK_HOME is `{home}`, which {what}, and the service needs {wanted}; unset SPARK_HOME")


def installed_pyspark() -> str:
    """The version of the installed PySpark."""
    return metadata.version("pyspark")


def pyspark_folder() -> Path:
    """The folder of the installed PySpark; the package is not imported, which takes a second."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
