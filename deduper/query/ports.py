"""What the four ports of a query are: functions, paths, sinks, or nothing; and the calls of the functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, NamedTuple

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
from deduper.columns import backticked
from deduper.config.model import Config
from deduper.config.query import QueryConfig
from deduper.config.sections import PORTS
from deduper.core.verdict import TupleVerdict
from deduper.errors import UsageError
from deduper.sources.frames import BATCH
from deduper.tasks.dedup_column import DEDUP, dedup_ddl
from deduper.window.runner import COUNTS


@dataclass(frozen=True, slots=True)
class Window:
    """One window: a batch that was judged and committed.

    Attributes:
        number: the window's number in its store, from 0.
        batch_id: Spark's number of the batch; None for a DataFrame that is no stream.
        query_id: Spark's id of the query, which stays with its checkpoint; empty for a DataFrame that is no stream.
        replayed: whether a function may have had these rows before.
        counts: rows by port.
        txn_app_id, txn_version: the same for every repetition: a sink that takes them, such as Delta's
            (`txnAppId`, `txnVersion`), writes a window once.
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
    """Parquet files in a directory, as a job writes them; a window's files appear together, once.

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
    """Files of JSON lines in a directory, as a job writes them; a window's files appear together, once.

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
    `value` of text or bytes the value is the whole row as JSON.

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


def require_json(schema: StructType) -> None:
    """Check that JSON can hold the columns.

    Raises:
        UsageError: one cannot be written.
    """
    for column in schema:
        if _holds_interval(column.dataType):
            raise UsageError(
                f"column `{column.name}` is {column.dataType.simpleString()}, which a port of JSON cannot hold; "
                "cast it, for instance to string"
            )


def _holds_interval(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_interval(field.dataType) for field in kind)
    if isinstance(kind, MapType):
        return _holds_interval(kind.keyType) or _holds_interval(kind.valueType)
    return _holds_interval(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, DayTimeIntervalType)


class FunctionCalls:
    """Hands staged rows to functions, port by port; see `FunctionPorts`."""

    def __init__(self, rows: StagedRows, log: CommitLog, name: str, functions: Mapping[str, PortFunction]) -> None:
        self._rows = rows
        self._log = log
        self._name = name
        self._functions = functions
        self.judging: int | None = None
        """The window that is judged now: any other is handed over again."""

    def publish(self, window: int, outputs: Sequence[OutputFile]) -> None:
        """Call every function, with no rows where its port has none."""
        about = self.window(window, replayed=window != self.judging)
        for port, function in self._functions.items():
            function(self._rows.of(port, outputs), about)

    def window(self, number: int, *, replayed: bool) -> Window:
        """The newest window, by what the log says of it."""
        extra = self._log.state.extra
        query_id, batch_id = extra[BATCH]
        return Window(
            number=number,
            batch_id=batch_id,
            query_id=query_id,
            replayed=replayed,
            counts=dict(extra[COUNTS]),
            txn_app_id=f"deduper-{self._name}-{self._log.manifest.store_id}",
            txn_version=number,
        )


class StagedRows:
    """Reads the staged rows of a window, with the columns of the query's DataFrame and `_dedup`."""

    def __init__(self, session: SparkSession, config: QueryConfig, schema: StructType) -> None:
        self.session = session
        # Parquet has no column without a type.
        self._untyped = [column.name for column in schema if isinstance(column.dataType, NullType)]
        typed = [StructField(one.name, one.dataType) for one in schema if one.name not in self._untyped]
        self._order = [one.name for one in schema]
        self._schemas = {}
        for port in PORTS:
            dedup = session.createDataFrame([], dedup_column(config, port)).schema
            self._schemas[port] = StructType([*typed, dedup[DEDUP]])

    def of(self, port: str, outputs: Sequence[OutputFile]) -> DataFrame:
        """The rows of a port, read when an action asks for them."""
        paths = [_uri(output.staged) for output in outputs if output.port == port]
        schema = self._schemas[port]
        if not paths:
            return self._complete(self.session.createDataFrame([], schema))
        # Of the session's own settings none may drop or shift a value.
        options = {
            "datetimeRebaseMode": "CORRECTED",
            "int96RebaseMode": "CORRECTED",
            "ignoreCorruptFiles": "false",
            "ignoreMissingFiles": "false",
            "mergeSchema": "false",
            "recursiveFileLookup": "true",  # or names such as `day=1` above the files would become columns
        }
        return self._complete(self.session.read.schema(schema).options(**options).parquet(*paths))

    def _complete(self, rows: DataFrame) -> DataFrame:
        for name in self._untyped:
            rows = rows.withColumn(name, F.lit(None))
        return rows.select(*map(backticked, (*self._order, DEDUP))) if self._untyped else rows


def dedup_column(config: Config, port: str) -> str:
    """The column `_dedup` of a port's rows, as Spark DDL."""
    scale, first_seen = config.expiry_key_scale, config.store.first_seen
    is_error = port == TupleVerdict.ERROR.port
    may_conflict = is_error or port == TupleVerdict.DUPLICATE.port
    is_versions = config.keeps_versions and port == TupleVerdict.UNIQUE.port
    has_fingerprints = is_versions or (config.has_fingerprint and may_conflict)
    return f"{DEDUP} {dedup_ddl(scale, first_seen=first_seen, detail=is_error, fingerprints=has_fingerprints)}"


def _uri(staged: str) -> str:
    """A staged file's name for Spark, whose own file system may be another than this machine's."""
    return f"file://{staged}" if staged.startswith("/") else staged
