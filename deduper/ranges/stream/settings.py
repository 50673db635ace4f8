"""The settings of a range stream: a config file of its own, whose mistakes are all found with their places."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.arrow_columns import arrow_type
from deduper.columns import Column
from deduper.config.apart import clashes
from deduper.config.files import FileSink, TypedFiles
from deduper.config.kafka.sections import KafkaSink, KafkaSource
from deduper.config.sections import Key, MetricsConfig, store_elsewhere
from deduper.config.values import (
    Count,
    Duration,
    PortUrl,
    Section,
    local_path,
    refusal,
    resolve,
    shown,
)
from deduper.errors import UsageError
from deduper.file_formats import PortFormat
from deduper.ranges.aggregate.aggregates import SUBTRACTED
from deduper.ranges.settings import RangeSettings

INPUTS = ("events", "ranges")
PORTS = ("output", "corrections", "late", "errors")
_CHANGEABLE = ("name", *INPUTS, "store", *PORTS, "max_windows", "trigger", "metrics")
_DEADLINE_US = 600_000_000
WINDOW = "_window"
"""The column of the window in each port."""


def _as_text(value: object) -> object:
    """A scalar of YAML as text; all else as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | date) else value


class Retraction(Section):
    """The rows of ranges that withdraw others."""

    column: str = Field(examples=["op"])
    value: Annotated[str, BeforeValidator(_as_text)] = Field(examples=["withdrawn"])

    def value_of(self, kind: pa.DataType) -> pa.Scalar:
        """The value in the type of the column.

        Raises:
            UsageError: the type has no such value, or it is NaN, which equals nothing.
        """
        try:
            value = pa.scalar(self.value).cast(kind)
            is_one = pc.equal(value, value).as_py()
        except pa.ArrowException:
            is_one = False
        if not is_one:
            raise UsageError(
                f"`{self.column}` of ranges is {kind}, and the `value` of `retraction`, `{shown(self.value)}`, is none "
                "that it can have; write one as the column has it, or name another column"
            )
        return value


class PortFolder(TypedFiles):
    """The folder of a job's port."""

    format: PortFormat = Field(examples=["parquet"])
    url: PortUrl = Field(alias="path", examples=["unique/events"])

    @model_validator(mode="after")
    def _columns_are_scalars(self) -> PortFolder:
        _require_scalars(self.parsed_columns, ("schema",))
        return self

    @property
    def place(self) -> Place:
        """The folder."""
        return open_place(self.url)


def _require_scalars(columns: Iterable[Column], at: tuple[str, ...]) -> None:
    for column in columns:
        if not column.type.is_scalar:
            raise refusal(f"column `{column.name}` is of type {column.type.text}", "declare it as string", at=at)


def _section(value: object) -> object:
    """A path is a folder of Parquet."""
    if isinstance(value, str | Path):
        return {"format": "parquet", "path": str(value)}
    return {"format": "parquet", **value} if isinstance(value, dict) else value


def _store_url(value: object, info: ValidationInfo) -> str:
    """An absolute path of this machine, or the URL of a place elsewhere."""
    text = str(value) if isinstance(value, str | Path) else ""
    elsewhere = store_elsewhere(text)
    if elsewhere is not None:
        return elsewhere
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    if scheme is not None and scheme[1] != "file":
        raise refusal(f"`{scheme[1]}:` is no place of a stream's store", f"write {_STORES}")
    path = local_path(text)
    if not path.strip():
        raise refusal(f"`{shown(value)}` is not a place", f"write {_STORES}")
    return str(resolve(path, info))


_STORES = "a path such as `state/points`, `hdfs://HOST:PORT/PATH`, or `s3://BUCKET/PREFIX` (`gs:`, `az:`)"
Input = Annotated[PortFolder | KafkaSource, Field(discriminator="format"), BeforeValidator(_section)]
Output = Annotated[FileSink | KafkaSink, Field(discriminator="format"), BeforeValidator(_section)]


class StreamStore(Section):
    """The folder of a stream's store."""

    url: Annotated[str, BeforeValidator(_store_url)]

    @property
    def place(self) -> Place:
        """The folder."""
        return open_place(self.url)


