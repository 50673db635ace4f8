"""PURE. The plan of a call of `python -m tests.bench`: sizes, lanes, families of measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from deduper.errors import UsageError
from deduper.units import parse_duration
from tests.bench.contenders import CONTENDERS, LATENCY, PRESETS, SINKS, STANDARD_OF_TOPICS, LaneSpec
from tests.bench.measures import LANES_OF, WITH_BAD_LINES
from tests.bench.workload import FORMATS, PAYLOADS, Payload, SourceFormat, Workload

_STANDARD = tuple(family for family, needed in LANES_OF.items() if set(needed) <= set(PRESETS["standard"]))
PRESET_FAMILIES: dict[str, tuple[str, ...]] = {
    "quick": ("passthrough",),
    "standard": (*_STANDARD, "small-batch", "formats"),
    "all": (*LANES_OF, "small-batch", "formats", "state"),
}
LARGE_KEYS = 100_000_000
SMALL_KEYS = 1_000_000
_QUICK = Workload(batch_rows=50_000, state_keys=100_000)
_OF_TOPICS = Workload(batch_rows=100_000, state_keys=1_000_000, batches_a_turn=4)
_SMALLER_ROWS = 250_000
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
    sinks: str = "parquet"
    bootstrap_servers: str | None = None

    def table_lanes(self) -> list[LaneSpec]:
        """The contenders of the table."""
        return [LaneSpec(name, CONTENDERS[name], self.workload, self.shards, sinks=self.sinks) for name in self.table]

    def format_lanes(self) -> dict[str, list[LaneSpec]]:
        """By group: ours and the pipeline on files of each format, with payloads that never repeat."""
        base = replace(self.workload, payload="random")
        small = replace(base, format="json", batch_rows=min(_SMALLER_ROWS, base.batch_rows))
        workloads = {"json": replace(base, format="json"), "json-small": small}
        workloads |= {kind: replace(base, format=kind) for kind in ("csv", "json.gz", "parquet")}
        groups = {
            group: [
                LaneSpec(name, CONTENDERS[name], workload, self.shards, is_seeded=True)
                for name in ("deduper", "passthrough")
            ]
            for group, workload in workloads.items()
        }
        bad = replace(workloads["json"], bad_lines=0.01)
        groups["json"].append(LaneSpec(WITH_BAD_LINES, CONTENDERS["deduper"], bad, self.shards, is_seeded=True))
        return groups

    def small_lanes(self) -> list[LaneSpec]:
        """Ours and the pipeline, with batches of 1,000 rows on a million keys."""
        state = min(SMALL_KEYS, self.workload.state_keys)
        workload = replace(self.workload, batch_rows=_SMALL_ROWS, state_keys=state, batches_a_turn=1 + _SMALL_BATCHES)
        return [
            LaneSpec(name, CONTENDERS[name], workload, self.shards, is_seeded=True, sinks=self.sinks)
            for name in ("deduper", "passthrough")
        ]

    def state_lanes(self) -> list[LaneSpec]:
        """Ours with a million keys, and with the large state."""
        return sweep_lanes("state", ("deduper",), self.workload, self.shards, (SMALL_KEYS, LARGE_KEYS))


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """A steady load on a topic, for one contender after another; by default the shape of Spark's own benchmark.

    `trigger` is the time between the starts of two batches. The first `warm_s` seconds and the last two do not count.
    """

    bootstrap_servers: str
    contenders: tuple[str, ...] = LATENCY
    minutes: float = 30.0
    rate: float = 1000.0
    trigger: str = "100ms"
    partitions: int = 5
    warm_s: float = 20.0
    repeats: float = 0.2
    shards: int = 2


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """One parameter varies (`name`, of SWEEPS), for some contenders on `workload`."""

    name: str
    contenders: tuple[str, ...]
    workload: Workload
    values: tuple[float, ...]
    rounds: int
    shards: int = 2

    def lanes(self) -> list[LaneSpec]:
        """A lane for each value and contender."""
        return sweep_lanes(self.name, self.contenders, self.workload, self.shards, self.values)


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A measure that starts processes: one of PROCESSES. `cores` are two numbers of cores to compare."""

    name: str
    keys: int = 50_000_000
    cores: tuple[int, ...] = (1, 2)
    contenders: tuple[str, ...] = ("deduper", "passthrough")
    rounds: int = 3
    shards: int = 2


