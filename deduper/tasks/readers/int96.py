"""Times of INT96 as instants, whichever program wrote them. PURE.

    nanoseconds of the day   8 bytes, little endian, signed: writers have them below zero for times before 1970
    Julian day               4 bytes, little endian, signed; 1970-01-01 is 2,440,588

Arrow takes both for numbers without a sign. So it gets a footer that says 12 bytes where the file's says INT96; the
pages are the same.

The footer is Thrift's compact form of a struct, of which only the second field matters, the list of schema elements:

    field    a byte, upper half: its id less the one before (0: the id follows), lower half: its type; then its value
    element  1 physical type (3 INT96, 7 fixed length), 2 length, 3 repetition, 4 name, 5 children, ...
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from deduper.core.verdict import INT64_MAX, INT64_MIN
from deduper.tasks.readers.parquet_values import Read, ValueFault, faults

RAW = pa.binary(12)
_LAYOUT = np.dtype([("nanoseconds", "<i8"), ("day", "<i4")])
_FIRST_DAY, _DAY_US = 2_440_588, 86_400_000_000
_MAGIC = b"PAR1"
_SCHEMA, _PHYSICAL_TYPE, _LENGTH = 2, 1, 2
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_INT96 = 3
_AS_BYTES = bytes((1 << 4 | _I32, 7 << 1, 1 << 4 | _I32, 12 << 1))
"""The fields type and length of 12 bytes."""


def as_bytes(footer: bytes) -> parquet.FileMetaData:
    """A file's footer, in Thrift's form, that has INT96 as 12 bytes.

    Raises:
        ValueError, OSError, pa.ArrowException: it is damaged.
    """
    made = _Rewriting(footer).footer()
    size = len(made).to_bytes(4, "little")
    return parquet.read_metadata(pa.BufferReader(b"".join((_MAGIC, made, size, _MAGIC))))


def times(values: pa.Array) -> Read:
    """Instants of the bytes. As in Spark, nanoseconds are cut off towards zero."""
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    data = values.fill_null(bytes(12))
    raw = np.frombuffer(data.buffers()[1], _LAYOUT)[data.offset : data.offset + len(data)]
    days, nanoseconds = raw["day"].astype(np.int64) - _FIRST_DAY, raw["nanoseconds"]
    us = nanoseconds // 1_000 + ((nanoseconds < 0) & (nanoseconds % 1_000 != 0))
    # Whole days on both sides, so that no sum is beyond 64 bits.
    more, us = np.divmod(us, _DAY_US)
    days = days + more
    last, first = INT64_MAX // _DAY_US, -(-INT64_MIN // _DAY_US) - 1
    is_far = (days < first) | (days > last)
    is_far |= (days == last) & (us > INT64_MAX % _DAY_US) | (days == first) & (us < INT64_MIN % _DAY_US)
    is_far &= ~is_null
    # The first day begins before the first time.
    whole = np.where(is_far, 0, np.maximum(days, first + 1)) * _DAY_US
    rest = np.where(is_far, 0, us - np.where(days == first, _DAY_US, 0))
    made = pa.array(whole + rest, pa.int64(), mask=is_null | is_far)
    return made.view(pa.timestamp("us", "UTC")), faults(is_far, ValueFault.FAR)


class _Rewriting:
    """Walks a footer once, from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._copied = 0
        self._made: list[bytes] = []

    def footer(self) -> bytes:
        """The footer with its schema rewritten."""
        field = 0
        while field != _SCHEMA:
            field, kind = self._field(field)
            if kind == _STOP:
                raise ValueError("a footer without a schema")
            if field != _SCHEMA:
                self._skip(kind)
        for _ in range(self._list()[0]):
            self._element()
        self._copy_to(len(self._data))
        return b"".join(self._made)

    def _element(self) -> None:
        begin, (field, kind) = self._at, self._field(0)
        if field != _PHYSICAL_TYPE or self._number() >> 1 != _INT96:
            self._at = begin
            self._skip(_STRUCT)
            return
        self._copy_to(begin)
        self._made.append(_AS_BYTES)
        field, kind = self._field(field)
        if field == _LENGTH:  # it has none, or the same
            self._skip(kind)
            field, kind = self._field(field)
        # The next field counts from the length.
        self._made.append(bytes([(field - _LENGTH) << 4 | kind if kind != _STOP else _STOP]))
        self._copied = self._at
        while kind != _STOP:
            self._skip(kind)
            field, kind = self._field(field)

    def _copy_to(self, end: int) -> None:
        self._made.append(self._data[self._copied : end])
        self._copied = end

    def _byte(self) -> int:
        if self._at >= len(self._data):
            raise ValueError("a footer that ends early")
        self._at += 1
        return self._data[self._at - 1]

    def _number(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def _field(self, before: int) -> tuple[int, int]:
        """(id, type) of the next field."""
        byte = self._byte()
        if byte & 15 == _STOP or byte >> 4:
            return before + (byte >> 4), byte & 15
        number = self._number()
        return number >> 1 ^ -(number & 1), byte & 15

    def _list(self) -> tuple[int, int]:
        """(length, type of the elements) of a list."""
        byte = self._byte()
        return (self._number() if byte >> 4 == 15 else byte >> 4), byte & 15

    def _skip(self, kind: int) -> None:
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._at += 1
        elif kind in (_I16, _I32, _I64):
            self._number()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            size = self._number()
            self._at += size
        elif kind in (_LIST, _SET):
            count, inner = self._list()
            for _ in range(count):
                self._byte() if inner in (_TRUE, _FALSE) else self._skip(inner)
        elif kind == _STRUCT:
            field, inner = self._field(0)
            while inner != _STOP:
                self._skip(inner)
                field, inner = self._field(field)
        else:
            raise ValueError(f"a footer with a field of Thrift's type {kind}")
