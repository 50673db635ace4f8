"""PURE. Contenders by name (settings of the service, or a pipeline of Spark's), and their lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.bench.workload import Workload

_STATE = "org.apache.spark.sql.execution.streaming.state."
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_IN_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."
CHANGELOG = _IN_ROCKSDB + "changelogCheckpointing.enabled"

_HDFS = {PROVIDER: _STATE + "HDFSBackedStateStoreProvider"}
# The session's local file system is the plain one; RocksDB's snapshots need the checksummed one, Spark's default.
_LOCAL_FILES = {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", "fs.file.impl.disable.cache": "true"}
_ROCKSDB = {PROVIDER: _STATE + "RocksDBStateStoreProvider", CHANGELOG: "false", **_LOCAL_FILES}
_ROCKSDB_CHANGELOG = {**_ROCKSDB, CHANGELOG: "true"}
# An expert's settings: RocksDB counts no rows, which costs a look-up at every write, and its memory is bounded.
_TUNED = {_IN_ROCKSDB + "trackTotalNumberOfRows": "false", _IN_ROCKSDB + "boundedMemoryUsage": "true"}

SINKS = ("parquet", "kafka")


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender.

    `pipeline` is None for the service, whose config sections `settings` then hold, over its defaults; otherwise a name
    of `lanes.PIPELINES`, and `settings` are Spark's. `sinks` are the kinds of outputs that it can have.
    """

    name: str
    text: str
    pipeline: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sinks: tuple[str, ...] = SINKS

    @property
    def is_service(self) -> bool:
        """Whether it is this service."""
        return self.pipeline is None


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane to run.

    `x` is a sweep's value. `is_seeded` puts the workload's state straight into the store, or leaves it out where the
    contender keeps none; otherwise it is streamed. `sinks` are the outputs: Parquet files, or topics.
    """

    name: str
    contender: Contender
    workload: Workload
    shards: int
    x: float | None = None
    is_seeded: bool = False
    sinks: str = "parquet"


_NONE = {"format": "none"}

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("deduper", "rocksdb, own_bucket, clock: arrival, first_seen: true, four ports", None),
        Contender("deduper-clock-batch", "with clock: batch", None, {"expiry": {"clock": "batch"}}),
        Contender("deduper-all-live", "with lookup: all_live", None, {"expiry": {"lookup": "all_live"}}),
        Contender("deduper-no-first-seen", "with first_seen: false", None, {"store": {"first_seen": False}}),
        Contender("deduper-file", "on file:", None, {"store": {"url": "file:state"}}),
        Contender(
            "deduper-json-errors",
            "error port as JSON",
            None,
            {"sinks": {"error": {"format": "json"}}},
            sinks=("parquet",),
        ),
        Contender("deduper-no-duplicates", "duplicate port: none", None, {"sinks": {"duplicate": _NONE}}),
        Contender(
            "deduper-one-port",
            "the unique port alone",
            None,
            {"sinks": {"duplicate": _NONE, "expired": _NONE, "error": _NONE}},
        ),
        Contender("passthrough", "the same pipeline without dedup: read, exchange by key, write", "exchanged"),
        Contender("passthrough-wide", "the same, with a constant column as wide as _dedup", "widened"),
        Contender("no-exchange", "read and write alone", "plain"),
        Contender("watermark-hdfs", "dropDuplicatesWithinWatermark, HDFS-backed state", "within_watermark", _HDFS),
        Contender("watermark-rocksdb", "dropDuplicatesWithinWatermark, RocksDB state", "within_watermark", _ROCKSDB),
        Contender(
            "watermark-rocksdb-changelog",
            "dropDuplicatesWithinWatermark, RocksDB state with changelog checkpoints",
            "within_watermark",
            _ROCKSDB_CHANGELOG,
        ),
        Contender(
            "watermark-rocksdb-tuned",
            "dropDuplicatesWithinWatermark, RocksDB state, no row tracking, bounded memory",
            "within_watermark",
            _ROCKSDB | _TUNED,
        ),
        Contender(
            "watermark-rocksdb-tuned-changelog",
            "the same with changelog checkpoints",
            "within_watermark",
            _ROCKSDB_CHANGELOG | _TUNED,
        ),
        Contender("distinct-hdfs", "dropDuplicates, HDFS-backed state", "distinct", _HDFS),
        Contender("distinct-rocksdb", "dropDuplicates, RocksDB state", "distinct", _ROCKSDB),
        Contender(
            "distinct-rocksdb-changelog",
            "dropDuplicates, RocksDB state with changelog checkpoints",
            "distinct",
            _ROCKSDB_CHANGELOG,
        ),
    )
}

PRESETS: dict[str, tuple[str, ...]] = {
    "quick": ("deduper", "passthrough"),
    "standard": (
        "deduper",
        "deduper-clock-batch",
        "deduper-all-live",
        "deduper-no-first-seen",
        "passthrough",
        "no-exchange",
        "watermark-hdfs",
        "watermark-rocksdb",
        "watermark-rocksdb-changelog",
        "watermark-rocksdb-tuned",
        "watermark-rocksdb-tuned-changelog",
    ),
    "all": tuple(CONTENDERS),
}
STANDARD_OF_TOPICS = (
    "deduper",
    "deduper-one-port",
    "passthrough",
    "watermark-hdfs",
    "watermark-rocksdb-tuned",
    "watermark-rocksdb-tuned-changelog",
)
"""What preset `standard` has where the outputs are topics."""
LATENCY = ("deduper", "watermark-rocksdb-tuned-changelog")
"""The contenders of a measurement of latency, unless others are named."""
