"""The rows of a judged batch as staged files: those for the table by partition, the others for their ports.

Rows of the batch are written in one pass, then removed files again. What the writers report is what the plan names,
with the numbers of rows of the footers. No staged file ends in `.parquet`: patterns of readers find rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bucket_store import failpoints
from bucket_store.filesystem import LOCAL, make_directories
from deduper.table.batch import BAD_LINE, Batch
from deduper.table.columns import NO_VALUE, KeyColumn, folder_values, text_of
from deduper.table.errors import SettingError, SourceChangedError, TableUsageError
from deduper.table.formats.delta_stats import encode_statistics, file_statistics
from deduper.table.formats.files import staging_folder
from deduper.table.formats.plan import PortFiles, begin_port, port_staging, relative_folder
from deduper.table.formats.protocol import DataFile, NewFile
from deduper.table.index.keys import Int64s
from deduper.table.index.protocol import ABSENT, NO_TARGET
from deduper.table.operations.judge import TO_DUPLICATES, TO_TABLE, Verdict
from deduper.table.operations.new_files import Written, write_new_files
from deduper.table.operations.rewriting import FileRewrite, WaitingRows, Workload, rewrite_files

ABOUT = "_load"
"""The column that rows of ports have beside their own."""
_ABOUT = pa.struct([("load", pa.string()), ("reason", pa.string()), ("first_file", pa.string())])
_ABOUT_LINES = pa.struct([*_ABOUT, ("line", pa.binary())])
"""Of rows of text, with the line that is no record."""
_THREADS = 8

PartitionTexts = tuple[tuple[str, str | None], ...]
"""As `NewFile` has it."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a write of a table stages its rows. `ports`: the folders of `duplicates` and `errors`, or of one.

    `target_bytes`: of new files, those of the ports too.
    """

    load: str
    table: Path
    ports: Mapping[str, Path]
    target_bytes: int

    @property
    def folder(self) -> Path:
        """The write's own."""
        return staging_folder(self.table, self.load)

    @property
    def rows(self) -> Path:
        """The folder of new rows."""
        return self.folder / "rows"


@dataclass(frozen=True, slots=True)
class Staged:
    """Files for the table, files of each port. `in_place_of`: the number of the removed file, by the new one's path."""

    files: tuple[NewFile, ...]
    ports: tuple[PortFiles, ...]
    in_place_of: Mapping[str, int]


def require_free_names(batch: Batch) -> None:
    """The batch has no column of a name that is ours.

    Raises:
        SettingError: naming it.
    """
    for name in batch.schema.names:
        if name.lower() == ABOUT:
            raise SettingError("source", f"there is a column `{name}`, a name that rows of ports use", "rename it")


def stage(
    batch: Batch,
    work: Workload,
    rewrite: FileRewrite | None,
    partition_by: Sequence[KeyColumn],
    required: Sequence[str],
    staging: Staging,
) -> Staged:
    """Writes the rows; the files are durable.

    Raises:
        TableUsageError: a column of `required` has a null, or a value that it cannot have.
        SourceChangedError: the batch has other rows than those that were judged.
        ConflictError, TableError: of `rewrite`.
    """
    in_place_of: dict[str, int] = {}
    with _Syncs() as syncs:
        waiting, ports, files = _write_batch(batch, work, rewrite, partition_by, required, staging)
        if rewrite is not None:
            in_folders = [column.name for column in partition_by]
            folder = staging.rows.with_name("rewritten")
            for number, written in rewrite_files(rewrite, waiting, in_folders, folder, syncs.begin):
                file = _in_place_of(rewrite.removed[number], written, partition_by, staging)
                files += (file,)
                in_place_of[file.path] = number
        failpoints.hit("table.3.staged")
        of_ports = []
        for name, port in ports.items():
            folder = port_staging(staging.ports[name], staging.load)
            of_port = _new_files(folder, folder, port.written, staging.load)
            of_ports.append(PortFiles(name, relative_folder(staging.ports[name], staging.table), of_port))
            for file in of_port:
                syncs.begin(folder / file.staged)
        for file in files:
            syncs.begin(staging.folder / file.staged)
    return Staged(files, tuple(of_ports), in_place_of)


def _write_batch(
    batch: Batch,
    work: Workload,
    rewrite: FileRewrite | None,
    partition_by: Sequence[KeyColumn],
    required: Sequence[str],
    staging: Staging,
) -> tuple[WaitingRows, Mapping[str, _PortWriter], tuple[NewFile, ...]]:
    """Writes the rows of the batch; those that wait for their files, the ports, the new files."""
    schema = batch.schema if rewrite is None else rewrite.schema
    # Keys that are to be deleted may lack the columns of the partitions; then there are no rows for the table.
    folders = [one.name for one in partition_by if one.name in schema.names]
    waiting = WaitingRows(staging.rows.with_name("waiting"), schema)
    with ExitStack() as stack:
        ports = {name: stack.enter_context(_PortWriter(port, batch, staging)) for name, port in staging.ports.items()}
        make_directories(LOCAL, staging.rows)
        stack.enter_context(waiting)
        rows = _table_rows(batch, work, rewrite, required, ports, waiting)
        written = write_new_files(rows, schema, folders, staging.rows, staging.target_bytes)
    return waiting, ports, _new_files(staging.folder, staging.rows, written, staging.load)


