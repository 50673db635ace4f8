"""Slices of time: records of many inputs cut by time, and put together again in order. Travels to executors.

A slice is an Arrow IPC file (LZ4) of batches with the columns of `tasks.layout`, where ORDER is (number of the input in
the plan << POSITION_BITS | row in it), sorted by (the key that places a record, ORDER). Its name has 8 random digits,
so each run of a task writes a file of its own, and only those that the plan names count.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from bucket_store.places.new_file import FileWriter
from bucket_store.places.place import Place
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.errors import IntegrityError, telling_where
from deduper.replay.inputs import InputReading, ReplayInput, moved
from deduper.replay.keys import KeyRange, greatest_admitted
from deduper.replay.plan import Cuts, PlannedSlice
from deduper.replay.survey import records_in_range
from deduper.tasks import layout
from deduper.tasks.executors.steps import packed, unpacked
from deduper.tasks.readers.file_parts import FileChanged, FileGone

_KEY = "_replay_key"
_BATCH_ROWS = 65_536
_HELD_BYTES = 64 << 20
"""A task that cuts inputs gives its records away at this size, a blob a slice."""


class Blob(NamedTuple):
    """Records of a slice, packed."""

    slice: int
    rows: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class Cutting:
    """How inputs are cut; pickled into tasks. `clock` says which records keep their text for the error port."""

    reading: InputReading
    bounds: KeyRange
    cuts: Cuts
    clock: ClockRules

    def blobs(self, inputs: Iterable[ReplayInput]) -> Iterator[Blob]:
        """The records of some inputs that are in the range, by slice.

        Raises:
            FileMovedError: one is not the file any more that was surveyed.
            SourceAwayError: a range cannot be read now.
            IntegrityError: the reader has counted other records than it gave.
        """
        held: list[pa.RecordBatch] = []
        size = 0
        for one in inputs:
            try:
                part = self.reading.part(one.number, one)
            except (FileChanged, FileGone) as exc:
                raise moved(one.name, exc) from exc
            if part is None:
                continue
            records = records_in_range(self.reading, self.bounds, part, self.cuts.inputs[one.number], self.clock)
            given = 0
            while True:
                try:
                    batch, keys = next(records)
                except StopIteration as end:
                    if end.value.rows != given:
                        raise IntegrityError(f"{one.name}: {given} of {end.value.rows} records were cut") from None
                    break
                given += batch.num_rows
                held.append(batch.append_column(_KEY, pa.array(keys)))
                size += batch.nbytes
                if size >= _HELD_BYTES:
                    yield from self._dealt(held)
                    held, size = [], 0
        yield from self._dealt(held)

    def _dealt(self, held: Sequence[pa.RecordBatch]) -> Iterator[Blob]:
        if not held:
            return
        whole = pa.Table.from_batches(held).combine_chunks()
        slices = self.cuts.slices_of(
            whole.column(_KEY).to_numpy(), whole.column(layout.ORDER).to_numpy() >> POSITION_BITS, self.bounds
        )
        rows = np.argsort(slices, kind="stable")
        numbers, begins = np.unique(slices[rows], return_index=True)
        for number, begin, end in zip(numbers.tolist(), begins, [*begins[1:], rows.size], strict=True):
            of_slice = whole.take(pa.array(rows[begin:end])).combine_chunks().to_batches()
            for batch in of_slice:
                yield Blob(number, batch.num_rows, packed(batch))


def made_slice(folder: Place, number: int, blobs: Iterable[bytes]) -> PlannedSlice:
    """Write a slice of these records, whole and durable but for its name.

    Raises:
        CannotWriteError: the storage is full or read-only.
    """
    table = pa.Table.from_batches([unpacked(blob) for blob in blobs])
    places = table.column(layout.ORDER).to_numpy()
    rows = np.lexsort((places, table.column(_KEY).to_numpy()))
    table = table.take(pa.array(rows)).drop_columns([_KEY])
    place = folder / f"{number:06d}-{secrets.token_hex(4)}.arrow"
    with telling_where(str(place)):
        file = FileWriter(place)
        try:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(pa.PythonFile(file, "w"), table.schema, options=options) as writer:
                writer.write_table(table, _BATCH_ROWS)
            file.finish()
        finally:
            file.close()
    whole = table.combine_chunks().to_batches()
    return PlannedSlice(
        name=place.name,
        rows=table.num_rows,
        decoded_bytes=table.nbytes,
        size_bytes=file.size_bytes,
        checksum=file.checksum,
        last=max((last for batch in whole if (last := greatest_admitted(batch)) is not None), default=None),
        inputs=tuple(np.unique(places >> POSITION_BITS).tolist()),
    )


def slice_batches(place: Place, planned: PlannedSlice) -> Iterator[pa.RecordBatch]:
    """The records of a slice, in their order.

    Raises:
        IntegrityError: it is not the file that the plan names, or gone.
    """
    try:
        data = place.read()
    except FileNotFoundError:
        raise IntegrityError(f"{place}: a slice of the replay is gone; begin again with another --out") from None
    found = len(data), xxhash.xxh3_64_intdigest(data)
    if found != (planned.size_bytes, planned.checksum):
        raise IntegrityError(
            f"{place}: {found[0]} bytes with checksum {found[1]:016x}, "
            f"expected {planned.size_bytes} with {planned.checksum:016x}"
        )
    with pa.ipc.open_file(pa.py_buffer(data)) as opened:
        for number in range(opened.num_record_batches):
            yield opened.get_batch(number)
