"""Staged rows from Arrow's buffers into a producer's queue; see `kafka.librdkafka`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from numba import types
from numpy.typing import NDArray
from pyarrow import compute

from bucket_store.compiled import kernel
from deduper.kafka import librdkafka
from deduper.kafka.librdkafka import header_add, headers_destroy, headers_new, produceva

_ANY_PARTITION: Final = -1
_IS_COPIED: Final = 2
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADERS = 2, 3, 4, 5, 7, 8, 10
"""RD_KAFKA_VTYPE_ of the parts of a record."""
_WORDS: Final = 9
"""Of 8 bytes, in an `rd_kafka_vu_t`."""

_WHOLES = types.Array(types.int64, 1, "C")
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_COLUMN = types.Tuple((_PLACES, _BYTES, _BYTES))  # type: ignore[no-untyped-call]
_Column = tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]]


def sending(producer: Producer, topic: str, rows: pa.RecordBatch, partition: int) -> Callable[[int], int]:
    """Hands these rows, of `staged_records`, to a producer; those without a key go to the partition.

    The function takes the number of the first row. It gives the number of the first row for which the queue has no
    room, or that of all rows, and raises KafkaException if the client refuses a row. The rows are copied.
    """
    pairs = rows.column("headers")
    counts = compute.fill_null(compute.list_value_length(pairs), 0).to_numpy(zero_copy_only=False)
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    flat = pairs.flatten()
    keys, values = _column(rows.column("key")), _column(rows.column("value"))
    names, contents = _column(flat.field("key")), _column(flat.field("value"))
    timestamps = rows.column("timestamp_ms").to_numpy()
    outcome = np.zeros(1, np.int64)

    def send(begin: int) -> int:
        handle = librdkafka.handle_of(producer)
        to = librdkafka.topic_of(handle, topic)
        if not to:
            raise KafkaException(librdkafka.last_error())
        try:
            row: int = _send(handle, to, partition, begin, timestamps, keys, values, names, contents, bounds, outcome)
        finally:
            librdkafka.topic_destroy(to)
        if outcome[0]:
            error = librdkafka.taken_error(int(outcome[0]))
            if error.code() != KafkaError._QUEUE_FULL:
                raise KafkaException(error)
        return row

    return send


def _column(column: pa.Array) -> _Column:
    """A column of bytes or texts: bounds, bytes, and which rows are valid, empty for all."""
    column = column.cast(pa.large_binary())
    _, bounds, data = column.buffers()
    places = np.frombuffer(bounds, np.int64)[column.offset : column.offset + len(column) + 1]
    # An empty value is not null: it needs an address.
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.zeros(0, np.bool_)
    return places, content, valid.view(np.uint8)


@kernel(types.int64(*[types.int64] * 4, _PLACES, *[_COLUMN] * 4, _PLACES, _WHOLES))
def _send(
    handle: Any,
    topic: Any,
    partition: Any,
    begin: Any,
    timestamps: Any,
    keys: Any,
    values: Any,
    names: Any,
    contents: Any,
    headers: Any,
    outcome: Any,
) -> Any:
    """The number of the first row that was not taken, or that of all rows; `outcome` is its error, or 0."""
    parts = np.zeros(7 * _WORDS, np.int64)
    for place, kind in enumerate((_TOPIC, _FLAGS, _PARTITION, _VALUE, _KEY, _TIMESTAMP, _HEADERS)):
        parts[place * _WORDS] = kind
    parts[1] = topic
    parts[_WORDS + 1] = _IS_COPIED
    name_at, content_at = names[1].ctypes.data, contents[1].ctypes.data
    outcome[0] = 0
    for row in range(begin, len(timestamps)):
        has_value = len(values[2]) == 0 or values[2][row] != 0
        has_key = len(keys[2]) == 0 or keys[2][row] != 0
        parts[2 * _WORDS + 1] = _ANY_PARTITION if has_key else partition
        parts[3 * _WORDS + 1] = values[1].ctypes.data + values[0][row] if has_value else 0
        parts[3 * _WORDS + 2] = values[0][row + 1] - values[0][row] if has_value else 0
        parts[4 * _WORDS + 1] = keys[1].ctypes.data + keys[0][row] if has_key else 0
        parts[4 * _WORDS + 2] = keys[0][row + 1] - keys[0][row] if has_key else 0
        parts[5 * _WORDS + 1] = timestamps[row]
        number = headers[row + 1] - headers[row]
        if number > 0:
            made = headers_new(number)
            for header in range(headers[row], headers[row + 1]):
                has_content = len(contents[2]) == 0 or contents[2][header] != 0
                header_add(
                    made,
                    name_at + names[0][header],
                    names[0][header + 1] - names[0][header],
                    content_at + contents[0][header] if has_content else 0,
                    contents[0][header + 1] - contents[0][header] if has_content else 0,
                )
            parts[6 * _WORDS + 1] = made
        error = produceva(handle, parts.ctypes.data, 7 if number > 0 else 6)
        if error != 0:
            if number > 0:
                headers_destroy(made)
            outcome[0] = error
            return row
    return len(timestamps)


KERNELS: Final = (_send,)
"""Those that a publication calls."""