AnyPlan = Plan | LatencyPlan | SweepPlan | ProcessPlan

PROCESSES = ("restart", "drop-bucket", "first-batch", "cores")
SWEEPS: dict[str, tuple[str, tuple[float, ...]]] = {
    "state": ("keys of state", (1e5, 1e6, 5e6, 2e7, 1e8)),
    "batch": ("rows a batch", (1e3, 1e4, 1e5, 1e6)),
    "duplicates": ("share of repeated keys", (0.0, 0.2, 0.5, 0.9)),
    "shards": ("shards", (1, 2, 4, 8)),
    "payload": ("bytes of payload", (0, 100, 1000)),
    "expiry": ("minutes of event time a batch", (1, 10, 60, 180)),
}
"""By name: the parameter that varies, and its values by default."""
_OF_A_SWEEP = ("deduper", "passthrough", "watermark-hdfs")
_MOST_STREAMED = 5_000_000


def sweep_lanes(
    name: str, contenders: Sequence[str], base: Workload, shards: int, values: Sequence[float] = ()
) -> list[LaneSpec]:
    """A lane for each contender and value; states too large for streaming have none of Spark's."""
    lanes = []
    for x in values or SWEEPS[name][1]:
        workload = _varied(name, base, x)
        for contender in map(CONTENDERS.__getitem__, contenders):
            is_seeded = name == "state" and contender.is_service
            is_stateless = contender.pipeline in ("plain", "exchanged", "widened")
            if name == "state" and not is_seeded and not is_stateless and x > _MOST_STREAMED:
                continue
            lanes.append(
                LaneSpec(
                    name=f"{contender.name} at {x:,.12g}",
                    contender=contender,
                    workload=workload,
                    shards=int(x) if name == "shards" else shards,
                    x=float(x),
                    # A contender without state need not read the rows that would fill it.
                    is_seeded=is_seeded or is_stateless,
                )
            )
    return lanes


def _varied(name: str, base: Workload, x: float) -> Workload:
    if name == "state":
        return replace(base, state_keys=int(x))
    if name == "batch":
        return replace(base, batch_rows=int(x))
    if name == "duplicates":
        return replace(base, duplicates=x)
    if name == "payload":
        return replace(base, payload_bytes=int(x))
    if name == "expiry":
        return replace(base, batch_minutes=float(x))
    return base


def sweep_plan(
    name: str,
    contenders: Sequence[str] = (),
    *,
    values: Sequence[float] = (),
    rows: int | None = None,
    batches: int | None = None,
    rounds: int | None = None,
    shards: int | None = None,
) -> SweepPlan:
    """The plan of a sweep; `batches` are the measured ones of a turn."""
    _known("--contender", contenders, tuple(CONTENDERS))
    base = Workload(batch_rows=rows or 500_000, state_keys=SMALL_KEYS)
    base = replace(base, batches_a_turn=1 + batches) if batches else base
    return SweepPlan(name, tuple(contenders) or _OF_A_SWEEP, base, tuple(values), rounds or 2, shards or 2)


def process_plan(
    name: str,
    contenders: Sequence[str] = (),
    *,
    keys: int | None = None,
    cores: Sequence[float] = (),
    rounds: int | None = None,
    shards: int | None = None,
) -> ProcessPlan:
    """The plan of a measure that starts processes."""
    _known("--contender", contenders, tuple(CONTENDERS))
    chosen = ProcessPlan(name)
    return replace(
        chosen,
        keys=keys or chosen.keys,
        cores=tuple(map(int, cores)) or chosen.cores,
        contenders=tuple(contenders) or chosen.contenders,
        rounds=rounds or chosen.rounds,
        shards=shards or chosen.shards,
    )


