"""What a change has to do: its verdicts, the files that hold its keys, the small files that its new rows fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from deduper.table.batch import Batch
from deduper.table.columns import KeyColumns
from deduper.table.formats.protocol import DataFile, PartitionValue
from deduper.table.index.keys import plain_of
from deduper.table.index.protocol import VersionKeys
from deduper.table.index.reading import rows_of
from deduper.table.judge import ChangeVerdicts, Verdict

Partition = tuple[PartitionValue, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Files by their numbers. `touched` hold keys of the batch; `filled` has the file that takes a partition's inserts.

    A filled file may be a touched one; `room` has the rows that it takes.
    """

    verdicts: ChangeVerdicts
    touched: Mapping[int, DataFile]
    filled: Mapping[Partition, int]
    room: Mapping[int, int]
    removed: Mapping[int, DataFile]
    """All of both: they are read and written again."""


@dataclass(frozen=True, slots=True)
class Filling:
    """Of new rows: files of less than `small_bytes` take them, up to about `target_bytes`."""

    small_bytes: int
    target_bytes: int


def workload(
    root: Path,
    batch: Batch,
    columns: KeyColumns,
    verdicts: ChangeVerdicts,
    version: VersionKeys,
    filling: Filling | None,
) -> Workload:
    """The work for judged rows; without `filling`, no file is filled.

    Raises:
        FileVanishedError, TableError: the footer of a file that is filled cannot be read.
    """
    touched = {number: version.files[number] for number in np.unique(verdicts.file).tolist()}
    filled: dict[Partition, int] = {}
    room: dict[int, int] = {}
    if filling is not None:
        inserted = set(_partitions(batch, columns, verdicts))
        small = {number: file for number, file in version.files.items() if file.size < filling.small_bytes}
        # A file that is rewritten anyway, then the smallest, then the oldest.
        for number, file in sorted(small.items(), key=lambda one: (one[0] not in touched, one[1].size, one[0])):
            if file.partition in inserted:
                filled.setdefault(file.partition, number)
        files = [version.files[number] for number in filled.values()]
        for number, file, rows in zip(filled.values(), files, rows_of(root, files), strict=True):
            room[number] = (filling.target_bytes - file.size) * max(rows, 1) // file.size
    removed = touched | {number: version.files[number] for number in filled.values()}
    return Workload(verdicts, touched, filled, room, dict(sorted(removed.items())))


def _partitions(batch: Batch, columns: KeyColumns, verdicts: ChangeVerdicts) -> Iterator[Partition]:
    """The partitions of the rows that are inserted."""
    names = [column.name for column in columns.partition_by]
    is_new = verdicts.verdict == Verdict.NEW
    if not names:
        yield from [()] * bool(is_new.any())
        return
    begin = 0
    for records in batch.batches(names):
        end = begin + records.num_rows
        new = records.filter(pa.array(is_new[begin:end]))
        begin = end
        plain = [plain_of(new.column(column.name), column) for column in columns.partition_by]
        values = pa.Table.from_arrays(plain, names).group_by(names).aggregate([])
        yield from zip(*(values[name].to_pylist() for name in names), strict=True)
