"""The settings of `deduper range-aggregate`: a file of its own kind, read with the places of all mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from deduper.config.apart import before_wildcards, clashes
from deduper.config.files import InputFiles
from deduper.config.problems import suggestion
from deduper.config.values import LocalPath, Section, refusal
from deduper.ranges.settings import RangeSettings


class OutputFiles(Section):
    """A folder that does not exist yet."""

    path: LocalPath = Field(examples=["out/points"])
    format: Literal["parquet", "json"] = Field(examples=["parquet"])


class RangeJob(RangeSettings):
    """What is read, asked and written."""

    events: InputFiles = Field(examples=["{path: in/events, format: parquet}"])
    ranges: InputFiles = Field(examples=["{path: in/ranges, format: parquet}"])
    per: Literal["event", "range"] = Field(default="event", examples=["event"])
    output: OutputFiles = Field(examples=["{path: out/points, format: parquet}"])
    errors: OutputFiles | None = Field(default=None, examples=["{path: out/errors, format: json}"])

    @model_validator(mode="after")
    def _columns_are_there(self) -> RangeJob:
        for side, files in self.sides:
            names = [column.name for column in files.parsed_columns]
            for setting, column in self.columns_of(side):
                if names and column not in names:
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
            for name, one in self.parsed.items():
                if one.column is not None:
                    yield ("aggregates", name), one.column

    @model_validator(mode="after")
    def _outputs_are_apart(self) -> RangeJob:
        places = {side: before_wildcards(files.path) for side, files in self.sides} | {"output": self.output.path}
        for clash in clashes(places | {"errors": None if self.errors is None else self.errors.path}):
            if clash.name in ("output", "errors"):  # both inputs may be one folder
                raise refusal(clash.what, clash.write, at=(clash.name, "path"))
        return self
