"""Results of a check: diagnostics, and failures, which end a start and know its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from bucket_store.log.heartbeat import Sign
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, error
from deduper.errors import ExitCode, exit_code_of
from deduper.spark.failures import storage_away


@dataclass(slots=True)
class Start:
    """A start that is intended: its settings, and what its checks have learned for it.

    `take_over`: the owner of the store may be alive. `waits`: brokers that are down are waited for.
    `seeds`: the start goes on with a seed. `silent`: the last sign of an owner that is gone, so that the claim need not
    watch it again.
    """

    config: Config
    take_over: bool = False
    waits: bool = False
    seeds: bool = False
    silent: Sign | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ends a start; `place` is a setting. Its message ends with the remedy, after the last semicolon."""

    place: str
    error: Exception

    @property
    def storage(self) -> str | None:
        """The storage that is away, `hdfs://HOST:PORT` or `s3://BUCKET`, if that is the cause."""
        away = storage_away(self.error)
        if away is None or away.filename is None:
            return None
        parts = urlsplit(away.filename)
        return f"{parts.scheme}://{parts.netloc}"

    def as_diagnostic(self, check: str) -> Diagnostic:
        """For a person."""
        text = str(self.error).removeprefix(f"{self.place}: ")
        what, semicolon, remedy = text.rpartition("; ")
        if not semicolon:
            what, remedy = text, "correct it"
            if exit_code_of(self.error) is ExitCode.INTEGRITY:
                remedy = "see `deduper verify` and docs/recovery.md"
            elif self.storage is not None:
                remedy = "see that its servers run"
        return error(check, self.place, what, remedy)


Results = Iterator[Diagnostic | Failure]


@dataclass(frozen=True, slots=True)
class PreflightCheck:
    """A check: a function that yields what it finds, and yields or raises what ends the start.

    `name` is stable; `place` is that of an error that the function raises. `is_logged`: a start logs its warnings.
    """

    name: str
    place: str
    find: Callable[[Start], Results]
    is_logged: bool = False
