"""`python -m tests.spark.pyspark_releases` installs the oldest PySpark that `Deduper` runs on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1")
_BESIDE = ("pandas", "python-dateutil", "pytz", "six", "tzdata")
"""What PySpark before 4.2 needs for its Arrow functions, and no part of this project uses."""
OLDEST = RELEASES[0]


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


if __name__ == "__main__":
    installed(OLDEST)
