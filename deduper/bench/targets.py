"""PURE. The target of each measure, and whether it was met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A measure must reach at least or at most `value`. Measures of one `family` come from the same lanes."""

    name: str
    family: str
    text: str
    at_least: bool
    value: float
    unit: str

    @property
    def shown(self) -> str:
        """The bound with its unit."""
        return f"{'≥' if self.at_least else '≤'} {shown(self.value, self.unit)}"


@dataclass(frozen=True, slots=True)
class Reached:
    """The value of a measure. Without a value it was not measured, and `remark` says why.

    `bar` replaces the target's own value where the bound depends on the run.
    """

    target: Target
    value: float | None
    remark: str = ""
    bar: float | None = None

    @property
    def is_met(self) -> bool | None:
        """None when it was not measured."""
        if self.value is None:
            return None
        bar = self.target.value if self.bar is None else self.bar
        return self.value >= bar if self.target.at_least else self.value <= bar

    def to_json(self) -> dict[str, Any]:
        """With its target."""
        return {
            "name": self.target.name,
            "value": self.value,
            "remark": self.remark,
            "bar": self.bar,
            "text": self.target.text,
            "target": self.target.shown,
            "unit": self.target.unit,
            "met": self.is_met,
        }


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
    )
}

FAMILIES = tuple(dict.fromkeys(target.family for target in TARGETS.values()))
