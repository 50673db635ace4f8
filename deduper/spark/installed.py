"""The Spark that PySpark starts, and the Java that it runs on: paths and releases, checked before Spark starts."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from deduper import DISTRIBUTION
from deduper.errors import DeduperError, UsageError

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


_VERSIONS = (17, 21)
DEFAULT_HEAP = "4g"
"""`spark.driver.memory` of a job that sets none."""
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""A variable of a program that `spark-submit` runs: its JVM was there first, with options of its own."""
_HEAP = re.compile(r"\s*(\d+)\s*([kmgt]?)b?\s*", re.IGNORECASE)
_ADVICE = "install one with `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME to a Java 17 or 21"


@dataclass(frozen=True, slots=True)
class ClassArchives:
    """A folder of archives, and the beginning of their names. The rest is the size: Java dies of a shorter one."""

    folder: Path
    name: str

    def whole(self) -> Path | None:
        """The archive that is there with all its bytes."""
        sizes = {path: path.stem.rpartition("-")[2] for path in self.folder.glob(f"{self.name}-*.jsa")}
        return next((path for path, size in sizes.items() if size == str(path.stat().st_size)), None)

    def place(self, made: Path) -> Path:
        """Give its name to an archive that lies in the same file system."""
        return made.replace(self.folder / f"{self.name}-{made.stat().st_size}.jsa")


@dataclass(frozen=True, slots=True)
class Java:
    """A program, and its version as it prints it."""

    path: str
    shown: str

    def class_archives(self, spark_home: str) -> ClassArchives:
        """Where the archive of a Spark's classes for this Java is, if there is one (see `spark.class_archive`)."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "deduper")
        of = "\n".join([str(Path(self.path).resolve()), self.shown, spark_home, installed_pyspark()])
        return ClassArchives(cache, f"spark-classes-{hashlib.blake2b(of.encode(), digest_size=8).hexdigest()}")


def require_java() -> Java:
    """Fail before Spark does, with a better message than `Java gateway process exited`.

    Raises:
        DeduperError: no java, or one that Spark does not run on; with the command that installs one.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if home and not Path(java or "").exists():
        raise DeduperError(f"JAVA_HOME is {home}, which holds no bin/java; correct or unset it; else {_ADVICE}")
    if not java:
        raise DeduperError(f"Spark needs Java and none was found; {_ADVICE}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    # Java prints options from the environment first.
    version = re.search(r'^.*version "(?:1\.)?(\d+).*$', shown, re.MULTILINE)
    if version is None or int(version[1]) not in _VERSIONS:
        reported = version[0] if version else shown.strip().split("\n", 1)[0] or "no Java"
        raise DeduperError(f"Spark runs on Java 17 or 21, and {java} is {reported}; {_ADVICE}")
    return Java(java, version[0])


def require_user_name() -> None:
    """Fail before Spark does, with a better message than `Invalid UID`: Java has a user by name alone.

    Raises:
        DeduperError: the user has none; with what to do.
    """
    uid = os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise DeduperError(
            f"Spark needs a user with a name, and user {uid} has none; add a line for {uid} to /etc/passwd, or run as "
            "a user that has one"
        ) from None


def heap_bytes(settings: Mapping[str, object]) -> int:
    """The greatest heap of the JVM, by the settings of Spark.

    0 where they do not say it: for a text that Spark will refuse, and for the JVM of `spark-submit`.
    """
    found = _HEAP.fullmatch(str(settings.get("spark.driver.memory", DEFAULT_HEAP)))
    if found is None or SUBMITTED in os.environ:
        return 0
    # Without a unit Spark means MiB.
    return int(found[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[found[2].lower() or "m"]
