"""The jars of a Kafka broker and of Spark's Kafka connector: fixed lists, fetched once, checked each time.

They lie in `${XDG_CACHE_HOME:-~/.cache}/deduper/<name>-<version>`; DEDUPER_MAVEN_URL names another repository.
"""

from __future__ import annotations

import os
from pathlib import Path

from deduper.spark.kafka_jars import connector_jars, default_folder
from deduper.spark.maven_jars import Jar, fetch_jars, read_list

KAFKA_VERSION = "4.3.1"
BROKER_JARS = read_list(Path(__file__).with_name("kafka_jars.txt"))


def broker_jars() -> list[Path]:
    """The class path of a Kafka broker."""
    return _fetched(BROKER_JARS, _cache() / f"kafka-{KAFKA_VERSION}")


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
