"""PURE. What the service is to reach, measure by measure, and whether it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """What a measure must reach: at least or at most `value`. `family` is the name that `--measure` takes."""

    name: str
    family: str
    text: str
    at_least: bool
    value: float
    unit: str

    @property
    def shown(self) -> str:
        """As a person writes it."""
        return f"{'≥' if self.at_least else '≤'} {shown(self.value, self.unit)}"


@dataclass(frozen=True, slots=True)
class Reached:
    """What was reached of a target; `value` None says that it could not be measured, and `remark` then why.

    `bar` is what it is held against where that depends on the run itself; otherwise the target's own value.
    """

    name: str
    value: float | None
    remark: str = ""
    bar: float | None = None

    @property
    def is_met(self) -> bool | None:
        """None when it was not measured."""
        if self.value is None:
            return None
        target = TARGETS[self.name]
        bar = target.value if self.bar is None else self.bar
        return self.value >= bar if target.at_least else self.value <= bar

    def to_json(self) -> dict[str, Any]:
        """With its target."""
        target = TARGETS[self.name]
        return {**asdict(self), "text": target.text, "target": target.shown, "unit": target.unit, "met": self.is_met}


def shown(value: float, unit: str) -> str:
    """A value with its unit."""
    if unit == "x":
        return f"{value:.2f}x"
    return f"{value:,.0f}" if not unit else f"{value:,.1f} {unit}"


TARGETS = {
    target.name: target
    for target in (
        Target("passthrough", "passthrough", "rows/s against the same pipeline without dedup", True, 0.90, "x"),
        Target("watermark-hdfs", "watermark", "rows/s against within-watermark, HDFS-backed", True, 3.3, "x"),
        Target("watermark-rocksdb", "watermark", "rows/s against within-watermark, RocksDB", True, 10.0, "x"),
        Target("state", "state", "rows/s with the large state against 1 M keys", True, 0.9, "x"),
        Target("memory-per-key", "bytes", "memory per resident key, first_seen: false", False, 30.0, "B"),
        Target("disk-per-key", "bytes", "disk per key, first_seen: false", False, 20.0, "B"),
        Target("small-batch", "small-batch", "trigger time of 1,000 rows against pass-through", False, 1.5, "x"),
        Target("clock", "clock", "trigger time, clock: arrival against batch", False, 1.10, "x"),
        Target("lookup", "lookup", "trigger time, all_live against own_bucket", False, 1.25, "x"),
        Target("drop-small-bucket", "drop-bucket", "letting go of an expired bucket of 1 M keys", False, 10.0, "ms"),
        Target("drop-large-bucket", "drop-bucket", "letting go of a large expired bucket", False, 10.0, "ms"),
        Target("restart-warm", "restart", "restart to the first commit, warm tables, against empty", False, 1.1, "x"),
        Target("restart-cold", "restart", "restart to the first commit, cold, above empty", False, 10.0, "s"),
        Target("compiled-at-run", "first-batch", "kernels compiled by a process after the first one", False, 0.0, ""),
        Target(
            "first-judging", "first-batch", "first kernel calls in a forked worker above later ones", False, 5.0, "ms"
        ),
        Target("cores", "cores", "speed-up from 1 to 2 cores", True, 1.7, "x"),
    )
}

FAMILIES = tuple(dict.fromkeys(target.family for target in TARGETS.values()))


def verdict(reached: Reached) -> str:
    """The last column of the table."""
    return {True: "met", False: "NOT MET", None: "not measured"}[reached.is_met]
