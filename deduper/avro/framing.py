"""The header that Confluent's serializer puts before a datum: a byte of 0, and the number of its schema."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES: Final = 5
"""The number has its highest byte first."""


def schema_id(value: bytes) -> int | None:
    """The number of the schema in the header of a value; None without a header and a datum."""
    return int.from_bytes(value[1:HEADER_BYTES], "big") if len(value) > HEADER_BYTES and not value[0] else None


def framed(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the values data[starts[i]:ends[i]] are a header and a datum."""
    are_framed: NDArray[np.bool_] = ends - starts > HEADER_BYTES
    are_framed[are_framed] = data[starts[are_framed]] == 0
    return are_framed


def schema_ids(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers in the headers that begin there."""
    numbers = np.zeros(len(starts), np.int64)
    for place in range(1, HEADER_BYTES):
        numbers = numbers << 8 | data[starts + place]
    return numbers
