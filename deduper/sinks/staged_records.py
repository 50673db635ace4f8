"""Staged rows of a Kafka port as the records to send, in their order, with bounded memory.

A staged file is Parquet with the columns

    key           binary, may be null
    value         binary, may be null (a tombstone)
    headers       list<struct<key: string, value: binary>>, in the order they are sent
    timestamp_ms  int64; null or negative for "when it is sent"
    slot          int32, the writer the row belongs to

A file may hold rows of several slots; each slot reads its own, in the order of the files it is given and of the rows in
them. Values are cut out of Arrow's buffers, because making Python objects one by one costs more than sending them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from deduper.errors import IntegrityError

COLUMNS = ("key", "value", "headers", "timestamp_ms", "slot")
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 8192
_READ_BYTES = 1 << 20
_NOW = 0

# The client takes a text as a header's value as well; staged ones are bytes.
Header = tuple[str, str | bytes | None]
Record = tuple[bytes | None, bytes | None, list[Header], int]


def records_of_slot(file: Path, slot: int, slots_of_file: Collection[int]) -> Iterator[list[Record]]:
    """(key, value, headers, timestamp in ms) of every row of a slot, some thousand at a time.

    Raises:
        IntegrityError: the file is damaged, has other columns, or a row of a slot that no writer sends.
        FileNotFoundError: it is gone.
    """
    try:
        # Checksums of pages are verified where the writer made them; Spark does.
        with parquet.ParquetFile(file, buffer_size=_READ_BYTES, page_checksum_verification=True) as opened:
            missing = set(COLUMNS) - set(opened.schema_arrow.names)
            if missing:
                raise IntegrityError(f"{file}: no staged rows of a Kafka port: without {', '.join(sorted(missing))}")
            groups = [n for n in range(opened.num_row_groups) if not _is_another_slots(opened, n, slot, slots_of_file)]
            for group in groups:
                rows = _rows_a_batch(opened.metadata.row_group(group))
                for batch in opened.iter_batches(rows, [group], list(COLUMNS), use_threads=False):
                    mine = _of_slot(batch, slot, slots_of_file, file)
                    if mine.num_rows:
                        yield _records(mine)
    except pa.ArrowInvalid as exc:
        raise IntegrityError(f"{file}: the staged rows of a committed window are damaged: {exc}") from exc
    except OSError as exc:
        # Arrow raises OSError without a number for what it finds wrong inside a file.
        if exc.errno is not None:
            raise
        raise IntegrityError(f"{file}: the staged rows of a committed window are damaged: {exc}") from exc


def _is_another_slots(opened: Any, group: int, slot: int, slots_of_file: Collection[int]) -> bool:
    """Whether a row group holds one other slot's rows and nothing else, by its statistics."""
    column = opened.metadata.row_group(group).column(opened.schema.names.index("slot"))
    seen = column.statistics if column.is_stats_set else None
    if seen is None or not seen.has_min_max or seen.min != seen.max:
        return False
    return bool(seen.min != slot and seen.min in slots_of_file)


def _rows_a_batch(group: Any) -> int:
    """Rows of which about `_BATCH_BYTES` are held at a time."""
    row_bytes: int = max(1, group.total_byte_size // max(1, group.num_rows))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def _of_slot(batch: Any, slot: int, slots_of_file: Collection[int], file: Path) -> Any:
    slots = batch.column("slot")
    is_mine = compute.equal(slots, slot)
    if compute.all(is_mine, skip_nulls=False).as_py():
        return batch
    found = set(compute.unique(slots).to_pylist())
    if not found <= set(slots_of_file):
        raise IntegrityError(
            f"{file}: rows of slot {sorted(found - set(slots_of_file), key=str)}, but the commit record has the file "
            f"for {sorted(slots_of_file)} only: no writer sends them"
        )
    return batch.filter(is_mine)


def _records(batch: Any) -> list[Record]:
    timestamps = compute.fill_null(batch.column("timestamp_ms"), -1).to_numpy(zero_copy_only=False)
    # librdkafka takes 0 for "now": the epoch itself goes out one millisecond late.
    timestamps = np.where(timestamps < 0, _NOW, np.maximum(timestamps, 1)).tolist()
    return list(zip(_cut(batch.column("key")), _cut(batch.column("value")), _headers(batch), timestamps, strict=True))


def _cut(column: Any) -> list[bytes | None]:
    """The values of a binary column."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    first = int(ends[0])
    whole = b"" if data is None else data.slice(first, int(ends[-1]) - first).to_pybytes()
    places = (ends - first).tolist()
    values: list[bytes | None] = [whole[begin:end] for begin, end in pairwise(places)]
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _headers(batch: Any) -> list[list[Header]]:
    column = batch.column("headers")
    pairs = column.flatten()
    if len(pairs) == 0:
        return [[]] * len(column)
    names = compute.dictionary_encode(pairs.field("key"))
    spelled = names.dictionary.to_pylist()
    numbers = names.indices.to_numpy(zero_copy_only=False)
    counts = compute.fill_null(compute.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    if counts[0] and (counts == counts[0]).all():
        table = numbers.reshape(len(column), -1)
        if (table == table[0]).all():
            # Rows without headers of their own: the same names in every one. A third of the time of the general way.
            values = pairs.field("value")
            alike = [
                _pairs(spelled[number], values.take(np.arange(at, len(values), table.shape[1])))
                for at, number in enumerate(table[0].tolist())
            ]
            return list(map(list, zip(*alike, strict=True)))
    flat: list[Header] = list(zip([spelled[number] for number in numbers], _cut(pairs.field("value")), strict=True))
    ends = np.concatenate(([0], np.cumsum(counts))).tolist()
    return [flat[begin:end] for begin, end in pairwise(ends)]


def _pairs(name: str, values: Any) -> list[Header]:
    """A header of this name for every row; rows of the same value share it."""
    encoded = compute.dictionary_encode(values)
    distinct: list[Header] = [(name, value) for value in _cut(encoded.dictionary)]
    if 2 * len(distinct) > len(values):
        return [(name, value) for value in _cut(values)]
    numbers = compute.fill_null(encoded.indices, len(distinct)).to_numpy(zero_copy_only=False).tolist()
    distinct.append((name, None))
    return [distinct[number] for number in numbers]
