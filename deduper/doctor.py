"""`deduper doctor`: is this machine, and is what the job connects to, as the job needs it? Changes nothing.

Each part is looked at whatever became of the others, so that everything wrong is told at once. The part about Kafka is
the one that `deduper run` makes for itself before it starts anything: `kafka_preflight`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from deduper import kafka_extra
from deduper.concerns import Concern, Severity, error, note, warning
from deduper.config import Config
from deduper.config_kafka import KafkaSource
from deduper.errors import DeduperError
from deduper.file_source import missing_folder
from deduper.java import require_java
from deduper.output_names import file_sinks
from deduper.status import beats
from deduper.terminal import pairs
from deduper.units import approximate_size

_LITTLE_BYTES, _TOO_LITTLE_BYTES = 2 << 30, 64 << 20
_OF_NETWORKS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "gpfs", "beegfs", "fuse.", "virtiofs")
_OF_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found for a job."""

    job: str
    concerns: tuple[Concern, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing keeps the job from starting."""
        return not any(concern.severity is Severity.ERROR for concern in self.concerns)

    def to_json(self) -> dict[str, Any]:
        """Stable keys for `--json`."""
        return {
            "job": self.job,
            "healthy": self.is_healthy,
            "concerns": [concern.to_json() for concern in self.concerns],
        }


def diagnose(config: Config) -> Diagnosis:
    """Look at everything."""
    return Diagnosis(
        config.name,
        (*_java(), *_source(config), *_places(config), *_owner(config), *_connector(config), *_kafka(config)),
    )


def _java() -> Iterator[Concern]:
    try:
        java = require_java()
    except DeduperError as failure:
        what, _, remedy = str(failure).partition("; ")
        yield error("java", "java", what, remedy)
    else:
        yield note("java", "java", f"{java.path} is {java.shown}")


def _source(config: Config) -> Iterator[Concern]:
    missing = missing_folder(config.source)
    if missing is not None:
        yield error("folders", "source", f"{missing} does not exist", f"mkdir -p {missing}, or correct source.path")


def _places(config: Config) -> Iterator[Concern]:
    """The folders that the job writes to; those that are not there yet are judged by where they will be made."""
    places = {"store": config.store.path, "checkpoint": config.checkpoint_path}
    places |= {f"sinks.{port}": sink.path for port, sink in file_sinks(config).items()}
    for place, path in places.items():
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        if not there.is_dir():
            yield error("folders", place, f"{there} is in the way: it is no folder", "move it away, or choose another")
            continue
        if not os.access(there, os.W_OK | os.X_OK):
            remedy = f"let the user that runs the job write to it: chown {os.geteuid()} {there}"
            yield error("folders", place, f"{there} cannot be written to", remedy)
        free = shutil.disk_usage(there).free
        told = f"{path}: {approximate_size(free)} are free"
        if free < _TOO_LITTLE_BYTES:
            yield error("space", place, told, "make room, or choose another disk")
        elif free < _LITTLE_BYTES:
            yield warning("space", place, told, "make room before it is full: a full disk stops the job")
        else:
            yield note("space", place, told)
        if place == "store":
            yield from _disk(place, there)


def _disk(place: str, path: Path) -> Iterator[Concern]:
    kind = file_system_of(path.resolve(), Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    if kind.startswith(_OF_NETWORKS):
        what = f"{path} is on {kind}, a file system of a network: the store's locks and renames may not hold there"
        yield warning("disk", place, what, "put the store on a disk of this machine")
    elif kind in _OF_MEMORY:
        what = f"{path} is on {kind}: what is remembered is gone when the machine starts again"
        yield warning("disk", place, what, "put the store on a disk")


def file_system_of(path: Path, mounts: str) -> str:
    """The kind of the file system that holds a path, by the text of /proc/self/mountinfo; empty when it is not told."""
    best, kind = Path(), ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split()[4].replace("\\040", " "))
        # Of two mounts at one point the later one covers the earlier.
        if path.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, rest.split()[0]
    return kind


def _owner(config: Config) -> Iterator[Concern]:
    if config.store.path.is_dir() and beats(config.store.path):
        yield note("owner", "store", "a job runs on it: another start would be refused")


def _connector(config: Config) -> Iterator[Concern]:
    if not isinstance(config.source, KafkaSource):
        return
    from deduper.kafka_jars import VARIABLE, connector_settings

    try:
        settings = connector_settings(config.spark, avro=config.source.value.format == "avro")
    except DeduperError as failure:
        what, _, remedy = str(failure).partition("; ")
        yield error("connector", VARIABLE, what, remedy)
        return
    if not settings:
        yield note("connector", "spark", "Spark's Kafka connector comes by the section `spark`")
    elif "spark.jars" in settings:
        yield note("connector", VARIABLE, f"Spark's Kafka connector lies in {os.environ[VARIABLE]}")
    else:
        what = f"{settings['spark.jars.packages']} will be fetched by Spark's package mechanism at the first start"
        yield note("connector", "spark", what, f"without a way out, name a folder with its jars in {VARIABLE}")


def _kafka(config: Config) -> Iterator[Concern]:
    if not isinstance(config.source, KafkaSource):
        return
    if not kafka_extra.is_client_installed():
        yield error("client", "python", kafka_extra.MISSING, kafka_extra.REMEDY)
        return
    from deduper.kafka_preflight import examine

    yield from examine(config)


def render(diagnosis: Diagnosis) -> list[RenderableType]:
    """The worst first, then what was seen, then the verdict."""
    order = list(_STYLES)
    shown = sorted(diagnosis.concerns, key=lambda concern: order.index(concern.severity))
    lines: list[RenderableType] = [
        Text(f"{concern.severity}: {concern}", style=_STYLES[concern.severity]) for concern in shown
    ]
    counts = {severity: sum(concern.severity is severity for concern in shown) for severity in order}
    errors, warnings = counts[Severity.ERROR], counts[Severity.WARNING]
    also = f", with {warnings} warning{'' if warnings == 1 else 's'}" if warnings else ""
    verdict = Text(f"ready to start{also}", "green") if diagnosis.is_healthy else Text(f"{errors} wrong{also}", "red")
    return [*lines, pairs([("job", diagnosis.job), ("verdict", verdict)])]


_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
