"""Results of a check: diagnostics, and failures, which end a start and know its exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bucket_store.log.heartbeat import Sign
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity, error
from deduper.errors import CheckFailedError, ExitCode, exit_code_of
from deduper.spark.failures import storage_away

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Start:
    """The settings of a start, and results of its checks that later ones need.

    `take_over`: the owner of the store may be alive. `waits`: brokers that are down are waited for. `seeds`: the start
    continues a seed. `is_beside`: a job runs, and nothing is started. `silent`: the last heartbeat of an owner that is
    gone, so that the claim need not wait for another one.
    """

    config: Config
    take_over: bool = False
    waits: bool = False
    seeds: bool = False
    is_beside: bool = False
    silent: Sign | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ends a start; `place` is a setting. Its message ends with the remedy, after the last semicolon.

    `storage`: the one elsewhere that does not answer, as `hdfs://host:port`; it may be the cause of other failures.
    """

    place: str
    error: Exception
    storage: str = ""

    def as_diagnostic(self, check: str) -> Diagnostic:
        """For a person."""
        text = str(self.error).removeprefix(f"{self.place}: ")
        what, semicolon, remedy = text.rpartition("; ")
        if not semicolon:
            what, remedy = text, "correct it"
            if exit_code_of(self.error) is ExitCode.INTEGRITY:
                remedy = "see `deduper verify` and docs/recovery.md"
            elif storage_away(self.error) is not None:
                remedy = "see that its servers run"
        return error(check, self.place, what, remedy)


Results = Iterator[Diagnostic | Failure]


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """A check: a function that yields what it finds, and yields or raises what ends the start.

    `name` is stable; `place` is that of an error that the function raises.
    """

    name: str
    place: str
    find: Callable[[Start], Results]


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
