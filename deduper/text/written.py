"""Rows as lines of JSON or CSV, column by column: what `block.parse` reads as the same values. PURE.

    JSON    an object a line without its nulls; bytes are Base64; NaN and infinities are texts. A null is written
            inside a list, and as a value of a map. A key of a map is a text
    CSV     the fields of a row; null is nothing, an empty text `""`. Quoted is what has a comma, a quote or a line end,
            with its quotes doubled. Nested values are JSON

Dates and times are ISO 8601 in the proleptic Gregorian calendar, with a sign before year 0 and after 9999; times
with a zone have its offset, to the second, and those of Arrow's unit µs six digits behind the second. Bytes of a text
that are not UTF-8 are U+FFFD.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types
from numpy.typing import NDArray

from bucket_store.compiled import kernel
from deduper.text.kernels import read_only
from deduper.time_zones import Zone, offset_at, time_zone

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ROWS: Final = 1 << 16
_BYTES: Final = 16 << 20
"""Most rows, and about how many bytes of them, of which the lines are made at a time."""
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)
_ESCAPED: Final = "".join(map(chr, (0x5C, 0x22, *range(0x20))))
"""What JSON has no other way for inside quotes. The backslash comes first: it is in the others' escapes."""
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_SECONDS: Final = 86_400
_CYCLE_DAYS: Final = 146_097
_CYCLE_YEARS: Final = 400
"""The calendar repeats: a year that Python has not is written as one of 2000 to 2399."""
_BEGIN: Final = date(2000, 1, 1)
_BEGIN_DAY: Final = (_BEGIN - date(1970, 1, 1)).days
_PLAIN_DAYS: Final = (-719_528, 2_932_897)
"""Days of the years 0 to 9999, which Arrow writes with four digits."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts data[begin:end] of a column, and what stands around each; `valid` None: there is no null."""

    data: NDArray[np.uint8]
    begin: Int64s
    end: Int64s
    valid: Bools | None = None
    opens: str = ""
    closes: str = ""

    @classmethod
    def of(cls, texts: pa.Array, around: str = "") -> _Texts:
        """Those of a column of strings."""
        _, places, data = texts.buffers()
        size = len(texts)
        offsets = np.zeros(1, np.int32) if places is None else np.frombuffer(places, np.int32)
        begin = offsets[texts.offset : texts.offset + size + 1].astype(np.int64)
        block = np.frombuffer(data if data is not None else b"", np.uint8)
        return cls(block, begin[:-1], begin[1:], _valid(texts), around, around)

    def pieces(self, before: str, missing: str = "") -> _Pieces:
        """With what stands before each, as part of a longer text; `missing` stands for null."""
        opens, closes = (before + self.opens).encode(), self.closes.encode()
        return _Pieces(self, opens, closes, missing.encode())


@dataclass(frozen=True, slots=True)
class _Pieces:
    texts: _Texts
    opens: bytes
    closes: bytes
    missing: bytes

    @property
    def sizes(self) -> Int64s:
        """The bytes of each row."""
        sizes: Int64s = self.texts.end - self.texts.begin + (len(self.opens) + len(self.closes))
        return sizes if self.texts.valid is None else np.where(self.texts.valid, sizes, len(self.missing))


def json_lines(rows: pa.Table, zone: str = "UTC") -> pa.ChunkedArray:
    """A line of JSON for each row, without its line end."""
    chunks = [_strings(replace(_json_rows(batch, _zone(zone)), opens="{", closes="}")) for batch in _batches(rows)]
    return pa.chunked_array(chunks, pa.string())


def json_blocks(rows: pa.Table, zone: str = "UTC") -> Iterator[NDArray[np.uint8]]:
    """The bytes of the lines, with their ends."""
    for batch in _batches(rows):
        yield _joined([replace(_json_rows(batch, _zone(zone)), opens="{", closes="}\n").pieces("")]).data


def csv_blocks(rows: pa.Table, zone: str = "UTC") -> Iterator[NDArray[np.uint8]]:
    """The bytes of the lines of fields, with their ends; `csv_header` is the line before them."""
    for batch in _batches(rows):
        fields = [
            _csv(column, _zone(zone)).pieces("," if number else "", "," if number else "")
            for number, column in enumerate(batch.columns)
        ]
        yield _joined([replace(_joined(fields), closes="\n").pieces("")]).data


def csv_header(names: Sequence[str]) -> bytes:
    """The line of the names of columns."""
    (header,) = csv_blocks(pa.table([[name] for name in names], names=list(map(str, range(len(names))))))
    return header.tobytes()


def warm() -> None:
    """Compiles, or loads from the cache, the kernel."""
    json_lines(pa.table({"a": pa.array([1], pa.int64())}))


