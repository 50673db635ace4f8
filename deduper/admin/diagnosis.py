"""`deduper check`: the checks of a start, all of them at once. Changes nothing that a job or its store is made of.

The checks are those that `deduper run` requires, in `preflight.checks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from deduper.as_json import AsJson
from deduper.config.model import Config
from deduper.diagnostics import Diagnostic, Severity
from deduper.preflight.checks import examine
from deduper.preflight.results import Start


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
