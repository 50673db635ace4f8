"""Whole windows of a Parquet port as a source of Spark's: an offset is a number of published windows.

A reader of a port's folder may see a part of a window, while its files get their names; this source goes no further
than the mark beside them. The files of a window never change, so a query that follows a port has each of its
rows once. A rewind takes windows back, and their numbers come again with other rows: a query that has read one of them
ends with an error, also if as many windows were judged since. So does one whose port has got another folder.

Files of earlier windows may have other columns than the port has now. They are read by name: a column that a file lacks
is null, and one that the port has no more is left out.

    spark.dataSource.register(PublishedWindows)
    rows = spark.readStream.format("deduper").option("store", "rocksdb:state/clicks").option("port", "unique").load()

Needs PySpark 4.2 for streams; 4.0 and 4.1 can read what is there (`spark.read`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import DayTimeIntervalType, StructType

from bucket_store.log.commit_log import CommitLog
from bucket_store.log.marks import Published, read_published
from bucket_store.places.open import open_place
from bucket_store.places.place import Place
from deduper.admin.open_store import open_store
from deduper.columns import ddl_of
from deduper.config.files import FileSink
from deduper.config.sections import PORTS
from deduper.errors import IntegrityError, UsageError
from deduper.sinks.names import PUBLISHED, FinalName, is_data_file
from deduper.spark.types import arrow_of
from deduper.tasks.row_files import parquet_file

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2, whose streams of Python sources have no limits
    ReadLimit = ReadAllAvailable = ReadMaxFiles = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

_LIMIT = "maxWindowsPerTrigger"
_MOVED = "movedFrom"
_OPTIONS = ("store", "port", _LIMIT, _MOVED)
_BATCH_ROWS = 65_536


class PublishedWindows(DataSource):
    """The source `deduper`, to be registered with a session.

    Options:
        store: the config file of a job, or the URL of the store of a `Deduper`.
        port: `unique`, `duplicate`, `expired` or `error`; it must be written to Parquet files.
        maxWindowsPerTrigger: how many windows a batch takes; without it, all that are there.
        movedFrom: the folder that the port had when the checkpoint was made, if all of it was moved to where it is.

    Raises:
        UsageError: an option is missing or unknown, or the port is no folder of Parquet files.

    Example:
        >>> spark.dataSource.register(PublishedWindows)
        >>> whole = spark.read.format("deduper").option("store", "rocksdb:state/seen").option("port", "unique").load()
        >>> whole.count()
        2
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _OPTIONS}
        for name in given:
            if name not in known:
                raise UsageError(f"option {name} is unknown; options are {', '.join(_OPTIONS)}")
        for name in ("store", "port"):
            if name not in given:
                raise UsageError(f"option {name} is missing")
        limit = given.get(_LIMIT.lower())
        if limit is not None and (not limit.isdecimal() or int(limit) < 1):
            raise UsageError(f"option {_LIMIT} is `{limit}`; write a whole number of windows, 1 or more")
        self._limit = None if limit is None else int(limit)
        self._moved_from = given.get(_MOVED.lower())
        self._port = _port(given["store"], given["port"])

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "deduper"

    def schema(self) -> str:
        """The source's columns and `_dedup`, as DDL."""
        return self._port.schema

    def reader(self, schema: StructType) -> _BatchReader:
        """Of the windows that are published now."""
        return _BatchReader(self._port, _arrow_schema(schema))

    def streamReader(self, schema: StructType) -> _StreamReader:
        """Of the windows as they are published."""
        if ReadLimit is None:
            raise UsageError("following a port needs PySpark 4.2; before it, read what is there: spark.read")
        return _StreamReader(self._port, _arrow_schema(schema), self._limit, self._moved_from)


@dataclass(frozen=True, slots=True)
class _PortFolder:
    """A folder of Parquet files, by its URL, of the store in the folder `store` with this id.

    `published_through`: windows up to it were published when the folder was opened, by the store's log.
    """

    url: str
    store: str
    store_id: str
    schema: str
    published_through: int

    @property
    def folder(self) -> Place:
        return open_place(self.url)

    def published(self) -> Published:
        """The mark: the greatest window that is whole, -1 before the first, and the epoch of the owner that set it.

        Raises:
            IntegrityError: the folder is another store's by now, or its mark is gone.
        """
        mark = read_published(self.folder / PUBLISHED)
        if mark is None and self.published_through >= 0:
            raise IntegrityError(
                f"{self.url}: no mark says which windows are whole, and those up to {self.published_through} were: "
                "bring the folder back; or start the job once, which sets the mark again"
            )
        if mark is None:
            return Published(self.store_id, -1)
        if mark.store_id != self.store_id:
            raise IntegrityError(f"{self.url}: these are outputs of another store, {mark.store_id[:8]}; start anew")
        return mark

    def rewound_to(self, since_epoch: int) -> int | None:
        """The earliest window that a rewind after this epoch went back to; None without one. Reads the store's log."""
        notes = CommitLog.open(open_place(self.store)).state.notes
        windows = (
            note["to_window"] for note in notes if note.get("action") == "rewind" and note["epoch"] > since_epoch
        )
        return min(windows, default=None)

    def parts(self, first: int, last: int) -> list[_File]:
        """The files of some windows, in their order."""
        found = []
        # Names ascend with the window.
        after = f"{self.store_id[:8]}-{first:012d}-"
        for name in sorted(self.folder.listed(after=after)):
            final = FinalName.of(name) if is_data_file(name) else None
            if final is not None and final.store == self.store_id[:8] and first <= final.window <= last:
                found.append(_File(str(self.folder / name)))
        return found


