"""Values of topics in Avro: one datum, behind the header of Confluent's serializer if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from deduper.avro.decode import Decoded, Program, decode
from deduper.avro.framing import HEADER_BYTES, framed, schema_ids


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """How values are decoded; pickled into the tasks."""

    program: Program = field(repr=False)
    schema_ids: tuple[int, ...] | None = None
    """The numbers that a header may have, none for any; None: there is no header."""

    def parse(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], wanted: Sequence[int]
    ) -> Decoded:
        """The values data[starts[i]:ends[i]], of which the columns `wanted` are built."""
        if self.schema_ids is not None:
            is_framed = framed(data, starts, ends)
            if self.schema_ids:
                is_framed[is_framed] = np.isin(schema_ids(data, starts[is_framed]), self.schema_ids)
            starts = np.where(is_framed, starts + HEADER_BYTES, ends)  # nothing is no datum of any schema
        return decode(data, starts, ends, self.program, wanted)

    def ids_in(self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> set[int]:
        """The ids in the headers of values, if any id is accepted."""
        if self.schema_ids != ():
            return set()
        numbers = schema_ids(data, starts[framed(data, starts, ends)])
        if len(numbers) and (numbers == numbers[0]).all():
            return {int(numbers[0])}
        return set(np.unique(numbers).tolist())
