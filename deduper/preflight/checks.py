"""The list of all checks, in the order in which a start meets them.

`require` is for a start: it ends at the first failure, with the error's own exit code. `examine` is for a person: it
shows the failures of all checks, warnings and notes. Both go through the same list, so a job that `check` calls
ready passes these checks. What only Spark's session or the first window can show is found there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from bucket_store.errors import StoreError
from deduper.diagnostics import Diagnostic, Severity
from deduper.errors import CheckFailedError, DeduperError
from deduper.preflight import connections, first_file, folders, hadoop, machine, store, topic_end
from deduper.preflight.results import Failure, PreflightCheck, Results, Start

logger = logging.getLogger(__name__)

CHECKS = (
    # First of all: beside a running job everything else would only report that the job runs.
    PreflightCheck("owner", "store", store.owner),
    PreflightCheck("java", "java", machine.java),
    PreflightCheck("java", "user", machine.user),
    PreflightCheck("java", "spark", machine.spark),
    PreflightCheck("python", "python", machine.python),
    PreflightCheck("kernels", "numba", machine.kernels),
    PreflightCheck("folders", "source.path", folders.source),
    PreflightCheck("columns", "source.schema", first_file.columns, is_logged=True),
    PreflightCheck("hdfs", "store", hadoop.settings, is_logged=True),
    PreflightCheck("folders", "store", folders.written),
    PreflightCheck("memory", "store.memory", machine.memory),
    PreflightCheck("settings", "store", store.settings),
    PreflightCheck("outputs", "sinks", store.outputs),
    PreflightCheck("metrics", "metrics", connections.metrics_port),
    PreflightCheck("client", "python", connections.client),
    PreflightCheck("kafka", "source", connections.kafka),
    PreflightCheck("offsets", "source", connections.offsets),
    PreflightCheck("columns", topic_end.PLACE, topic_end.columns, is_logged=True),
)


def require(start: Start) -> None:
    """Let a start go on, or end it before the store is claimed and Spark is started; log what may be wrong.

    Raises:
        DeduperError, StoreError, OSError: the first failure.
    """
    for check in CHECKS:
        raise_failure(check.find(start), are_logged=check.is_logged)


def raise_failure(results: Results, *, are_logged: bool) -> None:
    """Raise the first failure of a check; `are_logged`: its warnings are.

    Raises:
        DeduperError, StoreError, OSError: that failure.
    """
    for found in results:
        if isinstance(found, Failure):
            raise found.error
        if found.severity is Severity.ERROR:
            raise CheckFailedError(str(found))
        if are_logged and found.severity is Severity.WARNING:
            logger.warning("%s", found)


def examine(start: Start) -> Iterator[Diagnostic]:
    """All that the checks find; of a storage that is away the first error, which is the cause of the others."""
    away: set[str] = set()
    for check in CHECKS:
        for found in _found(check, start):
            if not isinstance(found, Failure):
                yield found
            elif found.storage is None or found.storage not in away:
                yield found.as_diagnostic(check.name)
                away |= {found.storage} if found.storage is not None else set()


def _found(check: PreflightCheck, start: Start) -> Results:
    try:
        yield from check.find(start)
    except (DeduperError, StoreError, OSError) as error:
        yield Failure(check.place, error)
