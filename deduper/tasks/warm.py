"""The compiled code of a job: loaded, or compiled on a machine's first use, before a window waits for it.

A job calls a part of all kernels, by its key, its expiry and the form of its records. The others stay untouched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

ENVIRONMENT = "DEDUPER_KERNELS"
"""The variable of the workers' environment that has the `JobKernels` of their job."""


@dataclass(frozen=True, slots=True)
class JobKernels:
    """What decides which kernels the windows of a job call.

    `float_domain` is that of the expiry key, `lookup_all_live` that of the job. `is_time`: lateness is counted;
    `is_sampled`: leaks are estimated; `writes_text`: a port is text; `compares`: payloads have fingerprints;
    `keeps_versions`: conflicts are versions. `forms` has that of the lines that are read, by its name in a config, and
    nothing for other records.
    """

    float_domain: bool
    lookup_all_live: bool
    is_secure: bool
    is_time: bool
    is_sampled: bool
    forms: tuple[str, ...]
    writes_text: bool
    compares: bool = False
    keeps_versions: bool = False

    def in_environment(self) -> dict[str, str]:
        """The variable for the workers."""
        return {ENVIRONMENT: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> JobKernels | None:
        """Those of the job that has started this worker; None in one of somebody else's."""
        if ENVIRONMENT not in environment:
            return None
        values = json.loads(environment[ENVIRONMENT])
        return cls(**{**values, "forms": tuple(values["forms"])})

    def load(self) -> None:
        """Load the kernels; those that are in no cache are compiled. Safe to repeat."""
        from bucket_store.compiled import ready
        from bucket_store.tables import kernels, matching
        from deduper.core import clock, digest_kernels, judge, statistics
        from deduper.leaks import meter
        from deduper.tasks import read

        kernels.warm()
        matching.warm()
        digest_kernels.warm(secure=self.is_secure)
        read.warm()
        clock.warm(float_domain=self.float_domain)
        judge.warm(
            float_domain=self.float_domain,
            lookup_all_live=self.lookup_all_live,
            compares=self.compares,
            keeps_versions=self.keeps_versions,
        )
        if self.compares:
            ready(*digest_kernels.OF_PAYLOADS)
        if self.is_time:
            statistics.warm()
        if self.is_sampled:
            meter.warm(float_domain=self.float_domain)
        if self.forms:
            from deduper.text import block

            for form in self.forms:
                block.warm(form)
        if self.writes_text:
            from deduper.text import written

            written.warm()
