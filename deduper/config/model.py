"""The configuration of a job, as frozen values.

The classes mirror the YAML, name for name: a setting is called the same in the file, in the environment, in a flag and
here, so units are in the types (`Duration` is int µs, `Size` is int bytes). Reading files, variables and flags is
the business of `config.load`; rules between sections are in `config.rules` and hold for every `Config`, however made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from bucket_store.places.place import Place
from deduper.columns import Column
from deduper.config.files import FileSink
from deduper.config.fingerprint import Fingerprint, payload_identity, payload_of
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.rules import disagreements
from deduper.config.sections import (
    EventTimeExpiry,
    ExpiryConfig,
    FunctionSink,
    Key,
    MetricsConfig,
    OrderedExpiry,
    ProcessingTimeExpiry,
    SinksConfig,
    SourceConfig,
    SparkSettings,
    StoreConfig,
    Trigger,
)
from deduper.config.values import LocalPath, Section, refusal
from deduper.dedup_column import DedupColumn
from deduper.expiry_key import ExpiryKeyScale
from deduper.payload import MOST_VERSIONS, USUAL_VERSIONS, Leaf
from deduper.spark_promises import TIME_ZONE, store_settings


class Config(Section):
    """One deduplication job.

    Valid by construction: a `Config` that exists has passed every check.
    """

    is_seed: ClassVar[bool] = False
    """Whether the records are earlier ones, for a new store: a seed has a class for that."""
    is_of_outputs: ClassVar[bool] = False
    """Whether the records are rows that a unique port has written: a seed has a class for that."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=100,
        description="Name of the job; default: the config file's name without its ending",
        examples=["clicks"],
    )
    source: SourceConfig = Field(description="The source of the records", examples=["{format: files, path: in/, ...}"])
    key: Key = Field(description="The dedup key: one or more scalar columns", examples=["[user, id]"])
    null_keys: Literal["error", "allow"] = Field(
        default="error", description="A record with a null in its key is an error, or has an ordinary key"
    )
    digest: Literal["fast", "secure"] = Field(
        default="fast", description="fast: two xxhash64; secure: SHA-256, for input from attackers"
    )
    fingerprint: Fingerprint = Field(
        default="none",
        description="The payload of a record: what a copy has in common with its first copy, and a conflict has not",
        examples=["{except: [sent_at]}"],
    )
    on_conflict: Literal["duplicate", "error", "unique"] = Field(
        default="duplicate", description="The port of a record whose key is known with another payload"
    )
    max_versions: int = Field(
        default=USUAL_VERSIONS,
        ge=2,
        le=MOST_VERSIONS,
        description="With `on_conflict: unique`: so many payloads of a key are unique at a time; one more is an error",
    )
    expiry: ExpiryConfig = Field(
        description="When a key is forgotten", examples=["{by: event_time, field: ts, period: 24h, span: 1h}"]
    )
    store: StoreConfig = Field(description="The store of the keys", examples=["{url: rocksdb:state/clicks}"])
    sinks: SinksConfig = Field(
        description="The output of each verdict", examples=["one line for each of the four ports"]
    )
    trigger: Trigger = Field(
        default=10_000_000,
        description="Time between the starts of two windows; available_now: stop when the source is drained",
        examples=["10s"],
    )
    metrics: MetricsConfig | None = Field(
        default=None,
        description="The endpoint for Prometheus; without this section there is none",
        examples=["{port: 9108}"],
    )
    shared_folders: tuple[LocalPath, ...] = Field(
        default=(),
        description="Mounts that all hosts of a cluster see at the same path; on a cluster, paths lie below them",
        examples=["[/data/shared]"],
    )
    spark: SparkSettings = Field(
        default_factory=dict,
        description="Settings of Spark, such as `spark.master: local[4]`, except those that a promise depends on; "
        "JVM options are added to the job's own",
        examples=['{spark.master: "local[4]"}'],
    )

    @property
    def file_ports(self) -> dict[str, FileSink]:
        """The ports that are written to files."""
        return {port: sink for port, sink in self.sinks.items() if isinstance(sink, FileSink)}

    @property
    def store_place(self) -> Place:
        """The store's folder."""
        return self.store.place

    @property
    def time_zone(self) -> str:
        """The zone of times without one, and of those that are written as text."""
        return store_settings(self.spark)[TIME_ZONE]

    @property
    def hdfs_clusters(self) -> list[str]:
        """The authorities of the store and of the ports in HDFS, `HOST:PORT` or a name service."""
        urls = [self.store.url, *(sink.url for sink in self.file_ports.values())]
        return sorted({urlsplit(url).netloc for url in urls if url.startswith("hdfs:")})

    @property
    def topic_ports(self) -> dict[str, KafkaSink]:
        """The ports that are written to Kafka topics."""
        return {port: sink for port, sink in self.sinks.items() if isinstance(sink, KafkaSink)}

    @property
    def function_ports(self) -> tuple[str, ...]:
        """The ports whose rows are handed to functions; a job has none."""
        sinks: tuple[tuple[str, object], ...] = self.sinks.items()
        return tuple(port for port, sink in sinks if isinstance(sink, FunctionSink))

    @property
    def has_row_ports(self) -> bool:
        """Whether rows with the source's columns are written for any port."""
        return bool(self.file_ports or self.function_ports)

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        sections = completed(dict(self))
        found = disagreements(sections)
        if found:
            first = found[0]
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise refusal(f"{'.'.join(first.path)}: {first.what}{more}", first.write)
        return self.model_copy(update=sections)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the dedup key, in the order of `key`."""
        return tuple(column for name in self.key if (column := self.source.column(name)) is not None)

    @property
    def has_fingerprint(self) -> bool:
        """Whether payloads are compared."""
        return self.fingerprint != "none"

    @property
    def payload(self) -> tuple[Leaf, ...] | None:
        """The parts of records that fingerprints are made of; None: their value as bytes."""
        return payload_of(self.fingerprint, self.source, self.key)

    @property
    def payload_identity(self) -> str:
        """Names these parts: fingerprints of others are never compared."""
        return payload_identity(self.payload, self.time_zone)

    @property
    def may_refuse_conflicts(self) -> bool:
        """Whether a conflict is an error, or may be one too many."""
        return self.has_fingerprint and self.on_conflict != "duplicate"

    @property
    def keeps_versions(self) -> bool:
        """Whether a conflict is a version of its key, which is unique."""
        return self.has_fingerprint and self.on_conflict == "unique"

    @property
    def expiry_column(self) -> Column | None:
        """The column of the expiry key; None for `never` and `processing_time`."""
        field = getattr(self.expiry, "field", None)
        return None if field is None else self.source.column(field)

    @property
    def expiry_key_scale(self) -> ExpiryKeyScale:
        """The meaning of one step of the expiry key; see `expiry_key`."""
        column = self.expiry_column
        return ExpiryKeyScale.of(self.expiry.by, None if column is None else column.type)

    @property
    def dedup_column(self) -> DedupColumn:
        """The column `_dedup` of the ports' rows."""
        return DedupColumn(self.expiry_key_scale.ddl, self.store.first_seen, self.has_fingerprint, self.keeps_versions)

    @property
    def lookup(self) -> Literal["own_bucket", "all_live"]:
        """The scope of a look-up, also for kinds of expiry that allow no choice."""
        if isinstance(self.expiry, EventTimeExpiry | OrderedExpiry):
            return self.expiry.lookup
        return "all_live" if isinstance(self.expiry, ProcessingTimeExpiry) else "own_bucket"

    @property
    def clock(self) -> Literal["arrival", "batch"] | None:
        """The way the latest point moves; None for `never` and `category`, which have none."""
        if isinstance(self.expiry, EventTimeExpiry | OrderedExpiry):
            return self.expiry.clock
        return "batch" if isinstance(self.expiry, ProcessingTimeExpiry) else None

    @property
    def period_steps(self) -> int | float | None:
        """The period in steps of the stored expiry key (µs, unscaled decimals, numbers); None if it has none."""
        return self._steps("period")

    @property
    def span_steps(self) -> int | float | None:
        """The span in steps of the stored expiry key; None without a latest point."""
        return self._steps("span")

    @property
    def max_jump_steps(self) -> int | float | None:
        """The guard `max_jump` in steps of the stored expiry key; None when it is off."""
        return self._steps("max_jump")

    def _steps(self, name: str) -> int | float | None:
        value = getattr(self.expiry, name, None)
        if value is None or not isinstance(self.expiry, OrderedExpiry):
            return value
        return self.expiry_key_scale.steps(value)


def completed(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections by name, each with what it takes from the others that are there."""
    filled = dict(sections)
    source, sinks = filled.get("source"), filled.get("sinks")
    if isinstance(source, KafkaSource):
        if "name" in filled:
            filled["source"] = source.of_job(filled["name"])
        if sinks is not None:
            filled["sinks"] = sinks.beside(source)
    return filled
