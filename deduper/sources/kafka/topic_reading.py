"""The records of offset ranges as reading tasks take them, read without Spark; pickled into the tasks.

The same columns as `sources.kafka.stream` makes in Catalyst, by the same rules: see SEMANTICS.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import Admission
from deduper.sources.kafka.fetching import Fetched, Headers, RangePart, fetched
from deduper.tasks.layout import HEADERS, KEY, TIMESTAMP, VALUE
from deduper.tasks.readers.declared import Declared
from deduper.tasks.readers.raw_text import guarded_above, raw_texts
from deduper.text import block
from deduper.text.format import TextFormat

_HEADER: Final = "header:"
_INT32_MAX: Final = 2**31 - 1
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TopicReading:
    """How the records of a source's topics are read.

    The first columns of `declared` are the value's, the others `record`, by their parts. `value` is None for plain
    text. `tombstone` is the admission of a record without a value.
    """

    declared: Declared
    client: Mapping[str, str] = field(repr=False)
    value: TextFormat | None
    record: tuple[str, ...]
    tombstone: Admission

    def records(self, part: RangePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, int]:
        """The records of a range, see `tasks.layout`. Returns their number, counted apart.

        Raises:
            NotPlain: Spark has to read the range.
        """
        counted, bound = 0, guarded_above(clock)
        for given in fetched(self.client, part):
            counted += len(given.messages)
            yield self._records(part, given, bound)
        return counted

    def _records(self, part: RangePart, given: Fetched, bound: float | None) -> pa.RecordBatch:
        values = _Values(given.values)
        needed = self.declared.stored(())
        of_value = len(self.declared.columns) - len(self.record)
        columns, malformed, invalid = self._of_value(values, [number for number in needed if number < of_value])
        admission = np.full(values.count, int(Admission.ADMITTED), np.int8)
        for place, name in enumerate(self.record):
            number = of_value + place
            column, is_wrong = _part_of_records(name, part, given)
            if is_wrong is not None and self.declared.columns[number].kind.name == "string":
                admission[is_wrong] = int(Admission.INVALID_UTF8)
            if number in needed:
                columns[number] = column
        admission[malformed] = int(Admission.MALFORMED)
        admission[invalid] = int(Admission.INVALID_UTF8)
        admission[values.absent] = int(self.tombstone)
        order = (part.ordinal << POSITION_BITS) + given.offsets - part.start
        texts = partial(raw_texts, values.data, values.starts, values.ends, ~invalid, values.absent, bound)
        sent = {}
        if self.declared.layout.are_sent:
            sent = {
                KEY: _binary(given.keys),
                VALUE: values.column,
                HEADERS: _header_texts(given.headers),
                TIMESTAMP: pa.array(given.timestamps_ms),
            }
        return self.declared.records(columns, order, admission=admission, texts=texts, sent=sent)

    def _of_value(self, values: _Values, wanted: Sequence[int]) -> tuple[dict[int, pa.Array], Bools, Bools]:
        """Columns of the values by number, and which values are malformed, and no UTF-8."""
        if self.value is not None:
            parsed = block.parse(values.data, values.starts, values.ends, self.value, wanted)
            return parsed.columns, parsed.malformed & ~values.absent, parsed.invalid_utf8
        text, invalid = as_text(values.column)
        return dict.fromkeys(wanted, text), np.zeros(values.count, np.bool_), invalid


class _Values:
    """The values of records, one after another: data[starts[i]:ends[i]]; nothing where one is absent."""

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.count = len(values)
        if None in values:
            self.absent = np.fromiter((value is None for value in values), np.bool_, self.count)
            values = [value or b"" for value in values]
        else:
            self.absent = np.zeros(self.count, np.bool_)
        self.data = np.frombuffer(b"".join(values), np.uint8)  # type: ignore[arg-type]  # none is None
        bounds = np.zeros(self.count + 1, np.int64)
        np.cumsum(np.fromiter(map(len, values), np.int64, self.count), out=bounds[1:])  # type: ignore[arg-type]
        self.starts, self.ends = bounds[:-1], bounds[1:]
        self._bounds = bounds

    @property
    def column(self) -> pa.Array:
        """The values as they came, null where one is absent."""
        if self._bounds[-1] > _INT32_MAX:
            raise ValueError("more than 2 GiB of values at a time")
        valid = None
        if self.absent.any():
            valid = pa.py_buffer(np.packbits(~self.absent, bitorder="little"))
        buffers = [valid, pa.py_buffer(self._bounds.astype(np.int32)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers)


def _part_of_records(name: str, part: RangePart, given: Fetched) -> tuple[pa.Array, Bools | None]:
    """A part of the records as a column, and of a text, where it is none."""
    count = len(given.messages)
    if name == "key":
        return as_text(_binary(given.keys))
    if name == "key_binary":
        return _binary(given.keys), None
    if name.startswith(_HEADER):
        return as_text(_binary([_last(one, name.removeprefix(_HEADER)) for one in given.headers]))
    if name == "timestamp":
        return pa.array(given.timestamps_ms * 1000).view(pa.timestamp("us", "UTC")), None
    if name == "topic":
        return pa.repeat(pa.scalar(part.topic), count), None
    if name == "partition":
        return pa.array(np.full(count, part.partition, np.int32)), None
    return pa.array(given.offsets), None


def as_text(column: pa.Array) -> tuple[pa.Array, Bools]:
    """A column of bytes as texts, and where the bytes are no UTF-8: null there."""
    try:
        return column.cast(pa.string()), np.zeros(len(column), np.bool_)
    except pa.ArrowInvalid:
        texts = [None if value is None else _decoded(value) for value in column.to_pylist()]
        found = pa.array(texts, pa.string())
        wrong: Bools = (found.is_null().to_numpy(zero_copy_only=False)) & column.is_valid().to_numpy(
            zero_copy_only=False
        )
        return found, wrong


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


def _last(headers: Headers | None, name: str) -> bytes | None:
    """The last header of a name."""
    return next((value for found, value in reversed(headers or ()) if found == name), None)


def _header_texts(headers: Sequence[Headers | None]) -> pa.Array:
    """Headers as JSON, values in Base64; null where there are none."""
    if not any(headers):
        return pa.nulls(len(headers), pa.string())
    texts = [_JSON.encode([_header(*pair) for pair in one]) if one else None for one in headers]
    return pa.array(texts, pa.string())


def _header(name: str, value: bytes | None) -> dict[str, str]:
    return {"key": name} | ({} if value is None else {"value": base64.b64encode(value).decode()})
