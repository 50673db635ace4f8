"""Whole windows of a Parquet port as a source of Spark's: an offset is a number of published windows.

A reader of a port's folder may see a part of a window, while its files get their names; this source goes no further
than the mark beside them. The files of a window never change, so a query that follows a port has each of its
rows once. A rewind takes windows back, and their numbers come again with other rows: a query that has read one of them
ends with an error, also if as many windows were judged since.

    spark.dataSource.register(PublishedWindows)
    rows = spark.readStream.format("deduper").option("store", "rocksdb:state/clicks").option("port", "unique").load()

Needs PySpark 4.2 for streams; 4.0 and 4.1 can read what is there (`spark.read`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

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

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2, whose streams of Python sources have no limits
    ReadLimit = ReadAllAvailable = ReadMaxFiles = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

_LIMIT = "maxWindowsPerTrigger"
_OPTIONS = ("store", "port", _LIMIT)
_BATCH_ROWS = 65_536


class PublishedWindows(DataSource):
    """The source `deduper`, to be registered with a session.

    Options:
        store: the config file of a job, or the URL of the store of a `Deduper`.
        port: `unique`, `duplicate`, `expired` or `error`; it must be written to Parquet files.
        maxWindowsPerTrigger: how many windows a batch takes; without it, all that are there.

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
        del schema
        return _BatchReader(self._port)

    def streamReader(self, schema: StructType) -> _StreamReader:
        """Of the windows as they are published."""
        del schema
        if ReadLimit is None:
            raise UsageError("following a port needs PySpark 4.2; before it, read what is there: spark.read")
        return _StreamReader(self._port, self._limit)


@dataclass(frozen=True, slots=True)
class _PortFolder:
    """A folder of Parquet files, by its URL, of the store in the folder `store` with this id."""

    url: str
    store: str
    store_id: str
    schema: str

    @property
    def folder(self) -> Place:
        return open_place(self.url)

    def published(self) -> Published:
        """The mark: the greatest window that is whole, -1 without one, and the epoch of the owner that set it.

        Raises:
            IntegrityError: the folder is another store's by now.
        """
        mark = read_published(self.folder / PUBLISHED)
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
    return _PortFolder(sink.url, str(opened.root), opened.log.manifest.store_id, schema)


def _rows(file: _File) -> Iterator[pa.RecordBatch]:
    place = open_place(file.place)
    source = pa.memory_map(str(place.local)) if place.is_local else pa.BufferReader(place.read())
    for batch in parquet.ParquetFile(source).iter_batches(_BATCH_ROWS):
        yield _without_dictionaries(batch)


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without dictionaries, which Spark does not take from a source."""
    columns = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _BatchReader(DataSourceReader):
    def __init__(self, port: _PortFolder) -> None:
        self._port = port

    def partitions(self) -> Sequence[InputPartition]:
        return self._port.parts(0, self._port.published().window) or [_File("")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        return _rows(partition) if partition.place else iter(())


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"store": its id, "next": the first window that was not read, "epoch": of the mark that was read}.

    A rewind claims an epoch, so the log is only read again for it when a mark of another epoch is found.
    """

    def __init__(self, port: _PortFolder, limit: int | None) -> None:
        self._port = port
        self._limit = limit
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
        return _rows(partition)

    def _offset(self, following: int, *, epoch: int) -> dict[str, Any]:
        return {"store": self._port.store_id, "next": following, "epoch": epoch}

    def _require_kept(self, offset: dict[str, Any], mark: Published) -> None:
        """Every window below an offset is that which was there when the offset was made.

        Raises:
            IntegrityError: the offset is of another store, or a window below it was taken back since.
        """
        port, last = self._port, offset["next"] - 1
        if offset["store"] != port.store_id:
            raise IntegrityError(f"{port.url}: the checkpoint is of another store; use a new one")
        kept = mark.window
        if mark.epoch != offset["epoch"] and (window := port.rewound_to(offset["epoch"])) is not None:
            kept = min(kept, window)
        if kept < last:
            raise IntegrityError(
                f"{port.url}: windows up to {last} were read, and those after {kept} were undone since: the store was "
                "taken back; read the port from its beginning, with a new checkpoint"
            )
