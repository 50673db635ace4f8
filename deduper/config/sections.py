"""The sections of a configuration that are not about one source or one sink. PURE.

The classes mirror the YAML, name for name: see `config.model`.
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

from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.config.files import FileSink, FilesSource
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.values import (
    OBJECT_STORES,
    OTHER_OBJECT_STORES,
    Count,
    Duration,
    DurationOrOff,
    Number,
    NumberOrOff,
    PathOrAuto,
    Section,
    Size,
    SparkValue,
    read_hdfs_url,
    read_or,
    read_period,
    refusal,
    resolve,
    shown,
)
from deduper.units import format_duration


def with_default_span(data: Any) -> Any:
    """The section with `span` filled in: a 24th of the period when that is whole seconds, else the period."""
    if not isinstance(data, dict) or "span" in data or "period" not in data:
        return data
    try:
        period = read_period(data["period"])
    except PydanticCustomError:
        return {**data, "span": "1s"}  # the period itself is reported, and the span need not be
    span = period // 24 if period % (24 * 1_000_000) == 0 else period
    return {**data, "span": f"{span}us"}


class NeverExpiry(Section):
    """Keys are remembered for ever."""

    by: Literal["never"]


class EventTimeExpiry(Section):
    """Keys expire by a time in the record."""

    by: Literal["event_time"]
    field: str = Field(description="The timestamp column, or a whole-number column with `unit`", examples=["ts"])
    period: Duration = Field(description="How long a key is remembered", examples=["24h"])
    span: Duration = Field(
        default=None,  # type: ignore[assignment]  # filled in from the period before validation
        description="Width of a time bucket; default: a 24th of the period if that is whole seconds, else the period",
    )
    unit: Literal["us", "ms", "s"] | None = Field(
        default=None, description="Unit of a whole-number column, which counts since 1970; not for timestamp columns"
    )
    lookup: Literal["own_bucket", "all_live"] = Field(
        default="own_bucket",
        description="Scope of a look-up: the bucket of the key's own time, or the whole live period",
    )
    clock: Literal["arrival", "batch"] = Field(
        default="arrival", description="When the latest point moves: with every tuple, or once a window"
    )
    max_ahead_of_now: DurationOrOff = Field(
        default=3_600_000_000, description="A time further ahead of the wall clock is an error"
    )
    max_jump: DurationOrOff = Field(
        default=None, description="A time further ahead of the latest point (plus the time it stood still) is an error"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_span(cls, data: Any) -> Any:
        return with_default_span(data)


class OrderedExpiry(Section):
    """Keys expire by a number in the record."""

    by: Literal["ordered"]
    field: str = Field(
        description="A number column: int, bigint, decimal up to 18 digits, double", examples=["sequence"]
    )
    period: Number = Field(description="How far behind the greatest number a key is remembered", examples=["1000"])
    span: Number = Field(description="Width of a bucket, in the column's numbers", examples=["100"])
    lookup: Literal["own_bucket", "all_live"] = Field(
        default="own_bucket",
        description="Scope of a look-up: the bucket of the key's own number, or the whole live period",
    )
    clock: Literal["arrival", "batch"] = Field(
        default="arrival", description="When the latest point moves: with every tuple, or once a window"
    )
    max_jump: NumberOrOff = Field(default=None, description="A number further ahead of the latest point is an error")


class ProcessingTimeExpiry(Section):
    """Keys expire by the wall clock at the start of their window."""

    by: Literal["processing_time"]
    period: Duration = Field(description="How long a key is remembered", examples=["24h"])
    span: Duration = Field(
        default=None,  # type: ignore[assignment]  # filled in from the period before validation
        description="Width of a time bucket; default: a 24th of the period if that is whole seconds, else the period",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_span(cls, data: Any) -> Any:
        return with_default_span(data)


class CategoryExpiry(Section):
    """Keys live as long as their value of one column is among the most recent ones."""

    by: Literal["category"]
    field: str = Field(description="A column of few values, such as a file date", examples=["file_date"])
    live_categories: Count = Field(
        ge=1, le=1_000_000, description="Number of values that are live at once", examples=["7"]
    )
    remember_dropped: Count = Field(
        default=10_000, ge=0, le=10_000_000, description="Number of dropped values that stay known as dropped"
    )


ExpiryConfig = Annotated[
    EventTimeExpiry | OrderedExpiry | ProcessingTimeExpiry | CategoryExpiry | NeverExpiry,
    Field(discriminator="by"),
]


PORTS = ("unique", "duplicate", "expired", "error")
"""The names of the four output ports, in the order of the verdicts."""


SourceConfig = Annotated[FilesSource | KafkaSource, Field(discriminator="format")]


class StoreConfig(Section):
    """The store of the keys, and the room for its tables."""

    url: str = Field(
        description="`rocksdb:PATH`, `file:PATH`, `hdfs://HOST:PORT/PATH`, or an object store's `s3://BUCKET/PREFIX` "
        "(`gs:`, `az:`); default: `rocksdb:state/<name>`",
        examples=["rocksdb:state/clicks"],
    )
    shards: Count = Field(default=4, ge=1, le=4096, description="Slices of the key space; `deduper reshard` changes it")
    memory: Size = Field(
        default=2 * 2**30,
        description="Maximum bytes of tables in memory (/dev/shm), over all processes; on the local disk there may be "
        "eight times as many",
    )
    tables: PathOrAuto = Field(
        default="auto", description="Folder for tables on disk; auto: the machine's temporary folder"
    )
    deadline: Duration = Field(
        default=600_000_000,
        description="Time to wait for HDFS or an object store that is away, with the store or a port",
    )
    first_seen: bool = Field(
        default=True, description="Keep the place of each key's first copy; fixed for the store's life"
    )

    @field_validator("url")
    @classmethod
    def _absolute_url(cls, value: str, info: ValidationInfo) -> str:
        elsewhere = store_elsewhere(value)
        if elsewhere is not None:
            return elsewhere
        scheme, colon, path = value.partition(":")
        if not colon or scheme not in ("rocksdb", "file"):
            raise refusal(f"`{shown(value)}` is not the URL of a store", _URL_ADVICE)
        path = path[2:] if path.startswith("//") else path
        if not path.strip():
            raise refusal(f"`{shown(value)}` has no path", _URL_ADVICE)
        return f"{scheme}:{resolve(path, info)}"

    @property
    def backend(self) -> str:
        """`rocksdb`, `file`, `hdfs`, or the scheme of an object store."""
        return self.url.partition(":")[0]

    @property
    def is_local(self) -> bool:
        """Whether the store is on a disk of this machine."""
        return self.backend in ("rocksdb", "file")

    @property
    def path(self) -> Path:
        """The folder of a store on this machine, absolute.

        Raises:
            ValueError: it is elsewhere.
        """
        return self.place.local

    @property
    def place(self) -> Place:
        """The store's folder."""
        return open_place(self.url)


