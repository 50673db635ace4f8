"""The records of offset ranges as reading tasks take them; pickled into the tasks."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc

from deduper.arrow_columns import DeclaredColumn
from deduper.avro.decode import Decoded, Program, decode
from deduper.avro.framing import HEADER_BYTES, framed, schema_ids
from deduper.core.clock import POSITION_BITS, ClockRules
from deduper.core.verdict import INT64_MAX, INT64_MIN, Admission
from deduper.sources.kafka import partition_queue as queue
from deduper.sources.kafka.fetching import RangePart, expect, fetched
from deduper.tasks.layout import HEADERS, KEY, TIMESTAMP, VALUE
from deduper.tasks.readers.declared import Declared, Noted
from deduper.tasks.readers.raw_text import guarded_above, raw_texts, texts_of
from deduper.text import block
from deduper.text.block import Parsed
from deduper.text.format import TextFormat


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


_HEADER: Final = "header:"
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The columns of a record: the first are the value's, the others `record`, by their parts.

    `value` is None for plain text.
    """

    columns: tuple[DeclaredColumn, ...]
    value: TextFormat | AvroFormat | None
    record: tuple[str, ...]

    @property
    def has_headers(self) -> bool:
        """Whether a column is a header."""
        return any(name.startswith(_HEADER) for name in self.record)

    def read(self, part: RangePart, given: pa.RecordBatch, wanted: Sequence[int]) -> ReadColumns:
        """These columns of some records."""
        values = _Values(given.column(queue.VALUE))
        of_value = len(self.columns) - len(self.record)
        in_value = [number for number in wanted if number < of_value]
        parsed: Parsed | Decoded
        is_text, rounded = not isinstance(self.value, AvroFormat), frozenset[int]()
        if self.value is not None:
            if isinstance(self.value, AvroFormat):
                parsed = self.value.parse(values.data, values.starts, values.ends, in_value)
            else:
                parsed = block.parse(values.data, values.starts, values.ends, self.value, in_value)
                rounded = parsed.rounded
            columns, malformed, invalid = parsed.columns, parsed.malformed & ~values.absent, parsed.invalid_utf8
        else:
            text, invalid = as_text(values.column)
            columns, malformed = dict.fromkeys(in_value, text), np.zeros(values.count, np.bool_)
        invalid_parts = np.zeros(values.count, np.bool_)
        for number, name in enumerate(self.record, of_value):
            column, is_wrong = _part_of_records(name, part, given)
            if is_wrong is not None and self.columns[number].kind.name == "string":
                invalid_parts |= is_wrong
            if number in wanted:
                columns[number] = column
        return ReadColumns(columns, malformed, invalid, invalid_parts, ~invalid & is_text, values, rounded)


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """Columns by number; where the value is malformed or no UTF-8, and where a text part of the record is no UTF-8.

    Where a value `is_text`, it is one as a whole. `rounded` as in `Parsed`.
    """

    columns: dict[int, pa.Array]
    malformed: Bools
    invalid: Bools
    invalid_parts: Bools
    is_text: Bools
    values: _Values
    rounded: frozenset[int]

    @property
    def absent(self) -> Bools:
        """Where there is no value."""
        return self.values.absent

    def texts(self, needed: Bools) -> pa.Array:
        """The values of the records that are needed, as text: see `raw_text`."""
        values = self.values
        return texts_of(values.data, values.starts, values.ends, self.is_text, needed & ~values.absent)


