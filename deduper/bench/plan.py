"""PURE. What a call of `deduper bench` is to do: sizes, lanes, families of measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deduper.bench.contenders import CONTENDERS, PRESETS
from deduper.bench.lane_spec import LaneSpec
from deduper.bench.measures import LANES_OF
from deduper.bench.sweeps import CONTENDERS_OF_A_SWEEP, SWEEPS
from deduper.bench.targets import FAMILIES
from deduper.bench.workload import Workload
from deduper.errors import UsageError

PRESET_FAMILIES: dict[str, tuple[str, ...]] = {
    "quick": ("passthrough",),
    "standard": (*LANES_OF, "small-batch", "first-batch", "drop-bucket"),
    "all": FAMILIES,
}
LARGE_KEYS = {"state": 100_000_000, "restart": 50_000_000, "drop-bucket": 50_000_000}
SMALL_KEYS = 1_000_000
_SMALL_ROWS = 1_000
_SMALL_BATCHES = 40
"""A stream of small batches runs for days: what the JVM has not compiled yet must not be what is measured."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says; None where it says nothing."""

    preset: str = "standard"
    contenders: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    sweep: str | None = None
    at: tuple[float, ...] = ()
    rows: int | None = None
    state: int | None = None
    large: int | None = None
    rounds: int | None = None
    batches: int | None = None
    duplicates: float | None = None
    payload: int | None = None
    shards: int = 2
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The table's contenders on `workload`, families of measures, a sweep; everything in so many rounds."""

    workload: Workload
    rounds: int
    table: tuple[str, ...]
    families: tuple[str, ...]
    sweep: str | None
    sweep_contenders: tuple[str, ...]
    drop_keys: tuple[int, ...]
    wishes: Wishes

    def large(self, family: str) -> int:
        """How many keys its large state has."""
        return LARGE_KEYS[family] if self.wishes.large is None else self.wishes.large

    def table_lanes(self) -> list[LaneSpec]:
        """The contenders of the table."""
        return [LaneSpec(name, CONTENDERS[name], self.workload, self.wishes.shards) for name in self.table]

    def small_lanes(self) -> list[LaneSpec]:
        """Ours and the pipeline, with batches of 1,000 rows on a million keys."""
        state = min(SMALL_KEYS, self.workload.state_keys)
        workload = replace(self.workload, batch_rows=_SMALL_ROWS, state_keys=state, batches_a_turn=1 + _SMALL_BATCHES)
        shards = self.wishes.shards
        return [
            LaneSpec("deduper", CONTENDERS["deduper"], workload, shards, is_seeded=True),
            LaneSpec("passthrough", CONTENDERS["passthrough"], workload, shards, is_seeded=True),
        ]

    def state_lanes(self) -> list[LaneSpec]:
        """Ours with a million keys, and with the large state."""
        contender, shards = CONTENDERS["deduper"], self.wishes.shards
        large = self.large("state")
        small = min(SMALL_KEYS, max(1, large // 10))
        return [
            LaneSpec(
                f"deduper at {keys:,} keys",
                contender,
                replace(self.workload, state_keys=keys),
                shards,
                x=float(keys),
                is_seeded=True,
            )
            for keys in (small, large)
        ]


def plan(wishes: Wishes) -> Plan:
    """What to do.

    Raises:
        UsageError: a name that is none, or a number that cannot be.
    """
    _known("--preset", (wishes.preset,), tuple(PRESETS))
    _known("--contender", wishes.contenders, tuple(CONTENDERS))
    _known("--measure", wishes.measures, FAMILIES)
    _known("--sweep", (wishes.sweep,) if wishes.sweep else (), tuple(SWEEPS))
    if wishes.at and not wishes.sweep:
        raise UsageError("--at gives the values of a sweep: name one with --sweep")
    if wishes.duplicates is not None and not 0 <= wishes.duplicates < 1:
        raise UsageError(f"--duplicates {wishes.duplicates}: a share of the rows, at least 0 and below 1")
    families: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    if wishes.measures:
        families = wishes.measures
        table = _of_families(families)
    elif wishes.contenders and wishes.sweep is None:
        table = wishes.contenders
        families = tuple(family for family, needed in LANES_OF.items() if set(needed) <= set(table))
    elif wishes.sweep is None:
        table, families = PRESETS[wishes.preset], PRESET_FAMILIES[wishes.preset]
    is_whole = bool(wishes.measures) or wishes.preset == "all" or wishes.large is not None
    large = LARGE_KEYS["drop-bucket"] if wishes.large is None else wishes.large
    small = min(SMALL_KEYS, large)
    return Plan(
        workload=_workload(wishes),
        rounds=wishes.rounds or (2 if wishes.preset == "quick" else 3),
        table=table,
        families=families,
        sweep=wishes.sweep,
        sweep_contenders=wishes.contenders or CONTENDERS_OF_A_SWEEP,
        drop_keys=tuple(dict.fromkeys((small, large))) if is_whole else (small,),
        wishes=wishes,
    )


def _workload(wishes: Wishes) -> Workload:
    if wishes.preset == "quick":
        base = Workload(batch_rows=50_000, state_keys=100_000)
    elif wishes.sweep is not None:
        base = Workload(batch_rows=500_000, state_keys=1_000_000)
    else:
        base = Workload()
    return replace(
        base,
        batch_rows=wishes.rows or base.batch_rows,
        state_keys=base.state_keys if wishes.state is None else wishes.state,
        duplicates=base.duplicates if wishes.duplicates is None else wishes.duplicates,
        payload_bytes=base.payload_bytes if wishes.payload is None else wishes.payload,
        # The first of a turn does not count.
        batches_a_turn=1 + (wishes.batches or base.batches_a_turn - 1),
        seed=wishes.seed,
    )


def _of_families(families: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for family in families for name in LANES_OF.get(family, ())))


def _known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: there is none of this name; there are {', '.join(known)}")
