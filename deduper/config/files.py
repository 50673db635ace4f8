"""Files as a source, as a port, and as what a command reads once: the sections, as frozen values; see `config`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.columns import Column, parse_columns
from deduper.config.apart import before_wildcards
from deduper.config.values import (
    Count,
    Delimiter,
    LocalPath,
    NamePattern,
    PortUrl,
    Schema,
    Section,
    local_path,
    refusal,
    require_fields,
    resolve,
    shown,
    unknown_groups,
)
from deduper.file_formats import PortFormat, SourceFormat


class FilesSource(Section):
    """Files that appear in a directory."""

    format: Literal["files"]
    path: str = Field(description="Directory or glob to read; relative to the config file's folder", examples=["in/"])
    file_format: SourceFormat = Field(
        description="Format of the files: JSON lines, CSV, Parquet, or lines of logs: of web servers, or logfmt",
        examples=["json"],
    )
    columns: Schema = Field(
        alias="schema",
        description="Columns as Spark DDL",
        examples=['"user string, id long, ts timestamp"'],
    )
    name_pattern: NamePattern | None = Field(
        default=None,
        description="Regular expression (Python's) for the whole name of a file; its named groups are columns of "
        "`schema`. The records of a file with another name are errors",
        examples=[r"'access-(?P<day>\d{4}-\d{2}-\d{2})\.log.*'"],
    )
    max_files_per_batch: Count = Field(default=1000, ge=1, description="Maximum number of files in a window")
    header: bool = Field(
        default=False,
        description="The first line of every CSV file has the names of `schema`, in its order; a file with another one "
        "leaves as `file_header` (csv only)",
    )
    delimiter: Delimiter = Field(default=",", description="One character between the fields of a CSV line (csv only)")

    @field_validator("path", mode="before")
    @classmethod
    def _absolute_path(cls, value: object, info: ValidationInfo) -> str:
        if not isinstance(value, str) or not value.strip():
            raise refusal(f"`{shown(value)}` is not a path", "write a directory or glob such as `in/` or `in/*.json`")
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", value)
        if scheme is not None and scheme[1].lower() != "file":
            what = f"files in `{scheme[1]}:` cannot be a source"
            raise refusal(what, "mount the folder, copy the files, or read a topic")
        return str(resolve(local_path(value), info))

    @property
    def is_text(self) -> bool:
        """Whether a record is a line of text, which is kept for the error port."""
        return self.file_format != "parquet"

    @property
    def folder(self) -> Path:
        """The part of `path` before the first wildcard: every file of the source is below it."""
        return before_wildcards(self.path)

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """The columns of the schema, in order."""
        return parse_columns(self.columns)

    def column(self, name: str) -> Column | None:
        """The column of exactly this name."""
        return next((column for column in self.parsed_columns if column.name == name), None)

    @property
    def place(self) -> str:
        """The source of the records, for messages."""
        return self.path

    @property
    def reading(self) -> dict[str, Any]:
        """The settings that, beside the bytes, decide the tuples."""
        form = [self.file_format, self.header, self.delimiter, self.name_pattern]
        return {"schema": self.columns, "format": form}


class FileSink(Section):
    """A port whose rows are written as files into a directory."""

    format: PortFormat
    url: PortUrl = Field(
        alias="path",
        description="Directory the port's files appear in: a path, or `hdfs://HOST:PORT/PATH`",
        examples=["out/unique"],
    )

    @property
    def place(self) -> Place:
        """The directory; its files are for others to read."""
        return open_place(self.url, is_public=True)

    @property
    def ending(self) -> str:
        """What its files end in, without the point; see `file_formats.ENDINGS`."""
        return self.format

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return self.url.startswith("/")

    @property
    def path(self) -> Path:
        """The directory on this machine. Raises ValueError when it is elsewhere: see `is_local`."""
        return self.place.local


class TypedFiles(Section):
    """Files of rows. Text has a schema, Parquet has types of its own."""

    format: SourceFormat = Field(examples=["parquet"])
    columns: Schema | None = Field(default=None, alias="schema", examples=['"id string, at timestamp"'])

    @model_validator(mode="after")
    def _text_has_a_schema(self) -> Self:
        if self.format == "parquet" and self.columns is not None:
            raise refusal("has no effect: Parquet has types of its own", "remove it", at=("schema",), at_key=True)
        if self.format != "parquet" and self.columns is None:
            write = 'write the columns as Spark DDL, as "id string, at timestamp"'
            raise refusal(f"files of {self.format} have no types of their own", write, at=("schema",))
        return self

    @property
    def parsed_columns(self) -> tuple[Column, ...]:
        """The declared columns; none for Parquet."""
        return () if self.columns is None else parse_columns(self.columns)


class InputFiles(TypedFiles):
    """Files that a command reads once, whole."""

    path: LocalPath = Field(examples=["in/*.parquet"])
    header: bool = Field(default=True, examples=["true"])
    name_pattern: NamePattern | None = Field(default=None, examples=[r"'(?P<day>\d{4}-\d{2}-\d{2})\.csv'"])

    @model_validator(mode="after")
    def _lines_and_names_give_the_columns(self) -> Self:
        if self.name_pattern is not None and self.columns is None:
            what = "Parquet files have types of their own, and a text in a name has none"
            raise refusal(what, "remove it, or write the column into the files", at=("name_pattern",), at_key=True)
        for what, write in unknown_groups(self.name_pattern or "", self.parsed_columns):
            raise refusal(what, write, at=("name_pattern",))
        require_fields(self.format, self.columns, self.name_pattern)
        return self