def text_of_day(day: int) -> str:
    """The text of a date of any year, given as days since 1970."""
    cycles, day = divmod(day - _BEGIN_DAY, _CYCLE_DAYS)
    near = _BEGIN + timedelta(days=day)
    year = near.year + cycles * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}{near.isoformat()[4:]}"


def _batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in rows.combine_chunks().to_batches(max_chunksize=_ROWS):
        yield from _slices(batch)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows < 2 or batch.nbytes <= _BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _slices(batch.slice(0, half))
    yield from _slices(batch.slice(half))


def _zone(name: str) -> Zone:
    """UTC for a name that only Java has."""
    zone = time_zone(name)
    return 0 if zone is None else zone


def _json_rows(batch: pa.RecordBatch, zone: Zone) -> _Texts:
    return _members(batch.schema.names, batch.columns, batch.num_rows, zone)


def _members(names: Sequence[str], columns: Sequence[pa.Array], rows: int, zone: Zone) -> _Texts:
    """The members of objects, without the braces."""
    pieces = [
        _json(column, zone).pieces(f",{_JSON.encode(name)}:") for name, column in zip(names, columns, strict=True)
    ]
    return _without_comma(_joined(pieces, rows))


def _without_comma(texts: _Texts) -> _Texts:
    return replace(texts, begin=np.minimum(texts.begin + 1, texts.end))


def _json(column: pa.Array, zone: Zone) -> _Texts:
    """The values as JSON has them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _taken(_json(column.dictionary, zone), column.indices)
    if _is_text(kind):
        return _Texts.of(_escaped(_utf8(column)), '"')
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        members = _members(names, column.flatten(), len(column), zone)
        return replace(members, valid=_valid(column), opens="{", closes="}")
    if pa.types.is_map(kind):
        key, item = kind.key_type, kind.item_type
        return _map(column.cast(pa.list_(pa.struct([("key", key), ("value", item)]))), zone)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _joined([_json(column.flatten(), zone).pieces(",", ",null")])
        return replace(_of_lists(column, values), opens="[", closes="]")
    if pa.types.is_floating(kind):
        texts, is_finite = _numbers(column)
        if not is_finite.all():
            quoted = pc.binary_join_element_wise('"', texts, '"', "")
            texts = pc.if_else(pa.array(is_finite), texts, quoted)
        return _Texts.of(texts)
    texts = _scalars(column, zone)
    if texts is None:
        others = (None if value is None else _JSON.encode(value) for value in column.to_pylist())
        return _Texts.of(pa.array(others, pa.string()))
    return _Texts.of(texts, '"' if pa.types.is_temporal(kind) or _is_binary(kind) else "")


def _csv(column: pa.Array, zone: Zone) -> _Texts:
    """The values as fields."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _taken(_csv(column.dictionary, zone), column.indices)
    if pa.types.is_floating(kind):
        return _Texts.of(_numbers(column)[0])
    texts = _utf8(column) if _is_text(kind) else _scalars(column, zone)
    if texts is None:
        texts = _strings(_json(column, zone))
    return _Texts.of(_quoted_if_needed(texts))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _scalars(column: pa.Array, zone: Zone) -> pa.Array | None:
    """The texts of values that look alike in JSON and CSV, without quotes; None of other types."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_date32(kind):
        return _dates(column)
    if pa.types.is_timestamp(kind):
        return _times(column, zone)
    if _is_binary(kind):
        return _base64(column.cast(pa.binary()))
    return None


def _map(entries: pa.Array, zone: Zone) -> _Texts:
    keys, values = entries.flatten().flatten()
    names = _json(keys, zone)
    if not names.opens == names.closes == '"':
        names = _Texts.of(_escaped(_strings(names)), '"')
    members = _joined([names.pieces(","), _json(values, zone).pieces(":", ":null")])
    return replace(_of_lists(entries, members), opens="{", closes="}")


def _of_lists(lists: pa.Array, elements: _Texts) -> _Texts:
    """The texts of the elements of each list, which stand one behind another."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    places = np.append(elements.begin, len(elements.data))
    return _without_comma(_Texts(elements.data, places[ends - lengths], places[ends], _valid(lists)))


def _taken(texts: _Texts, indices: pa.Array) -> _Texts:
    valid = _valid(indices)
    at = pc.fill_null(indices, 0).to_numpy(zero_copy_only=False)
    if not len(texts.begin):
        zeros = np.zeros(len(indices), np.int64)
        return replace(texts, begin=zeros, end=zeros, valid=np.zeros(len(indices), np.bool_))
    if texts.valid is not None:
        valid = texts.valid[at] if valid is None else valid & texts.valid[at]
    return replace(texts, begin=texts.begin[at], end=texts.end[at], valid=valid)


