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
from deduper.preflight.found import Check, Failure, Start

logger = logging.getLogger(__name__)

CHECKS = (
    # First of all: beside a running job everything else would only report that the job runs.
    Check("owner", "store", store.owner),
    Check("java", "java", machine.java),
    Check("java", "user", machine.user),
    Check("java", "spark", machine.spark),
    Check("python", "python", machine.python),
    Check("kernels", "numba", machine.kernels),
    Check("folders", "source.path", folders.source),
    Check("columns", "source.schema", first_file.columns, is_logged=True),
    Check("hdfs", "store", hadoop.settings, is_logged=True),
    Check("folders", "store", folders.written),
    Check("memory", "store.memory", machine.memory),
    Check("settings", "store", store.settings),
    Check("outputs", "sinks", store.outputs),
    Check("metrics", "metrics", connections.metrics_port),
    Check("client", "python", connections.client),
    Check("kafka", "source", connections.kafka),
    Check("offsets", "source", connections.offsets),
    Check("columns", topic_end.PLACE, topic_end.columns, is_logged=True),
)


def require(start: Start) -> None:
    """Let a start go on, or end it before the store is claimed and Spark is started; log what may be wrong.

    Raises:
        DeduperError, StoreError, OSError: the first failure.
    """
    for check in CHECKS:
        for found in check.find(start):
            if isinstance(found, Failure):
                raise found.error
            if found.severity is Severity.ERROR:
                raise CheckFailedError(str(found))
            if check.is_logged and found.severity is Severity.WARNING:
                logger.warning("%s", found)


def examine(start: Start) -> Iterator[Diagnostic]:
    """All that the checks find."""
    for check in CHECKS:
        try:
            for found in check.find(start):
                yield found.as_diagnostic(check.name) if isinstance(found, Failure) else found
        except (DeduperError, StoreError, OSError) as error:
            yield Failure(check.place, error).as_diagnostic(check.name)
