"""The rows that a job has published in one of its ports, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bucket_store.log.marks import read_published
from bucket_store.places.local import local_place
from deduper.errors import DeduperError, IntegrityError, UsageError
from deduper.sinks.names import PUBLISHED, FinalName


@dataclass(frozen=True, slots=True)
class Taken:
    """How far an input was taken: the id of the job's store, and its last window."""

    store_id: str
    window: int


@dataclass(frozen=True, slots=True)
class Next:
    """The next files of an input, in the order of windows, and how far it is taken with them."""

    taken: Taken
    files: tuple[Path, ...]


def next_files(side: str, folder: Path, taken: Taken | None, most: int) -> Next | None:
    """The files of the next published windows, at most so many that have files; None if there is none.

    Raises:
        UsageError: the folder is another job's, or its files are not Parquet.
        IntegrityError: the job was put back: windows were taken that it has no more.
    """
    mark = read_published(local_place(folder) / PUBLISHED)
    if mark is None:
        return None
    if taken is not None and taken.store_id != mark.store_id:
        raise UsageError(
            f"{folder}: {side} were taken from the job with the store {taken.store_id[:8]}, and the folder is now of "
            f"{mark.store_id[:8]}; point `{side}` at the folder of that job, or begin with a new store and new ports"
        )
    through = -1 if taken is None else taken.window
    if mark.window < through:
        raise IntegrityError(
            f"{folder}: {side} were taken up to window {through}, and the job has published only up to {mark.window}: "
            "it was rewound or put back; begin with a new store and new ports"
        )
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in folder.iterdir():
        name = FinalName.of(path.name)
        if name is None or name.store != mark.store_id[:8] or not through < name.window <= mark.window:
            continue
        if name.extension != ".parquet":
            raise UsageError(f"{path}: {side} are read from Parquet alone; write `format: parquet` in the job's sink")
        found.setdefault(name.window, []).append((name.number, path))
    windows = sorted(found)[:most]
    if not windows:
        return None
    last = windows[-1] if len(found) > most else mark.window
    return Next(Taken(mark.store_id, last), tuple(path for window in windows for _, path in sorted(found[window])))


def read_files(side: str, files: Sequence[Path], without: str) -> pa.Table:
    """The rows of files, in their order; all columns but one.

    Raises:
        UsageError: the files disagree on the type of a column.
        DeduperError: a file cannot be read.
    """
    tables = []
    for path in files:
        try:
            with pq.ParquetFile(path) as opened:
                wanted = [name for name in opened.schema_arrow.names if name != without]
                tables.append(_plain(opened.read(columns=wanted)))
        except FileNotFoundError as error:
            raise DeduperError(
                f"{path}: a published file of {side} went away before it was taken; bring it back, or begin with a new "
                "store and new ports"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise DeduperError(f"{path}: cannot be read as Parquet: {error}") from error
    try:
        return pa.concat_tables(tables, promote_options="default").combine_chunks()
    except pa.ArrowException as error:
        raise UsageError(f"{files[0].parent}: the files of {side} disagree on their columns: {error}") from error


def _plain(table: pa.Table) -> pa.Table:
    """Columns as Spark has them: no dictionaries, no long offsets, times in µs."""
    fields = [pa.field(field.name, _plain_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _plain_type(found: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(found):
        return _plain_type(found.value_type)
    if pa.types.is_timestamp(found):
        return pa.timestamp("us", found.tz and "UTC")
    if pa.types.is_large_string(found):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(found) else found
