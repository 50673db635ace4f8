"""The source and the ports of a user's own query: values of a program, not sections of a file.

A job's file names files or topics. A `Deduper` gets DataFrames, and hands rows to functions too, so its configuration
has two kinds of its own; all other settings are those of a job, with the same checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from deduper.columns import Column, ColumnType, DdlError, ddl_of, parse_columns
from deduper.config.files import FileSink
from deduper.config.kafka.sections import KafkaSink
from deduper.config.messages import findings
from deduper.config.model import Config
from deduper.config.problems import ConfigError, ConfigMistake, ConfigPlace, Problem, is_secret
from deduper.config.sections import PORTS, FunctionSink, NoneSink, SinksConfig
from deduper.config.values import Section

WHERE = "Deduper"
QUERIES = "queries"
"""In a commit record's `extra`: the last batch of each query, the newest query last.

Each is (query id, batch id, when Spark planned the batch, in ms since the epoch, or None if that is not known).
"""
BATCH = "batch"
"""In the same: the query id and the batch id of this window; None for rows that are no batch."""
COUNTS = "counts"
"""In the same: rows by port, for functions that get a window after its record was folded."""
TXN_VERSION = "txn_version"
"""In the same: greater than that of every earlier window, also of one that a rewind or a restored copy has undone.

It is the wall clock at the commit, in µs, or one more than the last: numbers of windows come again after both.
"""


class QuerySource(Section):
    """The DataFrames of a query: their columns, as Spark's schema has them."""

    format: Literal["query"] = "query"
    parsed_columns: tuple[Column, ...]
    row_place: tuple[str, ...] = ()
    """The columns that name a row's place: those of its source, and last its number there; none: Spark's."""
    zone: str = "UTC"
    """The time zone of the session."""
    arrow: tuple[Any, ...]  # pyarrow.DataType of each: what a file's reader finds out from the declared type

    @property
    def columns(self) -> str:
        """The columns as Spark DDL."""
        return ddl_of(self.parsed_columns)

    def column(self, name: str) -> Column | None:
        """The column of exactly this name."""
        return next((column for column in self.parsed_columns if column.name == name), None)

    @property
    def place(self) -> str:
        """The source of the records, for messages."""
        return "the query"

    @property
    def reading(self) -> dict[str, Any]:
        """Beside the rows nothing decides the tuples: a query may get columns that judging does not look at."""
        return {}


QuerySink = Annotated[FileSink | KafkaSink | NoneSink | FunctionSink, Field(discriminator="format")]


class QuerySinks(SinksConfig):
    """The output of each verdict, functions among them."""

    # A wider type than that of a file, which no reader of `SinksConfig` relies on.
    unique: QuerySink  # type: ignore[assignment]
    duplicate: QuerySink  # type: ignore[assignment]
    expired: QuerySink  # type: ignore[assignment]
    error: QuerySink  # type: ignore[assignment]


class QueryConfig(Config):
    """The configuration of a `Deduper`, once the columns of its DataFrames are known."""

    source: QuerySource  # type: ignore[assignment]  # see `QuerySinks`
    sinks: QuerySinks

    @property
    def time_zone(self) -> str:
        """That of the session."""
        return self.source.zone


_NOWHERE = {port: {"format": "none"} for port in PORTS}


def require_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of a `Deduper` before its columns are known.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    _, found = findings({"sinks": _NOWHERE, **settings}, base_dir=Path.cwd(), model=QueryConfig)
    _require_none([finding for finding in found if finding.path != ("source",)])


def query_config(
    settings: Mapping[str, Any], source: QuerySource, sinks: Mapping[str, Any], folder: Path | None = None
) -> QueryConfig:
    """The configuration of a `Deduper` for DataFrames of these columns. Relative paths are below `folder`, or the cwd.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    config, found = findings(
        {**settings, "source": source, "sinks": sinks}, base_dir=folder or Path.cwd(), model=QueryConfig
    )
    found += _keys_are_exact(config)
    _require_none(found)
    assert isinstance(config, QueryConfig)
    return config


FILE_NAME = "query.json"
"""In the store: the settings of the Deduper that owned it last, for the commands that look at stores."""


def described(config: QueryConfig) -> bytes:
    """A configuration as JSON, without secrets."""
    values = config.model_dump(mode="json", by_alias=True, exclude={"source"})
    for sink in values["sinks"].values():
        options = sink.get("options", {})
        sink.pop("options", None)
        kept = {name: value for name, value in options.items() if not is_secret(name)}
        sink |= {"options": kept} if kept else {}
    columns = [[column.name, column.type.text] for column in config.source.parsed_columns]
    described = {"settings": values, "columns": columns, "place": config.source.row_place}
    return json.dumps(described, indent=1, sort_keys=True).encode()


def query_of(description: bytes, url: str) -> QueryConfig | None:
    """The configuration that `described` wrote, with the store where it is now; None of anything else."""
    try:
        found = json.loads(description)
        settings, columns = dict(found["settings"]), tuple(column_of(name, text) for name, text in found["columns"])
        sinks = settings.pop("sinks")
        settings["store"] = {**settings["store"], "url": url}
        source = QuerySource(parsed_columns=columns, arrow=(), row_place=tuple(found.get("place", ())))
        return query_config(settings, source, sinks)
    except (ValueError, KeyError, TypeError, ConfigError):
        return None


def column_of(name: str, text: str) -> Column:
    """A column by Spark's name for its type; one that no job can declare cannot be a key, and is not looked at."""
    try:
        (column,) = parse_columns(f"x {text}")
    except DdlError:
        return Column(name, ColumnType("struct", text))
    return Column(name, column.type)


def _keys_are_exact(config: Config | None) -> list[ConfigMistake]:
    """A float that was computed twice differs in its last bits: such a key finds no copy."""
    if config is None:
        return []
    return [
        ConfigMistake(
            ("key", str(config.key.index(column.name))),
            f"column `{column.name}` is {column.type.text}: two computations of one number differ in their last bits",
            f"cast it: `.withColumn({column.name!r}, F.col({column.name!r}).cast('decimal(18,6)'))`",
        )
        for column in config.key_columns
        if column.type.name in ("float", "double")
    ]


def _require_none(found: list[ConfigMistake]) -> None:
    if found:
        raise ConfigError(
            Problem(ConfigPlace(WHERE), ".".join(finding.path), finding.what, finding.write) for finding in found
        )
