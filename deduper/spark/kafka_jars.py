"""The jars of Spark's Kafka connector and its Avro module, which PySpark does not include: which, and where.

A job with a source of topics takes the first of these:

- `spark.jars` or `spark.jars.packages` of its section `spark`;
- the folder that DEDUPER_SPARK_JARS names;
- the folder that `deduper jars` fills by default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deduper.errors import UsageError
from deduper.spark.home import RELEASE
from deduper.spark.maven_jars import Jar, read_list

VARIABLE = "DEDUPER_SPARK_JARS"
CONNECTOR = "spark-sql-kafka-0-10"
AVRO_MODULE = "spark-avro"
_NEEDED = (CONNECTOR, "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")
_ELSEWHERE = re.compile(r"(?!file:)[a-z0-9]+:|.*[*?\[{]")


@dataclass(frozen=True, slots=True)
class Connector:
    """Where the connector is, and the settings of a session that bring it; `folder` is None if the user's own do."""

    folder: Path | None
    settings: Mapping[str, str]

    @property
    def release(self) -> str | None:
        """The version in the name of the connector's jar; None if it is not in a folder."""
        found = re.search(rf"/{CONNECTOR}_[\d.]+-([^/,]+)\.jar", self.settings.get("spark.jars", ""))
        return None if found is None else found[1]


def connector_jars() -> list[Jar]:
    """The artifacts that `deduper jars` fetches."""
    return read_list(Path(__file__).with_name("kafka_jars.txt"))


def default_folder() -> Path | None:
    """The folder of `deduper jars` without `--into`; None for a user without a home."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return cache / "deduper" / f"spark-kafka-{RELEASE}"


def find_connector(own: Mapping[str, object], *, avro: bool = False) -> Connector:
    """The connector, and with `avro` the Avro module, for a job whose section `spark` is `own`.

    Raises:
        UsageError: they are nowhere, or not whole; with the command that fetches them.
    """
    if "spark.jars.packages" in own:
        return Connector(None, {})
    if "spark.jars" in own:
        _require_files(str(own["spark.jars"]))
        return Connector(None, {})
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else default_folder()
    if folder is None:
        raise UsageError(
            f"Spark's Kafka connector is missing; fetch it with `deduper jars --into DIR`, and set {VARIABLE} to DIR"
        )
    jars = sorted(folder.absolute().glob("*.jar"))
    fetch = f"fetch it with `deduper jars --into {folder}`" if named else "fetch it with `deduper jars`"
    other = f", or name a folder that holds it in {VARIABLE}"
    for module in (*_NEEDED, AVRO_MODULE) if avro else _NEEDED:
        if not any(re.match(rf"{module}[-_]\d", jar.name) for jar in jars):
            what = "Avro module" if module == AVRO_MODULE else "Kafka connector"
            raise UsageError(f"Spark's {what} is missing: {folder} has no {module} jar; {fetch}{other}")
    names = {jar.name for jar in jars}
    for jar in connector_jars():
        if jar.file_name in names and not jar.is_in(folder):
            raise UsageError(f"Spark's Kafka connector is damaged: {folder / jar.file_name} has other bytes; {fetch}")
    return Connector(folder, {"spark.jars": ",".join(map(str, jars))})


def _require_files(listed: str) -> None:
    """The files of a setting `spark.jars` must exist; Spark itself looks after other addresses and patterns."""
    for entry in filter(None, map(str.strip, listed.split(","))):
        path = Path(entry.removeprefix("file://").removeprefix("file:"))
        if not _ELSEWHERE.match(entry) and not path.exists():
            raise UsageError(f"spark.spark.jars: {path} does not exist; correct the path, or remove the setting")
