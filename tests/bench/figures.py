"""PURE. Numbers of a benchmark: the batches of a contender's turns, and their spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CPU_PHASES = {"read": "task.cpu.read", "judge": "task.cpu.judge", "write": "task.cpu.write"}
"""The steps inside the workers, and the phases that have their seconds of CPU."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, middle and greatest of some values, and how many there were."""

    minimum: float
    median: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None without a value."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(ordered[0], statistics.median(ordered), ordered[-1], len(ordered))


@dataclass(frozen=True, slots=True)
class Trigger:
    """One batch: its rows, Spark's own milliseconds by part (`triggerExecution` is all of it), and our phases."""

    rows: int
    durations: dict[str, int]
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def milliseconds(self) -> int:
        """From the trigger's begin to its checkpoint, as Spark measures it for every query alike."""
        return self.durations["triggerExecution"]

    @property
    def rows_per_second(self) -> float:
        """By `triggerExecution`."""
        return self.rows / (max(1, self.milliseconds) / 1000)


@dataclass(frozen=True, slots=True)
class Turn:
    """A contender's part of a round: the batch that restarted its query, and the batches that count.

    `load` is the machine's load average (1 min) when the turn began. `cpu_us` is the CPU time of the measured batches
    by process, in µs a row.
    """

    round: int
    load: float
    restart: Trigger | None
    measured: tuple[Trigger, ...]
    cpu_us: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A contender on a workload, over all rounds.

    `x` is the value of a sweep. `kept` says what its state takes (keys, bytes). `failure` is why it has no numbers, or
    no more of them.
    """

    name: str
    contender: str
    group: str
    x: float | None
    workload: dict[str, Any]
    shards: int
    loaded: tuple[Trigger, ...]
    turns: tuple[Turn, ...]
    kept: dict[str, float] = field(default_factory=dict)
    failure: str | None = None

    @property
    def measured(self) -> list[Trigger]:
        """All batches that count."""
        return [trigger for turn in self.turns for trigger in turn.measured]

    @property
    def rows_per_second(self) -> Spread | None:
        """Over the batches that count."""
        return Spread.of(trigger.rows_per_second for trigger in self.measured)

    @property
    def milliseconds(self) -> Spread | None:
        """Trigger time of the batches that count."""
        return Spread.of(trigger.milliseconds for trigger in self.measured)

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds by phase of the batches that count; none without phases."""
        names: dict[str, None] = {}
        for trigger in self.measured:
            names.update(dict.fromkeys(trigger.phases))
        return {name: statistics.median(trigger.phases.get(name, 0.0) for trigger in self.measured) for name in names}

    @property
    def cpu_us(self) -> dict[str, float]:
        """Median µs of CPU a row: by process, `driver.send`, and by step of the tasks (`tasks.read` …) if any."""
        processes = dict.fromkeys(name for turn in self.turns for name in turn.cpu_us)
        found = {name: statistics.median(turn.cpu_us.get(name, 0.0) for turn in self.turns) for name in processes}
        for step, phase in CPU_PHASES.items():
            spent = [trigger.phases[phase] / trigger.rows for trigger in self.measured if phase in trigger.phases]
            if spent:
                found[f"tasks.{step}"] = statistics.median(spent) * 1e6
        return found

    def to_json(self) -> dict[str, Any]:
        """All raw numbers, and the spreads."""
        return {
            **asdict(self),
            "rows_per_second": _spread_json(self.rows_per_second),
            "milliseconds": _spread_json(self.milliseconds),
            "phases": {name: round(seconds, 5) for name, seconds in self.phases.items()},
            "cpu_us": {name: round(spent, 3) for name, spent in self.cpu_us.items()},
        }


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """What a contender needed from an input record's CreateTime on, in ms by percentile.

    `appended` ends at the output record's LogAppendTime, `read` where a reader of committed records has it. `behind_s`
    is how long before the stop the newest record was sent that came out.
    """

    contender: str
    is_service: bool
    rate: float
    trigger: str
    minutes: float
    load: float
    records: int = 0
    appended: dict[str, float] = field(default_factory=dict)
    read: dict[str, float] = field(default_factory=dict)
    behind_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self)


def ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Median over median; None when either has no value."""
    if not above or not below:
        return None
    return statistics.median(above) / statistics.median(below)


def rates(lane: LaneResult | None) -> list[float]:
    """Rows per second of every batch that counts; none without the lane."""
    return [] if lane is None else [trigger.rows_per_second for trigger in lane.measured]


def times(lane: LaneResult | None) -> list[float]:
    """Trigger milliseconds of every batch that counts; none without the lane."""
    return [] if lane is None else [float(trigger.milliseconds) for trigger in lane.measured]


def _spread_json(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {name: round(value, 3) for name, value in asdict(spread).items()}
