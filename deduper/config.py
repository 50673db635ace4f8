"""The configuration of a job, as frozen values.

The classes mirror the YAML, name for name: a setting is called the same in the file, in the environment, in a flag and
here, so units stand in the types (`Duration` is int µs, `Size` is int bytes). Reading files, variables and flags is
the business of `config_file`; rules between sections are in `config_checks` and hold for every `Config`, however made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from deduper.config_expiry import (
    CategoryExpiry,
    EventTimeExpiry,
    ExpiryConfig,
    NeverExpiry,
    OrderedExpiry,
    ProcessingTimeExpiry,
)
from deduper.config_files import FileSink, FilesSource
from deduper.config_kafka import KafkaSink, KafkaSource
from deduper.config_types import (
    Count,
    LocalPath,
    PathOrAuto,
    Section,
    Size,
    SparkValue,
    read_period,
    refusal,
    resolve,
    shown,
)
from deduper.ddl import Column
from deduper.points import PointScale
from deduper.units import format_duration

__all__ = [
    "PORTS",
    "CategoryExpiry",
    "Config",
    "EventTimeExpiry",
    "ExpiryConfig",
    "FileSink",
    "FilesSource",
    "KafkaSink",
    "KafkaSource",
    "MetricsConfig",
    "NeverExpiry",
    "NoneSink",
    "OrderedExpiry",
    "ProcessingTimeExpiry",
    "SinkConfig",
    "SinksConfig",
    "SourceConfig",
    "StoreConfig",
]

PORTS = ("unique", "duplicate", "expired", "error")
"""The names of the four output ports, in the order of the verdicts."""


SourceConfig = Annotated[FilesSource | KafkaSource, Field(discriminator="format")]


class StoreConfig(Section):
    """Where the keys are kept, and how much of them in memory."""

    url: str = Field(
        description="`rocksdb:PATH` or `file:PATH`; default: `rocksdb:state/<name>`", examples=["rocksdb:state/clicks"]
    )
    shards: Count = Field(default=4, ge=1, le=4096, description="Slices of the key space; fixed for the store's life")
    memory: Size = Field(default=2 * 2**30, description="Most bytes of tables in memory (/dev/shm), for all processes")
    table_disk: Size = Field(default=16 * 2**30, description="Most bytes of tables on the local disk")
    tables: PathOrAuto = Field(
        default="auto", description="Folder for tables on disk; auto: the machine's temporary folder"
    )
    first_seen: bool = Field(
        default=True, description="Keep beside each key where its first copy came from; fixed for the store's life"
    )
    shared: bool = Field(default=False, description="Of no effect in this release, which runs on one machine")

    @field_validator("url")
    @classmethod
    def _absolute_url(cls, value: str, info: ValidationInfo) -> str:
        scheme, colon, path = value.partition(":")
        if scheme in ("hdfs", "s3", "s3a", "gs", "abfss"):
            raise refusal(f"`{scheme}:` stores are not in this release", _URL_ADVICE)
        if not colon or scheme not in ("rocksdb", "file"):
            raise refusal(f"`{shown(value)}` names no kind of store", _URL_ADVICE)
        path = path[2:] if path.startswith("//") else path
        if not path.strip():
            raise refusal(f"`{shown(value)}` names no path", _URL_ADVICE)
        return f"{scheme}:{resolve(path, info)}"

    @property
    def backend(self) -> str:
        """`rocksdb` or `file`."""
        return self.url.partition(":")[0]

    @property
    def path(self) -> Path:
        """The store's folder, absolute."""
        return Path(self.url.partition(":")[2])


_URL_ADVICE = "write `rocksdb:PATH` or `file:PATH`"


class NoneSink(Section):
    """A port whose rows are counted and dropped."""

    format: Literal["none"]


SinkConfig = Annotated[FileSink | KafkaSink | NoneSink, Field(discriminator="format")]


class SinksConfig(Section):
    """Where each verdict goes. All four ports are named, so that no row is lost by a forgotten line."""

    unique: SinkConfig = Field(description="First copies", examples=["{format: parquet, path: out/unique}"])
    duplicate: SinkConfig = Field(description="Later copies", examples=["{format: none}"])
    expired: SinkConfig = Field(description="Tuples older than the period", examples=["{format: none}"])
    error: SinkConfig = Field(
        description="Records that cannot be judged, with the reason and the raw text",
        examples=["{format: json, path: out/error}"],
    )

    def items(self) -> tuple[tuple[str, FileSink | KafkaSink | NoneSink], ...]:
        """(port, sink) in the order of `PORTS`."""
        return tuple((port, getattr(self, port)) for port in PORTS)


class MetricsConfig(Section):
    """Where the job shows its numbers to Prometheus, at `/metrics`. Without the section it shows them nowhere."""

    port: Count = Field(default=9108, ge=1, le=65535, description="Port of the page; each job of a machine has its own")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on; `0.0.0.0` for all: the page asks nobody who he is",
    )


def _read_trigger(value: object) -> object:
    if value == "available_now":
        return value
    try:
        return read_period(value)
    except PydanticCustomError as error:
        context = error.context or {}
        raise refusal(context["what"], f"{context['write']}; or write `available_now`") from None


