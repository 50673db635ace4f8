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
        Target("one-port", "one-port", "rows/s with the unique port alone against the same pipeline", True, 0.90, "x"),
        Target("json", "formats", "lines of JSON, rows/s against the same pipeline", True, 2.0, "x"),
        Target("json-small", "formats", "lines of JSON, batches of 250,000 rows, the same", True, 2.0, "x"),
        Target(
            "bad-lines", "formats", "lines of JSON, 1 % of them malformed, against the same without", True, 0.8, "x"
        ),
        Target("csv", "formats", "CSV, rows/s against the same pipeline", True, 1.5, "x"),
        Target("json.gz", "formats", "compressed lines of JSON, the same", True, 1.5, "x"),
        Target("parquet", "formats", "Parquet, payloads that never repeat, the same", True, 0.90, "x"),
        Target("state", "state", "rows/s with the large state against 1 M keys", True, 0.9, "x"),
        Target("memory-per-key", "bytes", "memory per resident key, first_seen: false", False, 30.0, "B"),
        Target("disk-per-key", "bytes", "disk per key, first_seen: false", False, 20.0, "B"),
        Target("small-batch", "small-batch", "trigger time of 1,000 rows against pass-through", False, 1.5, "x"),
        Target("clock", "clock", "trigger time, clock: arrival against batch", False, 1.10, "x"),
        Target("lookup", "lookup", "trigger time, all_live against own_bucket", False, 1.25, "x"),
        Target("latency-p50", "latency", "from producing to reading, p50 against the best of Spark's", False, 1.0, "x"),
        Target("latency-p99", "latency", "from producing to reading, p99 against the same", False, 1.2, "x"),
        Target("drop-small-bucket", "drop-bucket", "dropping an expired bucket of 1 M keys", False, 10.0, "ms"),
        Target("drop-large-bucket", "drop-bucket", "dropping a large expired bucket", False, 10.0, "ms"),
        Target("restart-warm", "restart", "restart to the first commit, warm tables, against empty", False, 1.1, "x"),
        Target("restart-cold", "restart", "restart to the first commit, cold, above empty", False, 10.0, "s"),
        Target("compiled-at-run", "first-batch", "kernels compiled by a process after the first one", False, 0.0, ""),
        Target(
            "first-judging", "first-batch", "first kernel calls in a forked worker above later ones", False, 5.0, "ms"
        ),
        Target("cores", "cores", "speed-up from 1 to 2 cores", True, 1.7, "x"),
    )
}

BARS: dict[tuple[str, str], dict[str, float]] = {
    ("kafka", "kafka"): {"passthrough": 1.3, "one-port": 1.5, "watermark-hdfs": 1.3, "watermark-rocksdb": 1.7},
    ("kafka", "parquet"): {"passthrough": 1.3},
    ("json", "parquet"): {"passthrough": 2.0, "watermark-hdfs": 3.5, "watermark-rocksdb": 5.0},
    ("json.gz", "parquet"): {"passthrough": 1.5},
    ("csv", "parquet"): {"passthrough": 1.5},
}
"""Other bounds than the targets' own, which are for Parquet, by the source's format and the sinks."""

FAMILIES = tuple(dict.fromkeys(target.family for target in TARGETS.values()))
