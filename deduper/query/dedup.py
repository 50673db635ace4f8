"""`Deduper`: verdicts for the batches of a user's own query, exactly once.

Exactly once does not rest on Spark's checkpoint. The commit record of a window names the query and the batch, and a
port is finished when the window has its mark; so a batch that Spark repeats is judged once, and what is not finished is
handed over again, with the same rows. See `query.batches`.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pyspark.sql import DataFrame, SparkSession

from deduper.config.load import load_config
from deduper.config.query import QueryConfig, QuerySource, query_config, require_settings
from deduper.config.sections import PORTS
from deduper.errors import UsageError
from deduper.query.calls import CallOrder, identity
from deduper.query.ports import (
    Port,
    PortFunction,
    Ports,
    Window,
    require_json,
    require_typed,
    sections,
)
from deduper.query.rules import Expiry
from deduper.query.store import MASTER, QueryStore
from deduper.sinks.publish_state import OnUnknown
from deduper.sinks.staging import staging_home
from deduper.sources.frames import FrameColumns, sends_whole_rows
from deduper.spark_promises import DEFAULT_MASTER, TIME_ZONE

logger = logging.getLogger(__name__)


class Deduper:
    """Decides for every row of a query's batches whether it is unique, duplicate, expired or an error.

    The settings are those of a job's file, by the same names and with the same checks; SEMANTICS.md says what they
    mean. The store is opened by the first batch, and one process owns it until `close`. Safe for several threads; calls
    wait for one another.

    Args:
        store: the URL of the store: `rocksdb:PATH`, `file:PATH`, `hdfs://HOST:PORT/PATH`, `s3://BUCKET/PREFIX`. A new
            one is created. A relative path, of a port too, is below the folder in which the Deduper is made.
        key: the columns of the dedup key, scalar ones; not float or double.
        expiry: when a key is forgotten: `EventTime`, `ProcessingTime`, `Ordered`, `Category` or `Never`.
        name: for messages, metrics and transactions; by default the last part of the URL.
        null_keys: a row with a null in its key is an `error`, or has an ordinary key (`allow`).
        digest: `fast`, or `secure` for input from attackers.
        fingerprint: the payload, which a copy has in common with its first copy and a conflict has not: `all`,
            `{"columns": […]}` or `{"except": […]}`.
        on_conflict: the port of a conflict: `duplicate`, `error`, or `unique`, where it is a version of its key.
        max_versions: with `unique`, so many payloads of a key are unique at a time; one more is an error.
        shards: slices of the key space, judged side by side.
        memory: the most bytes of tables in memory, over all processes: `2GiB`.
        metrics_port: serve the metrics of a job on this port of 127.0.0.1, for Prometheus, while the store is open.
        place: the columns that say where a row comes from, the last of them its number there, an integer: `["topic",
            "partition", "offset"]`. Outputs and commands name rows by them; no verdict depends on them. By default
            `_dedup_source` and `_dedup_position` if the DataFrame has both, else the batch and the row's number in it.
        on_new_checkpoint: `warn`, or `refuse`, when a query that is new to a store of another one comes.
        take_over: claim the store even if another owner seems to be alive; that one can commit nothing more.
        unpublished: for a window of which the Kafka cluster has forgotten whether its rows were sent: `refuse`,
            `publish` (send them again) or `skip` (take them as sent).
        settings: any other setting of `store` (`tables`, `first_seen`), and `shared_folders`.

    Raises:
        ConfigError: a setting is wrong; the message says what to write.
        UsageError: the session is one of Spark Connect.

    Example:
        >>> dedup = Deduper("rocksdb:state/clicks", key=["user", "id"], expiry=EventTime("ts", period="24 hours"))
        >>> write = dedup.into(unique="out/unique", duplicate="out/duplicate", expired=None, error="out/error")
        >>> query = clicks.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint").start()
        >>> query.processAllAvailable()
        >>> query.stop()
        >>> spark.read.parquet("out/unique").count()
        3
    """

    def __init__(
        self,
        store: str,
        *,
        key: str | Sequence[str],
        expiry: Expiry,
        name: str | None = None,
        null_keys: Literal["error", "allow"] = "error",
        digest: Literal["fast", "secure"] = "fast",
        fingerprint: Literal["none", "all"] | Mapping[str, Sequence[str]] = "none",
        on_conflict: Literal["duplicate", "error", "unique"] = "duplicate",
        max_versions: int = 8,
        shards: int | None = None,
        memory: str | int | None = None,
        metrics_port: int | None = None,
        place: Sequence[str] | None = None,
        on_new_checkpoint: Literal["warn", "refuse"] = "warn",
        take_over: bool = False,
        unpublished: Literal["refuse", "publish", "skip"] = "refuse",
        **settings: Any,
    ) -> None:
        of_store = {"url": store, "shards": shards, "memory": memory}
        of_store |= {one: settings.pop(one) for one in _OF_STORE if one in settings}
        section = getattr(expiry, "section", None)
        if section is None:
            raise UsageError(
                f"expiry: {expiry!r} is no rule; write EventTime, ProcessingTime, Ordered, Category or Never"
            )
        self._start(
            {
                "name": _name_of(store) if name is None else name,
                "key": key if isinstance(key, str) else list(key),
                "expiry": section(),
                "null_keys": null_keys,
                "digest": digest,
                "fingerprint": fingerprint if isinstance(fingerprint, str) else dict(fingerprint),
                "on_conflict": on_conflict,
                "max_versions": max_versions,
                "store": {one: value for one, value in of_store.items() if value is not None},
                **({} if metrics_port is None else {"metrics": {"port": metrics_port}}),
                **settings,
            },
            place=place,
            on_new_checkpoint=on_new_checkpoint,
            take_over=take_over,
            unpublished=unpublished,
        )

    @classmethod
    def from_config(
        cls,
        path: str | Path,
        *,
        place: Sequence[str] | None = None,
        on_new_checkpoint: Literal["warn", "refuse"] = "warn",
        take_over: bool = False,
        unpublished: Literal["refuse", "publish", "skip"] = "refuse",
        overrides: Collection[str] = (),
    ) -> Self:
        """A Deduper with the key, expiry and store of a job's file; its source and sinks are not looked at further.

        A store that has windows of the job is refused: give another one in `overrides`.

        Raises:
            ConfigError: the file is wrong, with line and column.

        Example:
            >>> Deduper.from_config("deduper.yaml", overrides=["store.url=rocksdb:state/own", "name=own"]).name
            'own'
        """
        config = load_config(path, overrides=overrides)
        made = cls.__new__(cls)
        values = config.model_dump(mode="json", by_alias=True)
        made._start(
            {name: values[name] for name in _FROM_CONFIG},
            place=place,
            on_new_checkpoint=on_new_checkpoint,
            take_over=take_over,
            unpublished=unpublished,
        )
        return made

    def _start(
        self,
        settings: dict[str, Any],
        *,
        place: Sequence[str] | None,
        on_new_checkpoint: str,
        take_over: bool,
        unpublished: str,
    ) -> None:
        if place is not None and (isinstance(place, str) or len(place) < 2):
            raise UsageError(
                f"place: {place!r}: write a list of columns of the source, and last the row's number there"
            )
        self._place = None if place is None else tuple(place)
        if on_new_checkpoint not in ("warn", "refuse"):
            raise UsageError(f"on_new_checkpoint: `{on_new_checkpoint}` is not known; write `warn` or `refuse`")
        if unpublished not in (answers := [one.value for one in OnUnknown]):
            raise UsageError(f"unpublished: `{unpublished}` is not known; write one of {', '.join(answers)}")
        _refuse_connect()
        require_settings(settings)
        self._folder = Path.cwd()
        self._settings = settings
        self._refuses_new = on_new_checkpoint == "refuse"
        self._take_over = take_over
        self._unpublished = OnUnknown(unpublished)
        self._ports: Mapping[str, Port] | None = None
        self._open: QueryStore | None = None
        self._finishes = False
        self._calls = CallOrder(self.name)
        self._stop = threading.Event()

    @property
    def name(self) -> str:
        """The name for messages, metrics and transactions."""
        return str(self._settings["name"])

    def into(self, *, unique: Port, duplicate: Port, expired: Port, error: Port) -> Callable[[DataFrame, int], None]:
        """A function for `foreachBatch`, that hands the rows of each verdict to a port.

        A port is a function of (rows, window), a path for Parquet files, a `ParquetSink`, `JsonSink` or `TopicSink`, or
        None: its rows are counted and dropped. A function is called once for each window after its commit, with rows
        that lie in staged files: any number of actions on them costs a reading, and no second judging. If it raises,
        the batch fails, and the next start of the query calls the functions again with the same rows and
        `window.replayed`. The function that is given back is called once for a batch.

        Raises:
            UsageError: a port is none of these, or this Deduper has a query already.

        Example:
            >>> def show(rows: DataFrame, window: Window) -> None:
            ...     print(window.number, window.replayed, rows.count())
            >>> with Deduper("rocksdb:state/shown", key="id", expiry=Never()) as dedup:
            ...     write = dedup.into(unique=show, duplicate=None, expired=None, error="out/bad")
            ...     write(spark.createDataFrame([(1,), (2,), (1,)], "id int"), 0)
            0 False 2
        """
        self._use({"unique": unique, "duplicate": duplicate, "expired": expired, "error": error})
        return self._batch

    def split(self, rows: DataFrame, batch_id: int | None = None) -> Ports:
        """The rows of a batch by verdict, for a function of your own, or of a DataFrame that is no stream.

        Inside `foreachBatch` the batch is Spark's. Its window counts as finished when the next batch of the query
        comes; until then the next start gets the same rows again for the same batch, with `window.replayed`. Elsewhere
        it is finished by the next call of the same process, by `finish`, or, without a `batch_id`, by the end of the
        `with` block; a `batch_id` makes a call repeatable there too, until then.

        Raises:
            UsageError: the DataFrame is a stream, or lacks a column; or a query calls twice for one batch.
            UnfinishedWindowError: nobody knows whether the rows of the last window were used.

        Example:
            >>> with Deduper("rocksdb:state/split", key="id", expiry=Never()) as dedup:
            ...     ports = dedup.split(spark.createDataFrame([(1,), (2,), (1,)], "id int"))
            ...     print(ports.unique.count(), ports.duplicate.count(), ports.window.counts["error"])
            2 1 0
        """
        if rows.isStreaming:
            raise UsageError("the DataFrame is a stream: write `.writeStream.foreachBatch(dedup.into(…))`")
        with self._calls.alone():
            if self._ports is None:
                self._use(_SPLIT)
            if self._ports is not _SPLIT:
                raise UsageError(f"{self.name}: `into` has the batches of this Deduper; make another one for `split`")
            query_id, number = identity(rows.sparkSession, batch_id)
            ports: Ports = self._run(rows, query_id, number, lambda store: store.split(query_id, number, rows))
            return ports

    def finish(self) -> None:
        """Say that the rows of the last window were used: they are not given again, and their files go.

        Only needed where nothing else says it: see `split`; and for `into`, before the query starts, if a function
        cannot take a window of an earlier process.
        """
        with self._calls.alone():
            self._finish()

    def _finish(self) -> None:
        if self._open is None:
            self._finishes = True
        elif self._ports is _SPLIT:
            self._open.finish()

    def close(self) -> None:
        """Give the store back, when the call that is under way has ended. Safe to repeat; a batch opens it again.

        Waits until the last window is published, but for one of `split` that is not finished, and until small pieces of
        the store are merged.

        Raises:
            Exception: why the last window could not be published: it is committed, and the next start publishes it.
        """
        with self._calls.alone():
            self._give_back()

    def _give_back(self, failure: BaseException | None = None) -> None:
        store, self._open = self._open, None
        atexit.unregister(self._close_at_exit)
        if store is not None:
            store.close(failure)

    def _close_at_exit(self) -> None:
        self._stop.set()  # before the lock: a call may hold it that waits for brokers or a storage
        try:
            self.close()
        except Exception as exc:  # noqa: BLE001  nobody is left to catch it
            logger.error("%s: not everything was done at the end of the process: %s", self.name, exc)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, failure: BaseException | None, *_: object) -> None:
        with self._calls.alone():
            try:
                if failure is None and self._open is not None and self._open.is_unnumbered:
                    self._finish()
            except BaseException as exc:
                failure = exc
                raise
            finally:
                self._give_back(failure)

    def _use(self, ports: Mapping[str, Port]) -> None:
        sections(ports)
        if self._ports is not None:
            raise UsageError(
                f"{self.name}: this Deduper has its ports already; a second query needs a store of its own"
            )
        self._ports = ports

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        with self._calls.alone():
            query_id, _ = identity(batch.sparkSession, batch_id)
            self._run(batch, query_id, batch_id, lambda store: store.judge(query_id, batch_id, batch))

    def _run(self, rows: DataFrame, query_id: str, batch_id: int | None, act: Callable[[QueryStore], Any]) -> Any:
        """Act on the open store. After a failure it is given back: the next call recovers it, as after a crash."""
        session = rows.sparkSession
        with self._calls.of_batch(session, query_id, batch_id):
            if self._open is not None and not self._open.fits(session, rows):
                if self._ports is _SPLIT and self._open.ends_with(query_id, batch_id):
                    self._open.finish()
                self._give_back()
            try:
                if self._open is None:
                    self._open = self._opened(session, rows)
                self._open.use(session)
                return act(self._open)
            except BaseException as exc:
                self._give_back(exc)
                raise

    def _opened(self, session: SparkSession, rows: DataFrame) -> QueryStore:
        assert self._ports is not None
        config = self._config(session, rows)
        functions = {port: value for port, value in self._ports.items() if callable(value)}
        self._stop = threading.Event()
        atexit.register(self._close_at_exit)
        store = QueryStore(
            config,
            rows,
            None if self._ports is _SPLIT else functions,
            self._stop,
            take_over=self._take_over,
            refuses_new=self._refuses_new,
            unpublished=self._unpublished,
            finishes=self._finishes,
        )
        # For one opening: a later owner keeps the store.
        self._take_over = self._finishes = False
        self._unpublished = OnUnknown.REFUSE
        return store

    def _config(self, session: SparkSession, rows: DataFrame) -> QueryConfig:
        assert self._ports is not None
        found = FrameColumns.of(rows.schema)
        source = QuerySource(
            parsed_columns=found.columns,
            arrow=found.arrow,
            row_place=found.place_of_rows(self._place),
            zone=str(session.conf.get(TIME_ZONE)),
        )
        spark = {MASTER: session.sparkContext.master or DEFAULT_MASTER}
        config = query_config({**self._settings, "spark": spark}, source, sections(self._ports), self._folder)
        is_sent = bool(config.topic_ports) and sends_whole_rows(found.columns)
        if is_sent or any(sink.format == "json" for sink in config.file_ports.values()):
            require_json(rows.schema, source.zone)
        if config.function_ports or any(sink.format == "parquet" for sink in config.file_ports.values()):
            require_typed(rows.schema)
        home = staging_home(config)
        if config.function_ports and home.names.scheme not in ("file", "hdfs"):
            remedy = (
                "use `into` with paths or topics, or a store on a disk or in HDFS"
                if self._ports is _SPLIT
                else "give one of the other ports a path on a disk or in HDFS, and they are staged there"
            )
            raise UsageError(
                f"{home}: rows for functions are staged beside the store, where Spark cannot read them; {remedy}"
            )
        return config


_OF_STORE = ("tables", "first_seen")
_FROM_CONFIG = (
    *("name", "key", "null_keys", "digest", "fingerprint", "on_conflict", "max_versions", "expiry"),
    *("store", "shared_folders"),
)


def _handed(rows: DataFrame, window: Window) -> None:
    """The rows of `split` are in its caller's hands."""


_SPLIT: Mapping[str, PortFunction] = dict.fromkeys(PORTS, _handed)


def _name_of(store: str) -> str:
    """The last part of a URL, in the signs of a name."""
    last = store.rstrip("/").rpartition("/")[2].rpartition(":")[2].lower()
    return re.sub(r"[^a-z0-9._-]", "-", last).lstrip("._-") or "deduper"


def _refuse_connect() -> None:
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise UsageError(
            "Spark Connect is not supported: rows are judged by tasks that the driver's own process plans; use a "
            "classic session, `SparkSession.builder.master(…)`"
        )
