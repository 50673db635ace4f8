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

from deduper.config_kafka import KafkaSink, KafkaSource
from deduper.config_types import (
    Count,
    Duration,
    DurationOrOff,
    LocalPath,
    Number,
    NumberOrOff,
    PathOrAuto,
    Section,
    Size,
    SparkValue,
    local_path,
    read_period,
    refusal,
    resolve,
    shown,
)
from deduper.ddl import Column, DdlError, parse_columns
from deduper.points import PointScale
from deduper.units import format_duration

PORTS = ("unique", "duplicate", "expired", "error")
"""The names of the four output ports, in the order of the verdicts."""


class FilesSource(Section):
    """Files that appear in a directory."""

    format: Literal["files"]
    path: str = Field(description="Directory or glob to read; relative to the config file's folder", examples=["in/"])
    file_format: Literal["json", "csv", "parquet"] = Field(
        description="What the files hold: JSON lines, CSV or Parquet", examples=["json"]
    )
    columns: str = Field(
        alias="schema",
        description="Columns as Spark DDL",
        examples=['"user string, id long, ts timestamp"'],
    )
    max_files_per_batch: Count = Field(default=1000, ge=1, description="Most files one window takes")
    header: bool = Field(default=False, description="The first line of every CSV file names the columns (csv only)")
    delimiter: str = Field(default=",", description="One character between the fields of a CSV line (csv only)")

    @field_validator("path", mode="before")
    @classmethod
    def _absolute_path(cls, value: object, info: ValidationInfo) -> str:
        if not isinstance(value, str) or not value.strip():
            raise refusal(f"`{shown(value)}` is not a path", "write a directory or glob such as `in/` or `in/*.json`")
        return str(resolve(local_path(value), info))

    @field_validator("columns")
    @classmethod
    def _parses(cls, value: str) -> str:
        try:
            columns = parse_columns(value)
        except DdlError as error:
            raise refusal(error.what, error.write, offset=error.offset) from None
        for column in columns:
            if column.name.lower().startswith("_dedup"):
                raise refusal(
                    f"column `{column.name}` would collide with the struct that deduper adds to every row",
                    "rename the column; names that begin with `_dedup` are taken",
                )
        return value

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str) -> str:
        if len(value) != 1 or value in '\r\n"':
            raise refusal(f"must be one character, found `{shown(value)}`", 'write one such as `","` or `"\\t"`')
        return value

    @property
    def folder(self) -> Path:
        """The part of `path` before the first wildcard: every file of the source lies below it."""
        path = Path(self.path)
        parts = []
        for part in path.parts:
            if any(character in part for character in "*?[{"):
                break
            parts.append(part)
        return Path(*parts)

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """The columns of the schema, in order."""
        return parse_columns(self.columns)

    def column(self, name: str) -> Column | None:
        """The column of exactly this name."""
        return next((column for column in self.parsed_columns if column.name == name), None)


SourceConfig = Annotated[FilesSource | KafkaSource, Field(discriminator="format")]


class NeverExpiry(Section):
    """Keys are remembered for ever."""

    by: Literal["never"]
    buckets: Count = Field(default=64, ge=1, le=65_536, description="Buckets the keys are hashed into")


class EventTimeExpiry(Section):
    """Keys expire by a time that stands in the record."""

    by: Literal["event_time"]
    field: str = Field(description="The timestamp column, or a whole-number column with `unit`", examples=["ts"])
    period: Duration = Field(description="How long a key is remembered", examples=["24h"])
    span: Duration = Field(
        default=None,  # type: ignore[assignment]  # filled from the period before anybody sees it
        description="Width of a time bucket; default: a 24th of the period if that is whole seconds, else the period",
    )
    unit: Literal["us", "ms", "s"] | None = Field(
        default=None, description="What a whole-number column counts since 1970; not for timestamp columns"
    )
    lookup: Literal["own_bucket", "all_live"] = Field(
        default="own_bucket",
        description="Where a key is looked for: in the bucket of its own time, or in the whole live period",
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
    """Keys expire by a number that stands in the record."""

    by: Literal["ordered"]
    field: str = Field(
        description="A number column: int, bigint, decimal up to 18 digits, double", examples=["sequence"]
    )
    period: Number = Field(description="How far behind the greatest number a key is remembered", examples=["1000"])
    span: Number = Field(description="Width of a bucket, in the column's numbers", examples=["100"])
    lookup: Literal["own_bucket", "all_live"] = Field(
        default="own_bucket",
        description="Where a key is looked for: in the bucket of its own number, or in the whole live period",
    )
    clock: Literal["arrival", "batch"] = Field(
        default="arrival", description="When the latest point moves: with every tuple, or once a window"
    )
    max_jump: NumberOrOff = Field(default=None, description="A number further ahead of the latest point is an error")


class ProcessingTimeExpiry(Section):
    """Keys expire by the wall clock at which their window was begun."""

    by: Literal["processing_time"]
    period: Duration = Field(description="How long a key is remembered", examples=["24h"])
    span: Duration = Field(
        default=None,  # type: ignore[assignment]  # filled from the period before anybody sees it
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
    live_categories: Count = Field(ge=1, le=1_000_000, description="How many values are live at once", examples=["7"])
    remember_dropped: Count = Field(
        default=10_000, ge=0, le=10_000_000, description="Dropped values that are still known as dropped"
    )


ExpiryConfig = Annotated[
    NeverExpiry | EventTimeExpiry | OrderedExpiry | ProcessingTimeExpiry | CategoryExpiry,
    Field(discriminator="by"),
]


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
    shared: bool = Field(
        default=False, description="The path is the same on every machine, so Spark may run on several"
    )

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


class FileSink(Section):
    """A port whose rows are written as files into a directory."""

    format: Literal["parquet", "json", "csv"]
    path: LocalPath = Field(description="Directory the port's files appear in", examples=["out/unique"])


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
    spark: dict[str, SparkValue] = Field(
        default_factory=dict,
        description="Any Spark setting, such as `spark.master: local[4]`",
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


def with_default_span(data: Any) -> Any:
    """The section with `span` filled in: a 24th of the period when that is whole seconds, else the period."""
    if not isinstance(data, dict) or "span" in data or "period" not in data:
        return data
    try:
        period = read_period(data["period"])
    except PydanticCustomError:
        return {**data, "span": "1s"}  # the period itself is reported; a second complaint about the span is not wanted
    span = period // 24 if period % (24 * 1_000_000) == 0 else period
    return {**data, "span": f"{span}us"}
