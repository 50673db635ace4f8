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
class BenchOptions:
    """The options of the command line; None for an option that is not given."""

    preset: str = "standard"
    contenders: tuple[str, ...] = ()
    rows: int | None = None
    state: int | None = None
    rounds: int | None = None
    batches: int | None = None
    shards: int = 2
    seed: int = 1
    file_kind: str = "parquet"
    payload: str = "repeating"


@dataclass(frozen=True, slots=True)
class Plan:
    """The table's contenders on `workload`, and families of measures; everything in this many rounds."""

    workload: Workload
    rounds: int
    table: tuple[str, ...]
    families: tuple[str, ...]
    options: BenchOptions

    def table_lanes(self) -> list[LaneSpec]:
        """The contenders of the table."""
        return [LaneSpec(name, CONTENDERS[name], self.workload, self.options.shards) for name in self.table]

    def small_lanes(self) -> list[LaneSpec]:
        """Ours and the pipeline, with batches of 1,000 rows on a million keys."""
        state = min(SMALL_KEYS, self.workload.state_keys)
        workload = replace(self.workload, batch_rows=_SMALL_ROWS, state_keys=state, batches_a_turn=1 + _SMALL_BATCHES)
        shards = self.options.shards
        return [
            LaneSpec(name, CONTENDERS[name], workload, shards, is_seeded=True) for name in ("deduper", "passthrough")
        ]

    def state_lanes(self) -> list[LaneSpec]:
        """Ours with a million keys, and with the large state."""
        return [
            LaneSpec(
                f"deduper at {keys:,} keys",
                CONTENDERS["deduper"],
                replace(self.workload, state_keys=keys),
                self.options.shards,
                x=float(keys),
                is_seeded=True,
            )
            for keys in (SMALL_KEYS, LARGE_KEYS)
        ]


def plan(options: BenchOptions) -> Plan:
    """The plan of these options.

    Raises:
        UsageError: no preset or contender has this name.
    """
    _known("--preset", (options.preset,), tuple(PRESETS))
    _known("--contender", options.contenders, tuple(CONTENDERS))
    _known("--format", (options.file_kind,), FILE_KINDS)
    _known("--payload", (options.payload,), PAYLOADS)
    table, families = PRESETS[options.preset], PRESET_FAMILIES[options.preset]
    if options.contenders:
        table = options.contenders
        families = tuple(family for family, needed in LANES_OF.items() if set(needed) <= set(table))
    return Plan(
        workload=_workload(options),
        rounds=options.rounds or (2 if options.preset == "quick" else 3),
        table=table,
        families=families,
        options=options,
    )


def _workload(options: BenchOptions) -> Workload:
    base = Workload(batch_rows=50_000, state_keys=100_000) if options.preset == "quick" else Workload()
    return replace(
        base,
        batch_rows=options.rows or base.batch_rows,
        state_keys=base.state_keys if options.state is None else options.state,
        # The first batch of a turn does not count.
        batches_a_turn=1 + (options.batches or base.batches_a_turn - 1),
        seed=options.seed,
        file_kind=cast("FileKind", options.file_kind),
        payload=cast("Payload", options.payload),
    )


def _known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: there is none of this name; there are {', '.join(known)}")
