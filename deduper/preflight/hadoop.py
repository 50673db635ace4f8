"""Checks of Hadoop's settings for a store or a port in HDFS, as the client of this package reads them.

The client, no Java, reads only `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR, or else in HADOOP_HOME, and not
all that stands there (docs/how-to/hdfs-login.md). In executors it reads what their variables name. Its login there are
the tokens that the driver sends with each task, unless a variable names one of their host.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from urllib.parse import urlsplit
from xml.etree import ElementTree

from bucket_store.places.hadoop_settings import (
    FILES,
    FOLDER,
    asks_for_login,
    files_of_settings,
    properties,
    settings_folder,
)
from bucket_store.places.kerberos import CACHE, KEYTAB, TOKENS, LoginError, ticket
from deduper.diagnostics import Diagnostic, warning
from deduper.preflight.results import Failure, Results, Start
from deduper.spark.hdfs_login import travel_with_tasks
from deduper.spark_promises import DEFAULT_MASTER, is_this_machine

_CHECK = "hdfs"
_READ = ("hadoop.security.", "hadoop.rpc.protection", "dfs.ha.", "dfs.namenode.rpc-address", "dfs.nameservices")
"""Settings that decide about name services, login and encryption."""
_ENCRYPTED = "spark.network.crypto.enabled"
_SHORT_S = 1800
"""A ticket that ends sooner may be one that nothing renews."""


def settings(start: Start) -> Results:
    """What the client, here or in executors, would not find or would not understand."""
    config = start.config
    clusters = config.hdfs_clusters
    if not clusters:
        return
    found = yield from _of_client()
    if not is_this_machine(str(config.spark.get("spark.master", DEFAULT_MASTER))):
        yield from _of_executors(config.spark, found, has_name_service=any(":" not in one for one in clusters))


def here(urls: Iterable[str]) -> Results:
    """What the client of this process would not find or would not understand, if one of the places is in HDFS."""
    if any(urlsplit(url).scheme == "hdfs" for url in urls):
        yield from _of_client()


def _of_client() -> Generator[Diagnostic | Failure, None, dict[str, str]]:
    """Gives the settings too."""
    found: dict[str, str] = {}
    for path, root in files_of_settings():
        if not isinstance(root, ElementTree.Element):
            yield warning(_CHECK, f"{path}", f"cannot be read: {root}", "correct it, or name another folder")
            continue
        found |= properties(root)
        if any(one.tag.endswith("}include") for one in root.iter()):
            what = "has an xi:include, which the client of the store does not follow"
            yield warning(_CHECK, f"{path}", what, "write the settings into the file itself")
    folder = settings_folder()
    for name, value in sorted(found.items()):
        if name.startswith(_READ) and "${" in value:
            what = f"{name} is `{value}`, and the client of the store fills in no variables"
            yield warning(_CHECK, f"{folder}", what, "write the value itself")
    if folder is not None and not found:
        what = f"has no settings in {' or '.join(FILES)}"
        yield warning(_CHECK, f"{FOLDER}={folder}", what, "name the folder of Hadoop's client configuration")
    if asks_for_login(found):
        yield from _of_ticket()
    return found


def _of_ticket() -> Results:
    if TOKENS in os.environ:
        what = "the file of tokens is read as it is; nothing here renews it, and tokens end"
        yield warning(_CHECK, TOKENS, what, f"let {CACHE} name a ticket, which is renewed")
        return
    try:
        ends_in_s = ticket().seconds_left
    except LoginError:
        return  # the checks of the store and of the ports say so
    if ends_in_s < _SHORT_S and KEYTAB not in os.environ:
        what = f"the ticket ends in {ends_in_s // 60} minutes"
        yield warning(_CHECK, CACHE, what, f"renew it beside the job, or let {KEYTAB} name a keytab")


def _of_executors(spark: Mapping[str, object], found: dict[str, str], *, has_name_service: bool) -> Results:
    is_secure = asks_for_login(found)
    if (is_secure or has_name_service) and f"spark.executorEnv.{FOLDER}" not in spark:
        what = "Python workers of executors read Hadoop's settings from the variables of their host, if it has any"
        yield warning(_CHECK, "spark", what, f"set `spark.executorEnv.{FOLDER}` to the folder's path there")
    if is_secure and travel_with_tasks(spark) and str(spark.get(_ENCRYPTED, "false")).lower() != "true":
        what = "tokens of HDFS travel to the executors, and Spark's calls are not encrypted"
        yield warning(_CHECK, "spark", what, f"set `spark.authenticate` and `{_ENCRYPTED}` to true")