def _valid(column: pa.Array) -> Bools | None:
    if not column.null_count:
        return None
    valid: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(column: pa.Array) -> tuple[pa.Array, Bools]:
    """The shortest texts of floats, whole ones with `.0`, and which are finite or null."""
    texts = column.cast(pa.string())
    is_finite: Bools = pc.fill_null(pc.is_finite(column), True).to_numpy(zero_copy_only=False)
    has_sign = pc.match_substring(texts, ".")
    if not pc.all(has_sign, min_count=0).as_py():
        for sign in "en":  # of an exponent, NaN, infinity
            has_sign = pc.or_(has_sign, pc.match_substring(texts, sign))
        texts = pc.if_else(has_sign, texts, pc.binary_join_element_wise(texts, ".0", ""))
    if not is_finite.all():
        infinite = pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity")
        texts = pc.if_else(pa.array(is_finite), texts, pc.if_else(pc.is_nan(column), "NaN", infinite))
    return texts, is_finite


def _utf8(texts: pa.Array) -> pa.Array:
    if pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        values = texts.cast(pa.binary()).to_pylist()
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values], pa.string())
    return texts


def _escaped(texts: pa.Array) -> pa.Array:
    """As inside the quotes of JSON."""
    for sign in _signs_in(texts, _ESCAPED):
        texts = pc.replace_substring(texts, sign, _JSON.encode(sign)[1:-1])
    return texts


def _quoted_if_needed(texts: pa.Array) -> pa.Array:
    needed = pc.equal(pc.binary_length(texts), 0)
    for sign in _signs_in(texts, ',"\n\r'):
        needed = pc.or_(needed, pc.match_substring(texts, sign))
    if not pc.any(needed, min_count=0).as_py():
        return texts
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(needed, quoted, texts)


def _signs_in(texts: pa.Array, signs: str) -> list[str]:
    """Which of some signs of ASCII are in the texts."""
    if not len(texts):
        return []
    whole = _Texts.of(texts)
    data = whole.data[whole.begin[0] : whole.end[-1]]
    low = data[data < 0x20].tobytes()
    return [sign for sign in signs if (ord(sign) in low if sign < " " else (data == ord(sign)).any())]


def _dates(column: pa.Array) -> pa.Array:
    days = pc.fill_null(column.cast(pa.int32()), 0).to_numpy(zero_copy_only=False)
    texts = pa.array(days).view(pa.date32()).cast(pa.string())
    far = np.flatnonzero((days < _PLAIN_DAYS[0]) | (days >= _PLAIN_DAYS[1]))
    return _with_nulls(_put(texts, far, [text_of_day(int(day)) for day in days[far]]), column)


