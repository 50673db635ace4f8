"""`_dedup.detail`: what was wrong with a record of the error port, in words without any value of the record.

It depends on the record and the settings alone, so the same window again has the same bytes. Only the rows of the error
port are examined, each by one exact pass over its line.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from deduper.arrow_columns import DeclaredColumn
from deduper.avro.framing import schema_id
from deduper.columns import Column
from deduper.core.verdict import Admission
from deduper.log_formats import LOGS
from deduper.tasks import layout
from deduper.tasks.readers.path_columns import NoValue, PathRule, PathText, path_value
from deduper.text.format import TextFormat
from deduper.text.values import Token
from deduper.text.wrong import Explainer, described

logger = logging.getLogger(__name__)

RecordFormat = Literal["json", "csv", "common_log", "combined_log", "logfmt", "text", "avro", "parquet"]

_SIGNATURES: Final = {
    b"\x1f\x8b": "gzip",
    b"PAR1": "Parquet",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"Obj\x01": "an Avro file",
    b"PK\x03\x04": "zip",
}
_ALL_FIT: Final = ("boolean", "binary")
"""Types whose every value in a Parquet file is valid."""
_MOST_FILES: Final = 1000
_BOM: Final = "\ufeff"
BYTE_ORDER_MARK: Final = "a byte order mark stands before the record"
_TIMESTAMP: Final = "timestamp"


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """How the errors of a job are explained; pickled into the writers.

    `columns` are the source's; the last ones are `record`, by the parts of the Kafka record they come from. `key` and
    `expiry` are numbers of columns. `fixed` are the details that follow from a reason alone, by its code. `zone` and
    `delimiter` are those of lines, `unit` is that of a number that is a time. `path_rule` is that of a source of files,
    whose paths may give columns. `schema_ids` are the numbers that values in Avro may have before them, none for any;
    None: they have none.
    """

    format: RecordFormat
    columns: tuple[DeclaredColumn, ...]
    record: tuple[str, ...]
    key: tuple[int, ...]
    expiry: int | None
    fixed: Mapping[int, str]
    zone: str = "UTC"
    delimiter: str = ","
    path_rule: PathRule | None = None
    unit: str | None = None
    schema_ids: tuple[int, ...] | None = None

    @property
    def of_value(self) -> int:
        """The number of columns that are the value's, or the file's."""
        return len(self.columns) - len(self.record)

    def path_texts(self, source: str) -> Mapping[str, PathText]:
        """The texts that the path of a file gives to columns, by name."""
        if self.path_rule is None or not source:
            return {}
        return self.path_rule.texts(source, [Column(column.name, column.kind) for column in self.columns])

    def lines_source(self, source: str) -> str:
        """The file by whose path a line is explained; empty where no path gives columns."""
        rule = self.path_rule
        return source if rule is not None and (rule.name_pattern is not None or "=" in source) else ""


class Examination:
    """Examines error rows; made for one writer's. Not for several threads."""

    def __init__(self, details: ErrorDetails) -> None:
        self._details = details
        self._lines: dict[str, LineDetails] = {}
        self._has_failed = False

    def details(self, rows: pa.RecordBatch, reasons: NDArray[np.int8], sources: Sequence[str]) -> pa.Array:
        """The detail of each row, which has the columns of `tasks.layout`; `sources` are the names of their files.

        A failure here does not fail the window: such a row has no detail.
        """
        raw = rows.column(layout.RAW).to_pylist()
        nulls = {
            number: rows.column(layout.parsed(number)).is_null().to_numpy(zero_copy_only=False)
            for number in range(len(self._details.columns))
            if layout.parsed(number) in rows.schema.names
        }
        found: list[str | None] = []
        for at, (code, text) in enumerate(zip(reasons.tolist(), raw, strict=True)):
            known = self._details.fixed.get(code)
            if known is None:
                known = self._examined(code, text, sources[at], {number: bool(of[at]) for number, of in nulls.items()})
            found.append(known)
        return pa.array(found, pa.string())

    def lines_of(self, source: str) -> LineDetails:
        """What the lines of a file hold."""
        if source not in self._lines:
            if len(self._lines) > _MOST_FILES:
                self._lines.clear()
            self._lines[source] = LineDetails(self._details, source)
        return self._lines[source]

    def _examined(self, code: int, raw: str | None, source: str, is_null: Mapping[int, bool]) -> str | None:
        details, lines = self._details, self.lines_of(self._details.lines_source(source))
        try:
            if code == Admission.MALFORMED:
                return _malformed(details, lines, raw, is_null)
            if code == Admission.INVALID_UTF8:
                return _invalid(details, lines, raw, is_null)
            if code == Admission.FILE_HEADER:
                return raw and raw.removeprefix(f"{source}: ")
            if code == Admission.NULL_EXPIRY and details.expiry is not None:
                return _absent(details, lines, raw, (details.expiry,), is_null)
            if code == Admission.NULL_KEY:
                return _absent(details, lines, raw, details.key, is_null)
        except Exception as exc:  # noqa: BLE001  the window is worth more than a text about it
            if not self._has_failed:
                logger.warning("an error record could not be explained: %s", type(exc).__name__)
                self._has_failed = True
        return None


