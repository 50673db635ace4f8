"""`deduper doctor`: do this machine and the job's connections meet the job's needs? Changes nothing.

Each part is checked even if others fail, so that one run shows every problem. The part about Kafka is
the one that `deduper run` makes for itself before it starts anything: `kafka.preflight`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bucket_store.errors import StoreError
from bucket_store.log.commit_log import CommitLog
from bucket_store.log.copies import original_of
from deduper.admin.status import beats
from deduper.as_json import AsJson
from deduper.config.kafka import KafkaSource
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity, error, note, warning
from deduper.errors import DeduperError
from deduper.kafka.errors import CLIENT_MISSING, INSTALL_CLIENT, is_client_installed
from deduper.sources.files.source_file import missing_folder
from deduper.spark.home import require_own_spark
from deduper.spark.java import require_java, require_user_name
from deduper.units import approximate_size

_LITTLE_BYTES, _TOO_LITTLE_BYTES = 2 << 30, 64 << 20
_OF_NETWORKS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "gpfs", "beegfs", "fuse.", "virtiofs")
_OF_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Diagnosis(AsJson):
    """The diagnostics of a job."""

    json_names = ("job", "is_healthy", "diagnostics")

    job: str
    diagnostics: tuple[Diagnostic, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether the job can start."""
        return not any(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)


def diagnose(config: Config) -> Diagnosis:
    """Check everything."""
    machine = (*_java(), *_kernels())
    job = (*_source(config), *_places(config), *_owner(config), *_connector(config), *_kafka(config))
    return Diagnosis(config.name, (*machine, *job))


def _failed(check: str, place: str, failure: DeduperError) -> Diagnostic:
    """A failure whose message ends with the remedy."""
    what, _, remedy = str(failure).partition("; ")
    return error(check, place, what, remedy)


def _java() -> Iterator[Diagnostic]:
    try:
        java = require_java()
    except DeduperError as failure:
        yield _failed("java", "java", failure)
    else:
        yield note("java", "java", f"{java.path} is {java.shown}")
    for subject, require in (("user", require_user_name), ("spark", require_own_spark)):
        try:
            require()
        except DeduperError as failure:
            yield _failed("java", subject, failure)


def _kernels() -> Iterator[Diagnostic]:
    from bucket_store.compiled import cache_folder
    from deduper.core.kernels import is_expired

    folder = cache_folder(is_expired)
    if folder is None:
        what = "neither the package nor the home can be written to: each process compiles its kernels again"
        yield warning("kernels", "numba", what, "name a folder of this user's in NUMBA_CACHE_DIR")
    else:
        yield note("kernels", "numba", f"compiled code is kept in {folder}")


def _source(config: Config) -> Iterator[Diagnostic]:
    missing = missing_folder(config.source)
    if missing is not None:
        yield error("folders", "source", f"{missing} does not exist", f"mkdir -p {missing}, or correct source.path")


def _places(config: Config) -> Iterator[Diagnostic]:
    """The folders that the job writes to; of a missing one, the nearest parent is checked."""
    places = {"store": config.store.path, "checkpoint": config.checkpoint_path}
    places |= {f"sinks.{port}": sink.path for port, sink in config.file_ports.items()}
    for place, path in places.items():
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        if not there.is_dir():
            yield error("folders", place, f"{there} exists and is not a folder", "move it away, or choose another")
            continue
        if not os.access(there, os.W_OK | os.X_OK):
            remedy = f"let the user that runs the job write to it: chown {os.geteuid()} {there}"
            yield error("folders", place, f"{there} cannot be written to", remedy)
        free = shutil.disk_usage(there).free
        reported = f"{path}: {approximate_size(free)} are free"
        if free < _TOO_LITTLE_BYTES:
            yield error("space", place, reported, "make room, or choose another disk")
        elif free < _LITTLE_BYTES:
            yield warning("space", place, reported, "make room before it is full: a full disk stops the job")
        else:
            yield note("space", place, reported)
        if place == "store":
            yield from _disk(place, there)


def _disk(place: str, path: Path) -> Iterator[Diagnostic]:
    kind = file_system_of(path.resolve())
    if kind.startswith(_OF_NETWORKS):
        what = f"{path} is on {kind}, a file system of a network: the store's locks and renames may not hold there"
        yield warning("disk", place, what, "put the store on a disk of this machine")
    elif kind in _OF_MEMORY:
        what = f"{path} is on {kind}: the store is lost when the machine restarts"
        yield warning("disk", place, what, "put the store on a disk")


def file_system_of(path: Path) -> str:
    """The kind of the file system that holds a path; empty when none is known."""
    holding = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    # Of two mounts at one point the later one covers the earlier.
    return max(reversed(holding), key=lambda mount: len(Path(mount.mountpoint).parts)).fstype if holding else ""


def _owner(config: Config) -> Iterator[Diagnostic]:
    if config.store.path.is_dir() and beats(config.store.path):
        yield note("owner", "store", "a job runs on it: another start would be refused")
    # A store that cannot be read is a matter for `verify`, and a start says it too.
    with contextlib.suppress(StoreError, OSError):
        original = original_of(CommitLog.open(config.store.path))
        if original is not None:
            what = f"{config.store.path} is a copy of {original}, which is still there: each remembers its own keys"
            yield warning("owner", "store", what, "if only one is to go on, remove the other")


def _connector(config: Config) -> Iterator[Diagnostic]:
    if not isinstance(config.source, KafkaSource):
        return
    from deduper.spark.kafka_jars import VARIABLE, find_connector

    try:
        connector = find_connector(config.spark, avro=config.source.value.format == "avro")
    except DeduperError as failure:
        yield _failed("connector", VARIABLE, failure)
        return
    if connector.folder is None:
        yield note("connector", "spark", "Spark's Kafka connector comes by the section `spark`")
    else:
        yield note("connector", VARIABLE, f"Spark's Kafka connector is in {connector.folder}")


def _kafka(config: Config) -> Iterator[Diagnostic]:
    if not isinstance(config.source, KafkaSource):
        return
    if not is_client_installed():
        yield error("client", "python", CLIENT_MISSING, INSTALL_CLIENT)
        return
    from deduper.kafka.preflight import examine

    yield from examine(config)