class StreamJob(RangeSettings):
    """The settings of a range stream: inputs, aggregates, ports, store."""

    name: str = Field(default="range-stream", pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100, examples=["points"])
    events: Input = Field(examples=["in/events"])
    ranges: Input = Field(examples=["in/ranges"])
    period: Duration = Field(examples=["6h"])
    late_ranges: Literal["port", "correct"] = Field(default="port", examples=["port"])
    range_key: Key | None = Field(default=None, examples=["campaign"])
    retraction: Retraction | None = Field(default=None, examples=["{column: op, value: withdrawn}"])
    store: Annotated[StreamStore, BeforeValidator(lambda place: {"url": place})] = Field(examples=["state/points"])
    output: Output = Field(examples=["out/points"])
    corrections: Output | None = Field(default=None, examples=["out/corrections"])
    late: Output = Field(examples=["out/late"])
    errors: Output = Field(examples=["out/errors"])
    max_windows: Count = Field(default=16, ge=1, examples=["16"])
    trigger: Duration = Field(default=10_000_000, examples=["10s"])
    metrics: MetricsConfig | None = Field(default=None, examples=["{port: 9108}"])

    @model_validator(mode="after")
    def _corrections_have_a_port(self) -> StreamJob:
        if (self.late_ranges == "correct") != (self.corrections is not None):
            what = "has no effect" if self.corrections else "is missing"
            write = "write both `late_ranges: correct` and `corrections: out/corrections`, or none of them"
            raise refusal(what, write, at=("corrections",) if self.corrections else ())
        return self

    @model_validator(mode="after")
    def _inputs_are_of_scalars(self) -> StreamJob:
        for side, source in self._topic_inputs.items():
            written = "avro_schema" if source.value.format == "avro" else "schema"
            _require_scalars(source.parsed_columns, (side, "value", written))
        return self

    @model_validator(mode="after")
    def _retraction_can_match(self) -> StreamJob:
        for column in self.ranges.parsed_columns:
            if self.retraction is not None and column.name == self.retraction.column:
                try:
                    self.retraction.value_of(arrow_type(column.type))
                except UsageError as error:
                    what, _, write = str(error).rpartition("; ")
                    raise refusal(what, write, at=("retraction", "value")) from None
        return self

    @model_validator(mode="after")
    def _topics_are_read_as_they_come(self) -> StreamJob:
        for side, source in self._topic_inputs.items():
            if source.order == "time":
                what = "a range stream reads partitions as they come"
                write = "remove it and `slack`; with a longer `period` fewer events are late"
                raise refusal(what, write, at=(side, "order"), at_key=True)
        return self

    @model_validator(mode="after")
    def _ports_are_written_here(self) -> StreamJob:
        for name, topic in self.topic_ports.items():
            if "dedup_headers" in topic.model_fields_set:
                raise refusal("these ports have one header, dedup-window", "remove it", at=(name, "dedup_headers"))
            if not topic.bootstrap_servers:
                write = 'write `bootstrap_servers: "host:9092"`, as no input is a topic'
                raise refusal("the brokers are missing", write, at=(name, "bootstrap_servers"))
        return self

    @model_validator(mode="after")
    def _places_differ(self) -> StreamJob:
        folders = {side: one.url for side, one in self.folder_inputs.items()} | {"store": self.store.url}
        folders |= {name: sink.url for name, sink in self.file_ports.items()}
        for clash in clashes(folders):
            raise refusal(clash.what, clash.write, at=(clash.name,))
        topics = {name: (sink.topic, sink.bootstrap_servers) for name, sink in self.topic_ports.items()}
        for (other, one), (name, topic) in combinations(topics.items(), 2):
            if topic == one:
                raise refusal(f"is the topic of `{other}`", "write another one", at=(name,))
        for side, source in self._topic_inputs.items():
            for name, sink in self.topic_ports.items():
                if source.bootstrap_servers == sink.bootstrap_servers and source.reads(sink.topic):
                    raise refusal(f"is a topic of `{side}`", "write another one", at=(name, "topic"))
        return self

    @property
    def folder_inputs(self) -> dict[str, PortFolder]:
        """The inputs that are folders."""
        inputs = {side: getattr(self, side) for side in INPUTS}
        return {side: one for side, one in inputs.items() if isinstance(one, PortFolder)}

    @property
    def _topic_inputs(self) -> dict[str, KafkaSource]:
        inputs = {side: getattr(self, side) for side in INPUTS}
        return {side: one for side, one in inputs.items() if isinstance(one, KafkaSource)}

    def port(self, name: str) -> FileSink | KafkaSink:
        """A port that is written; a topic without brokers of its own has those of the first input that is a topic."""
        sink: FileSink | KafkaSink | None = getattr(self, name)
        assert sink is not None, f"{name} is not written"
        source = next(iter(self._topic_inputs.values()), None)
        return sink if isinstance(sink, FileSink) or source is None else sink.beside(source)

    @property
    def _ports(self) -> dict[str, FileSink | KafkaSink]:
        return {name: self.port(name) for name in PORTS if getattr(self, name) is not None}

    @property
    def file_ports(self) -> dict[str, FileSink]:
        """The ports that are folders."""
        return {name: sink for name, sink in self._ports.items() if isinstance(sink, FileSink)}

    @property
    def topic_ports(self) -> dict[str, KafkaSink]:
        """The ports that are topics."""
        return {name: sink for name, sink in self._ports.items() if isinstance(sink, KafkaSink)}

    @property
    def ports_deadline(self) -> int:
        """µs that a port waits for brokers that do not answer: those of the first input that is a topic."""
        source = next(iter(self._topic_inputs.values()), None)
        return _DEADLINE_US if source is None else source.deadline

    @property
    def summed_columns(self) -> tuple[str, ...]:
        """The columns of ranges that aggregates take, each once."""
        return tuple(dict.fromkeys(one.column for one in self.parsed.values() if one.column is not None))

    @property
    def range_columns(self) -> tuple[str, ...]:
        """The columns of ranges that count."""
        more = () if self.range_key is None else self.range_key
        return tuple(dict.fromkeys((*self.on, self.start, self.end, *self.summed_columns, *more)))

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns by which a retraction finds ranges."""
        return self.range_key or tuple(dict.fromkeys((*self.on, self.start, self.end, *self.summed_columns)))

    @property
    def subtracts(self) -> bool:
        """Whether withdrawn ranges are subtracted from the answers. If not, their levels are made again."""
        return all(one.kind in SUBTRACTED for one in self.known.values())

    @property
    def store_place(self) -> Place:
        """The folder of the store."""
        return self.store.place

    @property
    def function_ports(self) -> tuple[str, ...]:
        """The ports whose rows are handed to functions; a stream has none."""
        return ()

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings that must not change for the life of the store."""
        settings = self.model_dump(mode="json")
        for name, own in self.own.items():
            settings["aggregates"][name] += f" of {own.column} as {own.type}"
        return {"range_stream": 1, **{name: value for name, value in settings.items() if name not in _CHANGEABLE}}