class LineDetails:
    """The lines of a file: which columns they hold, and how they are explained.

    `explainer` is None where records are no lines of text; `stored` are the columns of its lines, by number.
    """

    def __init__(self, details: ErrorDetails, source: str) -> None:
        self.in_path = details.path_texts(source)
        numbers = range(details.of_value)
        # A column in the path has no field. A line needs one column at least; any will do.
        self.stored = [number for number in numbers if details.columns[number].name not in self.in_path] or [0]
        self.explainer: Explainer | None = None
        if details.format in ("json", "csv", *LOGS):
            columns = tuple(details.columns[number] for number in self.stored)
            self.explainer = Explainer(TextFormat.of(details.format, columns, details.zone, details.delimiter))


def _malformed(details: ErrorDetails, lines: LineDetails, raw: str | None, is_null: Mapping[int, bool]) -> str:
    stamp = details.of_value + details.record.index(_TIMESTAMP) if _TIMESTAMP in details.record else None
    if stamp is not None and is_null.get(stamp):
        return _beyond_us(details, stamp)
    if details.format == "avro":
        return _no_datum(details, base64.b64decode(raw or ""))
    found = None if lines.explainer is None or raw is None else wrong_line(lines.explainer, raw)
    found = found or _wrong_path(details, lines)
    if found is not None:
        return found
    if details.format == "parquet":
        return _wrong_value(details, lines, is_null)
    return "the line is no record of its format" if stamp is None else _beyond_us(details, stamp)


def wrong_line(explainer: Explainer, raw: str) -> str | None:
    """The reason why a line is no record; None when it is one.

    A mark before a file is no part of its lines. Before another record it may be a sign of a text.
    """
    found = explainer.malformed(raw)
    is_of_mark = raw.startswith(_BOM) and explainer.malformed(raw.lstrip(_BOM)) != found
    return BYTE_ORDER_MARK if is_of_mark else found


def _beyond_us(details: ErrorDetails, number: int) -> str:
    return f"{_name(details, number)}: beyond 64 bits of microseconds since 1970"


def _no_datum(details: ErrorDetails, value: bytes) -> str:
    if details.schema_ids is not None:
        number = schema_id(value)
        if number is None:
            return "the value does not begin with a schema's number, as Confluent's serializer writes it"
        if details.schema_ids and number not in details.schema_ids:
            known = ", ".join(map(str, details.schema_ids))
            return f"the value has the schema of number {number}; schema_ids are {known}"
    return "the value is not one whole datum of the Avro schema"


def _wrong_path(details: ErrorDetails, lines: LineDetails) -> str | None:
    kinds = {column.name: column.kind for column in details.columns}
    for name, text in lines.in_path.items():
        if text is NoValue.OTHER_NAME:
            return f"{name}: the name of the file does not match name_pattern"
        if isinstance(text, str) and isinstance(path_value(text, kinds[name], details.zone), NoValue):
            return f"{name}: {kinds[name].text} expected, the path of the file has {described(Token.TEXT, text)}"
    return None


