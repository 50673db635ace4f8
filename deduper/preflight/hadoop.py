"""Checks of Hadoop's settings for a store or a port in HDFS, as the client of this package reads them.

The client, no Java, reads only `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR, or else in HADOOP_HOME, and not
all that stands there (docs/how-to/hdfs-login.md). In executors it has what their variables name, and no login but a
ticket on their host: the tokens that Spark renews are in the memory of its JVMs.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from deduper.diagnostics import Diagnostic, warning
from deduper.preflight.found import Failure, Found, Start
from deduper.spark_promises import DEFAULT_MASTER, is_this_machine

_CHECK = "hdfs"
_FOLDER, _TICKET = "HADOOP_CONF_DIR", "KRB5CCNAME"
_FILES = ("core-site.xml", "hdfs-site.xml")
_AUTHENTICATION = "hadoop.security.authentication"
_READ = ("hadoop.security.", "hadoop.rpc.protection", "dfs.ha.", "dfs.namenode.rpc-address", "dfs.nameservices")
"""Settings that decide about name services, login and encryption."""


def settings(start: Start) -> Found:
    """What the client, here or in executors, would not find or would not understand."""
    config = start.config
    clusters = _clusters([config.store.url, *(sink.url for sink in config.file_ports.values())])
    if not clusters:
        return
    found = yield from _of_client()
    if not is_this_machine(str(config.spark.get("spark.master", DEFAULT_MASTER))):
        yield from _of_executors(config.spark, found, has_name_service=any(":" not in one for one in clusters))


def here(urls: Iterable[str]) -> Found:
    """What the client of this process would not find or would not understand, if one of the places is in HDFS."""
    if _clusters(urls):
        yield from _of_client()


def _clusters(urls: Iterable[str]) -> list[str]:
    return [urlsplit(url).netloc for url in urls if url.startswith("hdfs:")]


def _of_client() -> Generator[Diagnostic | Failure, None, dict[str, str]]:
    """Gives the settings too."""
    folder = _folder()
    found: dict[str, str] = {}
    for name in _FILES if folder is not None else ():
        assert folder is not None
        try:
            root = ElementTree.parse(folder / name).getroot()
        except FileNotFoundError:
            continue
        except (OSError, ElementTree.ParseError) as exc:
            yield warning(_CHECK, f"{folder / name}", f"cannot be read: {exc}", "correct it, or name another folder")
            continue
        found |= {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in root.iter("property")}
        if any(one.tag.endswith("}include") for one in root.iter()):
            what = "has an xi:include, which the client of the store does not follow"
            yield warning(_CHECK, f"{folder / name}", what, "write the settings into the file itself")
    for name, value in sorted(found.items()):
        if name.startswith(_READ) and "${" in value:
            what = f"{name} is `{value}`, and the client of the store fills in no variables"
            yield warning(_CHECK, f"{folder}", what, "write the value itself")
    if folder is not None and not found:
        what = f"has no settings in {' or '.join(_FILES)}"
        yield warning(_CHECK, f"{_FOLDER}={folder}", what, "name the folder of Hadoop's client configuration")
    return found


def _of_executors(spark: Mapping[str, object], found: Mapping[str, str], *, has_name_service: bool) -> Found:
    is_secure = found.get(_AUTHENTICATION, "simple").lower() == "kerberos"
    if (is_secure or has_name_service) and f"spark.executorEnv.{_FOLDER}" not in spark:
        what = "Python workers of executors read Hadoop's settings from the variables of their host, if it has any"
        yield warning(_CHECK, "spark", what, f"set `spark.executorEnv.{_FOLDER}` to the folder's path there")
    if is_secure and f"spark.executorEnv.{_TICKET}" not in spark:
        what = "Python workers of executors log in by a ticket of their host; tokens that Spark renews stay in its JVMs"
        remedy = f"keep a ticket on every host (`k5start`), and name it in `spark.executorEnv.{_TICKET}`"
        yield warning(_CHECK, "spark", what, remedy)


def _folder() -> Path | None:
    named, home = os.environ.get(_FOLDER), os.environ.get("HADOOP_HOME")
    if named:
        return Path(named)
    return Path(home, "etc", "hadoop") if home else None
