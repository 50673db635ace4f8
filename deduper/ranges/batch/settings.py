"""The settings of `deduper range-aggregate`: a file of its own kind, read with the places of all mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from deduper.columns import parse_columns
from deduper.config.apart import before_wildcards, clashes
from deduper.config.own_file import OwnFile
from deduper.config.problems import suggestion
from deduper.config.sections import Key
from deduper.config.values import Duration, LocalPath, Schema, Section, refusal
from deduper.errors import UsageError
from deduper.ranges.aggregate.aggregates import parse_aggregate


class InputFiles(Section):
    """Files that are read once, whole."""

    path: LocalPath = Field(examples=["in/events"])
    format: Literal["parquet", "csv", "json"] = Field(examples=["parquet"])
    columns: Schema | None = Field(default=None, alias="schema", examples=['"id BIGINT, at TIMESTAMP"'])
    header: bool = Field(default=True, examples=["true"])

    @model_validator(mode="after")
    def _text_has_a_schema(self) -> InputFiles:
        if self.format == "parquet" and self.columns is not None:
            raise refusal("has no effect: Parquet has types of its own", "remove it", at=("schema",), at_key=True)
        if self.format != "parquet" and self.columns is None:
            write = 'write the columns as Spark DDL, as "id BIGINT, at TIMESTAMP"'
            raise refusal(f"files of {self.format} have no types of their own", write, at=("schema",))
        return self


class OutputFiles(Section):
    """A folder that does not exist yet."""

    path: LocalPath = Field(examples=["out/points"])
    format: Literal["parquet", "json"] = Field(examples=["parquet"])


def _readable(text: str) -> str:
    try:
        parse_aggregate(text)
    except UsageError as error:
        what, _, write = str(error).partition("; ")
        raise refusal(what, write) from None
    return text


class RangeJob(OwnFile):
    """What is read, asked and written."""

    page = "docs/range-aggregates.md"
    mark = "aggregates"

    events: InputFiles = Field(examples=["{path: in/events, format: parquet}"])
    ranges: InputFiles = Field(examples=["{path: in/ranges, format: parquet}"])
    on: Key = Field(examples=["id"])
    time: str = Field(examples=["at"])
    start: str = Field(examples=["start"])
    end: str = Field(examples=["end"])
    ends: Literal["[]", "[)", "(]", "()"] = Field(default="[]", examples=['"[]"'])
    per: Literal["event", "range"] = Field(default="event", examples=["event"])
    aggregates: dict[str, Annotated[str, AfterValidator(_readable)]] = Field(
        min_length=1, examples=['{points: "sum(points)"}']
    )
    longest: Duration | None = Field(default=None, examples=["30d"])
    output: OutputFiles = Field(examples=["{path: out/points, format: parquet}"])
    errors: OutputFiles | None = Field(default=None, examples=["{path: out/errors, format: json}"])

    @model_validator(mode="after")
    def _columns_are_there(self) -> RangeJob:
        for side, files in self.sides:
            names = None if files.columns is None else [column.name for column in parse_columns(files.columns)]
            for setting, column in self.columns_of(side):
                if names is not None and column not in names:
                    write = suggestion(column, names, "its columns are")
                    raise refusal(f"the schema of {side} has no column `{column}`", write, at=setting)
        return self

    @property
    def sides(self) -> tuple[tuple[Literal["events", "ranges"], InputFiles], ...]:
        """Both inputs."""
        return ("events", self.events), ("ranges", self.ranges)

    def columns_of(self, side: Literal["events", "ranges"]) -> Iterator[tuple[tuple[str, ...], str]]:
        """The settings that name a column of a side, with the column."""
        yield from ((("on",), column) for column in self.on)
        points = ("time",) if side == "events" else ("start", "end")
        yield from (((setting,), getattr(self, setting)) for setting in points)
        if side == ("ranges" if self.per == "event" else "events"):
            for name, text in self.aggregates.items():
                column = parse_aggregate(text).column
                if column is not None:
                    yield ("aggregates", name), column

    @model_validator(mode="after")
    def _outputs_are_apart(self) -> RangeJob:
        places = {side: before_wildcards(files.path) for side, files in self.sides} | {"output": self.output.path}
        for clash in clashes(places | {"errors": None if self.errors is None else self.errors.path}):
            if clash.name in ("output", "errors"):  # both inputs may be one folder
                raise refusal(clash.what, clash.write, at=(clash.name, "path"))
        return self
