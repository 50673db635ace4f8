"""Records of one partition from librdkafka's queue, as Arrow columns; see `kafka.librdkafka`.

offset, timestamp_ms   int64; -1 for a record without a timestamp
value, key             binary, null where there is none
headers                list<struct<name: binary, value: binary>>, null for none
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError
from numba import types
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.kafka import librdkafka
from deduper.kafka.librdkafka import (
    consume_batch_queue,
    copy,
    half_at,
    header_get_all,
    length_of_text,
    message_destroy,
    message_headers,
    message_timestamp,
    whole_at,
)

OFFSET, TIMESTAMP, VALUE, KEY, HEADERS = "offset", "timestamp_ms", "value", "key", "headers"
_HEADER: Final = pa.struct([("name", pa.binary()), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.int64()),
        (VALUE, pa.binary()),
        (KEY, pa.binary()),
        (HEADERS, pa.list_(_HEADER)),
    ]
)
NO_TIMESTAMP: Final = -1
MOST_RECORDS: Final = 20_000
"""At most so many records are taken at a time."""
_MOST_BYTES: Final = 2**31 - 1

_EVENTS, _OTHERS, _VALUE_BYTES, _KEY_BYTES, _HEADERS, _NAME_BYTES, _HEADER_BYTES = range(7)
"""What `_measure` counts, and where."""
_TOTALS: Final = 7

_ARRAY = types.Array(types.int64, 1, "C")
_BOUNDS = types.Array(types.int32, 1, "C")
_BYTES = types.Array(types.uint8, 1, "C")
_COLUMN = types.Tuple((_BOUNDS, _BYTES, _BYTES))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Event:
    """A message that is no record: an error, or the report that a partition was read so far, with its offset."""

    error: KafkaError
    offset: int


@dataclass
class PartitionQueue:
    """The queue of a consumer's partition; to be made before that is assigned, and closed. For one thread.

    Errors of the connection are not here: the consumer's `poll` has them.
    """

    consumer: Consumer
    topic: str
    partition: int
    with_headers: bool
    _messages: NDArray[np.int64] = field(init=False, repr=False)
    _queue: int = field(init=False)

    def __post_init__(self) -> None:
        self._messages = np.zeros(MOST_RECORDS, np.int64)
        self._queue = librdkafka.partition_queue(librdkafka.handle_of(self.consumer), self.topic, self.partition)

    def close(self) -> None:
        """Release the queue."""
        librdkafka.queue_destroy(self._queue)

    def take(self, most: int, wait_ms: int) -> tuple[pa.RecordBatch, list[Event]]:
        """The records in the queue; if it is empty, the first one that comes within the wait.

        Columns are those of `SCHEMA`; headers are null in all rows if they are not asked for.

        Raises:
            ValueError: the records have more than 2 GiB, or are another partition's.
        """
        messages = self._messages
        taken = _take(self._queue, wait_ms, messages, min(most, MOST_RECORDS))
        totals = np.zeros(_TOTALS, np.int64)
        events, offsets, timestamps = np.zeros((3, taken), np.int64)
        values, keys, headers = np.zeros((3, taken + 1), np.int32)
        asked = messages[:taken], self.partition, self.with_headers
        count = _measure(*asked, events, offsets, timestamps, values, keys, headers, totals)
        found = [Event(*librdkafka.taken_event(event)) for event in events[: totals[_EVENTS]].tolist()]
        if totals.max() > _MOST_BYTES or totals[_OTHERS]:
            _release(messages[:count])
            what = "records of another partition" if totals[_OTHERS] else "more than 2 GiB of records at a time"
            raise ValueError(f"{self.topic}-{self.partition}: {what}")
        value = _Column(values[: count + 1], totals[_VALUE_BYTES])
        key = _Column(keys[: count + 1], totals[_KEY_BYTES])
        number = int(totals[_HEADERS])
        names, contents = (
            _Column(np.zeros(number + 1, np.int32), totals[total]) for total in (_NAME_BYTES, _HEADER_BYTES)
        )
        bounds = headers[: count + 1]
        _copy_out(messages[:count], value.arrays, key.arrays, bounds, names.arrays, contents.arrays)
        of_records = pa.nulls(count, SCHEMA.field(HEADERS).type)
        if number:
            some = np.append(np.diff(bounds) > 0, True)
            pairs = pa.StructArray.from_arrays([names.array, contents.array], fields=list(_HEADER))
            of_records = pa.ListArray.from_arrays(pa.array(bounds, mask=~some), pairs)
        columns = [pa.array(offsets[:count]), pa.array(timestamps[:count]), value.array, key.array, of_records]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA), found


class _Column:
    """A column of bytes to be filled: data[bounds[i]:bounds[i + 1]], where valid[i]."""

    def __init__(self, bounds: NDArray[np.int32], size_bytes: int) -> None:
        self.bounds = bounds
        self.data = np.empty(size_bytes, np.uint8)
        self.valid = np.ones(len(bounds) - 1, np.uint8)

    @property
    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint8]]:
        """For a kernel."""
        return self.bounds, self.data, self.valid

    @property
    def array(self) -> pa.Array:
        valid = None if self.valid.all() else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        buffers = [valid, pa.py_buffer(self.bounds), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self.valid), buffers)


@kernel(types.int64(types.int64, types.int32, _ARRAY, types.int64))
def _take(queue: Any, wait_ms: Any, messages: Any, most: Any) -> Any:
    """Numbers of messages taken: all that are there, at most as many; waits for the first alone."""
    taken = consume_batch_queue(queue, 0, messages.ctypes.data, most)
    if taken == 0 and wait_ms > 0:
        taken = consume_batch_queue(queue, wait_ms, messages.ctypes.data, 1)
    return taken if taken > 0 else 0


@kernel(types.void(_COLUMN, types.int64, types.int64), inline="always")
def _put(column: Any, row: Any, address: Any) -> None:
    """Fills a row, whose bounds are there; an address of 0 is none."""
    bounds, data, valid = column
    valid[row] = address != 0
    copy(data.ctypes.data + bounds[row], address, np.int64(bounds[row + 1] - bounds[row]))


@kernel(types.void(_ARRAY))
def _release(messages: Any) -> None:
    for message in messages:
        message_destroy(message)


@kernel(
    types.int64(
        _ARRAY, types.int64, types.boolean, _ARRAY, _ARRAY, _ARRAY, _BOUNDS, _BOUNDS, _BOUNDS, _ARRAY
    )
)  # fmt: skip
def _measure(
    messages: Any,
    partition: Any,
    with_headers: Any,
    events: Any,
    offsets: Any,
    timestamps: Any,
    values: Any,
    keys: Any,
    headers: Any,
    totals: Any,
) -> Any:
    """Number of records: they stand first in `messages` then, and what is none, in `events`. Fills the bounds."""
    found = np.zeros(4, np.int64)
    count = 0
    for place in range(len(messages)):
        message = messages[place]
        if half_at(message) != 0:
            events[totals[_EVENTS]] = message
            totals[_EVENTS] += 1
            continue
        if half_at(message + 16) != partition:
            totals[_OTHERS] += 1
        messages[count] = message
        offsets[count] = whole_at(message + 56)
        timestamps[count] = message_timestamp(message, found.ctypes.data)
        if found[0] & 0xFFFFFFFF == 0:
            timestamps[count] = NO_TIMESTAMP
        totals[_VALUE_BYTES] += whole_at(message + 32)
        totals[_KEY_BYTES] += whole_at(message + 48)
        if with_headers and message_headers(message, found.ctypes.data) == 0:
            number = 0
            at = found.ctypes.data
            while header_get_all(found[0], number, at + 8, at + 16, at + 24) == 0:
                totals[_NAME_BYTES] += length_of_text(found[1])
                totals[_HEADER_BYTES] += found[3]
                number += 1
            totals[_HEADERS] += number
        count += 1
        values[count] = totals[_VALUE_BYTES]
        keys[count] = totals[_KEY_BYTES]
        headers[count] = totals[_HEADERS]
    return count


@kernel(types.void(_ARRAY, _COLUMN, _COLUMN, _BOUNDS, _COLUMN, _COLUMN))
def _copy_out(messages: Any, values: Any, keys: Any, headers: Any, names: Any, contents: Any) -> None:
    """Copies what the messages hold, and frees them."""
    found = np.zeros(4, np.int64)
    at = found.ctypes.data
    for row in range(len(messages)):
        message = messages[row]
        _put(values, row, whole_at(message + 24))
        _put(keys, row, whole_at(message + 40))
        if headers[row + 1] > headers[row]:
            message_headers(message, at)
            for header in range(headers[row], headers[row + 1]):
                header_get_all(found[0], header - headers[row], at + 8, at + 16, at + 24)
                names[0][header + 1] = names[0][header] + length_of_text(found[1])
                contents[0][header + 1] = contents[0][header] + found[3]
                _put(names, header, found[1])
                _put(contents, header, found[2])
        message_destroy(message)


KERNELS: Final = (_take, _release, _measure, _copy_out)
"""Those that a window calls."""
