"""An input that is a folder: the rows that a job has published in one of its ports, window by window."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from bucket_store.log.marks import Published, read_published
from bucket_store.places.place import Place
from deduper.arrow_columns import DeclaredColumn
from deduper.columns import Column, ColumnType
from deduper.dedup_column import DEDUP
from deduper.errors import DeduperError, IntegrityError, UsageError
from deduper.ranges.stream.rows import InputRows
from deduper.ranges.stream.settings import PortFolder
from deduper.sinks.names import PUBLISHED, FinalName
from deduper.spark_promises import FIXED_BY_STORE, TIME_ZONE
from deduper.tasks.readers.file_parts import FileFault
from deduper.tasks.readers.text import require_lines, rows_of_lines
from deduper.text.format import TextFormat

logger = logging.getLogger(__name__)

UNPARSABLE = "unparsable"
ZONE = FIXED_BY_STORE[TIME_ZONE]
"""The zone of times without one, as in the outputs of jobs."""


class Input(Protocol):
    """Events or ranges, from the position of the last committed window on. For one thread.

    Each window calls `plan`, then `take` if there are rows, then `committed` once its record is placed.
    """

    kind: ClassVar[str]
    """`folder` or `topics`; a position is of one kind."""

    @property
    def declared(self) -> pa.Schema | None:
        """The columns, if the settings name them."""

    @property
    def position(self) -> list[Any] | None:
        """The position behind the last `take`, for the commit record; None before the first rows."""

    @property
    def waiting(self) -> int:
        """Windows with rows in a folder, or offsets of topics, that no committed window has, by the last `plan`."""

    def plan(self) -> bool:
        """Find the next rows to take, and give whether there are some. Reads no row; safe to repeat."""

    def take(self) -> InputRows:
        """Read the planned rows, after a `plan` that has found some; `position` is behind them then."""

    def committed(self) -> None:
        """Called once the window with the rows of the last `take` is committed."""


def scalars(columns: Sequence[Column]) -> tuple[DeclaredColumn, ...]:
    """Declared columns of scalar types."""
    return tuple(map(DeclaredColumn.of, columns))


def schema_of(columns: Sequence[DeclaredColumn]) -> pa.Schema | None:
    """The Arrow schema of these columns; None for no columns."""
    return pa.schema([(column.name, column.arrow) for column in columns]) if columns else None


class FolderInput:
    """The windows that a job has published in the folder of its port, oldest first, at most `most` at a time."""

    kind: ClassVar[str] = "folder"

    def __init__(self, side: str, port: PortFolder, position: Sequence[Any] | None, most: int) -> None:
        """The folder need not be there yet, and nothing is read."""
        self._side = side
        self._port = port
        self._most = most
        self._columns = scalars(port.parsed_columns)
        self.declared = schema_of(self._columns)
        self.position = None if position is None else list(position)
        self._folder = port.place
        self._next: tuple[list[Any], list[Place]] | None = None
        self._taking = 0
        """Windows of the next `take`."""
        self.waiting = 0
        self._warned = False

    def plan(self) -> bool:
        """See `Input`: the next published windows; those without files are taken with them.

        Raises:
            UsageError: the folder is another job's, or its files are of another format.
            IntegrityError: the job was restored to before a window that was taken.
        """
        self._next = self._next_files()
        return self._next is not None

    def _next_files(self) -> tuple[list[Any], list[Place]] | None:
        mark = read_published(self._folder / PUBLISHED)
        if mark is None:
            if not self._warned:  # a wrong path looks like a job that has not begun
                logger.warning(
                    "%s: waiting for the first window of %s; this has to be the folder of a job's port `unique`",
                    self._folder,
                    self._side,
                )
                self._warned = True
            return None
        through = self._taken_of(mark)
        found: dict[int, list[tuple[int, str]]] = {}
        for file in self._folder.listed():
            name = FinalName.of(file)
            if name is None or name.store != mark.store_id[:8] or not through < name.window <= mark.window:
                continue
            if name.format != self._port.format:
                raise UsageError(
                    f"{self._folder / file}: {self._side} are read from {self._port.format}; write the `format` of the "
                    "job's sink"
                )
            found.setdefault(name.window, []).append((name.number, file))
        windows = sorted(found)[: self._most]
        self.waiting, self._taking = len(found), len(windows)
        if not windows:
            return None
        last = windows[-1] if len(found) > self._most else mark.window
        files = [self._folder / file for window in windows for _, file in sorted(found[window])]
        return [mark.store_id, last], files

    def _taken_of(self, mark: Published) -> int:
        """The last window that was taken, -1 for none."""
        if self.position is None:
            return -1
        folder, side = self._folder, self._side
        store_id, through = self.position
        if store_id != mark.store_id:
            raise UsageError(
                f"{folder}: {side} were taken from the job with the store {store_id[:8]}, and the folder is now "
                f"of {mark.store_id[:8]}; point `{side}` at the folder of that job, or begin with a new store and new "
                "ports"
            )
        if mark.window < through:
            raise IntegrityError(
                f"{folder}: {side} were taken up to window {through}, and the job has published only up to "
                f"{mark.window}: start that job, which sets a mark again that a power cut has taken, and try again; if "
                "the mark stays behind, the job was rewound or put back: begin with a new store and new ports"
            )
        return int(through)

    def take(self) -> InputRows:
        """See `Input`: the rows of the files in their order, all columns but `_dedup`.

        Raises:
            UsageError: the files disagree on the type of a column.
            DeduperError: a file cannot be read.
        """
        assert self._next is not None, "nothing was planned"
        self.position, files = self._next
        self.waiting -= self._taking
        read = self._parquet if self._port.format == "parquet" else self._lines
        tables, bad = [], list[tuple[str, str | None]]()
        for file in files:
            try:
                for table, wrong in read(file):
                    tables.append(table)
                    bad += wrong
            except FileNotFoundError as error:
                raise DeduperError(
                    f"{file}: a published file of {self._side} went away before it was taken; bring it back, or begin "
                    "with a new store and new ports"
                ) from error
            except (OSError, pa.ArrowException, FileFault) as error:
                raise DeduperError(f"{file}: cannot be read as {self._port.format}: {error}") from error
        try:
            table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        except pa.ArrowException as error:
            raise UsageError(
                f"{self._folder}: the files of {self._side} disagree on their columns: {error}; write "
                "`max_windows: 1`, so that each window of their job is taken by itself"
            ) from error
        return InputRows(table, bad)

    def _parquet(self, file: Place) -> Iterator[tuple[pa.Table, list[tuple[str, str | None]]]]:
        with pq.ParquetFile(str(file.local) if file.is_local else pa.BufferReader(file.read())) as opened:
            wanted = [name for name in opened.schema_arrow.names if name != DEDUP]
            yield _spark_columns(opened.read(columns=wanted)), []

    def _lines(self, file: Place) -> Iterator[tuple[pa.Table, list[tuple[str, str | None]]]]:
        """The rows of a file of text, and its lines that are no record."""
        path, data = (str(file.local), None) if file.is_local else (str(file), file.read())
        require_lines(path, file.stat().size if data is None else len(data))
        is_csv = self._port.format == "csv"
        # In CSV columns are known by their place, and `_dedup` is the last.
        more = scalars([Column(DEDUP, ColumnType("string", "string"))]) if is_csv else ()
        text = TextFormat.of(self._port.format, (*self._columns, *more), ZONE)
        assert self.declared is not None, "files of text have declared columns"
        yield self.declared.empty_table(), []
        for rows, bad in rows_of_lines(path, text, header=is_csv, data=data):
            table = pa.Table.from_batches([rows]).select(self.declared.names).cast(self.declared)
            yield table, [(UNPARSABLE, line) for line in bad]

    def committed(self) -> None:
        """See `Input`."""


def _spark_columns(table: pa.Table) -> pa.Table:
    """Columns as Spark has them: no dictionaries, no long offsets, times in µs."""
    fields = [pa.field(field.name, _spark_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _spark_type(found: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(found):
        return _spark_type(found.value_type)
    if pa.types.is_timestamp(found):
        return pa.timestamp("us", found.tz and "UTC")
    if pa.types.is_large_string(found):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(found) else found
