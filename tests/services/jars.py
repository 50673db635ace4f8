"""The jars of a Kafka broker, of Spark's Kafka connector and of an HDFS: fixed lists, fetched once, checked each time.

They lie in `${XDG_CACHE_HOME:-~/.cache}/deduper/<name>-<version>`; DEDUPER_MAVEN_URL names another repository.
"""

from __future__ import annotations

import os
from pathlib import Path

from deduper.spark.home import pyspark_folder
from deduper.spark.kafka_jars import connector_jars, default_folder
from deduper.spark.maven_jars import Jar, fetch_jars, read_list

KAFKA_VERSION = "4.3.1"
HADOOP_VERSION = "3.5.0"
BROKER_JARS = read_list(Path(__file__).with_name("kafka_jars.txt"))
HADOOP_JARS = read_list(Path(__file__).with_name("hadoop_jars.txt"))
_OF_PYSPARK = ("hadoop-client-*", "log4j-*", "slf4j-api-*", "jcl-over-slf4j-*", "jul-to-slf4j-*", "commons-logging-*")


def broker_jars() -> list[Path]:
    """The class path of a Kafka broker."""
    return _fetched(BROKER_JARS, _cache() / f"kafka-{KAFKA_VERSION}")


def hadoop_jars() -> list[Path]:
    """The class path of a NameNode or a DataNode: one jar of its own, and those of the client that PySpark has."""
    shared = [jar for pattern in _OF_PYSPARK for jar in sorted((pyspark_folder() / "jars").glob(pattern))]
    return [*_fetched(HADOOP_JARS, _cache() / f"hadoop-{HADOOP_VERSION}"), *shared]


def connector_folder() -> Path:
    """The folder with Spark's Kafka connector, as `deduper jars` fills it."""
    folder = default_folder()
    assert folder is not None
    _fetched(connector_jars(), folder)
    return folder


def _cache() -> Path:
    folder = default_folder()
    assert folder is not None
    return folder.parent


def _fetched(jars: list[Jar], folder: Path) -> list[Path]:
    fetch_jars(jars, folder, os.environ.get("DEDUPER_MAVEN_URL") or None)
    return [folder / jar.file_name for jar in jars]


if __name__ == "__main__":  # all of them, before several processes need them
    broker_jars()
    hadoop_jars()
    connector_folder()