class OffsetsToRead(Protocol):
    """Offsets [start, end) of a topic partition, whose records take about `size_bytes` decoded."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition of the topic."""

    @property
    def start(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """The offset behind the last one."""

    @property
    def size_bytes(self) -> int:
        """An estimate."""

    @property
    def silence_s(self) -> float:
        """See `RangePart`."""


@dataclass(frozen=True, slots=True)
class TopicReading:
    """How the records of a source's topics are read. `tombstone` is the admission of a record without a value."""

    declared: Declared
    client: Mapping[str, str] = field(repr=False)
    format: RecordFormat
    tombstone: Admission

    def part(self, ordinal: int, given: OffsetsToRead) -> RangePart:
        """The part for some offsets, the source partition `ordinal` of a plan."""
        return RangePart(
            given.topic, given.partition, given.start, given.end, ordinal, given.size_bytes, given.silence_s
        )

    @property
    def _with_headers(self) -> bool:
        return self.declared.layout.are_sent or self.format.has_headers

    def expect(self, parts: Sequence[RangePart]) -> None:
        """Begin to fetch these ranges, each of another partition, whose records are asked for in this order."""
        expect(self.client, parts, self._with_headers)

    def records(self, part: RangePart, clock: ClockRules | None = None) -> Generator[pa.RecordBatch, None, Noted]:
        """The records of a range, see `tasks.layout`. Returns what is noted of them.

        Raises:
            SourceAwayError, KafkaDeniedError, IntegrityError: as `fetched`.
        """
        counted, bound = 0, guarded_above(clock, keeps_text=self.declared.keeps_text)
        rounded: set[int] = set()
        schema_ids: set[int] = set()
        for given in fetched(self.client, part, self._with_headers):
            counted += given.num_rows
            read = self.format.read(part, given, self.declared.stored(()))
            rounded |= read.rounded.intersection(self.declared.key)
            if isinstance(self.format.value, AvroFormat):
                schema_ids |= self.format.value.ids_in(read.values.data, read.values.starts, read.values.ends)
            yield self._records(part, given, read, bound)
        return Noted(counted, frozenset(rounded), frozenset(schema_ids))

    def columns(self, part: RangePart, given: pa.RecordBatch, numbers: Sequence[int]) -> dict[int, pa.Array]:
        """These columns of some records by their numbers; null where a record has no such value, or cannot be read."""
        read = self.format.read(part, given, numbers)
        of_value = len(self.format.columns) - len(self.format.record)
        sound = pa.array(~(read.malformed | read.invalid | read.absent))
        return {
            number: pc.if_else(sound, column, None) if number < of_value else column
            for number, column in read.columns.items()
        }

    def _records(
        self, part: RangePart, given: pa.RecordBatch, read: ReadColumns, bound: float | None
    ) -> pa.RecordBatch:
        values = read.values
        admission = np.full(values.count, int(Admission.ADMITTED), np.int8)
        for number, name in enumerate(self.format.record, len(self.format.columns) - len(self.format.record)):
            if name == "timestamp" and number in read.columns:
                is_expiry = number == self.declared.expiry
                far = _beyond_us(given.column(queue.TIMESTAMP))
                admission[far] = int(Admission.BAD_EXPIRY if is_expiry else Admission.MALFORMED)
        admission[read.invalid_parts] = int(Admission.INVALID_UTF8)
        admission[read.malformed & ~values.absent] = int(Admission.MALFORMED)
        admission[read.invalid & ~values.absent] = int(Admission.INVALID_UTF8)
        if self.tombstone != Admission.ADMITTED:
            admission[values.absent] = int(self.tombstone)
        order = (part.ordinal << POSITION_BITS) + given.column(queue.OFFSET).to_numpy() - part.start
        texts = partial(raw_texts, values.data, values.starts, values.ends, read.is_text, values.absent, bound)
        sent = {}
        if self.declared.layout.are_sent:
            sent = {
                KEY: given.column(queue.KEY),
                VALUE: values.column,
                HEADERS: _header_texts(given.column(queue.HEADERS)),
                TIMESTAMP: given.column(queue.TIMESTAMP),
            }
        return self.declared.records(
            read.columns, order, admission=admission, texts=texts, sent=sent, value=values.column
        )


class _Values:
    """The values of records: data[starts[i]:ends[i]], empty where a value is absent."""

    def __init__(self, column: pa.Array) -> None:
        self.count, self.column = len(column), column
        _, bounds, data = column.buffers()
        places = np.frombuffer(bounds, np.int32)[column.offset : column.offset + self.count + 1].astype(np.int64)
        self.starts, self.ends = places[:-1], places[1:]
        self.data = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        self.absent = np.zeros(self.count, np.bool_)
        if column.null_count:
            self.absent = column.is_null().to_numpy(zero_copy_only=False)


def _part_of_records(name: str, part: RangePart, given: pa.RecordBatch) -> tuple[pa.Array, Bools | None]:
    """A part of the records as a column, and where a text of it is no UTF-8."""
    count = given.num_rows
    if name == "key":
        return as_text(given.column(queue.KEY))
    if name == "key_binary":
        return given.column(queue.KEY), None
    if name.startswith(_HEADER):
        return as_text(_last_headers(given.column(queue.HEADERS), name.removeprefix(_HEADER).encode()))
    if name == "timestamp":
        ms = given.column(queue.TIMESTAMP)
        far = _beyond_us(ms)
        return pa.array(np.where(far, 0, ms.to_numpy()) * 1000, mask=far).view(pa.timestamp("us", "UTC")), None
    if name == "topic":
        return pa.repeat(pa.scalar(part.topic), count), None
    if name == "partition":
        return pa.array(np.full(count, part.partition, np.int32)), None
    return given.column(queue.OFFSET), None


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


def _last_headers(headers: pa.Array, name: bytes) -> pa.Array:
    """Each record's last header of a name; null for none."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.binary())
    values = [
        next((one["value"] for one in reversed(some or ()) if one["name"] == name), None)
        for some in headers.to_pylist()
    ]
    return pa.array(values, pa.binary())


def _header_texts(headers: pa.Array) -> pa.Array:
    """Headers as JSON, values in Base64; null where there are none."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.string())
    texts = [_JSON.encode([_header(**one) for one in some]) if some else None for some in headers.to_pylist()]
    return pa.array(texts, pa.string())


def _header(name: bytes, value: bytes | None) -> dict[str, str]:
    key = name.decode(errors="replace")  # as Java has a name that is no UTF-8
    return {"key": key} | ({} if value is None else {"value": base64.b64encode(value).decode()})


def _beyond_us(ms: pa.Array) -> Bools:
    """Where times in ms do not fit into 64 bits of µs."""
    values = ms.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    far: Bools = (values > INT64_MAX // 1000) | (values < -(-INT64_MIN // 1000))
    return far
