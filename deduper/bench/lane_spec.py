"""PURE. What a lane is: a contender on a workload."""

from __future__ import annotations

from dataclasses import dataclass

from deduper.bench.contenders import Contender
from deduper.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane that is to run.

    `x` is a sweep's value. `is_seeded` puts the workload's state straight into the store, or leaves it out where the
    contender keeps none; otherwise it is streamed.
    """

    name: str
    contender: Contender
    workload: Workload
    shards: int
    x: float | None = None
    is_seeded: bool = False