def _wrong_value(details: ErrorDetails, lines: LineDetails, is_null: Mapping[int, bool]) -> str:
    """Of a Parquet file; its row has null where the value was."""
    columns = [details.columns[number] for number in lines.stored if is_null.get(number)]
    columns = [column for column in columns if column.kind.name not in (*_ALL_FIT, "string")]
    if len(columns) == 1:
        return f"{columns[0].name}: {columns[0].kind.text} expected, the file has a value that is none"
    names = f": one of {', '.join(column.name for column in columns)}" if columns else ""
    return f"the file has a value that is not one of its column's type{names}"


def _not_text(details: ErrorDetails, lines: LineDetails, is_null: Mapping[int, bool]) -> str:
    """Of a Parquet file; its row has null where the text was."""
    columns = [details.columns[number] for number in lines.stored if is_null.get(number)]
    names = [column.name for column in columns if column.kind.name == "string" or not column.kind.is_scalar]
    if len(names) == 1:
        return f"{names[0]}: bytes that are not UTF-8"
    return "bytes that are not UTF-8" + (f" in one of {', '.join(names)}" if names else "")


def _invalid(details: ErrorDetails, lines: LineDetails, raw: str | None, is_null: Mapping[int, bool]) -> str:
    if details.format == "parquet":
        return _not_text(details, lines, is_null)
    value = bytes_of(raw)
    if value is None and details.record:
        return f"bytes that are not UTF-8 in a part of the record: {', '.join(details.record)}"
    if details.format == "avro":
        return "a text in the value is not UTF-8"
    kind = None if value is None else signature(value)
    return "bytes that are not UTF-8" + (f", beginning as {kind} does" if kind else "")


def _absent(
    details: ErrorDetails, lines: LineDetails, raw: str | None, numbers: Sequence[int], is_null: Mapping[int, bool]
) -> str:
    """The columns, of those with these numbers, that have no value, and in which way."""
    ways = _ways(details, lines, raw, [number for number in numbers if number < details.of_value])
    if is_null:
        ways = {number: ways.get(number, "null") for number in numbers if is_null[number]}
    elif not ways:
        # Rows for topics have the record as it came, not its columns: what is not in the value is in the rest of it.
        candidates = [number for number in numbers if number >= details.of_value] or list(numbers)
        if len(candidates) > 1:
            return f"null in one of {', '.join(_name(details, number) for number in candidates)}"
        ways = dict.fromkeys(candidates, "null")
    return "; ".join(f"{_name(details, number)}: {ways[number]}" for number in sorted(ways))


def _name(details: ErrorDetails, number: int) -> str:
    name = details.columns[number].name
    return name if number < details.of_value else f"{name} (the record's {details.record[number - details.of_value]})"


def _ways(details: ErrorDetails, lines: LineDetails, raw: str | None, numbers: Sequence[int]) -> dict[int, str]:
    """By number, how columns of a value lack theirs: absent, null and so on; those for which it is known."""
    if details.format == "parquet":
        return dict.fromkeys(
            numbers, "null" + (", or no such column in the file" if details.path_rule is not None else "")
        )
    if raw is None:
        return dict.fromkeys(numbers, "the record has no value")
    if lines.explainer is None:
        return {}
    places = {lines.stored.index(number): number for number in numbers if number in lines.stored}
    found = {places[place]: way for place, way in lines.explainer.absent(raw, list(places)).items()}
    for number in numbers:
        if details.columns[number].name in lines.in_path and lines.in_path[details.columns[number].name] is None:
            found[number] = "null in the path of the file"
    return found


def signature(value: bytes) -> str | None:
    """The format or encoding that some bytes begin as."""
    return next((kind for sign, kind in _SIGNATURES.items() if value.startswith(sign)), None)


def bytes_of(raw: str | None) -> bytes | None:
    """The bytes of a record that is no text, which its error row has as Base64; None where it is a text."""
    try:
        value = base64.b64decode((raw or "").replace("\r\n", ""), validate=True)
        value.decode()
    except UnicodeDecodeError:
        return value
    except binascii.Error:
        return None
    return None
