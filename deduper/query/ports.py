"""What the four ports of a query are: functions, paths, sinks, or nothing; and the calls of the functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StructField,
    StructType,
)

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.records import OutputFile
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.columns import backticked, ddl_of
from deduper.config.query import BATCH, COUNTS, TXN_VERSION, QueryConfig
from deduper.config.sections import PORTS
from deduper.dedup_column import DEDUP
from deduper.errors import IntegrityError, UsageError
from deduper.spark.types import arrow_of
from deduper.spark_promises import TIME_ZONE
from deduper.tasks.row_files import errors_of, parquet_file
from deduper.time_zones import time_zone


@dataclass(frozen=True, slots=True)
class Window:
    """One window: a batch that was judged and committed.

    Attributes:
        number: the window's number in its store, from 0.
        batch_id: Spark's number of the batch; None for a DataFrame that is no stream.
        query_id: Spark's id of the query, which stays with its checkpoint; empty for a DataFrame that is no stream.
        replayed: whether a function may have had these rows before.
        counts: rows by port.
        txn_app_id, txn_version: the same for every repetition; the id is of the port, the version greater than that of
            any window before, also of one that was undone. A sink that takes them, such as Delta's (`txnAppId`,
            `txnVersion`), writes the rows of a port once. The window of `split` is that of all ports: where two of them
            go into one table, append the port's name to the id of each.
    """

    number: int
    batch_id: int | None
    query_id: str
    replayed: bool
    counts: Mapping[str, int]
    txn_app_id: str
    txn_version: int


class Ports(NamedTuple):
    """The rows of a window by port, lazy, and the window."""

    unique: DataFrame
    duplicate: DataFrame
    expired: DataFrame
    error: DataFrame
    window: Window


PortFunction = Callable[[DataFrame, Window], object]


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Parquet files in a directory, as a job writes them.

    Each file appears whole, once; those of a window appear one after another. `PublishedWindows` reads whole windows.

    Args:
        path: a path, or `hdfs://HOST:PORT/PATH`.

    >>> ParquetSink("out/unique").section()
    {'format': 'parquet', 'path': 'out/unique'}
    """

    path: str | PathLike[str]

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        return {"format": "parquet", "path": fspath(self.path)}


@dataclass(frozen=True, slots=True)
class JsonSink:
    """Files of JSON lines in a directory, as a job writes them.

    Each file appears whole, once; those of a window appear one after another.

    >>> JsonSink("out/error").section()
    {'format': 'json', 'path': 'out/error'}
    """

    path: str | PathLike[str]

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        return {"format": "json", "path": fspath(self.path)}


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A Kafka topic, each row once, by transactions.

    A row is sent as Spark's own sink would: its columns `key`, `value`, `headers` and `timestamp`. Without a column
    `value` of text or bytes the value is the whole row, as `JsonSink` writes it without `_dedup`.

    Args:
        topic: it must exist.
        servers: `host:port`, or several with commas between.
        options: of Kafka's clients, as in a job's file: `{"kafka.compression.type": "zstd"}`.
        preserve_order: keep the order of each partition of the DataFrame.

    >>> TopicSink("unique", "localhost:9092").section()
    {'format': 'kafka', 'topic': 'unique', 'bootstrap_servers': 'localhost:9092'}
    """

    topic: str
    servers: str
    options: Mapping[str, str] = field(default_factory=dict)
    preserve_order: bool = False

    def section(self) -> dict[str, Any]:
        """The section of a job's file."""
        section: dict[str, Any] = {"format": "kafka", "topic": self.topic, "bootstrap_servers": self.servers}
        if self.options:
            section["options"] = dict(self.options)
        return section | ({"preserve_order": True} if self.preserve_order else {})


Port = PortFunction | str | PathLike[str] | ParquetSink | JsonSink | TopicSink | None


def sections(ports: Mapping[str, Port]) -> dict[str, dict[str, Any]]:
    """The ports as sections of a configuration.

    Raises:
        UsageError: a value is nothing that a port can be.
    """
    return {name: _section(name, port) for name, port in ports.items()}


def _section(name: str, port: Port) -> dict[str, Any]:
    if port is None:
        return {"format": "none"}
    if isinstance(port, ParquetSink | JsonSink | TopicSink):
        return port.section()
    if isinstance(port, str | PathLike):
        return ParquetSink(port).section()
    if callable(port):
        return {"format": "function"}
    raise UsageError(
        f"{name}: {type(port).__name__} is no port; give a function of (rows, window), a path, ParquetSink, JsonSink, "
        "TopicSink, or None to count its rows and drop them"
    )


def require_json(schema: StructType, zone: str) -> None:
    """Check that JSON can hold the columns, with times in the session's zone.

    Raises:
        UsageError: one cannot be written.
    """
    if time_zone(zone) is None:
        raise UsageError(
            f"{TIME_ZONE}: `{zone}` is no zone in which JSON has times; set a name such as "
            "Europe/Paris, or an offset such as +02:00, in the session"
        )
    for column in schema:
        if _holds(column.dataType, DayTimeIntervalType):
            raise UsageError(
                f"column `{column.name}` is {column.dataType.simpleString()}, which JSON cannot hold; "
                "cast it, for instance to string"
            )


def require_typed(schema: StructType) -> None:
    """Check that Spark can read the columns back from Parquet files. It may lack a whole column, see `StagedRows`.

    Raises:
        UsageError: a part of a column has no type.
    """
    for column in schema:
        if not isinstance(column.dataType, NullType) and _holds(column.dataType, NullType):
            raise UsageError(
                f"column `{column.name}` is {column.dataType.simpleString()}: Spark reads no part without a type from "
                "Parquet; cast it, for instance to array<string>"
            )