class _PortWriter:
    """The rows of a port, in files up to a size; a context manager. Without rows there is no file."""

    def __init__(self, port: Path, batch: Batch, staging: Staging) -> None:
        self._begun = partial(begin_port, staging.table, staging.load, port)
        self._folder: Path | None = None
        self._about = _ABOUT_LINES if batch.is_lines else _ABOUT
        self._schema = batch.schema.append(pa.field(ABOUT, self._about))
        self._load = staging.load
        self._target_bytes = staging.target_bytes
        self._path = port
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []
        self.written: list[Written] = []

    def write(self, records: pa.RecordBatch, verdict: NDArray[np.int8], first_file: pa.Array) -> None:
        """Adds rows with their verdicts and first files; rows of text have BAD_LINE as their last column."""
        if self._writer is not None and self._path.stat().st_size >= self._target_bytes:
            self._end()
        if self._writer is None:
            self._folder = self._folder or self._begun()
            self._path = self._folder / str(len(self.written))
            self._writer = pq.ParquetWriter(self._path, self._schema, metadata_collector=self._footers)
        reasons = pa.array([Verdict(code).reason for code in verdict.tolist()], pa.string())
        load = pa.repeat(self._load, len(verdict))
        *own, lines = (*records.columns, None) if self._about == _ABOUT else records.columns
        columns = [load, reasons, first_file] if lines is None else [load, reasons, first_file, lines]
        about = pa.StructArray.from_arrays(columns, fields=list(self._about))
        self._writer.write_batch(pa.RecordBatch.from_arrays([*own, about], schema=self._schema))

    def __enter__(self) -> _PortWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.written.append(Written(self._path, self._footers.pop(), {}))
            self._writer = None


def _table_rows(
    batch: Batch,
    work: Workload,
    rewrite: FileRewrite | None,
    required: Sequence[str],
    ports: Mapping[str, _PortWriter],
    waiting: WaitingRows,
) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
    """Record batches, and which of their rows are for new files.

    All others of the batch go on the way to their ports, or wait for their files.
    """
    begin = 0
    names = batch.schema.names
    verdicts = work.verdicts
    for records in batch.batches([*names, BAD_LINE] if batch.is_lines else names):
        end = begin + records.num_rows
        if end > len(verdicts.verdict):
            raise SourceChangedError("the batch has more rows than those that were judged; nothing was committed")
        verdict, first = verdicts.verdict[begin:end], verdicts.first[begin:end]
        for name, port in ports.items():
            chosen = _is_of(verdict, TO_DUPLICATES[work.kind]) if name == "duplicates" else verdict >= Verdict.NULL_KEY
            if chosen.any():
                known = [None if number == ABSENT else work.files[number].path for number in first[chosen].tolist()]
                port.write(records.filter(pa.array(chosen)), verdict[chosen], pa.array(known, pa.string()))
        kept = np.flatnonzero(_is_of(verdict, TO_TABLE[work.kind]))
        records = records.select(names)
        if len(kept):
            for name in required:
                column = records.column(name)
                if column.null_count and column.take(pa.array(kept)).null_count:
                    raise TableUsageError(f"column `{name}` has a null, and the table declares it NOT NULL")
            if rewrite is None:
                yield records, kept
            else:
                chosen = records if len(kept) == len(verdict) else records.take(pa.array(kept))
                placed, target = rewrite.placed(chosen, begin + kept)
                new = np.flatnonzero(target == NO_TARGET)
                if len(new):
                    yield placed, new
                if not len(new):
                    waiting.add(placed, target)
                elif len(new) < len(target):
                    waits = target != NO_TARGET
                    waiting.add(placed.filter(pa.array(waits)), target[waits])
        begin = end
    if begin != len(verdicts.verdict):
        raise SourceChangedError("the batch has fewer rows than those that were judged; nothing was committed")


def _is_of(verdict: NDArray[np.int8], wanted: frozenset[Verdict]) -> NDArray[np.bool_]:
    return np.isin(verdict, list(wanted))


def _new_files(staging: Path, folder: Path, written: Sequence[Written], load: str) -> tuple[NewFile, ...]:
    """The files of a folder and the paths that they are to have: a name with the load's id, which no other has."""
    files = []
    for number, one in enumerate(written):
        inner = one.path.relative_to(folder).as_posix()
        name = f"part-{load}-{number:05d}.parquet"
        files.append(_new_file(staging, one, Path(inner).with_name(name), _partition(inner)))
    return tuple(file for file in files if file.rows)


def _in_place_of(old: DataFile, written: Written, partition_by: Sequence[KeyColumn], staging: Staging) -> NewFile:
    """A rewritten file, in the folder of the old one."""
    values = zip(partition_by, old.partition, strict=True)
    partition = tuple((column.name, text_of(value, column)) for column, value in values)
    place = Path(old.path).with_name(f"part-{staging.load}-of-{written.path.name}.parquet")
    return _new_file(staging.folder, written, place, partition)


def _new_file(staging: Path, written: Written, place: Path, partition: PartitionTexts) -> NewFile:
    status = written.path.stat()
    return NewFile(
        staged=written.path.relative_to(staging).as_posix(),
        path=str(place),
        size=status.st_size,
        stamp=status.st_mtime_ns,
        rows=written.footer.num_rows,
        partition=partition,
        statistics=encode_statistics(file_statistics(written.footer, written.floats)).decode(),
    )


def _partition(path: str) -> PartitionTexts:
    return tuple((name, None if text == NO_VALUE else text) for name, text in folder_values(path))


class _Syncs:
    """Files that are made durable side by side, each while others are written; all of them are on leaving."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="staged")
        self._begun: dict[Path, Future[None]] = {}

    def begin(self, path: Path) -> None:
        """A file is whole; more calls for it do nothing. Thread-safe."""
        if path not in self._begun:
            self._begun[path] = self._pool.submit(_sync, path)

    def __enter__(self) -> _Syncs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for sync in self._begun.values():
                sync.result()


def _sync(path: Path) -> None:
    with LOCAL.open(path) as file:
        file.sync()
