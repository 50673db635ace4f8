"""The list of all checks, in the order in which a start meets them.

`require` is for a start: it ends at the first failure, with the error's own exit code. `examine`, and `diagnose` for
`deduper check`, are for a person: they show the failures of all checks, warnings and notes. All go through the same
list, so a job that `check` calls ready passes these checks. What only Spark's session or the first window can show is
found there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bucket_store.errors import StoreError
from bucket_store.places.outages import storage_of
from deduper.as_json import AsJson
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity
from deduper.errors import DeduperError
from deduper.preflight import connections, first_records, folders, machine, store
from deduper.preflight.results import Failure, PreflightCheck, Results, Start, raise_failure

logger = logging.getLogger(__name__)

CHECKS = (
    # First of all: it knows whether the job runs.
    PreflightCheck("owner", "store", store.owner),
    PreflightCheck("variables", "environment", machine.variables),
    PreflightCheck("java", "java", machine.java),
    PreflightCheck("java", "user", machine.user),
    PreflightCheck("java", "spark", machine.spark),
    PreflightCheck("python", "python", machine.python),
    PreflightCheck("kernels", "numba", machine.kernels),
    PreflightCheck("folders", "source.path", folders.source),
    PreflightCheck("columns", "source.schema", first_records.columns),
    PreflightCheck("rotation", "source.path", first_records.rotated),
    PreflightCheck("hdfs", "store", folders.hadoop_settings),
    PreflightCheck("folders", "store", folders.written),
    PreflightCheck("memory", "store.memory", machine.memory),
    PreflightCheck("settings", "store", store.settings),
    PreflightCheck("outputs", "sinks", store.outputs),
    PreflightCheck("metrics", "metrics", connections.metrics_port),
    PreflightCheck("client", "python", connections.client),
    PreflightCheck("kafka", "source", connections.kafka),
    PreflightCheck("offsets", "source", connections.offsets),
    PreflightCheck("columns", first_records.TOPIC_PLACE, first_records.topic_columns),
)


def require(start: Start) -> None:
    """Let a start go on, or end it before the store is claimed and Spark is started; log what may be wrong.

    Raises:
        DeduperError, StoreError, OSError: the first failure.
    """
    for check in CHECKS:
        raise_failure(check.find(start))


def examine(start: Start) -> Iterator[Diagnostic]:
    """All that the checks find. A storage that does not answer is one error, and the first; its places are listed."""
    found: list[Diagnostic] = []
    away: dict[str, list[Failure]] = {}
    for check in CHECKS:
        for one in _results(check, start):
            if isinstance(one, Failure) and one.storage:
                away.setdefault(one.storage, []).append(one)
            else:
                found.append(one.as_diagnostic(check.name) if isinstance(one, Failure) else one)
    for failures in away.values():
        # An error of the system has no remedy.
        first = next((one for one in failures if isinstance(one.error, (DeduperError, StoreError))), failures[0])
        places = dict.fromkeys((first.place, *(one.place for one in failures)))
        yield replace(first.as_diagnostic("storage"), place=", ".join(places))
    yield from found


def _results(check: PreflightCheck, start: Start) -> Results:
    """What a check finds, and what it raises as a failure."""
    try:
        yield from check.find(start)
    except (DeduperError, StoreError, OSError) as error:
        yield Failure(check.place, error, storage_of(getattr(error, "filename", None)))


@dataclass(frozen=True, slots=True)
class Diagnosis(AsJson):
    """The diagnostics of a job. `is_running`: it runs now, so that another start would be refused."""

    json_names = ("job", "is_running", "is_healthy", "diagnostics")

    job: str
    is_running: bool
    diagnostics: tuple[Diagnostic, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether the job can start."""
        return not any(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)


def diagnose(config: Config) -> Diagnosis:
    """Check everything."""
    start = Start(config)
    found = tuple(examine(start))
    return Diagnosis(config.name, start.is_beside, found)
