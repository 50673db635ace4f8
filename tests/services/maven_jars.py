"""Jars of a fixed list, from a Maven repository into a folder, each with the SHA-256 of the list.

A jar gets its name in the folder only when it is whole and checked; until then it is in `.fetching` below. So an
interrupted fetch continues with the missing jars. One process at a time fetches into a folder.

A repository that is named by its URL is read directly. Without one, Ivy, which PySpark includes for the packages of its
users, fetches from Maven Central: the machine needs Java, and no Maven.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from deduper.errors import CheckFailedError, DeduperError
from deduper.spark.installed import pyspark_folder, require_java

_FETCHING = ".fetching"
_ANSWER_S, _IVY_S = 60, 600
_DEPENDENCY = '<dependency org="{0.group}" name="{0.artifact}" rev="{0.version}" transitive="false"/>'
_IVY_FILE = """\
<ivy-module version="2.0"><info organisation="deduper" module="jars"/>
<configurations defaultconfmapping="default->master"><conf name="default"/></configurations>
<dependencies>{}</dependencies></ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """One artifact and the SHA-256 that it must have."""

    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def file_name(self) -> str:
        """Its name in a folder and in a repository."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its path in a repository of Maven's layout."""
        return "/".join([*self.group.split("."), self.artifact, self.version, self.file_name])

    def is_in(self, folder: Path) -> bool:
        """Whether the folder holds it, with the right bytes."""
        try:
            with (folder / self.file_name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def read_list(listing: Path) -> list[Jar]:
    """The artifacts of a list file: a SHA-256 and Maven's coordinates on each line."""
    lines = [line.split() for line in listing.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    return [Jar(sha256, *coordinates.split(":")) for sha256, coordinates in lines]


def fetch_jars(jars: Sequence[Jar], folder: Path, repository: str | None = None) -> list[Jar]:
    """Put the jars that the folder lacks, or holds with other bytes, into it: those that were fetched.

    Raises:
        CheckFailedError: a repository gave other bytes than the known ones; they are not kept.
        DeduperError: a jar cannot be fetched, or there is no Java for Ivy.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        missing = [jar for jar in jars if not jar.is_in(folder)]
        if missing:
            fetching = folder / _FETCHING
            fetching.mkdir(exist_ok=True)
            if repository is None:
                _fetch_by_ivy(missing, fetching)
            for jar in missing:
                if repository is not None:
                    _download(jar, repository, fetching)
                _place(jar, fetching, folder)
            shutil.rmtree(fetching)
    return missing


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _place(jar: Jar, fetching: Path, folder: Path) -> None:
    if not jar.is_in(fetching):
        # With Ivy's cache, which would give the same bytes again.
        shutil.rmtree(fetching)
        raise CheckFailedError(
            f"{jar.path}: the repository's bytes are not the known ones (SHA-256 {jar.sha256}); they were deleted. "
            "Fetch again: if it repeats, name another repository in DEDUPER_MAVEN_URL"
        )
    (fetching / jar.file_name).replace(folder / jar.file_name)


def _download(jar: Jar, repository: str, into: Path) -> None:
    address = f"{repository.rstrip('/')}/{jar.path}"
    try:
        with urllib.request.urlopen(address, timeout=_ANSWER_S) as answer, (into / jar.file_name).open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError, HTTPException) as exc:
        # Without the address: it may hold a login.
        reason = getattr(exc, "reason", None) or type(exc).__name__
        why = getattr(reason, "strerror", None) or reason
        raise DeduperError(
            f"{jar.path}: the repository of DEDUPER_MAVEN_URL does not give it: {why}; correct the address, or see "
            "that the repository answers"
        ) from exc


def _fetch_by_ivy(jars: Sequence[Jar], into: Path) -> None:
    (into / "ivy.xml").write_text(_IVY_FILE.format("".join(map(_DEPENDENCY.format, jars))), encoding="ascii")
    (ivy,) = (pyspark_folder() / "jars").glob("ivy-*.jar")
    # Ivy takes patterns, in which the name of a folder may mean something: hence relative ones.
    options = ["-ivy", "ivy.xml", "-cache", "cache", "-confs", "default", "-retrieve", "[artifact]-[revision].[ext]"]
    command = [require_java().path, "-cp", str(ivy), "org.apache.ivy.Main", *options, "-error"]
    try:
        done = subprocess.run(
            command, cwd=into, capture_output=True, stdin=subprocess.DEVNULL, timeout=_IVY_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise DeduperError(f"Ivy fetched no jars from Maven Central within {_IVY_S} s; {_ADVICE}") from exc
    absent = [jar.file_name for jar in jars if not (into / jar.file_name).exists()]
    if done.returncode != 0 or absent:
        raise DeduperError(
            f"Ivy cannot fetch {', '.join(absent) or 'jars'} from Maven Central{_reason(done.stdout)}; {_ADVICE}"
        )


def _reason(printed: bytes) -> str:
    """The first exception that Ivy prints for an address, in parentheses behind it, with what helps."""
    found = re.search(r"\((?:\w+\.)*(\w+(?:Exception|Error)(?:: [^)\n]*)?)\)?", printed.decode(errors="replace"))
    if found is None:
        return ""
    # As behind a proxy that opens TLS.
    unknown = "PKIX" in found[1]
    help_ = " (Java does not trust the certificate: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE names others)"
    return f": {found[1]}{help_ if unknown else ''}"


_ADVICE = "name a repository of Maven's layout in DEDUPER_MAVEN_URL"
