"""The Spark that PySpark will start: the one it was made with, in this process."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

from deduper.errors import UsageError

_CORE = re.compile(r"spark-core_[\d.]+-(.+)\.jar")


def require_own_spark() -> None:
    """Fails before Spark does when a variable leads to another one, with which every call might mean something else.

    Raises:
        UsageError: naming the variable, and what to do.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise UsageError(f"{name} is `{os.environ[name]}`, and the service starts its own Spark; unset {name}")
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    wanted = metadata.version("pyspark")
    jars = (_CORE.fullmatch(jar.name) for jar in Path(home, "jars").glob("spark-core_*.jar"))
    found = sorted({jar[1] for jar in jars if jar is not None})
    # A vendor's build of a release has more behind the number.
    if [version.partition("-")[0] for version in found] != [wanted]:
        what = f"holds Spark {' and '.join(found)}" if found else "holds no Spark"
        raise UsageError(f"SPARK_HOME is `{home}`, which {what}, and the service needs {wanted}; unset SPARK_HOME")
