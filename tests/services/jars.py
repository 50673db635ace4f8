"""The jars of a Kafka broker and of Spark's Kafka connector: a fixed list, fetched once, checked each time.

`spark.kafka_jars.txt` and `spark_kafka_jars.txt` name every artifact with its SHA-256. They lie in
`${XDG_CACHE_HOME:-~/.cache}/deduper/<name>-<version>`. A folder there is either whole or absent: it is filled under
another name and renamed, by one process at a time. One whose sums are wrong is recreated.

Maven fetches them, with whatever settings it has on this machine. DEDUPER_MAVEN_URL names a repository of Maven's
standard layout to fetch them from without Maven.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KAFKA_VERSION = "4.3.1"
CONNECTOR_VERSION = "4.2.0"
URL_VARIABLE = "DEDUPER_MAVEN_URL"
_LISTS = Path(__file__).parent
_FETCH_DEADLINE_S = 300


class JarsMissing(Exception):
    """The jars are not there and cannot be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One artifact and the SHA-256 it must have."""

    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def file_name(self) -> str:
        """Its name in the cache and in a repository."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its path in a repository of Maven's layout."""
        return "/".join([*self.group.split("."), self.artifact, self.version, self.file_name])


def broker_jars() -> list[Path]:
    """The class path of a Kafka broker.

    Raises:
        JarsMissing: they cannot be fetched.
    """
    return jars_of(_LISTS / "kafka_jars.txt", cache_directory() / f"kafka-{KAFKA_VERSION}")


def connector_jars() -> list[Path]:
    """What `spark.jars` needs for the formats and sinks called kafka; PySpark brings the rest.

    Raises:
        JarsMissing: they cannot be fetched.
    """
    return jars_of(_LISTS / "spark_kafka_jars.txt", cache_directory() / f"spark-kafka-{CONNECTOR_VERSION}")


def cache_directory() -> Path:
    """Where this user's downloads are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deduper"


def jars_of(listing: Path, directory: Path) -> list[Path]:
    """The jars of a list, in the folder, every sum right; safe when several processes ask at once."""
    jars = read_list(listing)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(directory.with_name(f".{directory.name}.lock")):
        if wrong_jars(jars, directory):
            _make(jars, directory)
    return [directory / jar.file_name for jar in jars]


def read_list(listing: Path) -> list[Jar]:
    """The artifacts of a list file."""
    lines = [line.split() for line in listing.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    return [Jar(sha256, *coordinates.split(":")) for sha256, coordinates in lines]


def wrong_jars(jars: list[Jar], directory: Path) -> list[str]:
    """The names of those that are absent or whose bytes are not the ones of the list."""
    return [jar.file_name for jar in jars if _sha256(directory / jar.file_name) != jar.sha256]


def _make(jars: list[Jar], directory: Path) -> None:
    """Fills a folder beside the final one, checks it, and renames it."""
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _fetch(jars, partial)
        wrong = wrong_jars(jars, partial)
        if wrong:
            raise JarsMissing(f"fetched, but the SHA-256 is not the one we know: {', '.join(wrong)}")
        shutil.rmtree(directory, ignore_errors=True)
        partial.chmod(0o755)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch(jars: list[Jar], directory: Path) -> None:
    url = os.environ.get(URL_VARIABLE)
    if url:
        _download(jars, directory, url)
    elif shutil.which("mvn"):
        _copy_by_maven(jars, directory)
    else:
        raise JarsMissing(
            "Missing: Maven, which fetches Kafka's jars. Install it, then run this again:\n"
            "  sudo apt-get update && sudo apt-get install -y --no-install-recommends maven\n"
            f"or name a repository of Maven's layout in {URL_VARIABLE}."
        )


def _download(jars: list[Jar], directory: Path, url: str) -> None:
    for jar in jars:
        address = f"{url.rstrip('/')}/{jar.path}"
        try:
            with (
                urllib.request.urlopen(address, timeout=60) as answer,
                (directory / jar.file_name).open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
        except OSError as exc:
            raise JarsMissing(f"{jar.path} cannot be fetched from the repository in {URL_VARIABLE}: {exc}") from exc


def _copy_by_maven(jars: list[Jar], directory: Path) -> None:
    """Exactly the list, because every artifact is asked for without its dependencies."""
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
        "</exclusion></exclusions></dependency>"
        for jar in jars
    )
    with tempfile.TemporaryDirectory(prefix="deduper-pom-") as project:
        (Path(project) / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>deduper</groupId><artifactId>jars</artifactId>"
            f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n",
            encoding="ascii",
        )
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
        try:
            # -U: Maven remembers for a day that it did not find something.
            done = subprocess.run(
                ["mvn", "-q", "-B", "-U", *goal],
                cwd=project,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_FETCH_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise JarsMissing(f"Maven did not fetch Kafka's jars within {_FETCH_DEADLINE_S} s") from exc
    if done.returncode != 0:
        raise JarsMissing(f"Maven cannot fetch Kafka's jars:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