_URL_ADVICE = "write `rocksdb:PATH` or `file:PATH`"


def store_elsewhere(url: str) -> str | None:
    """The URL of a store that is not on this machine; None of any other text.

    Raises:
        PydanticCustomError: it holds more than a place, or its client is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme in OBJECT_STORES:
        return _object_url(url)
    if scheme in OTHER_OBJECT_STORES:
        right = f"`{OTHER_OBJECT_STORES[scheme]}//BUCKET/PREFIX`"
        raise refusal(f"`{scheme}:` is not the name of an object store here", f"write {right}")
    return read_hdfs_url(url) if scheme == "hdfs" else None


def _object_url(url: str) -> str:
    """The URL of a store in an object store, as `open_place` writes it."""
    try:
        return open_place(url.rstrip("/")).url
    except ImportError:
        raise refusal(
            "an object store needs the package obstore", "install it: pip install 'stream-deduper[objects]'"
        ) from None
    except ValueError:
        raise refusal(
            "is not the URL of an object store",
            "write `s3://BUCKET/PREFIX` and no more: credentials, region and endpoint are variables of the environment",
        ) from None


class NoneSink(Section):
    """A port whose rows are counted and dropped."""

    format: Literal["none"]


class FunctionSink(Section):
    """A port whose rows a function of the query's author takes; not for a job's file: see `config.query`."""

    format: Literal["function"] = "function"


SinkConfig = Annotated[FileSink | KafkaSink | NoneSink, Field(discriminator="format")]


class SinksConfig(Section):
    """The output of each verdict. All four ports must be named, so that no row is lost by a forgotten line."""

    unique: SinkConfig = Field(description="First copies", examples=["{format: parquet, path: out/unique}"])
    duplicate: SinkConfig = Field(description="Later copies", examples=["{format: none}"])
    expired: SinkConfig = Field(description="Tuples older than the period", examples=["{format: none}"])
    error: SinkConfig = Field(
        description="Records that cannot be judged, with the reason and the raw text",
        examples=["{format: json, path: out/error}"],
    )

    def beside(self, source: KafkaSource) -> SinksConfig:
        """The ports; a Kafka port without brokers gets the source's, and its options for connecting."""
        filled = {port: sink.beside(source) for port, sink in self.items() if isinstance(sink, KafkaSink)}
        return self.model_copy(update=filled) if filled else self

    def items(self) -> tuple[tuple[str, FileSink | KafkaSink | NoneSink], ...]:
        """(port, sink) in the order of `PORTS`."""
        return tuple((port, getattr(self, port)) for port in PORTS)


class MetricsConfig(Section):
    """The endpoint for Prometheus, at `/metrics`. Without this section there is none."""

    port: Count = Field(
        default=9108, ge=1, le=65535, description="Port of the endpoint; each job on a machine needs its own"
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on; `0.0.0.0` for all: the endpoint has no authentication",
    )


def _read_key(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and not value:
        raise refusal("must name at least one column", "write `key: [user, id]`")
    if not isinstance(value, list | tuple):
        raise refusal("must be a list of columns", "write `key: [user, id]`")
    return value


Key = Annotated[tuple[str, ...], BeforeValidator(_read_key)]
"""Names of columns, one or more."""


def _read_spark_settings(value: object) -> object:
    for name in value if isinstance(value, dict) else ():
        if not str(name).startswith("spark."):
            raise refusal(f"`{name}` is not a Spark setting", f"write it with its prefix: `spark.{name}`")
    return value


SparkSettings = Annotated[dict[str, SparkValue], BeforeValidator(_read_spark_settings)]
"""Settings of Spark, each with its prefix."""


def _read_trigger(value: object) -> object:
    if value == "available_now":
        return value
    return read_or("available_now", read_period, value)


Trigger = Annotated[
    Literal["available_now"] | int,
    BeforeValidator(_read_trigger),
    PlainSerializer(lambda value: value if isinstance(value, str) else format_duration(value), when_used="json"),
    WithJsonSchema({"type": "string", "x-kind": "duration or available_now"}),
]
"""`available_now`, or µs between the starts of two batches."""
