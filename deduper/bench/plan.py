"""PURE. The plan of a call of `deduper bench`: sizes, lanes, families of measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from deduper.bench.contenders import CONTENDERS, PRESETS, LaneSpec
from deduper.bench.measures import LANES_OF
from deduper.bench.workload import FILE_KINDS, PAYLOADS, FileKind, Payload, Workload
from deduper.errors import UsageError

PRESET_FAMILIES: dict[str, tuple[str, ...]] = {
    "quick": ("passthrough",),
    "standard": (*LANES_OF, "small-batch"),
    "all": (*LANES_OF, "small-batch", "state"),
}
LARGE_KEYS = 100_000_000
SMALL_KEYS = 1_000_000
_SMALL_ROWS = 1_000
_SMALL_BATCHES = 40
"""A stream of small batches runs for days, so its turns are long enough for the JVM to compile."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The table's contenders on `workload`, and families of measures; everything in this many rounds.

    `shards` are the service's shards, and Spark's shuffle partitions.
    """

    workload: Workload
    rounds: int
    table: tuple[str, ...]
    families: tuple[str, ...]
    shards: int = 2

    def table_lanes(self) -> list[LaneSpec]:
        """The contenders of the table."""
        return [LaneSpec(name, CONTENDERS[name], self.workload, self.shards) for name in self.table]

    def small_lanes(self) -> list[LaneSpec]:
        """Ours and the pipeline, with batches of 1,000 rows on a million keys."""
        state = min(SMALL_KEYS, self.workload.state_keys)
        workload = replace(self.workload, batch_rows=_SMALL_ROWS, state_keys=state, batches_a_turn=1 + _SMALL_BATCHES)
        return [
            LaneSpec(name, CONTENDERS[name], workload, self.shards, is_seeded=True)
            for name in ("deduper", "passthrough")
        ]

    def state_lanes(self) -> list[LaneSpec]:
        """Ours with a million keys, and with the large state."""
        return [
            LaneSpec(
                f"deduper at {keys:,} keys",
                CONTENDERS["deduper"],
                replace(self.workload, state_keys=keys),
                self.shards,
                x=float(keys),
                is_seeded=True,
            )
            for keys in (SMALL_KEYS, LARGE_KEYS)
        ]


def plan(
    preset: str = "standard",
    contenders: Sequence[str] = (),
    rounds: int | None = None,
    *,
    file_kind: str = "parquet",
    payload: str = "repeating",
    batch_rows: int | None = None,
) -> Plan:
    """The plan of a preset; `contenders` replace the preset's, and bring the measures that they answer.

    Raises:
        UsageError: no preset, contender, kind of files or payload has this name.
    """
    _known("--preset", (preset,), tuple(PRESETS))
    _known("--contender", contenders, tuple(CONTENDERS))
    _known("--format", (file_kind,), FILE_KINDS)
    _known("--payload", (payload,), PAYLOADS)
    table, families = PRESETS[preset], PRESET_FAMILIES[preset]
    if contenders:
        table = tuple(contenders)
        families = tuple(family for family, needed in LANES_OF.items() if set(needed) <= set(table))
    is_quick = preset == "quick"
    sized = Workload(batch_rows=50_000, state_keys=100_000) if is_quick else Workload()
    return Plan(
        workload=replace(
            sized,
            batch_rows=batch_rows or sized.batch_rows,
            file_kind=cast("FileKind", file_kind),
            payload=cast("Payload", payload),
        ),
        rounds=rounds or (2 if is_quick else 3),
        table=table,
        families=families,
    )


def _known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: unknown name; choose from {', '.join(known)}")
