"""PURE. Sweeps: one setting or size varied, and the lanes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deduper.bench.contenders import CONTENDERS, LaneSpec
from deduper.bench.workload import Workload

SWEEPS: dict[str, tuple[str, tuple[float, ...]]] = {
    "state": ("keys of state", (1e5, 1e6, 5e6, 2e7, 1e8)),
    "batch": ("rows a batch", (1e3, 1e4, 1e5, 1e6)),
    "duplicates": ("share of repeated keys", (0.0, 0.2, 0.5, 0.9)),
    "shards": ("shards", (1, 2, 4, 8)),
    "payload": ("bytes of payload", (0, 100, 1000)),
    "expiry": ("minutes of event time a batch", (1, 10, 60, 180)),
}
"""By name: the thing varied, and its values by default."""

CONTENDERS_OF_A_SWEEP = ("deduper", "passthrough", "watermark-hdfs")
_MOST_STREAMED = 5_000_000


def sweep_lanes(
    name: str, contenders: Sequence[str], base: Workload, shards: int, values: Sequence[float] = ()
) -> list[LaneSpec]:
    """A lane for each contender and value; states too large for streaming have none of Spark's."""
    lanes = []
    for x in values or SWEEPS[name][1]:
        workload, of_shards = _varied(name, base, shards, x)
        for contender in contenders:
            is_seeded = name == "state" and CONTENDERS[contender].is_service
            is_stateless = CONTENDERS[contender].pipeline in ("plain", "exchanged", "widened")
            if name == "state" and not is_seeded and not is_stateless and x > _MOST_STREAMED:
                continue
            lanes.append(
                LaneSpec(
                    name=f"{contender} at {x:,g}",
                    contender=CONTENDERS[contender],
                    workload=workload,
                    shards=of_shards,
                    x=x,
                    # A contender without state need not read the rows that would fill it.
                    is_seeded=is_seeded or is_stateless,
                )
            )
    return lanes


def _varied(name: str, base: Workload, shards: int, x: float) -> tuple[Workload, int]:
    if name == "state":
        return replace(base, state_keys=int(x)), shards
    if name == "batch":
        return replace(base, batch_rows=int(x)), shards
    if name == "duplicates":
        return replace(base, duplicates=x), shards
    if name == "shards":
        return base, int(x)
    if name == "payload":
        return replace(base, payload_bytes=int(x)), shards
    if name == "expiry":
        return replace(base, batch_minutes=float(x)), shards
    raise ValueError(f"no sweep is named {name}")
