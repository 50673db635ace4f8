"""Checks of folders, here and elsewhere: the source's is there, the others can be written, their disks have room."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

from bucket_store.errors import StorageAwayError, UnsafeStorageError
from bucket_store.places.hadoop_settings import (
    FILES,
    FOLDER,
    asks_for_login,
    files_of_settings,
    properties,
    settings_folder,
)
from bucket_store.places.kerberos import CACHE, KEYTAB, TOKENS, LoginError, ticket
from bucket_store.places.outages import storage_of
from bucket_store.places.place import Place
from bucket_store.places.probe import demand_refusal
from deduper.config.files import FilesSource
from deduper.diagnostics import Diagnostic, near, note, warning
from deduper.errors import CannotWriteError, SourceAwayError, UsageError
from deduper.preflight.machine import file_system_of
from deduper.preflight.results import Failure, Results, Start
from deduper.sinks.names import HasFilePorts
from deduper.sources.files.source_file import missing_folder
from deduper.spark.failures import storage_away
from deduper.spark.hdfs_login import travel_with_tasks
from deduper.spark_promises import DEFAULT_MASTER, is_this_machine
from deduper.units import approximate_size
from deduper.window.leftovers import discard_temporary, store_folders
from deduper.window.table_folder import table_settings

_LITTLE_BYTES = 2 << 30
_OF_NETWORKS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "gpfs", "beegfs", "fuse.", "virtiofs")
_OF_MEMORY = ("tmpfs", "ramfs")


def source(start: Start) -> Results:
    """The folder of a source of files."""
    missing = missing_folder(start.config.source)
    if missing is not None:
        beside = [entry.name for entry in missing.parent.iterdir()] if missing.parent.is_dir() else []
        remedy = f"{near(missing.name, beside)}make it (mkdir -p {missing}), or correct the path"
        raise UsageError(f"source.path: {missing} does not exist; {remedy}")
    if isinstance(start.config.source, FilesSource):
        folder = start.config.source.folder
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            reader = "let the user that runs the job read it"
            raise SourceAwayError(f"source.path: {folder} cannot be read; {reader}: chmod o+rx {folder}, or chown")
    yield from ()


def written(start: Start) -> Results:
    """The folders that the job writes to; of a missing one of this machine, the nearest parent is checked."""
    config = start.config
    ports = {f"sinks.{port}": sink.place for port, sink in config.file_ports.items()}
    yield from writable({"store": config.store.place, **ports}, is_unowned=start.waits and not start.take_over)
    tables = table_settings(config)
    for place, path in {"store.tables": Path(tables.disk_dir), "store.memory": Path(tables.memory_dir)}.items():
        failure = _not_writable(place, path)
        if failure is not None:
            yield failure


def writable(places: Mapping[str, Place], *, is_unowned: bool = False) -> Results:
    """A store and ports by the names of their settings, wherever they are; `is_unowned` as for `reachable`."""
    for place, folder in places.items():
        if folder.names.scheme != "file":
            yield from reachable(place, folder, is_unowned=is_unowned)
            continue
        path = folder.local
        failure = _not_writable(place, path)
        if failure is not None:
            yield failure
        else:
            yield from _room(place, path)
        if place == "store":
            yield from _disk(place, _existing(path))


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _not_writable(place: str, path: Path) -> Failure | None:
    there = _existing(path)
    if not there.is_dir():
        return Failure(
            place, UsageError(f"{place}: {there} exists and is not a folder; move it away, or choose another")
        )
    if os.access(there, os.W_OK | os.X_OK):
        return None
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        error = f"{place}: {there}: Read-only file system; mount it for writing, or choose another folder"
        return Failure(place, CannotWriteError(error))
    remedy = f"let the user that runs the job write to it: chown {os.geteuid()} {there}"
    return Failure(place, CannotWriteError(f"{place}: {there} cannot be written to; {remedy}"))


def _room(place: str, path: Path) -> Results:
    free = shutil.disk_usage(_existing(path)).free
    reported = f"{path}: {approximate_size(free)} are free"
    if free == 0:
        yield Failure(place, CannotWriteError(f"{path}: No space left on device; make room, or choose another disk"))
    elif free < _LITTLE_BYTES:
        yield warning("space", place, reported, "make room before it is full: a full disk stops the job")
    else:
        yield note("space", place, reported)


def _disk(place: str, path: Path) -> Results:
    kind = file_system_of(path.resolve())
    if kind.startswith(_OF_NETWORKS):
        what = f"{path} is on {kind}, a file system of a network: the store's locks and renames may not hold there"
        yield warning("disk", place, what, "put the store on a disk of this machine")
    elif kind in _OF_MEMORY:
        what = f"{path} is on {kind}: the store is lost when the machine restarts"
        yield warning("disk", place, what, "put the store on a disk")


def reachable(place: str, folder: Place, *, is_unowned: bool = False) -> Results:
    """A folder on another storage answers, can be written to, and refuses what two owners would do to each other.

    `is_unowned`: no owner of the store is alive, and a start may remove what an earlier one has left.
    """
    try:
        folder.exists()
    except StorageAwayError as error:
        yield Failure(place, error, storage_of(folder.url))
        return
    except OSError as error:
        what = f"{place}: {folder} does not answer: {error}; see that the storage runs and lets this user in"
        yield Failure(place, CannotWriteError(what), storage_of(folder.url))
        return
    try:
        if place == "store":
            _demand_refusal(folder, is_unowned=is_unowned)
    except UnsafeStorageError as error:
        yield Failure(place, error)
    except FileNotFoundError:
        what = f"{place}: {folder}: there is no bucket {storage_of(folder.url)}; create it, or correct the name"
        yield Failure(place, CannotWriteError(what), storage_of(folder.url))
    except OSError as error:
        away = storage_away(error)
        if away is not None:
            yield Failure(place, away, storage_of(folder.url))
            return
        what = f"{place}: {folder} cannot be written to: {error}"
        has_remedy = folder.names.scheme == "hdfs" and error.errno in (errno.EACCES, errno.EDQUOT)
        advice = "" if has_remedy else "; give this user the rights to get, put, list and delete"
        yield Failure(place, CannotWriteError(f"{what}{advice}"))
    else:
        yield note("space", place, f"{folder} answers; its room is the storage's")


def _demand_refusal(folder: Place, *, is_unowned: bool) -> None:
    """See `demand_refusal`. If the quota is used up, without what dead processes have left, which may be all of it."""
    try:
        demand_refusal(folder)
    except OSError as error:
        if error.errno != errno.EDQUOT or not is_unowned or not discard_temporary(store_folders(folder)):
            raise
        demand_refusal(folder)


LEAST_FREE_BYTES = 256 * 2**20
"""A job with less room, for the store or for a port of files, is not well: some windows of the usual size."""


class DiskSpace(NamedTuple):
    """Bytes of a file system."""

    free: int
    size: int


def disk_room(config: HasFilePorts) -> dict[str, DiskSpace]:
    """By `store` and the name of the port; a folder that cannot be looked at is left out."""
    store = config.store_place
    places: dict[str, Path] = {"store": store.local} if store.names.scheme == "file" else {}
    places |= {port: sink.path for port, sink in config.file_ports.items() if sink.is_local}
    found = {}
    for place, path in places.items():
        # Before the first window a port's folder need not be there.
        there = next((one for one in (path, *path.parents) if one.exists()), path)
        with contextlib.suppress(OSError):
            room = shutil.disk_usage(there)
            found[place] = DiskSpace(room.free, room.total)
    return found


_READ = ("hadoop.security.", "hadoop.rpc.protection", "dfs.ha.", "dfs.namenode.rpc-address", "dfs.nameservices")
"""Settings that decide about name services, login and encryption."""
_ENCRYPTED = "spark.network.crypto.enabled"
_SHORT_S = 1800
"""A ticket that ends sooner may be one that nothing renews."""


def hadoop_settings(start: Start) -> Results:
    """What the client of HDFS, here or in executors, would not find or would not understand in Hadoop's settings.

    The client, no Java, reads only `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR, or else in HADOOP_HOME, and
    not all that stands there (docs/how-to/hdfs-login.md). In executors it reads what their variables name. Its login
    there are the tokens that the driver sends with each task, unless a variable names one of their host.
    """
    config = start.config
    clusters = config.hdfs_clusters
    if not clusters:
        return
    found = yield from _of_client()
    if not is_this_machine(str(config.spark.get("spark.master", DEFAULT_MASTER))):
        yield from _of_executors(config.spark, found, has_name_service=any(":" not in one for one in clusters))


def hadoop_here(urls: Iterable[str]) -> Results:
    """What the client of this process would not find or would not understand, if one of the places is in HDFS."""
    if any(urlsplit(url).scheme == "hdfs" for url in urls):
        yield from _of_client()


def _of_client() -> Generator[Diagnostic | Failure, None, dict[str, str]]:
    """Gives the settings too."""
    found: dict[str, str] = {}
    for path, root in files_of_settings():
        if not isinstance(root, ElementTree.Element):
            yield warning("hdfs", f"{path}", f"cannot be read: {root}", "correct it, or name another folder")
            continue
        found |= properties(root)
        if any(one.tag.endswith("}include") for one in root.iter()):
            what = "has an xi:include, which the client of the store does not follow"
            yield warning("hdfs", f"{path}", what, "write the settings into the file itself")
    folder = settings_folder()
    for name, value in sorted(found.items()):
        if name.startswith(_READ) and "${" in value:
            what = f"{name} is `{value}`, and the client of the store fills in no variables"
            yield warning("hdfs", f"{folder}", what, "write the value itself")
    if folder is not None and not found:
        what = f"has no settings in {' or '.join(FILES)}"
        yield warning("hdfs", f"{FOLDER}={folder}", what, "name the folder of Hadoop's client configuration")
    if asks_for_login(found):
        yield from _of_ticket()
    return found


def _of_ticket() -> Results:
    if TOKENS in os.environ:
        what = "the file of tokens is read as it is; nothing here renews it, and tokens end"
        yield warning("hdfs", TOKENS, what, f"let {CACHE} name a ticket, which is renewed")
        return
    try:
        ends_in_s = ticket().seconds_left
    except LoginError:
        return  # the checks of the store and of the ports say so
    if ends_in_s < _SHORT_S and KEYTAB not in os.environ:
        what = f"the ticket ends in {ends_in_s // 60} minutes"
        yield warning("hdfs", CACHE, what, f"renew it beside the job, or let {KEYTAB} name a keytab")


def _of_executors(spark: Mapping[str, object], found: dict[str, str], *, has_name_service: bool) -> Results:
    is_secure = asks_for_login(found)
    if (is_secure or has_name_service) and f"spark.executorEnv.{FOLDER}" not in spark:
        what = "Python workers of executors read Hadoop's settings from the variables of their host, if it has any"
        yield warning("hdfs", "spark", what, f"set `spark.executorEnv.{FOLDER}` to the folder's path there")
    if is_secure and travel_with_tasks(spark) and str(spark.get(_ENCRYPTED, "false")).lower() != "true":
        what = "tokens of HDFS travel to the executors, and Spark's calls are not encrypted"
        yield warning("hdfs", "spark", what, f"set `spark.authenticate` and `{_ENCRYPTED}` to true")