def _times(column: pa.Array, zone: Zone) -> pa.Array:
    kind = column.type
    per_second = _PER_SECOND[kind.unit]
    at = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    offsets, offset_texts = _offsets(at // per_second, zone) if kind.tz else (np.zeros_like(at), "")
    local = at + offsets * per_second
    seconds = local // per_second
    far = np.flatnonzero((seconds < _PLAIN_DAYS[0] * _DAY_SECONDS) | (seconds >= _PLAIN_DAYS[1] * _DAY_SECONDS))
    near = local.copy()
    near[far] = 0
    texts = pa.array(near).view(pa.timestamp(kind.unit)).cast(pa.string())
    if len(texts):
        written = _Texts.of(texts)
        data = written.data.copy()
        data[written.begin + len("2026-01-01")] = ord("T")  # Arrow has a blank there
        texts = pa.Array.from_buffers(pa.string(), len(texts), [None, texts.buffers()[1], pa.py_buffer(data)])
    digits = len(str(per_second)) - 1
    made = []
    for row in far:  # in Python's integers, which end nowhere
        whole, part = divmod(int(at[row]) + int(offsets[row]) * per_second, per_second)
        day, second = divmod(whole, _DAY_SECONDS)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        made.append(f"{text_of_day(day)}T{clock}{f'.{part:0{digits}}' if digits else ''}")
    texts = pc.binary_join_element_wise(_put(texts, far, made), offset_texts, "")
    return _with_nulls(texts, column)


def _put(texts: pa.Array, rows: NDArray[np.intp], made: list[str]) -> pa.Array:
    """With other texts in these rows."""
    is_made = np.zeros(len(texts), np.bool_)
    is_made[rows] = True
    return pc.replace_with_mask(texts, pa.array(is_made), pa.array(made, pa.string())) if len(rows) else texts


def _with_nulls(texts: pa.Array, column: pa.Array) -> pa.Array:
    """Null where the column is."""
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _offsets(seconds: Int64s, zone: Zone) -> tuple[Int64s, Any]:
    """The offsets of a zone at these instants, and their texts: `Z`, `+01:00`, `+00:53:28`."""
    if isinstance(zone, int):
        return np.full_like(seconds, zone), _offset_text(zone)
    # A zone changes its offset at most once a day.
    days, of_day = np.unique(seconds // _DAY_SECONDS, return_inverse=True)
    ends = [(_offset_of_day(zone, day), _offset_of_day(zone, day + 1)) for day in days.tolist()]
    before, after = np.array(ends, np.int64).reshape(-1, 2)[of_day].T
    offsets = before.copy()
    for row in np.flatnonzero(before != after):
        offsets[row] = offset_at(zone, int(seconds[row]))
    known, of_row = np.unique(offsets, return_inverse=True)
    texts = pa.array([_offset_text(int(offset)) for offset in known], pa.string())
    return offsets, texts.take(pa.array(of_row))


@lru_cache(maxsize=1 << 15)
def _offset_of_day(zone: Zone, day: int) -> int:
    return offset_at(zone, day * _DAY_SECONDS)


def _offset_text(offset: int) -> str:
    if not offset:
        return "Z"
    minutes, second = divmod(abs(offset), 60)
    return f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}{f':{second:02}' if second else ''}"


def _base64(column: pa.Array) -> pa.Array:
    """Each value is filled up to whole groups of three bytes, encoded with all others, and marked where it was."""
    values = _Texts.of(column)
    sizes = np.where(column.is_valid().to_numpy(zero_copy_only=False), values.end - values.begin, 0)
    groups = (sizes + 2) // 3
    ends = np.cumsum(groups)
    filled = np.zeros(3 * int(groups.sum()), np.uint8)
    number = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    filled[number + np.repeat(3 * (ends - groups), sizes)] = values.data[number + np.repeat(values.begin, sizes)]
    encoded = np.frombuffer(binascii.b2a_base64(filled.data, newline=False), np.uint8).copy()
    for fill in (1, 2):
        encoded[4 * ends[3 * groups - sizes >= fill] - fill] = ord("=")
    offsets = np.concatenate(([0], 4 * ends)).astype(np.int32)
    texts = pa.Array.from_buffers(pa.string(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(encoded)])
    return _with_nulls(texts, column)


def _strings(texts: _Texts) -> pa.Array:
    """As Arrow has them."""
    joined = _joined([texts.pieces("")])
    offsets = np.append(joined.begin, len(joined.data)).astype(np.int32)
    made = pa.Array.from_buffers(
        pa.string(), len(joined.begin), [None, pa.py_buffer(offsets), pa.py_buffer(joined.data)]
    )
    return made if texts.valid is None else pc.if_else(pa.array(texts.valid), made, None)


def _joined(columns: Sequence[_Pieces], rows: int = 0) -> _Texts:
    """The texts of all columns of each row, those of one row behind those of another; no columns: empty texts."""
    sizes = sum((pieces.sizes for pieces in columns), np.zeros(1 if columns else rows, np.int64))
    ends = np.cumsum(sizes)
    begin = ends - sizes
    at = begin.copy()
    data = np.empty(int(sizes.sum()), np.uint8)
    for pieces in columns:
        texts = pieces.texts
        valid = _NO_BOOLS if texts.valid is None else read_only(texts.valid)
        opens, closes, missing = (
            np.frombuffer(each, np.uint8) for each in (pieces.opens, pieces.closes, pieces.missing)
        )
        places = read_only(texts.begin), read_only(texts.end)
        _put_texts(read_only(texts.data), *places, valid, opens, closes, missing, data, at)
    return _Texts(data, begin, ends)


_NO_BOOLS: Final = read_only(np.empty(0, np.bool_))
_IN: Final = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES_IN: Final = types.Array(types.int64, 1, "C", readonly=True)
_BOOLS_IN: Final = types.Array(types.boolean, 1, "C", readonly=True)


@kernel(
    types.void(
        *(_IN, _PLACES_IN, _PLACES_IN, _BOOLS_IN, _IN, _IN, _IN),
        types.Array(types.uint8, 1, "C"),
        types.Array(types.int64, 1, "C"),
    )
)
def _put_texts(
    data: Any, begin: Any, end: Any, valid: Any, opens: Any, closes: Any, missing: Any, out: Any, at: Any
) -> None:
    """Write a text of each row to out[at[row]:], with what stands around it; `at` is behind it then."""
    for row in range(begin.size):
        place = np.uint64(at[row])
        if valid.size and not valid[row]:
            for sign in missing:
                out[place] = sign
                place += np.uint64(1)
        else:
            for sign in opens:
                out[place] = sign
                place += np.uint64(1)
            first, size = np.uint64(begin[row]), np.uint64(end[row] - begin[row])
            for number in range(size):
                out[place + number] = data[first + number]
            place += size
            for sign in closes:
                out[place] = sign
                place += np.uint64(1)
        at[row] = place
