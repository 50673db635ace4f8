"""The jars of a Kafka broker, of Spark's Kafka connector and of an HDFS: fixed lists, fetched once, checked each time.

They lie in `${XDG_CACHE_HOME:-~/.cache}/deduper/<name>-<version>`; DEDUPER_MAVEN_URL names another repository.
"""

from __future__ import annotations

import os
from pathlib import Path

from deduper.spark.installed import RELEASE, pyspark_folder
from tests.services.maven_jars import Jar, fetch_jars, read_list

KAFKA_VERSION = "4.3.1"
HADOOP_VERSION = "3.5.0"
BROKER_JARS = read_list(Path(__file__).with_name("kafka_jars.txt"))
HADOOP_JARS = read_list(Path(__file__).with_name("hadoop_jars.txt"))
CONNECTOR_JARS = read_list(Path(__file__).with_name("connector_jars.txt"))
_OF_PYSPARK = ("hadoop-client-*", "log4j-*", "slf4j-api-*", "jcl-over-slf4j-*", "jul-to-slf4j-*", "commons-logging-*")


def broker_jars() -> list[Path]:
    """The class path of a Kafka broker."""
    return _fetched(BROKER_JARS, _cache() / f"kafka-{KAFKA_VERSION}")


def hadoop_jars() -> list[Path]:
    """The class path of a NameNode or a DataNode: one jar of its own, and those of the client that PySpark has."""
    shared = [jar for pattern in _OF_PYSPARK for jar in sorted((pyspark_folder() / "jars").glob(pattern))]
    return [*_fetched(HADOOP_JARS, _cache() / f"hadoop-{HADOOP_VERSION}"), *shared]


def connector_settings() -> dict[str, str]:
    """The settings of a session with Spark's own Kafka connector and Avro module."""
    jars = _fetched(CONNECTOR_JARS, _cache() / f"spark-kafka-{RELEASE}")
    return {"spark.jars": ",".join(map(str, jars))}


def connector_conf(folder: Path) -> dict[str, str]:
    """The environment of a process whose sessions have the connector, by a configuration of Spark's in a folder."""
    lines = [f"{name} {value}\n" for name, value in connector_settings().items()]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return {"SPARK_CONF_DIR": str(folder)}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deduper"


def _fetched(jars: list[Jar], folder: Path) -> list[Path]:
    fetch_jars(jars, folder, os.environ.get("DEDUPER_MAVEN_URL") or None)
    return [folder / jar.file_name for jar in jars]


if __name__ == "__main__":  # all of them, before several processes need them
    broker_jars()
    hadoop_jars()
    connector_settings()