@dataclass
class _File(InputPartition):
    """One file."""

    place: str


def _port(store: str, port: str) -> _PortFolder:
    if port not in PORTS:
        raise UsageError(f"option port is `{port}`; write one of {', '.join(PORTS)}")
    opened = open_store(store)
    if opened.config is None:
        raise UsageError(f"option store: {store} has no ports of its own; name the config file of its job")
    sink = dict(opened.config.sinks.items())[port]
    if not isinstance(sink, FileSink) or sink.format != "parquet":
        raise UsageError(
            f"port {port} of {store} is `format: {sink.format}`; only folders of Parquet files are read so"
        )
    schema = ddl_of([*opened.config.source.parsed_columns, opened.config.dedup_column.of(port)])
    log = opened.log
    return _PortFolder(sink.url, str(opened.root), log.manifest.store_id, schema, log.state.published_through)


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as Spark takes them from a source."""
    interval = pa.duration("us")
    kinds = ((one.name, one.dataType) for one in schema)
    return pa.schema(
        [(name, interval if isinstance(kind, DayTimeIntervalType) else arrow_of(kind)) for name, kind in kinds]
    )


def _rows(file: _File, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    place = open_place(file.place)
    with parquet_file(place) as file_of_rows:
        for batch in file_of_rows.iter_batches(_BATCH_ROWS):
            columns = [_column(batch, wanted, place) for wanted in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, wanted: pa.Field, file: Place) -> pa.Array:
    """A column of the port as it is now, from rows of any window. Of two names Spark sees one in any case of letters.

    Raises:
        IntegrityError: the values have a type by now that they cannot be read as.
    """
    found = [number for number, name in enumerate(batch.schema.names) if name.lower() == wanted.name.lower()]
    if not found:
        return pa.nulls(batch.num_rows, wanted.type)
    column = batch.column(found[0])
    try:
        return column if column.type.equals(wanted.type) else column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise IntegrityError(
            f"{file}: column `{wanted.name}` is {column.type}, and the port has {wanted.type} now: read the windows "
            f"before the change with spark.read.parquet, and follow with a new checkpoint ({exc})"
        ) from exc


class _BatchReader(DataSourceReader):
    def __init__(self, port: _PortFolder, schema: pa.Schema) -> None:
        self._port = port
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._port.parts(0, self._port.published().window) or [_File("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        return _rows(partition, self._schema) if partition.place else iter(())


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets have the store's id, the port's folder, the first window that was not read, and the epoch of the mark.

    A rewind claims an epoch, so the log is only read again for it when a mark of another epoch is found.
    """

    def __init__(self, port: _PortFolder, schema: pa.Schema, limit: int | None, moved_from: str | None) -> None:
        self._port = port
        self._schema = schema
        self._limit = limit
        self._moved_from = moved_from
        self._target: Published | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0, epoch=0)

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable() if self._limit is None else ReadMaxFiles(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        mark = self._port.published() if self._target is None else self._target
        self._require_kept(start, mark)
        following = mark.window + 1
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else following
        return self._offset(min(following, start["next"] + most), epoch=mark.epoch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._port.published()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._require_kept(end, self._port.published())
        return self._port.parts(start["next"], end["next"] - 1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        return _rows(partition, self._schema)

    def _offset(self, following: int, *, epoch: int) -> dict[str, Any]:
        return {"store": self._port.store_id, "folder": self._port.url, "next": following, "epoch": epoch}

    def _require_kept(self, offset: dict[str, Any], mark: Published) -> None:
        """Every window below an offset is that which was there when the offset was made.

        Raises:
            IntegrityError: the offset is of another store or folder, or a window below it was taken back since.
        """
        port, last = self._port, offset["next"] - 1
        if offset["store"] != port.store_id:
            raise IntegrityError(f"{port.url}: the checkpoint is of another store; use a new one")
        if offset["folder"] not in (port.url, self._moved_from):
            raise IntegrityError(
                f"{port.url}: the checkpoint is of {offset['folder']}, where windows may lie that were not read. If "
                f"all of that folder was moved, give option {_MOVED} with its name; else let the job write there again "
                "until they are read, or use a new checkpoint"
            )
        undone = port.rewound_to(offset["epoch"]) if mark.epoch != offset["epoch"] else None
        if undone is not None and (kept := min(mark.window, undone)) < last:
            raise IntegrityError(
                f"{port.url}: windows up to {last} were read, and those after {kept} were undone since: the store was "
                "taken back; read the port from its beginning, with a new checkpoint"
            )
        if mark.window < last:
            raise IntegrityError(
                f"{port.url}: windows up to {last} were read, and the mark says {mark.window}: it is an old one, or "
                "the store was put back to an older copy. Start the job once, which sets the mark again; with an older "
                "copy read the port from its beginning, with a new checkpoint"
            )
