"""Whether a job is well, in one line: the answer of `/healthz`. PURE.

A reason names what an operator can look at. Nothing in the job depends on the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deduper.preflight.folders import LEAST_FREE_BYTES
from deduper.units import approximate_size

_WINDOW_S = 900.0
"""A window that runs longer is shown: it is stuck, or should have fewer files or offsets (`max_…_per_batch`)."""
_TRIGGERS = 3
"""While input waits, a window is committed at least once in so many triggers, if these are longer."""
_PUBLISH_S = 600.0
"""Publishing renames files and ends transactions, in seconds: minutes of it are retries of something that is away."""
_BROKERS_S = 300.0
"""The ends are asked for every few seconds, and a rolling restart of a cluster answers in between."""


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """What a job knows of itself; seconds are ages, None where there is nothing yet.

    `running_s`: of the oldest window that is not published, 0 between windows; `is_committed`: that one is committed.
    `commit_s`: since the last commit of this store. `brokers_s`: since the brokers last reported the source's ends, or
    since the start; None for a source of files. `waiting`: records (of topics) or files that no window has.
    `free_bytes`: of the file systems with the store and the ports.
    """

    up_s: float
    running_s: float
    is_committed: bool
    commit_s: float | None
    brokers_s: float | None
    waiting: int
    free_bytes: Mapping[str, int] = field(default_factory=dict)


def complaints(facts: HealthFacts, trigger_us: int = 0) -> Iterator[str]:
    """Everything that is wrong, the worst first; nothing for a job that is well. `trigger_us`: between two windows."""
    progress_s = max(_WINDOW_S, _TRIGGERS * trigger_us / 1e6)
    for place, free in facts.free_bytes.items():
        if free < LEAST_FREE_BYTES:
            yield f"disk full: {approximate_size(free)} are free for {place}"
    if facts.is_committed and facts.running_s > _PUBLISH_S:
        yield f"publishing stuck: a committed window has not been published for {facts.running_s:.0f} s"
    elif facts.running_s > _WINDOW_S:
        yield f"window stuck: one has been running for {facts.running_s:.0f} s"
    if facts.brokers_s is not None and facts.brokers_s > _BROKERS_S:
        yield f"brokers away: they have not reported the source's ends for {facts.brokers_s:.0f} s"
    if facts.waiting and not facts.running_s:
        if facts.commit_s is None and facts.up_s > progress_s:
            yield f"no window was ever committed, {facts.up_s:.0f} s after the start, and input waits"
        elif facts.commit_s is not None and min(facts.commit_s, facts.up_s) > progress_s:
            yield f"no progress: no window was committed for {facts.commit_s:.0f} s, and input waits"