def plan(
    preset: str = "standard",
    contenders: Sequence[str] = (),
    rounds: int | None = None,
    *,
    source_format: str = "parquet",
    payload: str = "repeating",
    batch_rows: int | None = None,
    bad_lines: float = 0.0,
    sinks: str | None = None,
    bootstrap_servers: str | None = None,
) -> Plan:
    """The plan of a preset; `contenders` replace the preset's, and bring the measures that they answer.

    `sinks` are those of the source's kind unless given.

    Raises:
        UsageError: no preset, contender, format, payload or kind of sinks has this name, or they do not go together.
    """
    sinks = sinks or ("kafka" if source_format == "kafka" else "parquet")
    _known("--preset", (preset,), tuple(PRESETS))
    _known("--contender", contenders, tuple(CONTENDERS))
    _known("--format", (source_format,), FORMATS)
    _known("--payload", (payload,), PAYLOADS)
    _known("--sinks", (sinks,), SINKS)
    of_topics = source_format == "kafka"
    if sinks == "kafka" and not of_topics:
        raise UsageError("--sinks kafka: needs --format kafka")
    if of_topics and bootstrap_servers is None:
        raise UsageError("--format kafka: needs --bootstrap-servers HOST:PORT")
    if bad_lines and source_format == "parquet":
        raise UsageError("--bad-lines: Parquet has no lines; choose --format json, json.gz, csv or kafka")
    standard = STANDARD_OF_TOPICS if of_topics and preset == "standard" else PRESETS[preset]
    for name in contenders:
        if sinks not in CONTENDERS[name].sinks:
            raise UsageError(f"--contender {name}: cannot be measured with --sinks {sinks}")
    table = tuple(contenders or (name for name in standard if sinks in CONTENDERS[name].sinks))
    families = PRESET_FAMILIES[preset]
    if contenders or of_topics:
        families = tuple(family for family, needed in LANES_OF.items() if set(needed) <= set(table))
    is_quick = preset == "quick"
    sized = _QUICK if is_quick else _OF_TOPICS if of_topics else Workload()
    return Plan(
        workload=replace(
            sized,
            batch_rows=batch_rows or sized.batch_rows,
            format=cast("SourceFormat", source_format),
            payload=cast("Payload", payload),
            bad_lines=bad_lines,
        ),
        rounds=rounds or (2 if is_quick else 3),
        table=table,
        families=families,
        sinks=sinks,
        bootstrap_servers=bootstrap_servers,
    )


def latency_plan(
    contenders: Sequence[str] = (),
    *,
    bootstrap_servers: str | None,
    minutes: float | None = None,
    rate: float | None = None,
    trigger: str | None = None,
) -> LatencyPlan:
    """The plan of a measurement of latency.

    Raises:
        UsageError: a contender is unknown or keeps no state, the trigger is no duration, or there are no brokers.
    """
    _known("--contender", contenders, tuple(CONTENDERS))
    if bootstrap_servers is None:
        raise UsageError("--measure latency: needs --bootstrap-servers HOST:PORT")
    for name in contenders:
        if "kafka" not in CONTENDERS[name].sinks:
            raise UsageError(f"--contender {name}: cannot be measured with topics")
    chosen = LatencyPlan(bootstrap_servers, tuple(contenders) or LATENCY)
    if trigger is not None:
        try:
            parse_duration(trigger)
        except ValueError as exc:
            raise UsageError(f"--trigger {trigger}: {exc}") from exc
    return replace(
        chosen,
        minutes=chosen.minutes if minutes is None else minutes,
        rate=chosen.rate if rate is None else rate,
        trigger=trigger or chosen.trigger,
    )


def _known(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}: unknown name; choose from {', '.join(known)}")