Trigger = Annotated[
    Literal["available_now"] | int,
    BeforeValidator(_read_trigger),
    PlainSerializer(lambda value: value if isinstance(value, str) else format_duration(value), when_used="json"),
    WithJsonSchema({"type": "string", "x-kind": "duration or available_now"}),
]
"""`available_now`, or µs between the starts of two batches."""


class Config(Section):
    """One deduplication job.

    Valid by construction: a `Config` that exists has passed every check.
    """

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=100,
        description="Name of the job; default: the config file's name without its ending",
        examples=["clicks"],
    )
    source: SourceConfig = Field(description="What is read", examples=["{format: files, path: in/, ...}"])
    key: tuple[str, ...] = Field(description="The dedup key: one or more scalar columns", examples=["[user, id]"])
    null_keys: Literal["error", "allow"] = Field(
        default="error", description="Whether a record with a null in its key is an error or an ordinary key"
    )
    digest: Literal["fast", "secure"] = Field(
        default="fast", description="fast: two xxhash64; secure: SHA-256, for input from people who wish you harm"
    )
    expiry: ExpiryConfig = Field(description="When a key is forgotten", examples=["{by: never}"])
    store: StoreConfig = Field(description="Where the keys are kept", examples=["{url: rocksdb:state/clicks}"])
    sinks: SinksConfig = Field(description="Where each verdict goes", examples=["one line for each of the four ports"])
    checkpoint: LocalPath | None = Field(
        default=None, description="Folder of Spark's checkpoint; default: `checkpoint` inside the store's folder"
    )
    trigger: Trigger = Field(
        default=10_000_000,
        description="Time between the starts of two windows; available_now: stop when the source is drained",
        examples=["10s"],
    )
    metrics: MetricsConfig | None = Field(
        default=None,
        description="The job's numbers for Prometheus; nothing is served without this section",
        examples=["{port: 9108}"],
    )
    spark: dict[str, SparkValue] = Field(
        default_factory=dict,
        description="Any Spark setting, such as `spark.master: local[4]`; JVM options are put behind our own",
        examples=['{spark.master: "local[4]"}'],
    )

    @field_validator("key", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list | tuple) and not value:
            raise refusal("must name at least one column", "write `key: [user, id]`")
        if not isinstance(value, list | tuple):
            raise refusal("must be a list of columns", "write `key: [user, id]`")
        return value

    @field_validator("source")
    @classmethod
    def _group_of_the_job(cls, source: FilesSource | KafkaSource, info: ValidationInfo) -> FilesSource | KafkaSource:
        """A Kafka source without a group has the job's name for one."""
        if isinstance(source, KafkaSource) and source.group == "" and "name" in info.data:
            return source.model_copy(update={"group": info.data["name"]})
        return source

    @field_validator("sinks")
    @classmethod
    def _brokers_of_the_source(cls, sinks: SinksConfig, info: ValidationInfo) -> SinksConfig:
        """A Kafka port without brokers has the source's, and its way to log in."""
        source = info.data.get("source")
        if not isinstance(source, KafkaSource):
            return sinks
        filled = {port: sink.beside(source) for port, sink in sinks.items() if isinstance(sink, KafkaSink)}
        return sinks.model_copy(update=filled) if filled else sinks

    @field_validator("spark", mode="before")
    @classmethod
    def _names_spark_settings(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name in value:
            if not str(name).startswith("spark."):
                raise refusal(f"`{name}` is not a Spark setting", f"write it with its prefix: `spark.{name}`")
        return value

    @field_validator("*", mode="wrap")
    @classmethod
    def _note_sound(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        """Leaves every setting that is sound in the context, for the rules between those that are."""
        sound = handler(value)
        if info.context is not None and "sound" in info.context:
            info.context["sound"][info.field_name] = sound
        return sound

    @model_validator(mode="after")
    def _sections_agree(self) -> Config:
        # Imported here because the checks need the classes above.
        from deduper.config_checks import disagreements

        found = disagreements({name: getattr(self, name) for name in type(self).model_fields})
        if found:
            first = found[0]
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise refusal(f"{'.'.join(first.path)}: {first.what}{more}", first.write)
        return self

    @property
    def checkpoint_path(self) -> Path:
        """Folder of Spark's checkpoint, absolute."""
        return self.checkpoint if self.checkpoint is not None else self.store.path / "checkpoint"

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the dedup key, in the order of `key`."""
        return tuple(column for name in self.key if (column := self.source.column(name)) is not None)

    @property
    def expiry_column(self) -> Column | None:
        """The column of the expiry key; None for `never` and `processing_time`."""
        field = getattr(self.expiry, "field", None)
        return None if field is None else self.source.column(field)

    @property
    def point_scale(self) -> PointScale:
        """What one step of the expiry key is; see `points`."""
        column = self.expiry_column
        return PointScale.of(self.expiry.by, None if column is None else column.type)

    @property
    def lookup(self) -> Literal["own_bucket", "all_live"]:
        """Where keys are looked for, also for the expiries that leave no choice."""
        if isinstance(self.expiry, EventTimeExpiry | OrderedExpiry):
            return self.expiry.lookup
        return "all_live" if isinstance(self.expiry, ProcessingTimeExpiry) else "own_bucket"

    @property
    def clock(self) -> Literal["arrival", "batch"] | None:
        """When the latest point moves; None for `never` and `category`, which have none."""
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
        return self.point_scale.steps(value)