def _holds(kind: DataType, wanted: type[DataType]) -> bool:
    if isinstance(kind, StructType):
        return any(_holds(field.dataType, wanted) for field in kind)
    if isinstance(kind, MapType):
        return _holds(kind.keyType, wanted) or _holds(kind.valueType, wanted)
    return _holds(kind.elementType, wanted) if isinstance(kind, ArrayType) else isinstance(kind, wanted)


class FunctionCalls:
    """Hands staged rows to functions, port by port; see `FunctionPorts`.

    `functions` None: `split` hands the rows over, so that no window is called for here.
    """

    def __init__(self, rows: StagedRows, log: CommitLog, functions: Mapping[str, PortFunction] | None) -> None:
        self._rows = rows
        self._log = log
        self._functions = functions
        self.judging: int | None = None
        """The window that is judged now: any other is handed over again."""
        self.are_used = False
        """The user says so of the windows that are published now: no function gets them."""
        self._called: int | None = None

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Call every function, with no rows where its port has none.

        Raises:
            UsageError, IntegrityError: there is no function for rows of a port, or they cannot be read; see `replayed`.
        """
        if self._functions is None or self.are_used:
            return
        for output in outputs:
            if output.port not in self._functions:
                raise UsageError(
                    f"window {window} was committed for port {output.port} to go to a function, and may not be there "
                    f"yet; {output.port} is no function now: put it back, start once, then change it; {_OR_FINISH}"
                )
        is_replayed = window != self.judging or window == self._called
        if is_replayed:
            self._rows.require(window, outputs)
        self._called = window
        about = self.window(window, self._log.state.extra, is_replayed=is_replayed)
        for port, function in self._functions.items():
            function(self._rows.of(port, outputs), replace(about, txn_app_id=f"{about.txn_app_id}-{port}"))

    def window(self, number: int, extra: Mapping[str, Any], *, is_replayed: bool) -> Window:
        """A window of all ports, by the `extra` of its commit."""
        query_id, batch_id = extra[BATCH]
        app_id = f"deduper-{self._log.manifest.store_id}"
        return Window(number, batch_id, query_id, is_replayed, dict(extra[COUNTS]), app_id, extra[TXN_VERSION])


class StagedRows:
    """Reads the staged rows of a window, with the columns of the query's DataFrame and `_dedup`."""

    def __init__(self, session: SparkSession, config: QueryConfig, schema: StructType) -> None:
        self.session = session
        # Parquet has no column without a type.
        self._untyped = [column.name for column in schema if isinstance(column.dataType, NullType)]
        typed = [StructField(one.name, one.dataType) for one in schema if one.name not in self._untyped]
        self._types = {one.name: arrow_of(one.dataType) for one in typed}
        self._order = [one.name for one in schema]
        self._schemas = {}
        for port in PORTS:
            dedup = session.createDataFrame([], ddl_of([config.dedup_column.of(port)])).schema
            self._schemas[port] = StructType([*typed, dedup[DEDUP]])

    def of(self, port: str, outputs: Sequence[OutputFile]) -> DataFrame:
        """The rows of a port, read when an action asks for them."""
        paths = [_uri(output.staged) for output in outputs if output.port == port]
        schema = self._schemas[port]
        if not paths:
            return self._complete(self.session.createDataFrame([], schema))
        return self._complete(self.session.read.schema(schema).options(**_OPTIONS).parquet(*paths))

    def require(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Check that rows which were staged earlier are there, with the columns of the DataFrames of today.

        Raises:
            IntegrityError: a file is gone.
            UsageError: the columns are others.
        """
        for output in outputs:
            rows = f"{output.rows:,} rows of port {output.port} are committed in window {window}"
            file = open_place(output.staged)
            if not file.exists():
                raise IntegrityError(
                    f"{output.staged}: {rows} and perhaps not used, and their file is gone: bring it back; {_OR_FINISH}"
                )
            now, staged = self._types, _types_of(file)
            differing = [
                f"{name} ({staged.get(name, 'absent')} then, {now.get(name, 'absent')} now)"
                for name in sorted({*now, *staged})
                if now.get(name) != staged.get(name)
            ]
            if differing:
                raise UsageError(
                    f"{output.staged}: {rows} and perhaps not used, and have other columns than the DataFrame now: "
                    f"{', '.join(differing)}; put them back, start once, then change them; {_OR_FINISH}"
                )

    def _complete(self, rows: DataFrame) -> DataFrame:
        for name in self._untyped:
            rows = rows.withColumn(name, F.lit(None))
        return rows.select(*map(backticked, (*self._order, DEDUP))) if self._untyped else rows


def _types_of(staged: Place) -> dict[str, pa.DataType]:
    """The types of a file's columns but `_dedup`, by its own words: Spark's depend on the session's settings."""
    with errors_of(staged), parquet_file(staged) as file:
        columns = file.schema_arrow
    return {one.name: one.type for one in columns if one.name != DEDUP and not pa.types.is_null(one.type)}


# Of the session's own settings none may drop or shift a value.
_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "true",  # or names such as `day=1` above the files would become columns
    "__globPaths__": "false",  # or a bracket in a folder's name would be a pattern
}
_OR_FINISH = "or call `finish()` before the query starts, if these rows were used or are not needed"


def _uri(staged: str) -> str:
    """A staged file's name for Spark, whose own file system may be another than this machine's."""
    return f"file://{staged}" if staged.startswith("/") else staged
