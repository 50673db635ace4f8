"""Staged rows of a Kafka port as the records to send, in their order, with bounded memory.

A staged file is Parquet with the columns

    key           binary, may be null
    value         binary, may be null (a tombstone)
    headers       list<struct<key: string, value: binary>>, in the order they are sent
    timestamp_ms  int64; null or negative for "when it is sent"
    slot          int32, the writer the row belongs to

A file may hold rows of several slots; each slot reads its own, in the order of the files it is given and of the rows in
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from bucket_store.places.place import Place
from deduper.errors import IntegrityError

COLUMNS = ("key", "value", "headers", "timestamp_ms", "slot")
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 8192
_READ_BYTES = 1 << 20
_NOW = 0


def records_of_slot(file: Place, slot: int, slots_of_file: Collection[int]) -> Iterator[pa.RecordBatch]:
    """The rows of a slot, some thousand at a time, without `slot`; a timestamp of 0 is "when it is sent".

    A file that is not on this machine is read into memory: its writer has kept it small.

    Raises:
        IntegrityError: the file is damaged, has other columns, or a row of a slot that no writer sends.
        FileNotFoundError: it is gone.
    """
    # Errors of the storage are no damage.
    source = str(file.local) if file.names.scheme == "file" else pa.BufferReader(file.read())
    try:
        # Checksums of pages are verified where the writer made them; Spark does.
        with parquet.ParquetFile(source, buffer_size=_READ_BYTES, page_checksum_verification=True) as opened:
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
    """The number of rows that take about `_BATCH_BYTES`."""
    row_bytes: int = max(1, group.total_byte_size // max(1, group.num_rows))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def _of_slot(batch: Any, slot: int, slots_of_file: Collection[int], file: Place) -> Any:
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


def _records(batch: Any) -> pa.RecordBatch:
    timestamps = compute.fill_null(batch.column("timestamp_ms"), -1).to_numpy(zero_copy_only=False)
    # librdkafka takes 0 for "now": the epoch itself goes out one millisecond late.
    timestamps = pa.array(np.where(timestamps < 0, _NOW, np.maximum(timestamps, 1)))
    columns = [batch.column("key"), batch.column("value"), batch.column("headers"), timestamps]
    return pa.RecordBatch.from_arrays(columns, list(COLUMNS[:4]))
