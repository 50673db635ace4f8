"""The list of all checks, in the order in which a start meets them.

`require` is for a start: it ends at the first failure, with the error's own exit code. `examine` is for a person: it
shows the failures of all checks, warnings and notes. Both go through the same list, so a job that `check` calls
ready passes these checks. What only Spark's session or the first window can show is found there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from bucket_store.errors import StoreError
from bucket_store.places.outages import storage_of
from deduper.diagnostics import Diagnostic, Severity
from deduper.errors import CheckFailedError, DeduperError
from deduper.preflight import connections, first_file, folders, hadoop, machine, rotated_files, store, topic_end
from deduper.preflight.results import Failure, PreflightCheck, Results, Start

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
    PreflightCheck("columns", "source.schema", first_file.columns),
    PreflightCheck("rotation", "source.path", rotated_files.rotated),
    PreflightCheck("hdfs", "store", hadoop.settings),
    PreflightCheck("folders", "store", folders.written),
    PreflightCheck("memory", "store.memory", machine.memory),
    PreflightCheck("settings", "store", store.settings),
    PreflightCheck("outputs", "sinks", store.outputs),
    PreflightCheck("metrics", "metrics", connections.metrics_port),
    PreflightCheck("client", "python", connections.client),
    PreflightCheck("kafka", "source", connections.kafka),
    PreflightCheck("offsets", "source", connections.offsets),
    PreflightCheck("columns", topic_end.PLACE, topic_end.columns),
)


def require(start: Start) -> None:
    """Let a start go on, or end it before the store is claimed and Spark is started; log what may be wrong.

    Raises:
        DeduperError, StoreError, OSError: the first failure.
    """
    for check in CHECKS:
        raise_failure(check.find(start))


def raise_failure(results: Results) -> None:
    """Raise the first failure of a check, and log its warnings.

    Raises:
        DeduperError, StoreError, OSError: that failure.
    """
    for found in results:
        if isinstance(found, Failure):
            raise found.error
        if found.severity is Severity.ERROR:
            raise CheckFailedError(str(found))
        if found.severity is Severity.WARNING:
            logger.warning("%s", found)


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
