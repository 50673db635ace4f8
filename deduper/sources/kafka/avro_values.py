"""Values of topics in Avro: one datum, behind the header of Confluent's serializer if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deduper.avro.decode import Decoded, Program, decode

_HEADER_BYTES: Final = 5
"""A byte of 0, and the number of the schema, its highest byte first."""


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """How values are decoded; pickled into the tasks."""

    program: Program = field(repr=False)
    has_header: bool

    def parse(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], wanted: Sequence[int]
    ) -> Decoded:
        """The values data[starts[i]:ends[i]], of which the columns `wanted` are built."""
        if self.has_header:
            is_framed = ends - starts > _HEADER_BYTES
            is_framed[is_framed] = data[starts[is_framed]] == 0
            starts = np.where(is_framed, starts + _HEADER_BYTES, ends)  # nothing is no datum of any schema
        return decode(data, starts, ends, self.program, wanted)
