"""What a reading task adds to a DataFrame's rows: their places, where columns name them, and their fingerprints. PURE.

A place is a source, as a topic partition, and a number in it.

Without such columns a row's place is its number in its partition of the DataFrame. That is also the place of a row that
names none: one with a null, or with a number that is negative or of more than 40 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from deduper.core.clock import POSITION_BITS
from deduper.core.fingerprints import array_fingerprint
from deduper.payload import Leaf
from deduper.tasks.layout import FINGERPRINT, ORDER, PARTITION, TOPIC
from deduper.tasks.read import FoundPartition, RecordPlaces

MOST_PARTITIONS = 4096
"""The ordinal of the n-th source of a DataFrame's partition is n times this plus the number of the partition."""


class FramePlaces:
    """The places of one partition's rows. `number` is a row's number in the DataFrame's partition.

    The columns of a batch: TOPIC is the name of the source, ORDER the number in it, PARTITION the number of the
    DataFrame's partition.
    """

    def __init__(self) -> None:
        self._sources: dict[str | None, int] = {}
        self._ends: dict[str | None, int] = {}
        self._rows: dict[str | None, int] = {}
        self._seen = 0
        self._partition = 0

    def placed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """See `RecordPlaces`. TOPIC and PARTITION are left out.

        Raises:
            ValueError: the DataFrame has too many partitions.
        """
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        sources, partitions = columns.pop(TOPIC), columns.pop(PARTITION)
        if not records.num_rows:
            return pa.RecordBatch.from_pydict(columns)
        self._partition = partitions[0].as_py()
        if self._partition >= MOST_PARTITIONS:
            raise ValueError(f"with `place` a DataFrame has at most {MOST_PARTITIONS} partitions; coalesce it")
        given = columns[ORDER]
        fits = pc.and_(pc.greater_equal(given, 0), pc.less(given, 1 << POSITION_BITS)).fill_null(False)
        named = pc.if_else(fits, sources, pa.scalar(None, pa.string()))
        order = given.fill_null(0).to_numpy(zero_copy_only=False).copy()
        numbers = np.arange(self._seen, self._seen + records.num_rows, dtype=np.int64)
        self._seen += records.num_rows
        for name, rows in _by_name(named):
            positions = numbers[rows] if name is None else order[rows]
            self._rows[name] = self._rows.get(name, 0) + positions.size
            self._ends[name] = max(self._ends.get(name, 0), int(positions.max()) + 1)
            order[rows] = self._ordinal(name) << POSITION_BITS | positions
        return pa.RecordBatch.from_pydict({**columns, ORDER: pa.array(order)})

    def partitions(self) -> tuple[FoundPartition, ...]:
        """See `RecordPlaces`."""
        return tuple(
            FoundPartition(self._ordinal(name), name, self._ends[name], rows) for name, rows in self._rows.items()
        )

    def _ordinal(self, name: str | None) -> int:
        return self._sources.setdefault(name, len(self._sources)) * MOST_PARTITIONS + self._partition


def _by_name(names: pa.Array) -> list[tuple[str | None, NDArray[Any] | slice]]:
    """Each source with the indices of its rows. Mostly there is one source."""
    encoded = names.dictionary_encode()
    known: list[str | None] = [*encoded.dictionary.to_pylist(), None]
    codes = encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
    if (codes == codes[0]).all():
        return [(known[codes[0]], slice(None))]
    return [(known[code], np.flatnonzero(codes == code)) for code in np.unique(codes).tolist()]


@dataclass
class FramePayload:
    """The fingerprints of rows, and their places if `places` finds them. See `RecordPlaces`.

    `columns` are the columns of a batch that the payload's columns are in, by name.
    """

    payload: tuple[Leaf, ...]
    columns: Mapping[str, str]
    salt: bytes
    places: RecordPlaces | None = None

    def placed(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The same records with FINGERPRINT, and with ORDER if `places` gives it."""
        given = {name: records.column(column) for name, column in self.columns.items()}
        found = pa.array(array_fingerprint(self.payload, given, self.salt, records.num_rows))
        records = records.append_column(FINGERPRINT, found)
        return records if self.places is None else self.places.placed(records)

    def partitions(self) -> tuple[FoundPartition, ...]:
        """Those of `places`."""
        return () if self.places is None else self.places.partitions()
